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

/** Whether a box is switched off. */
export const isCut = (cuts, place) => cuts.includes(placed(place).part === "positions" ? "positions" : place);

/** What is switched off, in words. */
export const namesOf = (cuts) => cuts.map((cut) => ALONE[cut] ?? LABELS[cut]).join(", ");

/** The switches: kinds of parts, a row for each stack; what belongs to no stack; `children` say what comes of it. */
export function Unplug({ cuts, onChange, children }) {
  const toggle = (cut) => onChange(cuts.includes(cut) ? cuts.filter((each) => each !== cut) : [...cuts, cut]);
  let first = true; // one stop of the tab key
  const button = (cut, name, label) => {
    const tabindex = first ? 0 : -1;
    first = false;
    return html`<${Button} class="switch" tabindex=${tabindex} pressed=${cuts.includes(cut)} aria-label=${`${name} off`} onClick=${() => toggle(cut)}>${label}<//>`;
  };
  const stacks = Object.entries(PARTS).map(([side, parts]) => {
    const switches = parts.map((part) => {
      const name = LABELS[`${side} ${part}`];
      return button(`${side} ${part}`, name, name.replace(/^..coder |^masked /, ""));
    });
    return html`<div class="row"><b>${side}</b>${switches}</div>`;
  });
  const alone = Object.entries(ALONE).map(([cut, name]) => button(cut, name, name));
  return html`<div class="unplug" role="group" aria-label="Switch parts off" onKeyDown=${arrows("button")}>
      <p class="title">Unplug, in all layers</p>
      ${stacks}
      <div class="row"><b>or</b>${alone}<${Button} tabindex="-1" off=${!cuts.length} onClick=${() => onChange([])}>plug all in<//></div>
      ${children}
  </div>`;
}
