// Switches for parts of the model, and the translation without them under the intact one.

import { greedyWithout } from "../model/unplug.js";
import { WRITES } from "../lib/corpus.js";
import { useModel } from "../lib/shipped.js";
import { Button, html, useEffect, useState } from "../lib/ui.js";
import { joined } from "./pieces.js";
import { PARTS, placed } from "./places.js";
import { MOST } from "./scene.js";

const LABELS = {
  "encoder attention": "encoder self-attention",
  "encoder feed-forward": "encoder feed-forward",
  "decoder attention": "masked self-attention",
  "decoder cross": "cross-attention",
  "decoder feed-forward": "decoder feed-forward",
};
const WORDS = 18; // of a translation that has gone wrong
const ALONE = { mask: "causal mask", positions: "positions" };

/** What a place is switched off by, in a layer; null for a place that no switch belongs to. */
function cutAt(place, layer) {
  const { side, part, kind, number } = placed(place);
  if (part === "positions") return "positions";
  return number < 0 || kind !== "adds" ? null : `${side} ${part} ${layer}`;
}

/** Whether a box is switched off. */
export const isCut = (cuts, place, layer) => cuts.includes(cutAt(place, layer));

/** A cut in words. */
function named(cut) {
  if (ALONE[cut]) return ALONE[cut];
  const [side, part, layer] = cut.split(" ");
  return `${LABELS[`${side} ${part}`]} of layer ${Number(layer) + 1}`;
}

/** The cuts, `toggle(cut)`, and the text that is written without these parts: { text, cuts, pieces, ended }. */
export function useCuts(text) {
  const [cuts, setCuts] = useState([]);
  const [result, setResult] = useState(null);
  const [line, run] = useModel();
  useEffect(() => {
    if (!cuts.length) return;
    const translated = function* (model) {
      const { written, ended } = yield* greedyWithout(model, text, cuts, MOST);
      return { text, cuts, pieces: written.map((id) => model.words[id]), ended };
    };
    run(translated, () => setCuts([...cuts])).then((found) => found && setResult(found));
  }, [text, cuts]);
  const toggle = (cut) =>
    setCuts((before) => (before.includes(cut) ? before.filter((each) => each !== cut) : [...before, cut]));
  return { cuts, toggle, clear: () => setCuts([]), result, line };
}

/** What has become of a translation: in words. */
function verdictOn(broken, intact, ended) {
  if (broken === intact) return "The translation stays the same.";
  return ended ? "The translation changes." : `It finds no end within ${MOST} tokens.`;
}

/** The intact translation, and under it the one without. */
function Compared({ intact, text, state }) {
  const { cuts, result, line } = state;
  const isReady = result?.cuts === cuts && result.text === text;
  const broken = isReady ? joined(result.pieces) : "";
  const words = broken.split(" ");
  const shown = words.length > WORDS ? `${words.slice(0, WORDS).join(" ")} …` : broken;
  let said = "Switch a part off, and the sentence is translated without it.";
  if (cuts.length)
    said = isReady ? verdictOn(broken, intact, result.ended) : line || "The sentence is translated …";
  return html`<div class="compared">
    <p><b>intact</b> <span lang=${WRITES.code}>${intact}</span></p>
    <p class="broken"><b>unplugged</b> <span lang=${WRITES.code}>${isReady && !broken ? "(nothing)" : shown}</span></p>
    <p class="verdict" role="status">${said}${cuts.length ? ` Off: ${cuts.map(named).join(", ")}.` : ""}</p>
  </div>`;
}

/** The switches: a row for each part of a layer, on the side of its stack, and what belongs to no layer. */
export function Unplug({ intact, text, layers, state }) {
  const { cuts, toggle, clear } = state;
  const button = (cut, name, label) =>
    html`<${Button} class="switch" pressed=${cuts.includes(cut)} aria-label=${`${name} off`} onClick=${() => toggle(cut)}>${label}<//>`;
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
  return html`<div class="unplug">
    <div class="switches" role="group" aria-label="Switch parts off">
      <p class="title">Unplug a part, by layer <small>(the boxes go on showing the intact model)</small></p>
      <div class="stacks">${stacks}</div>
      <div class="row alone">${alone}<${Button} off=${!cuts.length} onClick=${clear}>plug all in<//></div>
    </div>
    <${Compared} intact=${intact} text=${text} state=${state} />
  </div>`;
}
