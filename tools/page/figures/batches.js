// Batches by token budget (Part 6): sentences in batches, and how much of them is padding.

import { sum } from "./model/arithmetic.js";
import { Slider } from "./lib/slider.js";
import { percent } from "./lib/text.js";
import { Button, html, useState } from "./lib/ui.js";

const COUNT = 36; // sentences
const [SHORTEST, LONGEST] = [4, 24]; // tokens of a sentence
const CELL = 7; // pixels of a token
const FIRST = { budget: 96, sorted: false, seed: 1 };

/** Numbers from 0 to 1, always the same ones for a seed. */
function randomNumbers(seed) {
  let state = seed;
  return () => {
    state = (48271 * state) % 2147483647;
    return state / 2147483647;
  };
}

/** Lengths of sentences. Of three numbers the middle one makes very long and short ones rare, as they are in captions. */
function lengthsFrom(random) {
  const length = () => {
    const [, middle] = [random(), random(), random()].sort((one, other) => one - other);
    return SHORTEST + Math.round((LONGEST - SHORTEST) * middle);
  };
  return Array.from({ length: COUNT }, length);
}

/** Lists of lengths, in this order, each of at most `budget` positions, padding included. */
export function batchesOf(lengths, budget) {
  const batches = [];
  let longest = 0;
  for (const length of lengths) {
    const last = batches[batches.length - 1];
    longest = Math.max(longest, length);
    if (last && longest * (last.length + 1) <= budget) last.push(length);
    else {
      batches.push([length]);
      longest = length;
    }
  }
  return batches;
}

/** All that is shown of a budget, an order, and a seed for the sentences. */
export function sceneOf({ budget, sorted, seed }) {
  const lengths = lengthsFrom(randomNumbers(seed));
  if (sorted) lengths.sort((one, other) => one - other);
  const batches = batchesOf(lengths, budget);
  const positions = sum(batches.map((batch) => Math.max(...batch) * batch.length));
  return { budget, sorted, seed, batches, padding: 1 - sum(lengths) / positions };
}

/** What the page shows before anybody has touched it. */
export const firstScene = () => sceneOf(FIRST);

/** A batch: a row for each sentence, as wide as the longest one. */
function Rows({ batch }) {
  const longest = Math.max(...batch);
  const label = `${batch.length} × ${longest} positions`;
  const width = (tokens) => `width:${CELL * tokens}px`;
  return html`<li aria-label=${label} title=${label} style=${width(longest)}>
    ${batch.map((length) => html`<i style=${width(length)}></i>`)}
  </li>`;
}

export function Batches({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { budget, sorted, seed, batches, padding } = scene;
  const way = sorted ? "Sentences of similar length share a batch." : "Sentences come in a random order.";
  return html`<div class="small batches">
    <div class="controls">
      <${Slider} label="budget" min="24" max="160" step="8" value=${budget} says=${`${budget} positions`}
        onMove=${(value) => change({ budget: value })} />
      <${Button} pressed=${sorted} onClick=${() => change({ sorted: !sorted })}>Sort by length<//>
      <${Button} onClick=${() => change({ seed: seed + 1 })}>Other sentences<//>
    </div>
    <p class="says" role="status">${COUNT} sentences make ${batches.length} batches, of which <b>${percent(padding)}</b> is padding. ${way}</p>
    <ol class="blocks">${batches.map((batch) => html`<${Rows} batch=${batch} />`)}</ol>
  </div>`;
}
