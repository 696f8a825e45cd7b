// From a choice to a scene: what the translator of the first screen is asked, and all that it shows.
//
// A *choice* is a text, how to search, the ids that the reader has chosen, the path that they left (`old`), the head
// whose attention is drawn. The model makes a *scene* of it: plain data.

import { likeliest, sum } from "./model/arithmetic.js";
import { ALPHA, BEAM, pathsTo, searchFor } from "./model/search.js";
import { finish } from "./model/slices.js";
import { SPACE } from "./model/subwords.js";
import { fitted, hintOfRead, readBy } from "./lib/sentence.js";
import { SENTENCE } from "./lib/text.js";

/** Cross-attention of a path at its next symbol: of one head, or the mean of a layer. */
function weightsOf(path, { layer, head }) {
  const heads = path.next.cross[layer];
  const weights =
    head === null ? heads[0].map((_, s) => sum(heads.map((row) => row[s])) / heads.length) : heads[head];
  return [...weights].map((weight) => Math.round(1000 * weight) / 1000);
}

/** The five likeliest at a decision, the one that was taken among them, and what the others have. */
function offersOf(model, path) {
  const { logProbs } = path.from.next;
  const taken = path.written[path.written.length - 1];
  const best = likeliest(logProbs, 5);
  if (best.every(({ id }) => id !== taken)) best[4] = { id: taken, logp: logProbs[taken] };
  const offers = best.map(({ id, logp }) => ({ id, piece: model.words[id], share: Math.exp(logp) }));
  const rest = 1 - sum(offers.map(({ share }) => share));
  return { offers, taken, rest: Math.max(0, rest), others: logProbs.length - offers.length };
}

/** The most uncertain word: its step, the first being 1. A choice, and what stands before it, is certain. */
function mostUncertain(decisions, chosen) {
  const words = decisions.map(({ piece, share }, t) =>
    t >= chosen && piece.startsWith(SPACE) && piece !== SPACE ? share : 2,
  );
  return words.indexOf(Math.min(...words)) + 1;
}

/** What the reader's last choice has put aside: where the old path leaves this one, and its rest. */
function ghostOf(model, old, written, chosen) {
  if (!chosen || !old.length || String(old) === String(written)) return null;
  const before = model.decode(written.slice(0, chosen - 1));
  return { before, rest: model.decode(old).slice(before.length) };
}

/** All that is shown of a choice, as work that yields. */
export function* sceneOf(model, choice) {
  const read = readBy(model, choice.text);
  const search = yield* searchFor(model, read);
  const known = (ids) => (ids.every((id) => id < model.words.length) ? ids : []);
  let last = search.start;
  for (const id of known(choice.chosen)) if (last.next) last = search.extend(last, id);
  const chosen = last.written;
  if (choice.beam) last = yield* search.translating(BEAM, ALPHA, last);
  else for (last of search.greedy(last)) yield;
  const paths = pathsTo(last);
  const source = search.ids.map((id) => model.words[id]);
  const runaway = "It finds no end, and is stopped after fifty subwords more than the source has.";
  const decisions = paths.map((path) => ({
    piece: model.words[path.written[path.written.length - 1]],
    share: Math.exp(path.logp - path.from.logp),
    before: model.decode(path.from.written),
    weights: weightsOf(path.from, choice.view),
    ...offersOf(model, path),
  }));
  return {
    ...choice,
    read,
    chosen,
    source,
    ids: last.written,
    decisions,
    stop: mostUncertain(decisions, chosen.length),
    ghost: ghostOf(model, known(choice.old), last.written, chosen.length),
    hint: last.ended ? hintOfRead(choice.text, read, source) : runaway,
    size: { layers: model.N, heads: model.h },
  };
}

/** What the page shows before anybody has touched it. */
export function firstScene(model) {
  const view = { layer: model.N - 1, head: null };
  return finish(sceneOf(model, { text: SENTENCE, beam: true, chosen: [], old: [], view }));
}

// In an address --------------------------------------------------------------------------------------

/**
 * `#s=sentence`, with `g` for greedy decoding, a `w` for the ids that the reader has chosen, an `o` for
 * those of the path they left, a `v` for layer and head, and an `at` for the word that is looked at.
 */
export function addressOf({ text, beam, chosen, old, view, at }) {
  const parts = [
    `s=${encodeURIComponent(text)}`,
    ...(beam ? [] : ["g"]),
    ...(chosen.length ? [`w=${chosen.join(".")}`] : []),
    ...(chosen.length && old.length ? [`o=${old.join(".")}`] : []),
    ...(view ? [`v=${view.layer}${view.head === null ? "" : `.${view.head}`}`] : []),
    ...(at ? [`at=${at}`] : []),
  ];
  return `#${parts.join("&")}`;
}

/** What an address asks for; null where it asks for no sentence, or for what cannot be. */
export function choiceIn(hash, { layers, heads }) {
  if (!hash.startsWith("#s=")) return null;
  const asked = new Map(
    hash
      .slice(1)
      .split("&")
      .map((part) => part.split("=")),
  );
  const numbers = (name) => (asked.get(name) ?? "").split(".").filter(Boolean).map(Number);
  const [chosen, old, view, at] = ["w", "o", "v", "at"].map(numbers);
  if (![...chosen, ...old, ...view, ...at].every((each) => Number.isInteger(each) && each >= 0)) return null;
  const [layer, head = null] = view;
  const seen = layer < layers && (head === null || head < heads) ? { view: { layer, head } } : {};
  try {
    const text = fitted(decodeURIComponent(asked.get("s")));
    return text ? { text, beam: !asked.has("g"), chosen, old, at: at[0] ?? null, ...seen } : null;
  } catch {
    return null; // an address may hold anything
  }
}
