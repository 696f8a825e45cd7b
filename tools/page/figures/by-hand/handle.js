// The point of the plane that is dragged, or moved by arrow keys.

import { ARROWS, shareOf } from "../lib/hands.js";
import { html, useRef } from "../lib/ui.js";
import { LIMIT } from "./scene.js";

export function Handle({ kind, label, place, text, onMove }) {
  const dragged = useRef(false);
  const start = useRef(null);
  function moveTo([x, y]) {
    const far = Math.max(1, Math.hypot(x, y) / LIMIT);
    onMove([x, y].map((value) => Math.round((100 * value) / far) / 100));
  }
  function drag(event) {
    const { clientX, clientY, currentTarget, pointerId } = event;
    if (!currentTarget.hasPointerCapture(pointerId)) return;
    const [fromX, fromY] = start.current;
    if (!dragged.current && Math.hypot(clientX - fromX, clientY - fromY) < 4) return; // a hand trembles
    dragged.current = true;
    const [right, down] = shareOf(event, currentTarget.parentElement);
    moveTo([(right - 0.5) * 2 * LIMIT, (0.5 - down) * 2 * LIMIT]);
  }
  function press(event) {
    const direction = ARROWS[event.key];
    if (!direction) return;
    event.preventDefault();
    moveTo(place.map((value, axis) => value + (event.shiftKey ? 0.5 : 0.1) * direction[axis]));
  }
  function grasp({ clientX, clientY, currentTarget, pointerId }) {
    dragged.current = false;
    start.current = [clientX, clientY];
    currentTarget.setPointerCapture(pointerId);
  }
  const [left, top] = [50 + (50 * place[0]) / LIMIT, 50 - (50 * place[1]) / LIMIT];
  return html`<div
    class=${`handle ${kind}`} style=${`left:${left.toFixed(2)}%;top:${top.toFixed(2)}%`}
    tabindex="0" role="slider" aria-label=${label} aria-roledescription="point in the plane"
    aria-valuemin=${-LIMIT} aria-valuemax=${LIMIT} aria-valuenow=${place[0].toFixed(2)} aria-valuetext=${text}
    onPointerDown=${grasp} onPointerMove=${drag} onKeyDown=${press}
  ></div>`;
}
