// The three matrices: a dial each, which turns all vectors of one role.

import { dragged } from "../lib/hands.js";
import { decimal } from "../lib/text.js";
import { Button, html } from "../lib/ui.js";
import { apply, FIRST, matrixOf, ROLES } from "./scene.js";
import { matrix } from "./words.js";

/** Degrees between −180 and 180. */
const within = (angle) => ((((angle + 180) % 360) + 360) % 360) - 180;

/** A matrix that turns: a dial, and its four numbers. */
function Dial({ role, letter, angle, onTurn }) {
  const hand = dragged(([right, down]) => {
    const degrees = Math.round((180 / Math.PI) * Math.atan2(0.5 - down, right - 0.5));
    const near = 45 * Math.round(degrees / 45);
    onTurn(within(Math.abs(degrees - near) <= 3 ? near : degrees)); // so that a hand finds the way back
  });
  function press(event) {
    const step = event.shiftKey ? 15 : 5;
    const turns = {
      ArrowLeft: -step,
      ArrowDown: -step,
      ArrowRight: step,
      ArrowUp: step,
      PageUp: 45,
      PageDown: -45,
      End: 180 - angle,
      Home: -angle,
    };
    if (!(event.key in turns)) return;
    event.preventDefault();
    onTurn(within(angle + turns[event.key]));
  }
  const marks = [0, 45, 90, 135, 180, 225, 270, 315].map(
    (degrees) => html`<path class="tick" transform=${`rotate(${degrees})`} d="M37,0H42" />`,
  );
  const [x, y] = apply(matrixOf(angle), [20, 0]).map((value) => value.toFixed(1));
  const sector = `M0,0L20,0A20,20 0 0 ${angle > 0 ? 0 : 1} ${x},${-y}Z`;
  const four = matrixOf(angle).flat();
  return html`<div class=${`dial of-${role}`}>
    <p class="title" id=${`by-hand-${role}`}>${matrix(letter)} <span>${role}</span></p>
    <div
      class="knob" tabindex="0" role="slider" aria-labelledby=${`by-hand-${role}`}
      aria-valuemin="-180" aria-valuemax="180" aria-valuenow=${angle}
      aria-valuetext=${angle ? `turns by ${decimal(angle, 0)} degrees` : "identity"}
      onKeyDown=${press} ...${hand}
    >
      <svg viewBox="-48 -48 96 96" aria-hidden="true">
        <circle class="rim" r="42" />${marks}${angle ? html`<path class="sweep" d=${sector} />` : ""}
        <g transform=${`rotate(${-angle})`}>
          <path class="hand" d="M0,0H34" /><circle class="grip" cx="34" r="7" />
        </g>
      </svg>
    </div>
    <p class="matrix" aria-hidden="true">${four.map((number) => html`<span>${decimal(number)}</span>`)}</p>
  </div>`;
}

/** The three of them, and the way back. */
export function Dials({ angles, onTurn }) {
  const turned = Object.values(angles).some((angle) => angle !== 0);
  const apart = new Set(Object.values(angles)).size > 1;
  const told = apart ? "The roles lie apart." : "All three are turned alike.";
  const dials = ROLES.map(
    ({ role, letter }) => html`<${Dial}
      key=${role} ...${{ role, letter }} angle=${angles[role]}
      onTurn=${(angle) => onTurn({ ...angles, [role]: angle })}
    />`,
  );
  return html`<div class="dials">
    <div class="three">${dials}</div>
    <p class="back">
      <${Button} off=${!turned} onClick=${() => onTurn(FIRST.angles)}>back to the identity<//>
      <span>${turned ? told : "Each turns all eight vectors x at once."}</span>
    </p>
  </div>`;
}
