// What the page does beyond being read. First what can be seen at once, last the figures.

import "./code.js";
import "./print.js";
import { startCharts } from "./charts.js";
import { startContents } from "./contents.js";
import { all } from "./dom.js";
import { arrive } from "./folds.js";
import { layOutIdly } from "./layout.js";
import { startTheme } from "./theme.js";
import { live as byHand } from "../figures/by-hand.js";
import { html } from "../figures/lib/ui.js";
import { live as map } from "../figures/map.js";
import { Translator } from "../figures/translator.js";
import { live as tree } from "../figures/tree.js";
import { hydrate } from "preact";

const COMPONENTS = { translator: Translator };
const BY_HAND = { "by-hand": byHand, map, tree };

startTheme();
startContents();
addEventListener("load", layOutIdly);
startCharts();

for (const figure of all(".playable")) {
  const { play } = figure.dataset;
  const Component = COMPONENTS[play];
  if (!Component) {
    BY_HAND[play](figure);
    continue;
  }
  const scene = JSON.parse(figure.querySelector("script").textContent);
  hydrate(html`<${Component} scene=${scene} />`, figure.querySelector(".stage"));
}

arrive(); // last: figures have their final height by now
