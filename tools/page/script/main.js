// What the page does beyond being read. A figure wakes up when it is near.

import "./code.js";
import "./contents.js";
import "./ideas.js";
import "./print.js";
import { startCharts } from "./charts.js";
import { all } from "./dom.js";
import { startArriving } from "./folds.js";
import { startScrolling } from "./scrolling.js";
import { startTheme } from "./theme.js";
import { Ask } from "../figures/ask.js";
import { AttentionMaps } from "../figures/attention-maps.js";
import { Batches } from "../figures/batches.js";
import { Bleu } from "../figures/bleu.js";
import { ByHand } from "../figures/by-hand.js";
import { Learn } from "../figures/learn.js";
import { html } from "../figures/lib/ui.js";
import { ModelMap } from "../figures/model-map.js";
import { Moments } from "../figures/moments.js";
import { PiecesOfText } from "../figures/pieces.js";
import { Positions } from "../figures/positions.js";
import { Sampling } from "../figures/sampling.js";
import { Schedule } from "../figures/schedule.js";
import { Smoothing } from "../figures/smoothing.js";
import { Translator } from "../figures/translator.js";
import { Tree } from "../figures/tree.js";
import { hydrate } from "preact";

const COMPONENTS = {
  ask: Ask,
  batches: Batches,
  bleu: Bleu,
  "by-hand": ByHand,
  learn: Learn,
  map: ModelMap,
  maps: AttentionMaps,
  moments: Moments,
  pieces: PiecesOfText,
  positions: Positions,
  sampling: Sampling,
  schedule: Schedule,
  smoothing: Smoothing,
  translator: Translator,
  tree: Tree,
};

/** Let a figure be played with. */
function awaken(figure) {
  const { play } = figure.dataset;
  const scene = JSON.parse(figure.querySelector("script").textContent);
  hydrate(html`<${COMPONENTS[play]} scene=${scene} />`, figure.querySelector(".stage"));
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
startCharts();
all(".playable").forEach((figure) => near.observe(figure));
startArriving();
