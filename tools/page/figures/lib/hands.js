// What a hand does to a figure: drags, and arrow keys.

/** Arrow keys as steps to the right and upwards. */
export const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Where a pointer is in an element: shares of its width and height, from its left upper corner. */
export function shareOf({ clientX, clientY }, element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return [(clientX - left) / width, (clientY - top) / height];
}
