// The stops of a token on its way through the model, and what is said at each of them.

import { decimal, grouped, spelt } from "../lib/text.js";
import { nameOf, placed } from "./places.js";
import { lookedAt, mostOf } from "./weights.js";

/** The stops: { place, layer }; `skipped`: the layers on the way here. */
export function stopsOf({ layers }) {
  const [first, last] = [0, layers - 1];
  const stops = [
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
export const stopAt = (stops, { place, layer }) =>
  stops.findIndex((stop) => stop.place === place && (stop.layer === layer || placed(place).number < 0));

/** Two sentences about what happens at a place, with the numbers of this text. */
export function captionOf(scene, stop) {
  const { place, layer, pieces, ids, size, strip, lengths, weights, says } = scene;
  const { side, part, kind } = placed(place);
  const position = scene[side];
  const word = `“${spelt(pieces[side][position])}”`;
  const length = decimal(strip.length, 1);
  const skipped = stop?.skipped ? `After ${layer} more ${layer === 1 ? "layer" : "layers"}: ` : "";
  if (part === "embedding")
    return [
      `${word} is token ${position + 1} of ${ids[side].length}, and row ${grouped(ids[side][position])} of ${grouped(size.words)} of the embedding.`,
      `Times √${size.width} = ${decimal(Math.sqrt(size.width), 1)}, it is a vector of length ${length}.`,
    ];
  if (part === "positions")
    return [
      scene.cuts.includes("positions")
        ? "Unplugged: nothing tells where the token stands."
        : `The sinusoids of position ${position} are added, a vector of length ${decimal(Math.sqrt(size.width / 2), 1)}.`,
      `It has length ${length}: this is where the residual stream begins.`,
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
      side === "encoder" ? "It goes into the memory." : "The generator reads nothing else.",
    ];
  if (kind === "norm")
    return [
      `The norm takes the vector from length ${decimal(lengths.before, 1)} to ${length}.`,
      `Only ${nameOf(`${side} ${part}`).replace(": what it adds", "")} reads it: the stream itself stays as it is.`,
    ];
  if (kind === "sum")
    return [
      `${skipped}A vector of length ${decimal(lengths.adds, 1)} is added to one of ${decimal(lengths.before, 1)}; the sum has ${length}.`,
      `The vector still belongs to ${word}, and now holds something of its neighbours.`,
    ];
  if (weights) {
    const looked = lookedAt(scene).pieces;
    const heads = weights.map((row) => mostOf(row, looked)).join(", ");
    return [
      `${skipped}${word} attends most to ${heads}, head by head.`,
      `What it finds there becomes a vector of length ${length}.`,
    ];
  }
  return [
    `${size.width} numbers become ${size.ff}, pass the ReLU, and become ${size.width} again: a vector of length ${length}.`,
    "No other position takes part.",
  ];
}
