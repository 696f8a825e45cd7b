// What is folded opens where a link leads into it.

import { all } from "./dom.js";

/** Open what the target of a hash is folded into, or heads; return the target. */
function unfold(hash) {
  let target = null;
  try {
    target = document.getElementById(decodeURIComponent(hash.slice(1)));
  } catch {} // an address may hold anything
  const folds = all("details:not([open])").filter((fold) => fold.contains(target));
  folds.forEach((fold) => (fold.open = true));
  return target;
}

function arrive() {
  unfold(location.hash)?.scrollIntoView();
}

/** Go where the address leads, and stay there while letters and figures come; who does something is left alone. */
export function startArriving() {
  arrive();
  const growing = new ResizeObserver(arrive);
  const stop = () => growing.disconnect();
  growing.observe(document.querySelector("article"));
  ["wheel", "touchstart", "pointerdown", "keydown"].forEach((deed) =>
    addEventListener(deed, stop, { once: true, passive: true }),
  );
  addEventListener("load", () => setTimeout(stop, 2000));
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  const fold = event.target.closest(".section > summary")?.parentElement;
  if (fold && !fold.open) history.replaceState(null, "", `#${fold.querySelector("[id]").id}`); // its heading's address
  if (link) unfold(link.getAttribute("href"));
});
addEventListener("hashchange", arrive);
