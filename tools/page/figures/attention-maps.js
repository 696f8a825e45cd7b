// All attention maps of a sentence: every head small, one of them large (Part 9).
//
// attention-maps/scene.js computes all maps of a sentence at once, so only another sentence needs the model.

import { WRITES } from "./lib/corpus.js";
import { Line, SentenceField, useSentence } from "./lib/sentence.js";
import { Button, html, useState } from "./lib/ui.js";
import { sum } from "./model/arithmetic.js";
import { BEAM } from "./model/search.js";
import { AllMaps, cellInWords, headName, Large } from "./attention-maps/drawing.js";
import { firstScene, KINDS, sceneOf } from "./attention-maps/scene.js";

export { firstScene };

/** Where the figure opens: at the head of the last layer with the clearest cross-attention, by the largest weights of its rows. */
function clearest({ cross }) {
  const layer = cross.length - 1;
  const sharp = cross[layer].slice(0, -1).map((map) => sum(map.map((row) => Math.max(...row))));
  return { kind: "cross", layer, head: sharp.indexOf(Math.max(...sharp)) };
}

export function AttentionMaps({ scene: first }) {
  const read = (text) => choose({ text }, () => point(null));
  const { scene, line, choose, sentence } = useSentence(first, ["text"], sceneOf, read);
  const [view, setView] = useState(() => clearest(first.maps));
  const [cell, point] = useState(null); // [query, key]
  const { kind, layer, head } = view;
  const layers = scene.maps[kind];
  const heads = layers[layer].length - 1;
  const shown = { kind, ...scene.sides[kind], map: layers[layer][head] };

  function change(changes) {
    setView({ ...view, ...changes });
    if (changes.kind) point(null);
  }

  const kinds = Object.entries(KINDS).map(
    ([each, name]) =>
      html`<${Button} pressed=${each === kind} onClick=${() => change({ kind: each })}>${name}<//>`,
  );
  return html`<div class="attention-maps">
    <div class="words">
      <${SentenceField} id="attention-german" sentence=${sentence} />
    </div>
    <${Line} ...${{ line, sentence }} />
    <p class="translated"><span lang=${WRITES.code}>${scene.translation}</span>
      ${scene.greedy !== scene.translation && html`<small>A beam of ${BEAM} has found this. Greedily, as in the figures before, the model writes: <span lang=${WRITES.code}>${scene.greedy}</span></small>`}</p>
    <div class="kinds" role="group" aria-label="Attention">${kinds}</div>
    <div class="board">
      <${AllMaps} layers=${layers} columns=${shown.keys.length} view=${view} row=${cell?.[0] ?? null} onChoose=${change} />
      <div class="one">
        <p class="title">${KINDS[kind]}, ${headName(layer, head, heads)}</p>
        <${Large} shown=${shown} cell=${cell} onPoint=${point} />
        <p class="readout" role="status">${cell ? cellInWords(shown, cell) : "Point at a cell, or tap it: its row is marked in all maps."}</p>
      </div>
    </div>
  </div>`;
}
