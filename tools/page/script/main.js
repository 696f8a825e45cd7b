// What the page does beyond being read. A figure wakes up when it is near.

import "./code.js";
import "./contents.js";
import "./print.js";
import "./switches.js";
import { all } from "./dom.js";
import { startArriving } from "./folds.js";
import { startScrolling } from "./scrolling.js";
import { startTheme } from "./theme.js";
import { html } from "../figures/lib/ui.js";
import { FIGURES } from "../figures/registry.js";
import { hydrate } from "preact";

/** Let a figure be played with. */
function awaken(figure) {
  const { Component } = FIGURES[figure.dataset.play];
  const scene = JSON.parse(figure.querySelector("script").textContent);
  hydrate(html`<${Component} scene=${scene} />`, figure.querySelector(".stage"));
  figure.dataset.awake = "";
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      near.unobserve(target);
      awaken(target);
    }
  },
  { rootMargin: "1000px" },
);

startTheme();
startScrolling();
all(".playable").forEach((figure) => near.observe(figure));
startArriving();
