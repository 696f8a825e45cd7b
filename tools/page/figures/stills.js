// What the build asks of the figures: their first scene, and its HTML.

import { renderToString } from "preact-render-to-string";

import { Drawing } from "./arcs.js";
import { html } from "./lib/ui.js";
import { readingModel } from "./model/file.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { FIGURES } from "./registry.js";

export { FIGURES, finish, readingModel, Search };

// All of the first translation in one drawing, for a file.
const PICTURE = { ...FIGURES.translator, Component: Drawing };

/** What a figure's component begins with, and its HTML; `whole` is what stands in its place without scripts, or empty. */
export function still(model, name, data) {
  const { Component, firstScene, Whole } = name === "picture" ? PICTURE : FIGURES[name];
  const scene = firstScene(model, data);
  const drawn = (Figure) => renderToString(html`<${Figure} scene=${scene} />`);
  return { scene, html: drawn(Component), whole: Whole ? drawn(Whole) : "" };
}
