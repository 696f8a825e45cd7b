// What attention looks at: a table of weights by head, and arcs.

import { sum } from "../model/arithmetic.js";
import { spelt } from "../lib/text.js";
import { READS, WRITES } from "../lib/corpus.js";
import { classes, html } from "../lib/ui.js";
import { sideOf } from "./places.js";

const TINT = 45; // per cent of the accent behind a number, at most: what stands on it has to be read
const LEAST = 0.05; // a weight that still gets an arc

/** What a position may look at: { pieces, own }, `own` its own number among them, or -1. */
export function lookedAt({ place, pieces, encoder, decoder }) {
  if (place === "decoder attention") return { pieces: pieces.decoder.slice(0, decoder + 1), own: decoder };
  return { pieces: pieces.encoder, own: place === "encoder attention" ? encoder : -1 };
}

/** A weight in a narrow cell: .45, or 1 */
const short = (weight) => weight.toFixed(2).replace(/^0|\.00$/, "");

const tint = (share) => `--tint:${Math.round(TINT * share)}%`;

/** Arcs from the chosen subword down to the columns of those that it looks at. */
function Arcs({ weights, label }) {
  const wide = 10 * weights.length;
  const middle = wide / 2;
  const arcs = weights.map((weight, i) => {
    if (weight < LEAST) return null;
    const end = 10 * i + 5;
    const width = (1 + 7 * weight).toFixed(1);
    return html`<path key=${i} stroke-width=${width} d=${`M${middle} 0C${middle} 24 ${end} 16 ${end} 40`} />`;
  });
  return html`<svg class="arcs" viewBox=${`0 0 ${wide} 40`} preserveAspectRatio="none" role="img" aria-label=${label}>${arcs}</svg>`;
}

/** Where a row has most of its weight. */
export function mostOf(weights, pieces) {
  const weight = Math.max(...weights);
  return `${spelt(pieces[weights.indexOf(weight)])} (${weight.toFixed(2)})`;
}

/** The weights of the chosen position: a row for each head, and the arcs of their mean. */
export function Weights({ scene }) {
  const { weights, place } = scene;
  const { pieces, own } = lookedAt(scene);
  const side = sideOf(place);
  const language = place === "decoder attention" ? WRITES.code : READS.code;
  const mean = pieces.map((_, i) => sum(weights.map((row) => row[i])) / weights.length);
  const headings = pieces.map(
    (piece, i) =>
      html`<th scope="col" lang=${language} class=${classes({ own: i === own })}><span>${spelt(piece)}</span></th>`,
  );
  const rows = weights.map((row, number) => {
    const cells = row.map((weight) => html`<td style=${tint(weight)}>${short(weight)}</td>`);
    return html`<tr><th scope="row">${number + 1}</th>${cells}</tr>`;
  });
  return html`<div class="weights">
    <div class="scroll"><div class="looks" style=${`--count:${pieces.length}`}>
      <p class="asks"><span lang=${side === "encoder" ? READS.code : WRITES.code}>${spelt(scene.pieces[side][scene[side]])}</span></p>
      <${Arcs} weights=${mean} label=${`Arcs, the mean of the heads: most weight on ${mostOf(mean, pieces)}`} />
      <table aria-label="Weights: a row for each head, a column for each subword that is looked at">
        <thead><tr><td>head</td>${headings}</tr></thead><tbody>${rows}</tbody>
      </table>
    </div></div>
    <p class="legend">Each row has the sum 1. Arcs: the mean of the heads.</p>
  </div>`;
}
