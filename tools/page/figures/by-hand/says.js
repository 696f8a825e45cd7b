// What the figure says: who asks, what comes of it, what is to be seen at each stage.

import { decimal, percent } from "../lib/text.js";
import { html } from "../lib/ui.js";
import { STAGES } from "./stages.js";

export const pair = (point) => `(${point.map((value) => decimal(value)).join(", ")})`;
const name = (word) => html`<em lang="de">${word}</em>`;

/** Who asks, and what comes of it. */
function answered({ asks, rows, answer, moved }) {
  const [first, second] = [...rows].sort((one, other) => other.weight - one.weight);
  const who = moved ? html`The query, moved away from that of ${name(asks)},` : name(asks);
  const receives = html`${who} receives ${pair(answer)}`;
  return html`${receives}: ${percent(first.weight)} of the value of ${name(first.word)},
    ${" "}${percent(second.weight)} of that of ${name(second.word)}. The longer its shadow on the query, the more
    weight a key gets.`;
}

const most = (rows, measure) => rows.reduce((best, row) => (measure(row) > measure(best) ? row : best));

const STAGE_SAYS = {
  compare({ rows, asks }) {
    const best = most(rows, ({ product }) => product);
    return html`each key throws its shadow on the query of ${name(asks)}. Shadow times query, in length,
      is q · k; backwards it is negative. The largest has ${name(best.word)}, ${decimal(best.product)}.`;
  },
  divide({ rows }) {
    const best = most(rows, ({ score }) => score);
    return html`all shadows shrink alike, by √2. Who was ahead still is, by less: the largest score, of
      ${" "}${name(best.word)}, is ${decimal(best.score)}.`;
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
  if (stage === 0) return answered(scene);
  const { name: title } = STAGES[stage - 1];
  const heading = `${stage}. ${title[0].toUpperCase()}${title.slice(1)}:`;
  return html`<strong>${heading}</strong> ${STAGE_SAYS[title](scene)}`;
}
