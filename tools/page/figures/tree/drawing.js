// The tree as it is drawn: steps from left to right, or from top to bottom where it is narrow.

import { WRITES } from "../lib/corpus.js";
import { decimal } from "../lib/text.js";
import { classes, html, useMemo } from "../lib/ui.js";
import { forkOf, reached } from "./known.js";
import { stepOf, treeOf } from "./layout.js";

/** The lines of a step, in one of two drawings. */
const Lines = ({ name, box, paths }) =>
  html`<svg class=${name} viewBox=${box} preserveAspectRatio="none" aria-hidden="true">${paths.map(
    (path) => html`<path class=${path.name} d=${path.d} />`,
  )}</svg>`;

/** A step: subwords, and the log-probability of all up to each. It is drawn again only where it has changed. */
function Step({ scene, step, looks, isFork }) {
  const draw = () => {
    const { nodes, dots, lines } = stepOf(scene, step, looks?.split("|"), isFork);
    return html`
      ${lines.map((each) => html`<${Lines} ...${each} />`)}
      <span class="number" aria-hidden="true">${step}</span>
      ${nodes.map(
        ({ look, text, logp, style }) =>
          html`<span class=${`node ${look}`} style=${style}><b lang=${WRITES.code}>${text}</b> <small>${decimal(logp)}</small></span>`,
      )}
      ${dots.map(({ look, style }) => html`<span class=${`node ${look}`} style=${style}></span>`)}
    `;
  };
  const content = useMemo(draw, [scene, step, looks, isFork]);
  return html`<div class="step" role="group" aria-label=${`step ${step}`}>${content}</div>`;
}

/** The tree, as far as it has grown. Its room is that of the whole. */
export function Drawing({ scene, at, grows }) {
  const { size, labels, start, shown } = treeOf(scene, at);
  return html`<div
    class=${classes({ grid: true, grows })} role="group" style=${size}
    aria-label=${`The search for “${scene.read}” with width ${scene.width}, as a tree: subwords, and the log-probability of all up to each`}
  >
    <div class="labels" aria-hidden="true">
      ${labels.map(({ text, style }) => html`<span class="label" style=${style}>${text}</span>`)}
    </div>
    <span class="node start" style=${start}></span>
    ${shown.map((each) => html`<${Step} key=${each.step} scene=${scene} ...${each} />`)}
  </div>`;
}

/** What the looks of the tree mean; that of the end has its room from the beginning. */
export function Key({ scene, at }) {
  const { over } = reached(scene, at);
  const end = over && forkOf(scene) >= 0 ? "fork" : "later";
  return html`<p class="legend" aria-hidden="true">
    <span><small>−1.23</small> log-probability so far</span> <span>grey: given up</span>
    <span class="greedy">the greedy path</span> <span class="best">${over ? "the winner" : "the best so far"}</span>
    <span class=${end}>greedy leaves the winner</span>
  </p>`;
}
