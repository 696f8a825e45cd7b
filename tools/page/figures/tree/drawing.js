// The tree as it is drawn: steps from left to right, or from top to bottom where it is narrow.

import { arrows } from "../lib/keys.js";
import { decimal } from "../lib/text.js";
import { classes, html, useMemo } from "../lib/ui.js";
import { START } from "./known.js";
import { stepOf, treeOf } from "./layout.js";

/** A subword and its log-probability; whoever points at it is told more. */
function Node({ name, look, text, logp, style, pointed, onPoint }) {
  const cut = name.startsWith("cut") ? ", cut" : "";
  return html`<button
    type="button" class=${classes({ node: true, [look]: look, pointed: pointed === name })} style=${style}
    aria-label=${`${text} ${decimal(logp)}${cut}`} tabindex=${pointed === name ? 0 : -1}
    onPointerEnter=${() => onPoint(name)} onFocus=${() => onPoint(name)}
  ><b>${text}</b><small>${decimal(logp)}</small></button>`;
}

/** The lines of a step, in one of two drawings. */
const Lines = ({ name, box, paths }) =>
  html`<svg class=${name} viewBox=${box} preserveAspectRatio="none" aria-hidden="true">${paths.map(
    (path) => html`<path class=${path.name} d=${path.d} />`,
  )}</svg>`;

/** A step; it is drawn again only where something about it has changed. */
function Step({ scene, step, looks, isFork, pointed, onPoint }) {
  const draw = () => {
    const { nodes, dots, cuts, lines } = stepOf(scene, step, looks?.split("|"), isFork, pointed);
    return html`
      ${lines.map((each) => html`<${Lines} ...${each} />`)}
      <span class="number" aria-hidden="true">${step}</span>
      ${nodes.map((node) => html`<${Node} key=${node.name} ...${node} pointed=${pointed} onPoint=${onPoint} />`)}
      ${dots.map(({ look, style }) => html`<span class=${`node ${look}`} style=${style}></span>`)}
      ${cuts && html`<i class="line-of-the-cut"></i>`}
    `;
  };
  const content = useMemo(draw, [scene, step, looks, isFork, pointed]);
  return html`<div class="step" role="group" aria-label=${`step ${step}`}>${content}</div>`;
}

/** The tree, as far as it has grown. Its room is that of the whole. */
export function Drawing({ scene, at, pointed, onPoint, grows }) {
  const { size, labels, start, shown } = treeOf(scene, at);
  const touches = (step) => [step, step - 1].includes(Number(pointed.split("-")[1]));
  return html`<div
    class=${classes({ grid: true, grows })} role="group" onKeyDown=${arrows("button")} style=${size}
    aria-label="The search as a tree: subwords, and the log-probability of all up to each"
  >
    <div class="labels" aria-hidden="true">
      ${labels.map(({ text, style }) => html`<span class=${`label ${text.split(" ")[0]}`} style=${style}>${text}</span>`)}
    </div>
    <button
      type="button" class=${classes({ node: true, start: true, pointed: pointed === START })} aria-label="the start"
      style=${start} tabindex=${pointed === START ? 0 : -1}
      onPointerEnter=${() => onPoint(START)} onFocus=${() => onPoint(START)}
    ></button>
    ${shown.map(
      (each) =>
        html`<${Step} key=${each.step} scene=${scene} ...${each} pointed=${touches(each.step) ? pointed : ""} onPoint=${onPoint} />`,
    )}
  </div>`;
}
