// What attention looks at: a table of weights by head, and arcs.

import { sum } from "../model/arithmetic.js";
import { spelt } from "../lib/text.js";
import { Button, classes, html } from "../lib/ui.js";
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

export const tint = (share) => `--tint:${Math.round(TINT * share)}%`;

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

/** The weights of the chosen position: a row for each head, and the arcs of one, or of their mean. */
export function Weights({ scene, head, onHead, isOff, onSwitch }) {
  const { weights } = scene;
  const { pieces, own } = lookedAt(scene);
  const mean = pieces.map((_, i) => sum(weights.map((row) => row[i])) / weights.length);
  const headings = pieces.map(
    (piece, i) =>
      html`<th scope="col" class=${classes({ own: i === own })}><span>${spelt(piece)}</span></th>`,
  );
  const rows = weights.map((row, number) => {
    const cells = row.map(
      (weight, i) =>
        html`<td style=${tint(weight)} title=${`head ${number + 1}, ${spelt(pieces[i])}: ${weight.toFixed(3)}`}>${short(weight)}</td>`,
    );
    const choose = () => onHead(number === head ? null : number);
    return html`<tr><th scope="row">
      <${Button} aria-label=${`head ${number + 1}`} title=${`arcs of head ${number + 1}`} pressed=${number === head} onClick=${choose}>${number + 1}<//>
      <${Button} class="switch" aria-label=${`head ${number + 1} off`} pressed=${isOff(number)} onClick=${() => onSwitch(number)}>off<//>
    </th>${cells}</tr>`;
  });
  const drawn = head === null ? mean : weights[head];
  const whose = head === null ? "the mean of the heads" : `head ${head + 1}`;
  return html`<div class="weights">
    <div class="scroll"><div class="looks" style=${`--count:${pieces.length}`}>
      <p class="asks"><span>${spelt(scene.pieces[sideOf(scene.place)][scene[sideOf(scene.place)]])}</span></p>
      <${Arcs} weights=${drawn} label=${`Arcs, ${whose}: most weight on ${mostOf(drawn, pieces)}`} />
      <table aria-label="Weights: a row for each head, a column for each subword that is looked at">
        <thead><tr><td>head</td>${headings}</tr></thead><tbody>${rows}</tbody>
      </table>
    </div></div>
    <p class="legend">Each row has the sum 1. Arcs: ${whose}.</p>
  </div>`;
}
