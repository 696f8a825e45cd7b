// What the build asks of the figures: their first scene, and its HTML.

import { renderToString } from "preact-render-to-string";

import { html } from "./lib/ui.js";
import { readingModel } from "./model/file.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { FIGURES } from "./registry.js";

export { FIGURES, finish, readingModel, Search };

/** What a figure's component begins with, and its HTML; `whole` is what stands in its place without scripts, or empty. */
export function still(model, name, data) {
  const { Component, firstScene, Whole } = FIGURES[name];
  const scene = firstScene(model, data);
  const drawn = (Figure) => renderToString(html`<${Figure} scene=${scene} />`);
  return { scene, html: drawn(Component), whole: Whole ? drawn(Whole) : "" };
}
