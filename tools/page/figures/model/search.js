// Greedy decoding and the beam of Part 7, for one sentence.

import { likeliest } from "./arithmetic.js";
import { END, START } from "./subwords.js";

export const BEAM = 4; // of the paper, as alpha is
export const ALPHA = 0.6;

/** What a log-probability is divided by; `length` counts the end, not the start. */
export const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/**
 * One sentence being translated. A path is a beginning of the translation: { written, logp, ended,
 * from, next }, where `next` is what `Transformer.step` says after the last symbol of `written`.
 */
export class Search {
  constructor(model, ids, memory) {
    this.model = model;
    this.ids = ids;
    this.memory = memory;
    this.longest = Math.min(ids.length + 50, model.max_len) - 1;
    const next = model.step(memory, null, START);
    this.start = { written: [], logp: 0, ended: false, from: null, next };
  }

  /** The search for a text, as work that yields; a subclass makes its own kind. */
  static *opening(model, text) {
    const ids = model.encode(text);
    return new this(model, ids, yield* model.reading(ids));
  }

  /** The path that goes on with one symbol; it is computed once, and then remembered. */
  extend(path, id) {
    path.longer ??= new Map();
    if (!path.longer.has(id)) path.longer.set(id, this.grown(path, id));
    return path.longer.get(id);
  }

  grown(path, id) {
    const written = [...path.written, id];
    const ended = id === END;
    const longer = { written, logp: path.logp + path.next.logProbs[id], ended, from: path, next: null };
    if (!ended && written.length < this.longest)
      longer.next = this.model.step(this.memory, path.next.past, id);
    return longer;
  }

  /** The likeliest symbol, again and again: the paths from `path` on, one symbol longer each time. */
  *greedy(path = this.start) {
    let longest = path;
    while (longest.next) {
      longest = this.extend(longest, likeliest(longest.next.logProbs, 1)[0].id);
      yield longest;
    }
  }

  /** Of all symbols after all paths the best `count`, by their total log-probability. */
  candidates(paths, count) {
    const going = paths.filter((path) => path.next);
    const proposed = going.flatMap((path) =>
      likeliest(path.next.logProbs, count).map(({ id, logp }) => ({ path, id, total: path.logp + logp })),
    );
    const possible = proposed.filter(({ total }) => total > -Infinity);
    return possible.sort((one, other) => other.total - one.total).slice(0, count);
  }

  /** Beam search from `path` on, step by step: the paths `before`, and the `paths` then. An ended path keeps its place. */
  *beam(width, alpha, path = this.start) {
    let before = [path];
    while (!this.decided(before, alpha)) {
      const ended = before.filter((each) => each.ended);
      const free = width - ended.length;
      const kept = this.candidates(before, free).map(({ path: from, id }) => this.extend(from, id));
      const paths = [...ended, ...kept];
      yield { before, paths };
      before = paths;
    }
  }

  /** The best path that a beam ends with, as work that yields after each step. */
  *translating(width, alpha, path = this.start) {
    let last = [path];
    for ({ paths: last } of this.beam(width, alpha, path)) yield;
    return this.best(last, alpha);
  }

  score(path, alpha) {
    return path.logp / lengthPenalty(path.written.length, alpha);
  }

  best(paths, alpha) {
    return paths.reduce((one, other) => (this.score(other, alpha) > this.score(one, alpha) ? other : one));
  }

  /** Can no path that goes on still beat the best that has ended? */
  decided(paths, alpha) {
    const scores = paths.filter((path) => path.ended).map((path) => this.score(path, alpha));
    const bounds = paths
      .filter((path) => path.next)
      .map((path) => path.logp / lengthPenalty(this.longest, alpha));
    return Math.max(...scores) >= Math.max(...bounds);
  }
}

/** The paths that have become this one, and it: each a symbol longer than the one before. */
export function pathsTo(path) {
  const paths = [];
  for (let each = path; each.from; each = each.from) paths.push(each);
  return paths.reverse();
}

const searches = new Map(); // the last ones, by text: they compute nothing twice, whichever figure asks

/** The search for a text, begun or remembered, as work that yields; `less` says what the model is without. */
export function* searchFor(model, text, less = "") {
  const name = `${less}|${text}`;
  if (!searches.has(name)) {
    if (searches.size > 8) searches.clear();
    searches.set(name, yield* Search.opening(model, text));
  }
  return searches.get(name);
}
