// A slider with its name on the left and what it stands at on the right.

import { html } from "./ui.js";

/** `says` is what it stands at, in words; `onMove` is given the number. */
export const Slider = ({ label, says, onMove, ...rest }) =>
  html`<label class="slider"><span>${label}</span><input
    type="range" autocomplete="off" aria-valuetext=${says} ...${rest}
    onInput=${({ target }) => onMove(Number(target.value))}
  /><span class="stands" aria-hidden="true">${says}</span></label>`;
