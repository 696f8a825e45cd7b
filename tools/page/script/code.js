// A button that copies a block of code.

import { all } from "./dom.js";

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
all(".code").forEach((block) => onScreen.observe(block));
