// The weights of all: who looks at whom, and how much.

import { ARROWS } from "../lib/hands.js";
import { decimal } from "../lib/text.js";
import { Button, classes, html, useState } from "../lib/ui.js";

const HINT = "Click a row, and it asks. Click above the diagonal, and later words close or open.";

/** A table of the weights: a row for each word that asks; above its diagonal lies what the mask closes. */
export function Heat({ scene, onAsk, onMask }) {
  const { rows, weights, asking, mask } = scene;
  const [cell, setCell] = useState(null); // [row, column] that is pointed at
  const [stop, setStop] = useState(null); // the cell that the keyboard comes back to
  const isLater = ([row, column]) => column > row;
  const choose = (place) => (isLater(place) ? onMask() : onAsk(rows[place[0]].word));
  const isTheStop = (row, column) => String(stop ?? [asking, asking]) === String([row, column]);

  function press(event, place) {
    if (event.key === "Enter" || event.key === " ") choose(place);
    else if (!ARROWS[event.key]) return;
    event.preventDefault();
    const [right, up] = ARROWS[event.key] ?? [0, 0];
    const [row, column] = [place[0] - up, place[1] + right].map((number) =>
      Math.max(0, Math.min(number, rows.length - 1)),
    );
    event.currentTarget.closest("table").rows[row + 1].cells[column + 1].focus();
  }

  function told([row, column]) {
    const [who, whom] = [rows[row].word, rows[column].word];
    const number = decimal(weights[row][column]);
    return mask && isLater([row, column])
      ? `${who} may not look at ${whom}: closed`
      : `${who} looks at ${whom}: ${number}`;
  }

  const square = (row, column) => {
    const place = [row, column];
    const later = isLater(place);
    const closed = mask && later;
    const weight = weights[row][column];
    const arrive = () => {
      setCell(place);
      setStop(place);
    };
    return html`<td
      key=${column} role="gridcell" class=${classes({ later, closed, edge: column === row + 1 })}
      style=${`--weight:${(100 * weight).toFixed(1)}%`}
      aria-label=${told(place)} tabindex=${isTheStop(row, column) ? 0 : -1}
      onClick=${() => choose(place)} onKeyDown=${(event) => press(event, place)}
      onPointerEnter=${() => setCell(place)} onFocus=${arrive} onBlur=${() => setCell(null)}
    ><span>${closed ? "×" : decimal(weight).replace(/^0/, "")}</span></td>`;
  };
  const line = ({ word }, row) => {
    const asks = row === asking;
    return html`<tr key=${word} role="row" class=${classes({ asks })} aria-selected=${String(asks)}>
      <th role="rowheader" scope="row" onClick=${() => onAsk(word)}>${word}</th>
      ${rows.map((_, column) => square(row, column))}
    </tr>`;
  };
  const heads = rows.map(({ word }) => html`<th role="columnheader" scope="col"><span>${word}</span></th>`);
  const aimed = cell !== null && isLater(cell);
  return html`<div class="heat">
    <p class="title">Who looks at whom, and how much</p>
    <table role="grid" class=${classes({ aimed })} aria-label="Weights: a row asks, a column is looked at"
      onPointerLeave=${() => setCell(null)}>
      <thead><tr role="row"><td role="gridcell"></td>${heads}</tr></thead>
      <tbody>${rows.map(line)}</tbody>
    </table>
    <p class="readout">${cell ? told(cell) : HINT}</p>
    <p class="back"><${Button} pressed=${mask} onClick=${onMask}>hide later words<//></p>
  </div>`;
}
