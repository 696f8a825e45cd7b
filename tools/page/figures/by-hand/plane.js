// The plane: axes, arrows, keys and values with their names, and what the marks mean.

import { sum } from "../model/arithmetic.js";
import { decimal } from "../lib/text.js";
import { html } from "../lib/ui.js";
import { at, Chain, degreesOf, Shadows, straight } from "./constructions.js";
import { pair } from "./says.js";
import { LIMIT } from "./scene.js";
import { DIVIDE, MIX, SOFTMAX, STAGES } from "./stages.js";

function Arrow({ to, kind }) {
  const length = Math.hypot(...to);
  if (length < 0.3) return html`<path class=${kind} d=${straight([0, 0], to)} />`;
  const neck = to.map((value) => value * (1 - 0.22 / length));
  const place = `translate(${at(to)}) rotate(${degreesOf(to)})`;
  return html`<path class=${kind} d=${straight([0, 0], neck)} />
    <path class=${`${kind} head`} transform=${place} d="M0,0L-24,-11V11Z" />`;
}

function Axes() {
  const ticks = [-2, -1, 1, 2];
  const grid = [...ticks, 0].map(
    (value) => html`<path class=${value ? "grid" : "axis"} d=${straight([value, -LIMIT], [value, LIMIT])} />
      <path class=${value ? "grid" : "axis"} d=${straight([-LIMIT, value], [LIMIT, value])} />`,
  );
  const labels = ticks.map(
    (value) => html`<text class="tick" x=${100 * value} y="255">${decimal(value, 0)}</text>
      <text class="tick" x="-248" y=${6 - 100 * value}>${decimal(value, 0)}</text>`,
  );
  return [grid, labels];
}

const radius = (weight) => Math.round(48 * Math.sqrt(weight)); // so that areas compare as weights do

/** How much of a box, given by its middle and half its sides, lies in another. */
function overlap([middle, half], [otherMiddle, otherHalf]) {
  const [width, height] = [0, 1].map((axis) =>
    Math.max(0, half[axis] + otherHalf[axis] - Math.abs(middle[axis] - otherMiddle[axis])),
  );
  return width * height;
}

/** The place of a label, by its middle, that covers the least of what is taken; then it is taken, too. */
function freest(places, half, taken) {
  const inside = [0, 0].map((_, axis) => 100 * LIMIT - half[axis]);
  const kept = places.map((place) =>
    place.map((value, axis) => Math.max(-inside[axis], Math.min(value, inside[axis]))),
  );
  const costs = kept.map((place) => sum(taken.map((box) => overlap([place, half], box))));
  const best = kept[costs.indexOf(Math.min(...costs))];
  taken.push([best, half]);
  return best;
}

/** Keys of all words; which of their marks are seen at a stage, the style sheet says. */
function marksOf({ rows, stage, onAsk }) {
  const sized = stage === 0 || stage >= SOFTMAX;
  const discs = rows.map(({ word, key, weight }) => {
    const [x, y] = at(key);
    return html`<g key=${word}>
      <circle class="disc key" cx=${x} cy=${y} r=${radius(weight)} /><circle class="dot" cx=${x} cy=${y} r="5" />
    </g>`;
  });
  const taken = rows.map(({ key }) => [at(key), [8, 8]]);
  const names = rows.map(({ word, english, key, weight }) => {
    const [x, y] = at(key);
    const room = Math.max(13, sized ? radius(weight) : 0);
    const gloss = stage === SOFTMAX ? decimal(weight) : english;
    const [above, below] = [y - room - 27, y + room + 25];
    const places = (key[1] < 0 ? [below, above] : [above, below]).map((middle) => [x, middle]);
    const line = freest(places, [5 * word.length + 4, 20], taken)[1] - 3; // the upper of two
    return html`<g key=${word} onClick=${() => onAsk(word)}>
      <circle class="hit" cx=${x} cy=${y} r="33" /><text class="word" x=${x} y=${line}>
        <tspan class="own" lang="de">${word}</tspan><tspan class="gloss" x=${x} dy="19">${gloss}</tspan>
      </text>
    </g>`;
  });
  return [discs, names];
}

function describe({ asks, asked, answer }, stage) {
  const seen = stage === 0 ? "" : ` Drawn is the stage ${STAGES[stage - 1].name}.`;
  const query = `a dashed arrow, the query, leads to ${pair(asked)}`;
  const arrows = `${query}, a thick one, the answer, to ${pair(answer)}`;
  const weights = "The larger the disc of a key, the more weight it gets.";
  return `Words in a plane. ${asks} asks: ${arrows}. ${weights}${seen}`;
}

/** The drawing; its handles lie above it. Words are for the mouse: the keyboard has the handles. */
export function Drawing({ scene, stage, onAsk }) {
  const [corner, side] = [-100 * LIMIT, 200 * LIMIT];
  const [discs, names] = marksOf({ rows: scene.rows, stage, onAsk });
  const answered = stage === 0 || stage === MIX;
  const shadowed = stage <= DIVIDE;
  return html`<svg viewBox=${`${corner} ${corner} ${side} ${side}`}>
    <g role="img" aria-label=${describe(scene, stage)}>
      <${Axes} />${discs}
      ${shadowed ? html`<${Shadows} scene=${scene} divided=${stage === DIVIDE} />` : ""}
      <${Arrow} to=${scene.asked} kind="query" />
      ${answered ? html`<${Arrow} to=${scene.answer} kind="answer value" />` : ""}
      ${stage === MIX ? html`<${Chain} rows=${scene.rows} />` : ""}
    </g>
    <g class="names" aria-hidden="true">${names}</g>
  </svg>`;
}

/** What the marks of the plane mean. */
export function Legend({ scene: { asked, answer } }) {
  const item = (role, sample, text) =>
    html`<span class=${role}><svg viewBox="0 0 30 12" aria-hidden="true">${sample}</svg>${text}</span>`;
  const key = html`<circle class="disc" cx="15" cy="6" r="6" /><circle class="dot" cx="15" cy="6" r="3" />`;
  return html`<p class="legend">
    ${item("query", html`<path class="query" d="M0,6H30" />`, html`query <b>${pair(asked)}</b>`)}
    ${item("value", html`<path class="answer" d="M0,6H30" />`, html`answer <b>${pair(answer)}</b>`)}
    ${item("key", key, "key, the disc: its weight")}${item("key", html`<path class="shadow" d="M0,6H30" />`, "shadow of a key")}
  </p>`;
}
