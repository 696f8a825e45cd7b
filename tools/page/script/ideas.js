// Ideas only: each check and each piece of set-up in one line, for as long as the reader wants it.

import { all, remember, root } from "./dom.js";

const button = document.getElementById("ideas");

function show(only) {
  root.classList.toggle("ideas", only);
  button.setAttribute("aria-pressed", only);
  all(".checked").forEach((check) => (check.open = !only));
  if (only) all(".fold:not(.section)[open]").forEach((fold) => (fold.open = false));
}

button.addEventListener("click", () => {
  const only = !root.classList.contains("ideas");
  const inSight = all("article > *").find((block) => block.getBoundingClientRect().bottom > innerHeight / 4);
  const before = inSight.getBoundingClientRect().top;
  show(only);
  scrollBy({ top: inSight.getBoundingClientRect().top - before, behavior: "instant" }); // what is read stays
  remember("ideas", only ? "only" : "");
});

show(root.classList.contains("ideas"));
