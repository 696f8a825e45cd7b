// From a choice, a sentence and a width, to a scene: all steps of the search, each with what it keeps, and greedy
// decoding beside it.

import { SEARCHED } from "../lib/corpus.js";
import { hintOfRead, readBy } from "../lib/sentence.js";
import { ALPHA, searchFor } from "../model/search.js";
import { finish, listing } from "../model/slices.js";

const FIRST = { text: SEARCHED[0], width: 3 };

const rounded = (number) => Math.round(1e5 * number) / 1e5;

/** A path as it is told and drawn. */
function noted(search, path) {
  const { words } = search.model;
  return {
    piece: words[path.written[path.written.length - 1]] ?? "",
    text: search.model.decode(path.written),
    share: rounded(Math.exp(path.logp - (path.from?.logp ?? 0))),
    logp: rounded(path.logp),
    score: rounded(search.score(path, ALPHA)),
    length: path.written.length,
    ended: path.ended,
    goesOn: path.next !== null,
  };
}

/** A step as it is drawn: what it keeps, and which place is the best and which greedy's. */
function stepOf(search, { before, paths }, greedy) {
  const kept = paths.map((path) => {
    const waits = before.includes(path); // it had ended before, and keeps its place
    return { ...noted(search, path), waits, from: before.indexOf(waits ? path : path.from) };
  });
  return { kept, best: paths.indexOf(search.best(paths, ALPHA)), greedy: paths.indexOf(greedy) };
}

/** All that is shown of a choice, as work that yields. */
export function* sceneOf(model, choice) {
  const { text, width } = choice;
  const read = readBy(model, text);
  const search = yield* searchFor(model, read);
  const grown = yield* listing(search.beam(width, ALPHA));
  const greedy = yield* listing(search.greedy());
  const start = { kept: [noted(search, search.start)], best: 0, greedy: 0 };
  const steps = grown.map((step, i) => stepOf(search, step, greedy[Math.min(i, greedy.length - 1)]));
  const pieces = search.ids.map((id) => model.words[id]);
  return {
    ...choice,
    read,
    hint: hintOfRead(text, read, pieces),
    steps: [start, ...steps],
    greedy: greedy.map((path) => noted(search, path)),
    symbols: model.words.length,
    longest: search.longest,
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (model) => finish(sceneOf(model, FIRST));
