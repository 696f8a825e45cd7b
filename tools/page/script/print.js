// On paper: light, whole captions, pictures instead of charts that may not be drawn. What else is
// folded stays folded, so a reader chooses what is printed.

import { all, root } from "./dom.js";

let captions = [];

addEventListener("beforeprint", () => {
  captions = all("figcaption details:not([open])");
  captions.forEach((rest) => (rest.open = true));
  root.dataset.shown = root.dataset.theme;
  root.dataset.theme = "light";
  all(".chart > noscript").forEach((picture) => picture.insertAdjacentHTML("afterend", picture.textContent));
});
addEventListener("afterprint", () => {
  captions.forEach((rest) => (rest.open = false));
  root.dataset.theme = root.dataset.shown;
  all(".chart > img").forEach((picture) => picture.remove());
});
