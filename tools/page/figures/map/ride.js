// The ride: the stops of a token on its way through the model, and what is said at each of them.

import { decimal, grouped, spelt } from "../lib/text.js";
import { Button, html } from "../lib/ui.js";
import { nameOf, placed, rowOf, sideOf } from "./places.js";
import { lookedAt, mostOf } from "./weights.js";

/** The stops: { place, layer }; `start`: the ids, before the embedding; `skipped`: the layers on the way here. */
export function stopsOf({ layers }) {
  const [first, last] = [0, layers - 1];
  const stops = [
    { place: "encoder embedding", layer: first, start: true },
    { place: "encoder embedding", layer: first },
    { place: "encoder positions", layer: first },
    { place: "encoder attention", layer: first },
    { place: "encoder attention sum", layer: first },
    { place: "encoder feed-forward", layer: first },
    { place: "encoder feed-forward sum", layer: first },
    { place: "encoder feed-forward sum", layer: last, skipped: true },
    { place: "encoder memory", layer: last },
    { place: "decoder embedding", layer: first },
    { place: "decoder attention", layer: first },
    { place: "decoder cross", layer: first },
    { place: "decoder feed-forward sum", layer: first },
    { place: "decoder cross", layer: last, skipped: true },
    { place: "decoder feed-forward sum", layer: last },
    { place: "decoder final", layer: last },
    { place: "decoder generator", layer: last },
  ];
  return stops.filter(({ skipped }) => !skipped || layers > 1);
}

/** The stop that a scene shows; -1 for a box beside the way. */
export const stopAt = (stops, { place, layer, start }) =>
  stops.findIndex(
    (stop) =>
      stop.place === place &&
      Boolean(stop.start) === start &&
      (stop.layer === layer || placed(place).number < 0),
  );

/** What the lens finds in a row of the decoder's table: [piece, share], as words. */
function guessIn({ tables, decoder }, row) {
  const { piece, share } = tables.decoder.rows[row][decoder];
  return [`“${spelt(piece)}”`, decimal(share)];
}

/** How the guess changes here, against the stop before. */
function guessOf(scene, last) {
  const row = rowOf(scene).row;
  const from =
    last && sideOf(last.place) === "decoder"
      ? rowOf({ ...last, size: scene.size }).row
      : Math.max(0, row - 1);
  const [[was, before], [is, now]] = [guessIn(scene, from), guessIn(scene, row)];
  if (was !== is) return `The guess changes from ${was} (${before}) to ${is} (${now}).`;
  return before === now
    ? `The guess here is ${is} (${now}).`
    : `The guess stays ${is}, from ${before} to ${now}.`;
}

/** Two sentences about what happens at a place, with the numbers of this text. */
export function captionOf(scene, stop, before) {
  const { place, layer, pieces, ids, size, strip, lengths, weights, says } = scene;
  const { side, part, kind } = placed(place);
  const position = scene[side];
  const word = `“${spelt(pieces[side][position])}”`;
  const length = decimal(strip.length, 1);
  const guess = side === "decoder" ? guessOf(scene, before) : "";
  const skipped = stop?.skipped ? `After ${layer} more ${layer === 1 ? "layer" : "layers"}: ` : "";
  if (scene.start)
    return [
      `${word} is token ${position + 1} of ${ids[side].length}, id ${grouped(ids[side][position])} of ${grouped(size.words)}.`,
      "The model reads nothing but these numbers.",
    ];
  if (part === "embedding")
    return [
      `Row ${grouped(ids[side][position])} of the embedding, times √${size.width} = ${decimal(Math.sqrt(size.width), 1)}.`,
      `${word} is now ${size.width} numbers, a vector of length ${length}.`,
    ];
  if (part === "positions")
    return [
      `The sinusoids of position ${position} are added, a vector of length ${decimal(Math.sqrt(size.width / 2), 1)}.`,
      `The sum has length ${length}: this is where the residual stream begins.`,
    ];
  if (part === "generator")
    return [
      `A projection gives ${grouped(size.words)} logits; the softmax turns them into probabilities.`,
      `“${spelt(says[0].piece)}” has ${decimal(says[0].share)}, then “${spelt(says[1].piece)}” ${decimal(says[1].share)}.`,
    ];
  if (part === "memory")
    return [
      `The ${ids.encoder.length} vectors that leave the encoder are the memory; the one of ${word} has length ${length}.`,
      "Cross-attention in every decoder layer takes its keys and values from them.",
    ];
  if (part === "final")
    return [
      `After ${size.layers} layers a final norm: the vector now has length ${length}.`,
      guess || "It goes into the memory.",
    ];
  if (kind === "norm")
    return [
      `The norm takes the vector from length ${decimal(lengths.before, 1)} to ${length}.`,
      `Only ${nameOf(`${side} ${part}`).replace(": what it adds", "")} reads it: the stream itself stays as it is.`,
    ];
  if (kind === "sum")
    return [
      `${skipped}A vector of length ${decimal(lengths.adds, 1)} is added to one of ${decimal(lengths.before, 1)}; the sum has ${length}.`,
      guess || `The vector still belongs to ${word}, and now holds something of its neighbours.`,
    ];
  if (weights) {
    const looked = lookedAt(scene).pieces;
    const heads = weights.map((row) => mostOf(row, looked)).join(", ");
    return [
      `${skipped}${word} attends most to ${heads}, head by head.`,
      guess || `What it finds there becomes a vector of length ${length}.`,
    ];
  }
  return [
    `${size.width} numbers become ${size.ff}, pass the ReLU, and become ${size.width} again: a vector of length ${length}.`,
    guess || "No other position takes part.",
  ];
}

/** Play, the stops before and after, and a slider. Where a box beside the way is shown, no stop is counted. */
export function Ride({ player, stops, isStop, onStop }) {
  const { at, playing } = player;
  const stop = stops[at - 1];
  const name = `${sideOf(stop.place)}: ${stop.start ? "ids" : nameOf(stop.place)}`;
  return html`<div class="player ride" role="group" aria-label="Ride through the model">
    <${Button} class="play" onClick=${() => onStop("play")}>${playing ? "Pause" : "Play"}<//>
    <${Button} aria-label="Previous stop" off=${at <= 1} onClick=${() => onStop(at - 1)}>‹<//>
    <input type="range" min="1" max=${stops.length} step="1" value=${at} aria-label="Stop" aria-valuetext=${name}
      onInput=${({ target }) => onStop(Number(target.value))} />
    <${Button} aria-label="Next stop" off=${at >= stops.length} onClick=${() => onStop(at + 1)}>›<//>
    <span class="count">${isStop ? `${at} of ${stops.length}` : `${stops.length} stops`}</span>
  </div>`;
}
