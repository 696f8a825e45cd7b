// On paper: light, pictures instead of charts that may not be drawn. What is folded stays folded, so
// a reader chooses what is printed.

import { all, root } from "./dom.js";

addEventListener("beforeprint", () => {
  root.dataset.shown = root.dataset.theme;
  root.dataset.theme = "light";
  all(".chart > noscript").forEach((picture) => picture.insertAdjacentHTML("afterend", picture.textContent));
});
addEventListener("afterprint", () => {
  root.dataset.theme = root.dataset.shown;
  all(".chart > img").forEach((picture) => picture.remove());
});
