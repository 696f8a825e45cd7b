// The panel beside the plan: what the chosen box holds, and what the generator would say of it.

import { spelt } from "../lib/text.js";
import { classes, html } from "../lib/ui.js";
import { ATTENTION, nameOf, PARTS, placed, sideOf } from "./places.js";
import { SHADES } from "./scene.js";
import { lookedAt, mostOf, Weights } from "./weights.js";

const COLUMNS = 24; // of the squares that a vector is drawn as

/** A vector as coloured squares: one path for each shade. */
export function Strip({ shades, largest, length }) {
  const paths = new Map();
  shades.forEach((shade, i) => {
    const square = `M${i % COLUMNS} ${Math.floor(i / COLUMNS)}h1v1h-1z`;
    if (shade) paths.set(shade, (paths.get(shade) ?? "") + square);
  });
  const drawn = [...paths].map(
    ([shade, d]) =>
      html`<path class=${shade < 0 ? "below" : "above"} fill-opacity=${Math.abs(shade) / SHADES} d=${d} />`,
  );
  const count = shades.length;
  return html`<div class="strip">
    <svg viewBox=${`0 0 ${COLUMNS} ${Math.ceil(count / COLUMNS)}`} role="img" aria-label=${`${count} numbers as colours`}>${drawn}</svg>
    <p class="legend">${count} numbers: <i class="above"></i> above zero, <i class="below"></i> below;
      the largest in size ${largest.toFixed(1)}, the length <b>${length.toFixed(1)}</b></p>
  </div>`;
}

/** What the shown numbers are a row of. */
function shapeOf(place) {
  const length = sideOf(place) === "encoder" ? "S" : "T";
  const row = `one row of (B, ${length}, D)`;
  if (place === "decoder generator") return `it reads ${row} and makes one of (B, T, V)`;
  if (!ATTENTION.includes(place)) return row;
  return `for each head one row of (B, H, ${length}, ${place === "decoder attention" ? "T" : "S"})`;
}

/** What is to be thought of the probabilities at a place. */
function meaningOf({ place, layer, size }) {
  const { side, part, kind, number } = placed(place);
  const adds = number >= 0 && kind === "adds";
  if (side === "encoder") {
    const curious = "A curiosity: the generator never hears the encoder.";
    if (adds) return `${curious} This is what it would say of what this part adds, after the final norm.`;
    if (!size.shared) return curious;
    return `${curious} But both share one matrix of vectors, so its stream often names the source subword itself.`;
  }
  if (part === "final" || part === "generator")
    return "What the generator does say: the probability of each next subword.";
  if (part === "embedding")
    return "What the generator would say of this vector, without positions and layers, after the final norm.";
  const whatIf = (left) =>
    html`What the generator would say if all ${left} were left out, and only the final norm were kept: the <em>logit lens</em>.`;
  if (part === "positions") return whatIf("layers");
  if (adds)
    return "What the generator would say if it heard nothing but what this part adds, after the final norm.";
  if (kind === "norm")
    return "The stream as the next part reads it, and what the generator would say of that, after the final norm.";
  if (layer === size.layers - 1 && number === PARTS.decoder.length - 1)
    return "Only the final norm is left after this sum: so this is what the generator does say.";
  return whatIf("later parts");
}

/** The likeliest subwords, in words. */
const likelyOf = ({ says }) => says.map(({ piece, share }) => `${spelt(piece)} ${share.toFixed(3)}`);

/** What a screen reader is told of a choice. */
export function heardOf(scene) {
  const { place, weights } = scene;
  const { pieces } = lookedAt(scene);
  const heads = (weights ?? []).map((row, head) => `head ${head + 1} looks at ${mostOf(row, pieces)}`);
  return [nameOf(place), ...heads, ...likelyOf(scene)].join(", ");
}

/** What stands in the panel, in a line. */
export function inALine(scene) {
  const { place, layer, pieces } = scene;
  const side = sideOf(place);
  const at = placed(place).number < 0 ? "" : `, layer ${layer + 1}`;
  const where = `${side}: ${nameOf(place)}${at}, at ${spelt(pieces[side][scene[side]])}`;
  return `${where}: ${likelyOf(scene).join(", ")}`;
}

export function Panel({ scene, section, head, onHead, caption, switches }) {
  const { place, layer, pieces, size, says } = scene;
  const side = sideOf(place);
  const inLayer = placed(place).number < 0 ? "" : `, layer ${layer + 1} of ${size.layers}`;
  const next =
    side === "decoder" ? html`, where <b>${spelt(pieces.written[scene.decoder])}</b> is written next` : "";
  const bars = says.map(
    ({ piece, share, next }) => html`<li class=${classes({ next })}><span>${spelt(piece)}</span>
      <span class="bar"><i style=${`width:${(100 * share).toFixed(1)}%`}></i></span><span>${share.toFixed(3)}</span></li>`,
  );
  return html`<p class="where"><b class="name">${nameOf(place)}</b> ${section && html`<a href=${section}>the section about it</a>`}<br />
      ${side}${inLayer}, at <b>${spelt(pieces[side][scene[side]])}</b>${next}: ${shapeOf(place)}</p>
    <p class="caption">${caption[0]}<br />${caption[1]}</p>
    <div class="slot">${
      scene.weights
        ? html`<${Weights} scene=${scene} head=${head} onHead=${onHead} ...${switches} />`
        : html`<${Strip} ...${scene.strip} />`
    }</div>
    <ol>${bars}</ol>
    <p class="meaning">${meaningOf(scene)}</p>`;
}
