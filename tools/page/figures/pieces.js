// A text in the subwords of the model (Part 7).

import { UNKNOWN } from "./model/subwords.js";
import { finish } from "./model/slices.js";
import { useScene } from "./lib/scene.js";
import { Button, html } from "./lib/ui.js";

const FIRST = "Ein Schornsteinfeger trägt eine Leiter durch die Straße.";
const EXAMPLES = [
  ["Schornsteinfeger", "de"],
  ["Straßenbahn", "de"],
  ["Schneeballschlacht", "de"],
  ["a naïve lighthouse keeper", "en"],
];
const LONGEST = 120; // letters
const KINDS = [
  ["whole", "whole words and signs"],
  ["part", "parts of words"],
  ["unknown", "unknown letters"],
];

/** Whether a subword is a whole word, a part of one, or an unknown letter. */
function kindOf(id, pieces) {
  if (id === UNKNOWN) return "unknown";
  return pieces.length === 1 ? "whole" : "part";
}

/** All that is shown of a text: its words and signs, each as subwords. */
export function* sceneOf({ subwords }, { text }) {
  const words = [];
  for (const pieces of subwords.cut(text)) {
    const ids = pieces.map((piece) => subwords.idOf(piece));
    words.push(pieces.map((piece, i) => ({ piece, id: ids[i], kind: kindOf(ids[i], pieces) })));
    yield;
  }
  return { text, words };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (model) => finish(sceneOf(model, { text: FIRST }));

const Box = ({ piece, id, kind }) => html`<span class=${`box ${kind}`}>${piece}<small>${id}</small></span>`;

/** How many subwords of each kind there are; their names look like them. */
function Key({ words }) {
  const kinds = words.flat().map(({ kind }) => kind);
  const countOf = (wanted) => kinds.filter((kind) => kind === wanted).length;
  const counts = KINDS.map(
    ([kind, name]) => html`<span>${`${countOf(kind)} `}<span class=${`box ${kind}`}>${name}</span></span>`,
  );
  return html`<p class="legend">${counts}</p>`;
}

export function PiecesOfText({ scene: first }) {
  const { scene, choice, line, choose } = useScene(first, ["text"], sceneOf);
  const { words } = scene;
  const count = words.flat().length;
  const says = `${count} ${count === 1 ? "subword" : "subwords"}.`;
  return html`<div class="small cutting">
    <div class="controls">
      <label class="field"><span>Any text</span><input
        type="text" autocomplete="off" spellcheck="false" maxlength=${LONGEST} value=${choice.text}
        onInput=${({ target }) => choose({ text: target.value })} /></label>
      ${EXAMPLES.map(([text, lang]) => html`<${Button} lang=${lang} onClick=${() => choose({ text })}>${text}<//>`)}
    </div>
    <p class="says" role="status">${line || says}</p>
    <ol class="boxes">${words.map((pieces) => html`<li>${pieces.map(Box)}</li>`)}</ol>
    <${Key} words=${words} />
  </div>`;
}
