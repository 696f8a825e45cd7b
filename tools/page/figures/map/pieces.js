// The subwords of a side as buttons.

import { sum } from "../model/arithmetic.js";
import { SPACE } from "../model/subwords.js";
import { spelt } from "../lib/text.js";
import { Button, classes, html } from "../lib/ui.js";

export const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }; // in a table
const LONG = 700; // pixels of a row, about: with more, its letters are smaller

/** A translation as it is read. */
export const joined = (pieces) =>
  pieces
    .filter((piece) => piece !== "</s>")
    .join("")
    .replaceAll(SPACE, " ")
    .trim();

/** The subwords of a side, as buttons; one stop for the keyboard. */
export function Pieces({ kind, name, label, pieces, chosen, onChoose }) {
  function press(event, i) {
    const next =
      event.currentTarget.parentElement.querySelectorAll("button")[i + (STEPS[event.key]?.[1] || NaN)];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }
  const buttons = pieces.map(
    (piece, i) =>
      html`<${Button} class="piece" pressed=${i === chosen} tabindex=${i === Math.max(0, chosen) ? 0 : -1}
        onClick=${() => onChoose(i)} onKeyDown=${(event) => press(event, i)}>${spelt(piece)}<//>`,
  );
  const letters = sum(pieces.map((piece) => [...spelt(piece)].length));
  const many = 7.4 * letters + 11 * pieces.length > LONG;
  return html`<div class=${`pieces ${kind} ${classes({ many })}`} role="group" aria-label=${label}><span class="whose" aria-hidden="true">${name}</span>${buttons}</div>`;
}
