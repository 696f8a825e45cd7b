// The logit lens of all positions as a table, in a fold: a row for each place in the stream.

import { arrows } from "../lib/keys.js";
import { Button, classes, html } from "../lib/ui.js";
import { spelt } from "../lib/text.js";
import { inALine } from "./panel.js";
import { rowOf, sideOf, streamOf } from "./places.js";
import { tint } from "./weights.js";

const WALK = arrows("button", { arrive: (button) => button.click() });

/** The logit lens of all positions: a row for each place in the stream. Arrow keys walk through it. */
export function Lens({ scene, onChoose }) {
  const { pieces, size, tables } = scene;
  const side = sideOf(scene.place);
  const { rows, first } = tables[side];
  const stream = streamOf(side, size.layers);
  const chosen = rowOf(scene);
  const most = streamOf("decoder", size.layers).length; // room for the longer table

  function choose(row, position) {
    const { place, layer } = stream[row];
    onChoose({ place, [side]: position, ...(layer !== undefined && { layer }) });
  }

  const cell = (row, position) => {
    const { piece, share } = rows[row][position];
    const isStop = row === chosen.row && position === scene[side];
    const isFirst = row === first[position];
    return html`<td class=${classes({ first: isFirst })}><${Button}
      pressed=${isStop && chosen.exact} tabindex=${isStop ? 0 : -1} style=${tint(share)}
      title=${share.toFixed(3) + (isFirst ? ", what is written in the end" : "")}
      onClick=${() => choose(row, position)}
    >${spelt(piece)}<//></td>`;
  };
  const body = stream.map(({ layer, name }, row) => {
    const number = layer === undefined ? "" : html`<span>${layer + 1}</span> `;
    return html`<tr class=${classes({ chosen: row === chosen.row, begins: layer !== stream[row - 1]?.layer })}>
      <th scope="row">${number}${name}</th>${rows[row].map((_, position) => cell(row, position))}
    </tr>`;
  });
  const headings = pieces[side].map((piece, position) => {
    const next = side === "decoder" ? html`<small>→ ${spelt(pieces.written[position])}</small>` : "";
    return html`<th scope="col" class=${classes({ chosen: position === scene[side] })}>${spelt(piece)}${next}</th>`;
  });
  const says =
    side === "encoder"
      ? "The encoder never speaks: this is what the generator would say of its stream."
      : "Outlined is where a position first names what it writes in the end.";
  return html`<details class="lens" style=${`--rows:${most}`}>
    <summary>The logit lens of the whole ${side}: the likeliest token at each place and each position</summary>
    <div class="scroll"><table aria-label=${`Logit lens of the ${side}: a row for each place of the stream, a column for each position`}>
      <thead><tr><td>layer, after</td>${headings}</tr></thead><tbody onKeyDown=${WALK}>${body}</tbody>
    </table></div>
    <p class="chosen-cell">${inALine(scene)}</p>
    <p class="legend">The deeper the colour, the more probable. ${says} The last two rows are equal, because the
      lens is the final norm and the generator.</p>
  </details>`;
}
