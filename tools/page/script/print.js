// On paper: light, unfolded, pictures instead of charts that may not be drawn.

import { all, root } from "./dom.js";
import { layOut } from "./layout.js";

addEventListener("beforeprint", () => {
  root.dataset.shown = root.dataset.theme;
  root.dataset.theme = "light";
  layOut();
  all("details:not([open])").forEach((fold) => { fold.open = true; fold.dataset.folded = ""; });
  all(".chart > noscript").forEach((picture) => picture.insertAdjacentHTML("afterend", picture.textContent));
});
addEventListener("afterprint", () => {
  root.dataset.theme = root.dataset.shown;
  all("details[data-folded]").forEach((fold) => { fold.open = false; delete fold.dataset.folded; });
  all(".chart > img").forEach((picture) => picture.remove());
});
