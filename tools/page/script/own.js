// The page of another model: the model is inside, and each figure is drawn once that has been read.

import { all } from "./dom.js";
import { startScrolling } from "./scrolling.js";
import { html } from "../figures/lib/ui.js";
import { theModel } from "../figures/lib/shipped.js";
import { ModelMap, opening as openingOfMap } from "../figures/map.js";
import { inSlices } from "../figures/model/slices.js";
import { opening as openingOfTranslator } from "../figures/translation.js";
import { Translator } from "../figures/translator.js";
import { opening as openingOfTree, Tree } from "../figures/tree.js";
import { render } from "preact";

const FIGURES = {
  translator: [Translator, openingOfTranslator],
  tree: [Tree, openingOfTree],
  map: [ModelMap, openingOfMap],
};

async function draw(figure, model) {
  const [Figure, opening] = FIGURES[figure.dataset.play];
  const scene = await inSlices(opening(model));
  const stage = figure.querySelector(".stage");
  stage.replaceChildren();
  render(html`<${Figure} scene=${scene} />`, stage);
}

const DAMAGED = "The model in this file is damaged: write the file again, by make page MODEL=…";

async function start() {
  const model = await theModel().catch(() => null);
  if (!model) return all("[role=status]").forEach((line) => (line.textContent = DAMAGED));
  for (const figure of all(".playable")) await draw(figure, model);
  startScrolling();
}

start();
