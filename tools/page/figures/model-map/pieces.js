// The subwords of a side as buttons.

import { sum } from "../model/arithmetic.js";
import { SPACE } from "../model/subwords.js";
import { arrows } from "../lib/keys.js";
import { spelt } from "../lib/text.js";
import { Button, classes, html } from "../lib/ui.js";

const LONG = 700; // pixels of a row, about: with more, its letters are smaller

/** A translation as it is read. */
export const joined = (pieces) =>
  pieces
    .filter((piece) => piece !== "</s>")
    .join("")
    .replaceAll(SPACE, " ")
    .trim();

/** The subwords of a side, as buttons; one stop for the keyboard. */
export function Pieces({ kind, name, label, language, pieces, chosen, onChoose }) {
  const press = arrows("button", { line: true, arrive: (button) => button.click() });
  const buttons = pieces.map(
    (piece, i) =>
      html`<${Button} class="piece" lang=${language} pressed=${i === chosen} tabindex=${i === Math.max(0, chosen) ? 0 : -1}
        onClick=${() => onChoose(i)}>${spelt(piece)}<//>`,
  );
  const letters = sum(pieces.map((piece) => [...spelt(piece)].length));
  const many = 7.4 * letters + 11 * pieces.length > LONG;
  return html`<div class=${`pieces ${kind} ${classes({ many })}`} role="group" aria-label=${label} onKeyDown=${press}><span class="whose" aria-hidden="true">${name}</span>${buttons}</div>`;
}
