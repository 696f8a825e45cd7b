// Arrow keys in rows, tables and trees: the tab key stops once there, and arrows lead on.

import { ARROWS } from "./hands.js";

const LEAST = 5; // pixels ahead

function middleOf(element) {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return [(left + right) / 2, (top + bottom) / 2];
}

/** The element nearest to `from` in a direction, straight ahead rather than aslant; null if there is none. */
function nearest(elements, from, [right, up]) {
  const [x, y] = middleOf(from);
  const far = (element) => {
    const [toX, toY] = middleOf(element);
    const ahead = (toX - x) * right - (toY - y) * up;
    const aside = Math.abs((toX - x) * up) + Math.abs((toY - y) * right);
    return ahead > LEAST ? ahead + 3 * aside : Infinity;
  };
  let best = { element: null, distance: Infinity };
  for (const element of elements) {
    const distance = far(element);
    if (distance < best.distance) best = { element, distance };
  }
  return best.element;
}

/**
 * For `onKeyDown` of a box. An arrow key moves the focus from one of the elements that `selector` finds in the
 * box to the nearest one in that direction; in a `line`, which may be broken, to the one before or after.
 * `arrive` is called with the element that has the focus now.
 */
export const arrows =
  (selector, { line = false, arrive = () => {} } = {}) =>
  (event) => {
    const from = event.target.closest(selector);
    const direction = ARROWS[event.key];
    if (!from || !direction) return;
    const all = [...event.currentTarget.querySelectorAll(selector)];
    const [right, up] = direction;
    const next = line ? all[all.indexOf(from) + right - up] : nearest(all, from, direction);
    event.preventDefault();
    if (!next) return;
    next.focus();
    arrive(next);
  };
