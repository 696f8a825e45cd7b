// Switches for parts of the model.

import { arrows } from "../lib/keys.js";
import { Button, html } from "../lib/ui.js";
import { PARTS, placed } from "./places.js";

const LABELS = {
  "encoder attention": "encoder self-attention",
  "encoder feed-forward": "encoder feed-forward",
  "decoder attention": "masked self-attention",
  "decoder cross": "cross-attention",
  "decoder feed-forward": "decoder feed-forward",
};
const ALONE = { mask: "causal mask", positions: "positions" };

/** What a place is switched off by, in a layer; null for a place that no switch belongs to. */
function cutAt(place, layer) {
  const { side, part, kind, number } = placed(place);
  if (part === "positions") return "positions";
  return number < 0 || kind !== "adds" ? null : `${side} ${part} ${layer}`;
}

/** Whether a box is switched off. */
export const isCut = (cuts, place, layer) => cuts.includes(cutAt(place, layer));

/** The switches: a row for each part of a layer, on the side of its stack, and what belongs to no layer. */
export function Unplug({ cuts, layers, onChange }) {
  const toggle = (cut) => onChange(cuts.includes(cut) ? cuts.filter((each) => each !== cut) : [...cuts, cut]);
  let first = true; // one stop of the tab key
  const button = (cut, name, label) => {
    const tabindex = first ? 0 : -1;
    first = false;
    return html`<${Button} class="switch" tabindex=${tabindex} pressed=${cuts.includes(cut)} aria-label=${`${name} off`} onClick=${() => toggle(cut)}>${label}<//>`;
  };
  const stacks = Object.entries(PARTS).map(([side, parts]) => {
    const rows = parts.map((part) => {
      const name = LABELS[`${side} ${part}`];
      const switches = Array.from({ length: layers }, (_, layer) =>
        button(`${side} ${part} ${layer}`, `${name} of layer ${layer + 1}`, layer + 1),
      );
      return html`<div class="row"><span>${name.replace(/^(encoder|decoder|masked) /, "")}</span>${switches}</div>`;
    });
    return html`<div role="group" aria-label=${`Parts of the ${side}, by layer`}><b>${side}</b>${rows}</div>`;
  });
  const alone = Object.entries(ALONE).map(([cut, name]) => button(cut, name, name));
  return html`<div class="unplug" role="group" aria-label="Switch parts off" onKeyDown=${arrows("button")}>
      <p class="title">Unplug a part, by layer</p>
      <div class="stacks">${stacks}</div>
      <div class="row alone">${alone}<${Button} tabindex="-1" off=${!cuts.length} onClick=${() => onChange([])}>plug all in<//></div>
  </div>`;
}
