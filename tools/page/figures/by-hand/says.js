// What the figure says: who asks, what comes of it, what is to be seen at each stage.

import { decimal, grouped, percent } from "../lib/text.js";
import { html } from "../lib/ui.js";
import { STAGES } from "./stages.js";

export const pair = (point) => `(${point.map((value) => decimal(value)).join(", ")})`;
const name = (word) => html`<em lang="de">${word}</em>`;

/** Several in a row: a, b and c. */
function listed(items) {
  return items.map((item, i) => [i === 0 ? "" : i === items.length - 1 ? " and " : ", ", item]);
}

/** A root as it is read: √64 = 8, √8 ≈ 2.8. */
function rootOf(square, sign = `√${square}`) {
  const root = Math.sqrt(square);
  return Number.isInteger(root) ? `${sign} = ${root}` : `${sign} ≈ ${root.toFixed(1)}`;
}

/** How many times as large, in words' length. */
function timesOf(factor) {
  if (factor > 1e6) return "more than a million";
  return factor < 10 ? factor.toFixed(1) : grouped(Math.round(factor));
}

/** What was moved by hand. */
function Moved({ scene }) {
  const keys = scene.rows.filter(({ moved }) => moved).map(({ word }) => name(word));
  const moved = [];
  if (scene.moved) moved.push("the query");
  if (keys.length) moved.push(html`the key${keys.length > 1 ? "s" : ""} of ${listed(keys)}`);
  return moved.length ? html` <span class="moved">Moved: ${listed(moved)}.</span>` : null;
}

/** Who asks, and what comes of it. */
function Answer({ scene: { asks, rows, answer, width, divide, moved } }) {
  const [first, second] = rows.filter(({ open }) => open).sort((one, other) => other.weight - one.weight);
  const who = moved ? html`The query, moved away from that of ${name(asks)},` : name(asks);
  const receives = html`${who} receives ${pair(answer)}`;
  if (!second)
    return html`${receives}: only ${name(first.word)} is open, and gets all weight, whatever the query is.`;
  const lead = first.score - second.score;
  const times = html`e<sup>${decimal(lead)}</sup> ≈ ${timesOf(Math.exp(lead))} times`;
  const wide = `of vectors of ${width === 2 ? "two" : width} numbers`;
  if (first.weight <= 0.95) {
    const wider = divide ? "" : ` Undivided, scores ${wide} lie ${rootOf(width)} times as far apart.`;
    return html`${receives}: ${percent(first.weight)} of the value of ${name(first.word)},
      ${" "}${percent(second.weight)} of that of ${name(second.word)}. Their scores lie ${decimal(lead)} apart,
      so one weight is ${times} the other.${wider}`;
  }
  const what = divide ? "Nearly all weight falls on one word." : "The softmax has collapsed.";
  const why = divide ? "" : ` Undivided, scores ${wide} are ${rootOf(width)} times as large as divided.`;
  return html`<strong>${what}</strong>${why} ${name(first.word)} is ${decimal(lead)} ahead of
    ${" "}${name(second.word)} and so gets ${times} its weight, ${percent(first.weight)} of all.
    Hardly anything is mixed: the answer is nearly the value of ${name(first.word)}.`;
}

const most = (rows, measure) => rows.reduce((best, row) => (measure(row) > measure(best) ? row : best));

const STAGE_SAYS = {
  compare({ rows, width, asks }) {
    const best = most(rows, ({ product }) => product);
    const wider =
      width === 2 ? "" : html` As of vectors of ${width} numbers, all are √${width / 2} times as long.`;
    return html`each key throws its shadow on the query of ${name(asks)}. Shadow times query, in length,
      is q · k; backwards it is negative. The largest has ${name(best.word)},
      ${" "}${decimal(best.product)}.${wider}`;
  },
  divide({ rows, width, divide }) {
    const best = most(rows, ({ score }) => score);
    if (!divide)
      return html`nothing is divided, so the shadows stay as long as they were. The largest score is
        ${" "}${decimal(best.score)}.`;
    return html`all shadows shrink alike, by ${rootOf(width)}. Who was ahead still is, by less:
      the largest score, of ${name(best.word)}, is ${decimal(best.score)}.`;
  },
  mask({ rows, asks, mask, asking }) {
    const closed = rows.filter(({ open }) => !open).map(({ word }) => name(word));
    if (!mask)
      return html`all words are open. Hide later words, and what comes after ${name(asks)} is struck out.`;
    if (!closed.length) return html`no word comes after ${name(asks)}, so all ${asking + 1} are open.`;
    const are = closed.length > 1 ? "are" : "is";
    return html`${name(asks)} may not look at what comes later: ${listed(closed)} ${are} struck out.`;
  },
  softmax({ rows }) {
    const best = most(rows, ({ weight }) => weight);
    return html`scores become weights, positive and with sum one. A disc is as large as its weight:
      ${" "}${name(best.word)} has the largest, ${decimal(best.weight, 3)}.`;
  },
  mix({ answer, asks }) {
    return html`the arrow to each value, times its weight. Laid end to end, they lead to the answer for
      ${" "}${name(asks)}, ${pair(answer)}.`;
  },
};

/** One or two sentences on what is to be seen. */
export function Says({ scene, stage }) {
  if (stage === 0) return html`<${Answer} scene=${scene} /><${Moved} scene=${scene} />`;
  const { name: title } = STAGES[stage - 1];
  const heading = `${stage}. ${title[0].toUpperCase()}${title.slice(1)}:`;
  return html`<strong>${heading}</strong> ${STAGE_SAYS[title](scene)}<${Moved} scene=${scene} />`;
}

/** What the width of the vectors has to do with it. */
export function WidthSays({ width, divide }) {
  if (width === 2) {
    const two = "The vectors of this plane have two numbers.";
    if (divide)
      return html`${two} Dot products of wider vectors spread √(d<sub>k</sub>/2) times as far,
        and the division takes that back.`;
    return html`${two} Undivided, their scores lie ${rootOf(2)} times as far apart.`;
  }
  const farther = rootOf(width / 2, `√(${width}/2)`);
  const spread = `A dot product of ${width} numbers spreads ${farther} times as far as one of two`;
  return divide
    ? `${spread}. Divided by √${width}, it spreads as before.`
    : `${spread}, and nothing takes that back.`;
}
