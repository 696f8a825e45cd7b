// What the build asks of the figures: their first scene, and its HTML.

import { renderToString } from "preact-render-to-string";

import { Drawing } from "./arcs.js";
import { Ask, firstScene as firstAsk } from "./ask.js";
import { AttentionMaps, firstScene as firstMaps } from "./attention-maps.js";
import { Batches, firstScene as firstBatches } from "./batches.js";
import { Bleu, firstScene as firstBleu } from "./bleu.js";
import { ByHand, firstScene as firstByHand } from "./by-hand.js";
import { firstScene as firstLearn, Learn } from "./learn.js";
import { html } from "./lib/ui.js";
import { firstScene as firstMap, ModelMap } from "./model-map.js";
import { firstScene as firstMoments, Moments } from "./moments.js";
import { readingModel } from "./model/file.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { firstScene as firstPieces, PiecesOfText } from "./pieces.js";
import { firstScene as firstPositions, Positions } from "./positions.js";
import { firstScene as firstSampling, Sampling } from "./sampling.js";
import { firstScene as firstSchedule, Schedule } from "./schedule.js";
import { firstScene as firstSmoothing, Smoothing } from "./smoothing.js";
import { firstScene } from "./translation.js";
import { Translator } from "./translator.js";
import { firstScene as firstTree, Tree, Whole } from "./tree.js";

export { finish, readingModel, Search };

/** All of the first translation in one drawing, for a file. */
function Picture({ scene }) {
  const count = scene.decisions.length;
  const label = `Written: “${scene.decisions[count - 1].before}”`;
  return html`<${Drawing} scene=${scene} at=${count} aria-label=${label} />`;
}

const FIGURES = {
  tree: [Tree, firstTree, Whole],
  picture: [Picture, firstScene],
  translator: [Translator, firstScene],
  learn: [Learn, firstLearn],
  moments: [Moments, firstMoments],
  "by-hand": [ByHand, firstByHand],
  map: [ModelMap, firstMap],
  maps: [AttentionMaps, firstMaps],
  pieces: [PiecesOfText, firstPieces],
  ask: [Ask, firstAsk],
  batches: [Batches, firstBatches],
  bleu: [Bleu, firstBleu],
  positions: [Positions, firstPositions],
  sampling: [Sampling, firstSampling],
  schedule: [Schedule, firstSchedule],
  smoothing: [Smoothing, firstSmoothing],
};

/** What a figure's component begins with, and its HTML; `whole` is what stands in its place without scripts, or empty. */
export function still(model, name, data) {
  const [Figure, sceneOf, WithoutScripts] = FIGURES[name];
  const scene = sceneOf(model, data);
  const drawn = (Component) => renderToString(html`<${Component} scene=${scene} />`);
  return { scene, html: drawn(Figure), whole: WithoutScripts ? drawn(WithoutScripts) : "" };
}
