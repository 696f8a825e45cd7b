// On paper: light, and whole captions. What else is folded stays folded, so a reader chooses what is printed.

import { all, root } from "./dom.js";

let captions = [];

addEventListener("beforeprint", () => {
  captions = all("figcaption details:not([open])");
  captions.forEach((rest) => (rest.open = true));
  root.dataset.shown = root.dataset.theme;
  root.dataset.theme = "light";
});
addEventListener("afterprint", () => {
  captions.forEach((rest) => (rest.open = false));
  root.dataset.theme = root.dataset.shown;
});
