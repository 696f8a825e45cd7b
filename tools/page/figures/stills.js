// What the build asks of the figures: their first scene, and its HTML.

import { renderToString } from "preact-render-to-string";

import { still as byHand } from "./by-hand.js";
import { html } from "./lib/ui.js";
import { still as map } from "./map.js";
import { readingModel } from "./model/file.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { Drawing, firstScene, Translator } from "./translator.js";
import { still as tree } from "./tree.js";

export { finish, readingModel, Search };

/** All of the first translation in one drawing, for a file. */
const Picture = ({ scene }) => html`<${Drawing} scene=${scene} at=${scene.decisions.length} />`;

const FIGURES = { picture: [Picture, firstScene], translator: [Translator, firstScene] };
const BY_HAND = { "by-hand": byHand, map, tree };

/** What a figure's component begins with, and its HTML. */
export function still(model, name, data) {
  if (name in BY_HAND) return { scene: null, html: BY_HAND[name](model, data) };
  const [Figure, sceneOf] = FIGURES[name];
  const scene = sceneOf(model, data);
  return { scene, html: renderToString(html`<${Figure} scene=${scene} />`) };
}
