// The panel beside the drawing: what the chosen box holds; of the generator, what it says.

import { READS, WRITES } from "../lib/corpus.js";
import { spelt } from "../lib/text.js";
import { classes, html } from "../lib/ui.js";
import { ATTENTION, nameOf, placed, sideOf } from "./places.js";
import { SHADES } from "./scene.js";
import { Weights } from "./weights.js";

const COLUMNS = 24; // of the squares that a vector is drawn as

/** A vector as coloured squares: one path for each shade. */
function Strip({ shades, largest, length }) {
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

export function Panel({ scene, section, caption }) {
  const { place, layer, pieces, size, says } = scene;
  const side = sideOf(place);
  const inLayer = placed(place).number < 0 ? "" : `, layer ${layer + 1} of ${size.layers}`;
  const language = side === "encoder" ? READS.code : WRITES.code;
  const next =
    side === "decoder"
      ? html`, where <b lang=${WRITES.code}>${spelt(pieces.written[scene.decoder])}</b> is written next`
      : "";
  const bars = says.map(
    ({ piece, share, next }) => html`<li class=${classes({ next })}><span>${spelt(piece)}</span>
      <span class="bar"><i style=${`width:${(100 * share).toFixed(1)}%`}></i></span><span>${share.toFixed(3)}</span></li>`,
  );
  let shown = html`<${Strip} ...${scene.strip} />`;
  if (says.length) shown = html`<ol>${bars}</ol>`;
  else if (scene.weights) shown = html`<${Weights} scene=${scene} />`;
  return html`<p class="where"><b class="name">${nameOf(place)}</b> ${section && html`<a href=${section}>the section about it</a>`}<br />
      ${side}${inLayer}, at <b lang=${language}>${spelt(pieces[side][scene[side]])}</b>${next}: ${shapeOf(place)}</p>
    <p class="caption" role="status">${caption[0]}<br />${caption[1]}</p>
    <div class="slot">${shown}</div>`;
}
