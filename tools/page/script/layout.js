// The page opens fast because what is far from the screen is not laid out (see page.css). This is
// made up for bit by bit, so that the page has its height soon, or at once before a jump.

import { all, root } from "./dom.js";

const waitingBlocks = all("article > *");

export function layOut(count = waitingBlocks.length) {
  waitingBlocks.splice(0, count).forEach((block) => (block.style.contentVisibility = "visible"));
  if (!waitingBlocks.length) root.dataset.ready = "";
}

export function layOutIdly() {
  const next = self.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  layOut(20);
  if (waitingBlocks.length) next(layOutIdly);
}
