// A button that copies a block of code; boxes that scroll take the focus.

import { all, markScrolling } from "./dom.js";

// One button for all blocks: it moves to the one that is pointed at, focused, or on the screen.
const copy = Object.assign(document.createElement("button"), {
  className: "copy",
  type: "button",
  textContent: "Copy",
});
copy.addEventListener("click", async () => {
  const done = navigator.clipboard?.writeText(copy.parentElement.querySelector("code").textContent);
  copy.textContent = await (done ?? Promise.reject()).then(
    () => "Copied",
    () => "Not allowed",
  );
  setTimeout(() => (copy.textContent = "Copy"), 1500);
});

function moveCopy(block) {
  if (block && block !== copy.parentElement && document.activeElement !== copy) block.append(copy);
}
["pointerover", "focusin"].forEach((event) =>
  addEventListener(event, ({ target }) => moveCopy(target.closest?.(".code"))),
);
const onScreen = new IntersectionObserver((entries) =>
  moveCopy(entries.find((entry) => entry.isIntersecting)?.target),
);

const BOXES = ".scroll, .code pre, .output";
const scrolling = new ResizeObserver((entries) => entries.forEach(({ target }) => markScrolling(target)));
all(BOXES).forEach((box) => scrolling.observe(box));
const moved = ({ target }) => target.matches?.(BOXES) && markScrolling(target);
document.addEventListener("scroll", moved, { capture: true, passive: true });
// A formula's letters come after the page: they widen what is in the box, and the box keeps its size.
document.fonts.addEventListener("loadingdone", () => all(".display").forEach(markScrolling));
all(".code").forEach((block) => onScreen.observe(block));
