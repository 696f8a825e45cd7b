// Boxes that scroll take the focus, and show on which sides they go on.

import { all, markScrolling } from "./dom.js";

const BOXES = ".scroll, .code pre, .output";

export function startScrolling() {
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => markScrolling(target)));
  all(BOXES).forEach((box) => resized.observe(box));
  const moved = ({ target }) => target.matches?.(BOXES) && markScrolling(target);
  document.addEventListener("scroll", moved, { capture: true, passive: true });
  // A formula's letters come after the page: they widen what is in the box, and the box keeps its size.
  document.fonts.addEventListener("loadingdone", () => all(".display").forEach(markScrolling));
}
