// From a plan to a scene. A *plan* is a sentence, a width and an alpha. The scene has all steps of the search, each
// with what it keeps and the best of what it cuts, and greedy decoding beside it.

import { SEARCHED } from "../lib/corpus.js";
import { hintOfRead, readBy } from "../lib/sentence.js";
import { likeliest } from "../model/arithmetic.js";
import { searchFor } from "../model/search.js";
import { finish, listing } from "../model/slices.js";

export const FIRST = { text: SEARCHED[0], width: 3, alpha: 0.6 };
export const SHOWN = 3; // of what a step cuts, and at least of what a hypothesis proposes

const rounded = (number) => Math.round(1e5 * number) / 1e5;

/** A path as it is told and drawn, with the likeliest that it proposes next. */
function noted(search, path, { width, alpha }) {
  const { words } = search.model;
  const number = Math.max(width, SHOWN);
  const proposed = path.next ? likeliest(path.next.logProbs, number) : [];
  return {
    piece: words[path.written[path.written.length - 1]] ?? "",
    text: search.model.decode(path.written),
    share: rounded(Math.exp(path.logp - (path.from?.logp ?? 0))),
    logp: rounded(path.logp),
    score: rounded(search.score(path, alpha)),
    length: path.written.length,
    ended: path.ended,
    proposals: proposed.map(({ id, logp }) => ({
      piece: words[id],
      share: rounded(Math.exp(logp)),
      logp: rounded(path.logp + logp),
    })),
  };
}

/** A step as it is drawn: what it keeps, the best of what it cuts, and which place is the best and which greedy's. */
function stepOf(search, plan, { before, paths, cut }, greedy) {
  const { model } = search;
  const from = (path) => before.indexOf(path);
  const kept = paths.map((path) => {
    const waits = before.includes(path); // it had ended before, and keeps its place
    return { ...noted(search, path, plan), waits, from: from(waits ? path : path.from) };
  });
  const given = cut.map(({ path, id, total }) => ({
    piece: model.words[id],
    text: model.decode([...path.written, id]),
    share: rounded(Math.exp(total - path.logp)),
    logp: rounded(total),
    from: from(path),
  }));
  return {
    kept,
    cut: given,
    best: paths.indexOf(search.best(paths, plan.alpha)),
    greedy: paths.indexOf(greedy),
  };
}

/** All that is shown of a plan, as work that yields. */
export function* sceneOf(model, plan) {
  const { text, width, alpha } = plan;
  const read = readBy(model, text);
  const search = yield* searchFor(model, read);
  const grown = yield* listing(search.beam(width, alpha, { spare: Math.min(width, SHOWN) }));
  const greedy = yield* listing(search.greedy());
  const steps = [{ kept: [noted(search, search.start, plan)], cut: [], best: 0, greedy: 0 }];
  for (const [i, step] of grown.entries()) {
    steps.push(stepOf(search, plan, step, greedy[Math.min(i, greedy.length - 1)]));
    yield;
  }
  const own = [];
  for (const path of greedy) {
    own.push(noted(search, path, plan));
    yield;
  }
  const pieces = search.ids.map((id) => model.words[id]);
  return {
    ...plan,
    read,
    hint: hintOfRead(text, read, pieces),
    steps, // the first is the start
    greedy: own,
    subwords: model.words.length,
    longest: search.longest,
  };
}

/** What the page shows before anybody has touched it, as work that yields. */
export const opening = (model) => sceneOf(model, FIRST);

export const firstScene = (model) => finish(opening(model));
