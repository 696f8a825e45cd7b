// From a choice to a scene. A *choice* is a text, a place, a layer, a position on each side, and the parts that are
// unplugged (`cuts`). The model makes a *scene* of it: plain data, all that is shown.

import { likeliest, normalise } from "../model/arithmetic.js";
import { Search } from "../model/search.js";
import { finish } from "../model/slices.js";
import { START } from "../model/subwords.js";
import { unplugged } from "../model/unplug.js";
import { hintOfRead, readBy } from "../lib/sentence.js";
import { SENTENCE } from "../lib/text.js";
import { joined } from "./pieces.js";
import { ATTENTION, PARTS, placed, sideOf } from "./places.js";

export const FIRST = {
  text: SENTENCE,
  place: "decoder cross",
  layer: 2,
  encoder: 3, // hebt
  decoder: 3, // girl, where the verb is written next
  cuts: [],
};
export const MOST = 40; // subwords of a translation that are shown
export const SHADES = 8;

/** A sentence and its translation in the model: at each position the stream, and the weights. */
function* following(model, text) {
  const source = model.encode(text);
  const seen = { encoder: source.map(() => []), decoder: [] }; // by position, from the embedding on
  const memory = yield* model.reading(source, (states, weights) =>
    states.forEach((state, i) => seen.encoder[i].push({ state, weights: weights?.[i] })),
  );
  let path = null;
  for (path of new Search(model, source, memory).greedy()) {
    yield;
    if (path.written.length === MOST) break;
  }
  const { written } = path;
  const read = [START, ...written.slice(0, -1)];
  let past = null;
  for (const id of read) {
    const stream = [];
    past = model.step(memory, past, id, (state, weights) => stream.push({ state, weights })).past;
    seen.decoder.push(stream);
    yield;
  }
  return { model, ids: { encoder: source, decoder: read }, written, cut: !path.ended, seen };
}

const begun = new Map(); // what was followed last; who is interrupted goes on where it was

function* followed(model, text, cuts = []) {
  const name = [...cuts, text].join("|");
  if (!begun.has(name)) {
    if (begun.size > 4) begun.clear();
    begun.set(name, { work: following(cuts.length ? unplugged(model, cuts) : model, text), run: null });
  }
  const entry = begun.get(name);
  while (!entry.run) {
    const { done, value } = entry.work.next();
    if (done) entry.run = value;
    else yield;
  }
  return entry.run;
}

/** The vector that a position has at a place, in a layer. */
function vectorAt({ model, ids, seen }, place, layer, position) {
  const { side, part, kind, number } = placed(place);
  const stream = seen[side][position];
  if (part === "embedding") {
    const from = ids[side][position] * model.d_model;
    const row = model.vectors[side].slice(from, from + model.d_model);
    return row.map((value) => value * Math.sqrt(model.d_model));
  }
  if (part === "positions") return stream[0].state;
  if (number < 0) return normalise(stream[stream.length - 1].state, model.norms[side]);
  const before = layer * PARTS[side].length + number;
  const [{ state }, { state: after }] = stream.slice(before, before + 2);
  if (kind === "norm") return normalise(state, model[side][layer].norms[number]);
  return kind === "sum" ? after : after.map((value, i) => value - state[i]);
}

/** The weights of attention there, by head; null where there is none. */
function weightsAt({ seen }, place, layer, position) {
  if (!ATTENTION.includes(place)) return null;
  const { side, number } = placed(place);
  const heads = seen[side][position][layer * PARTS[side].length + number + 1].weights;
  return heads.map((weights) => Array.from(weights, (weight) => rounded(weight, 4)));
}

const rounded = (number, digits) => Math.round(number * 10 ** digits) / 10 ** digits;

/** What the generator finds likeliest at a position of the decoder. */
function nextOf(model, vector) {
  return likeliest(model.next(vector), 5).map(({ id, logp }) => ({
    id,
    piece: model.words[id],
    share: rounded(Math.exp(logp), 5),
  }));
}

/** A vector as shades of two colours, below zero and above. */
function shaded(vector) {
  const largest = Math.max(...vector.map(Math.abs));
  const shades = Array.from(
    vector,
    (value) => Math.sign(value) * Math.ceil((Math.abs(value) / largest) * SHADES),
  );
  return { shades, largest: rounded(largest, 1), length: rounded(Math.hypot(...vector), 1) };
}

/** Lengths of two vectors within a layer: of the stream before a part, and of what the part adds. */
function lengthsAt(run, place, layer, position) {
  const { side, part, number } = placed(place);
  if (number < 0) return null;
  const before = run.seen[side][position][layer * PARTS[side].length + number].state;
  const adds = vectorAt(run, `${side} ${part}`, layer, position);
  return { before: rounded(Math.hypot(...before), 1), adds: rounded(Math.hypot(...adds), 1) };
}

/** All that is shown of a choice, as work that yields. */
export function* sceneOf(model, asked) {
  const read = readBy(model, asked.text);
  const run = yield* followed(model, read, asked.cuts);
  const whole = yield* followed(model, read);
  const { ids, written, cut } = run;
  const spell = (list) => list.map((id) => model.words[id]);
  const position = (side) => Math.min(asked[side], ids[side].length - 1);
  const choice = { ...asked, encoder: position("encoder"), decoder: position("decoder") };
  const side = sideOf(choice.place);
  const at = [choice.place, choice.layer, choice[side]];
  const vector = vectorAt(run, ...at);
  const next = side === "decoder" ? written[choice.decoder] : null;
  const source = spell(ids.encoder);
  const endless = `It finds no end: the map shows its first ${written.length} subwords.`;
  const [translation, intact] = [run, whole].map((each) => joined(spell(each.written)));
  return {
    ...choice,
    read,
    translation,
    intact,
    hint: (cut && endless) || hintOfRead(asked.text, read, source),
    ids,
    pieces: { encoder: source, decoder: spell(ids.decoder), written: spell(written) },
    size: {
      layers: model.N,
      width: model.d_model,
      ff: model.d_ff,
      words: model.words.length,
    },
    weights: weightsAt(run, ...at),
    lengths: lengthsAt(run, ...at),
    strip: shaded(vector),
    says:
      choice.place === "decoder generator"
        ? nextOf(model, vector).map(({ id, piece, share }) => ({ piece, share, next: id === next }))
        : [],
  };
}

/** What the page shows before anybody has touched it; `sections` says where each place of the drawing leads. */
export const firstScene = (model, sections) => ({ ...finish(sceneOf(model, FIRST)), sections });
