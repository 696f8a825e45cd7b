// Switches of the whole page, remembered: only ideas, without code; long lines of code wrapped.

import { all, remember, root } from "./dom.js";

const buttons = all("[data-switch]");

function show(name, on) {
  root.classList.toggle(name, on);
  if (name === "wrap") {
    all("[data-switch=wrap]").forEach((each) => each.setAttribute("aria-pressed", on));
    return;
  }
  all(".cell").forEach((cell) => (cell.open = !on));
  if (on) all(".fold:not(.section)[open]").forEach((fold) => (fold.open = false));
}

for (const button of buttons) {
  const name = button.dataset.switch;
  button.addEventListener("click", () => {
    const on = !root.classList.contains(name);
    const inSight = all("article > *").find(
      (block) => block.getBoundingClientRect().bottom > innerHeight / 4,
    );
    const before = inSight.getBoundingClientRect().top;
    show(name, on);
    scrollBy({ top: inSight.getBoundingClientRect().top - before, behavior: "instant" }); // what is read stays
    remember(name, on ? "on" : "");
  });
  show(name, root.classList.contains(name));
}
