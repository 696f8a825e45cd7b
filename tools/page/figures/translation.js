// From a choice to a scene: what the translator of the first screen is asked, and all that it shows.
//
// A *choice* is all that a reader has done: the `text`; the blindfolds that are on (`off`); the words of the source that
// are `covered`; the ids up to the last word that was `chosen`; the head whose attention is drawn (`view`); the subword
// whose alternatives are open (`at`, null for the one that the model is least sure of). It is also an address. The model
// makes a *scene* of it: plain data.

import { likeliest, sum } from "./model/arithmetic.js";
import { pathsTo, searchFor } from "./model/search.js";
import { finish } from "./model/slices.js";
import { END, SPACE } from "./model/subwords.js";
import { unplugged } from "./model/unplug.js";
import { TELLING } from "./lib/corpus.js";
import { fitted, hintOfRead, readBy } from "./lib/sentence.js";
import { continued, goesOn, SENTENCE, wordsIn } from "./lib/text.js";

export const BLINDFOLDS = ["eyes", "order", "wrote"];
const MOST = 28; // subwords of a sentence that has gone wrong
const OFFERED = 5; // words
const LEAST = 0.0005; // of a word that is offered: 0.1 %
const FAINT = 0.0895; // of attention: less is not drawn, and not told

/** What the model is without: the parts that blindfolds take, and positions of the source. */
export function cutsOf(off, positions) {
  const cuts = { eyes: "decoder cross", order: "positions", wrote: "decoder attention" };
  return [...off.map((name) => cuts[name]), ...positions.map((s) => `source ${s}`)];
}

const rounded = (share) => Math.round(1e4 * share) / 1e4;

/** Cross-attention of a path at its next symbol, as far as it counts: of one head, or the mean of a layer. */
function weightsOf(path, { layer, head }) {
  const heads = path.next.cross[layer];
  const weights =
    head === null ? heads[0].map((_, s) => sum(heads.map((row) => row[s])) / heads.length) : heads[head];
  return [...weights].map((weight) => (weight < FAINT ? 0 : Math.round(1000 * weight) / 1000));
}

const favourite = (path) => likeliest(path.next.logProbs, 1)[0].id;

/** The path with the rest of the word that its last subword has begun. */
function* wholeWord(search, path) {
  while (path.next && goesOn(search.model.words[favourite(path)])) {
    path = search.extend(path, favourite(path));
    yield;
  }
  return path;
}

/** What could stand where a word does: its likeliest beginnings, each with the rest of its word, and the others. */
function* offersOf(search, paths, word) {
  const [begun, taken] = [paths[word[0]], paths[word[word.length - 1]]];
  const { from: start } = begun;
  const own = begun.written[word[0]];
  const ids = likeliest(start.next.logProbs, OFFERED).map(({ id }) => id);
  if (!ids.includes(own)) ids[OFFERED - 1] = own;
  const all = [];
  for (const id of ids) {
    const path = id === own ? taken : yield* wholeWord(search, search.extend(start, id));
    const written = path.written.slice(start.written.length);
    const piece = search.model.words[id];
    const says = id === END ? "end here" : search.model.decode(written);
    const spelt = goesOn(piece) ? continued(says) : says;
    const share = rounded(Math.exp(path.logp - start.logp));
    all.push({ ids: written, word: spelt, share, taken: id === own });
  }
  all.sort((one, other) => other.share - one.share);
  const list = all.filter(({ share, taken }) => taken || share >= LEAST);
  return { list, rest: rounded(Math.max(0, 1 - sum(list.map(({ share }) => share)))) };
}

/** The word that the model was least sure how to begin, of those that nobody has chosen. */
function forkOf(words, decisions, chosen) {
  const shares = words.map(([t]) =>
    t >= chosen && decisions[t].piece.startsWith(SPACE) ? decisions[t].share : 2,
  );
  return shares.indexOf(Math.min(...shares));
}

/** All that is shown of a choice, as work that yields. */
export function* sceneOf(model, choice) {
  const read = readBy(model, choice.text);
  const intact = yield* searchFor(model, read);
  const source = intact.ids.map((id) => model.words[id]);
  const sourceWords = wordsIn(source);
  const covered = choice.covered.filter((word) => word < sourceWords.length - 1); // all but the end
  const positions = covered.flatMap((word) => sourceWords[word]);
  const cuts = cutsOf(choice.off, positions);
  const search = cuts.length ? yield* searchFor(unplugged(model, cuts), read, cuts.join()) : intact;

  let truth = intact.start;
  for (truth of intact.greedy()) yield;
  let last = search.start;
  const known = choice.chosen.every((id) => id < model.words.length) ? choice.chosen : [];
  for (const id of known) if (last.next) last = search.extend(last, id);
  const chosen = last.written;
  while (last.next && !(cuts.length && last.written.length >= MOST)) {
    last = search.extend(last, favourite(last));
    yield;
  }

  const paths = pathsTo(last);
  const blind = choice.off.includes("eyes");
  const decisions = paths.map((path, t) => ({
    piece: model.words[path.written[t]],
    share: rounded(Math.exp(path.logp - path.from.logp)),
    weights: blind ? [] : weightsOf(path.from, choice.view),
    own: t < chosen.length && path.written[t] !== favourite(path.from),
  }));
  const words = wordsIn(decisions.map(({ piece }) => piece));
  const at = words.findIndex((word) => word.includes(choice.at));
  const open = at < 0 ? forkOf(words, decisions, chosen.length) : at;
  return {
    ...choice,
    read,
    covered,
    chosen,
    source,
    ids: last.written,
    decisions,
    offers: yield* offersOf(search, paths, words[open]),
    open,
    ended: last.ended,
    says: model.decode(last.written),
    truth: model.decode(truth.written),
    hint: hintOfRead(choice.text, read, source),
    size: { layers: model.N, heads: model.h, words: model.words.length },
  };
}

/** What is shown of a text that nobody has played with. */
export const untouched = (text) => ({ text, covered: [], chosen: [], at: null });

/**
 * What the page shows before anybody has touched it, with the `answers` to a first touch: a word that is asked about or
 * covered, another word at the open one, a blindfold, and the caption on which that shows. Each holds what differs.
 */
export function firstScene(model) {
  const choice = { ...untouched(SENTENCE), off: [], view: { layer: model.N - 1, head: null } };
  const first = finish(sceneOf(model, choice));
  const wordsOf = (pieces) => wordsIn(pieces).slice(0, -1); // without the end
  const written = wordsOf(first.decisions.map(({ piece }) => piece));
  const [at] = written[first.open];
  const touches = [
    ...written.map(([t]) => ({ at: t })),
    ...first.offers.list.map(({ ids }) => ({ at, chosen: [...first.ids.slice(0, at), ...ids] })),
    ...BLINDFOLDS.map((name) => ({ off: [name] })),
    ...Object.entries(TELLING).map(([name, text]) => ({ off: [name], text })),
    ...wordsOf(first.source).map((_, word) => ({ covered: [word] })),
  ];
  const differs = ([name, value]) => JSON.stringify(value) !== JSON.stringify(first[name]);
  const answerTo = (touch) => Object.entries(finish(sceneOf(model, { ...choice, ...touch }))).filter(differs);
  return { ...first, answers: touches.map((touch) => Object.fromEntries(answerTo(touch))) };
}

/**
 * `#s=sentence`, with a `b` for blindfolds, a `c` for covered words, a `w` for the ids that the reader has chosen, a `v`
 * for layer and head, and an `at` for the subword that is looked at.
 */
export function addressOf({ text, off, covered, chosen, view, at }) {
  const parts = {
    b: off,
    c: covered,
    w: chosen,
    v: view.head === null ? [view.layer] : [view.layer, view.head],
  };
  const lists = Object.entries(parts).filter(([, list]) => list.length);
  const named = lists.map(([name, list]) => `${name}=${list.join(".")}`);
  return [`#s=${encodeURIComponent(text)}`, ...named, ...(at === null ? [] : [`at=${at}`])].join("&");
}

/** What an address asks for; null where it asks for no sentence, or for what cannot be. */
export function choiceIn(hash, { layers, heads }) {
  if (!hash.startsWith("#s=")) return null;
  const parts = hash.slice(1).split("&");
  const asked = new Map(parts.map((part) => part.split("=")));
  const list = (name) => (asked.get(name) ?? "").split(".").filter(Boolean);
  const numbers = (name) => list(name).map(Number);
  const [chosen, covered, view, [at = null]] = ["w", "c", "v", "at"].map(numbers);
  if (![...chosen, ...covered, ...view, at ?? 0].every((each) => Number.isInteger(each) && each >= 0))
    return null;
  const [layer, head = null] = view;
  const seen = layer < layers && (head === null || head < heads) ? { view: { layer, head } } : {};
  const off = BLINDFOLDS.filter((name) => list("b").includes(name));
  try {
    const text = fitted(decodeURIComponent(asked.get("s")));
    return text ? { text, off, covered, chosen, at, ...seen } : null;
  } catch {
    return null; // an address may hold anything
  }
}
