// From a sentence to its maps: what every head of the model looks at, while it reads the sentence and writes its own
// translation of it.

import { hintOfRead, readBy } from "../lib/sentence.js";
import { SENTENCE } from "../lib/text.js";
import { sum } from "../model/arithmetic.js";
import { ALPHA, BEAM, searchFor } from "../model/search.js";
import { finish } from "../model/slices.js";
import { START } from "../model/subwords.js";

const MOST = 60; // subwords of a translation that are shown
export const KINDS = {
  cross: "cross-attention",
  encoder: "encoder self-attention",
  decoder: "decoder self-attention",
};

/** The weights of a kind of attention, by layer, head and query, while the model reads `ids` and writes `read` once more. */
function* weightsOf(model, ids, read) {
  const encoder = []; // by layer, query and head
  const memory = yield* model.reading(ids, (_, weights) => weights && encoder.push(weights));
  const decoder = []; // by query, then self-attention and cross-attention of each layer in turn, and head
  let past = null;
  for (const id of read) {
    const seen = [];
    past = model.step(memory, past, id, (_, weights) => weights && seen.push(weights)).past;
    decoder.push(seen);
    yield;
  }
  const numbers = (count) => [...Array(count).keys()];
  const maps = (rowsOf) =>
    numbers(model.N).map((layer) =>
      numbers(model.h).map((head) => rowsOf(layer).map((heads) => heads[head])),
    );
  return {
    cross: maps((layer) => decoder.map((seen) => seen[2 * layer + 1])),
    encoder: maps((layer) => encoder[layer]),
    decoder: maps((layer) => decoder.map((seen) => seen[2 * layer])),
  };
}

/** The mean of the maps of several heads. */
const meanOf = (heads) =>
  heads[0].map((row, query) => row.map((_, key) => sum(heads.map((map) => map[query][key])) / heads.length));

const inHundredths = (map) => map.map((row) => Array.from(row, (weight) => Math.round(100 * weight)));

/**
 * All maps of a sentence, as work that yields: `maps` by kind, layer and head, the mean of the heads last, in hundredths;
 * a row for each query. A row of decoder self-attention ends where the mask begins. `sides` has the subwords by kind.
 */
export function* sceneOf(model, { text }) {
  const read = readBy(model, text);
  const search = yield* searchFor(model, read);
  const { ended, written } = yield* search.translating(BEAM, ALPHA);
  let greedy = search.start;
  for (greedy of search.greedy()) yield;
  const shown = written.slice(0, MOST);
  const prefix = [START, ...shown.slice(0, -1)];
  const weights = yield* weightsOf(model, search.ids, prefix);
  const spell = (ids) => ids.map((id) => model.words[id]);
  const [source, hasRead, writes] = [search.ids, prefix, shown].map(spell);
  const withMean = (heads) => [...heads, meanOf(heads)].map(inHundredths);
  return {
    text,
    read,
    translation: model.decode(written),
    greedy: model.decode(greedy.written),
    hint: ended
      ? hintOfRead(text, read, source)
      : `It finds no end: the maps show its first ${shown.length} subwords.`,
    sides: {
      cross: { queries: writes, keys: source },
      encoder: { queries: source, keys: source },
      decoder: { queries: hasRead, keys: hasRead },
    },
    maps: Object.fromEntries(Object.entries(weights).map(([kind, layers]) => [kind, layers.map(withMean)])),
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (model) => finish(sceneOf(model, { text: SENTENCE }));
