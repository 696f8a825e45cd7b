// Sampling (Part 10): what temperature, top-k and top-p leave of one distribution.

import { likeliest, softmax, sum } from "./model/arithmetic.js";
import { searchFor } from "./model/search.js";
import { finish } from "./model/slices.js";
import { Slider } from "./lib/slider.js";
import { continued, decimal, goesOn, grouped, percent, SENTENCE } from "./lib/text.js";
import { Button, html, useState } from "./lib/ui.js";

const WRITTEN = 3; // tokens before the one that is drawn
const NAMED = 12; // tokens with a row of their own
const TOLD = 6; // of the other tokens that were drawn
const DRAWS = 100;
const KEPT = [1, 2, 3, 4, 5, 8, 12, 20, 50, 100, 500, 1000]; // choices of top-k, and all
const FIRST = { temperature: 1, topK: null, topP: 1 };

/** The probabilities of tokens in falling order, of which the last may be cut, as `sample` computes them. */
export function drawnFrom(logProbs, { temperature, topK, topP }) {
  const likeliest = logProbs.slice(0, topK ?? logProbs.length);
  const probabilities = softmax(likeliest.map((logProb) => logProb / temperature));
  let before = 0;
  const nucleus = probabilities.map((probability) => {
    const isKept = before < topP || topP === 1; // rounding cuts nothing
    before += probability;
    return isKept ? probability : 0;
  });
  const total = sum(nucleus);
  return nucleus.map((probability) => probability / total);
}

/**
 * What may come after the first three tokens of a translation: log-probabilities in falling order, and names, with a hyphen
 * where the model would go on with the word.
 */
function* lookingAt(model) {
  const search = yield* searchFor(model, SENTENCE);
  let last = search.start;
  for (const path of search.greedy()) {
    if (path.written.length > WRITTEN) break;
    last = path;
  }
  const { logProbs } = last.next;
  const order = [...logProbs.keys()].sort((one, other) => logProbs[other] - logProbs[one]);
  const breaksOff = (id) => {
    const { next } = search.extend(last, id);
    return next && goesOn(model.words[likeliest(next.logProbs, 1)[0].id]);
  };
  return {
    written: model.decode(last.written),
    names: order.map((id, rank) => continued(model.words[id]) + (rank < NAMED && breaksOff(id) ? "-" : "")),
    logProbs: order.map((id) => Math.round(1000 * logProbs[id]) / 1000),
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (model) => finish(lookingAt(model));

/** The token at a number between 0 and 1; rounding may leave a crumb, which the likeliest gets. */
export function tokenAt(number, probabilities) {
  let below = 0;
  for (const [token, probability] of probabilities.entries()) {
    below += probability;
    if (number < below) return token;
  }
  return 0;
}

/** How often each token is drawn. */
function countsOf(probabilities) {
  const counts = probabilities.map(() => 0);
  for (let draw = 0; draw < DRAWS; draw++) counts[tokenAt(Math.random(), probabilities)] += 1;
  return counts;
}

/** What is to be seen. */
function Says({ probabilities, total }) {
  const kept = probabilities.filter((probability) => probability > 0).length;
  const named = sum(probabilities.slice(0, NAMED));
  if (kept === 1) return "One token is left: this is greedy decoding.";
  const among =
    kept === total ? `all ${grouped(total)} tokens` : `${grouped(kept)} of ${grouped(total)} tokens`;
  return html`It draws from ${among}. The ${Math.min(kept, NAMED)} likeliest have <b>${percent(named)}</b> together.`;
}

/** A row of the table: a bar for what it has before, as an outline, and what it has now; one that has `full` is full. */
function Row({ name, before, now, count, full }) {
  const width = (share) => `width:${((100 * share) / full).toFixed(1)}%`;
  return html`<tr class=${now > 0 ? "" : "cut"}>
    <th scope="row">${name}</th>
    <td class="bars"><i><u class="guess" style=${width(now)}></u><u class="outline" style=${width(before)}></u></i></td>
    <td>${now > 0 ? percent(now) : "cut"}</td><td class="count">${count === null ? "" : `${count} ×`}</td>
  </tr>`;
}

export function Sampling({ scene }) {
  const { written, names, logProbs } = scene;
  const [choice, setChoice] = useState(FIRST);
  const [counts, setCounts] = useState(null); // of tokens, once any are drawn
  const probabilities = drawnFrom(logProbs, choice);
  const model = logProbs.map(Math.exp);
  const { temperature, topK, topP } = choice;
  function change(changes) {
    const next = { ...choice, ...changes };
    setChoice(next);
    if (counts) setCounts(countsOf(drawnFrom(logProbs, next))); // they are never those of another choice
  }
  const rest = (numbers) => sum(numbers.slice(NAMED));
  const others = names.filter((_, token) => token >= NAMED && counts?.[token]);
  const full = Math.max(...[model, probabilities].flatMap((numbers) => [numbers[0], rest(numbers)]));
  const rows = names.slice(0, NAMED).map(
    (name, token) => html`<${Row} key=${token} full=${full} name=${name} before=${model[token]}
      now=${probabilities[token] ?? 0} count=${counts && (counts[token] ?? 0)} />`,
  );
  return html`<div class="small sampling">
    <div class="controls">
      <${Slider} label="temperature" min="0.1" max="2" step="0.1" value=${temperature} says=${decimal(temperature, 1)}
        onMove=${(value) => change({ temperature: value })} />
      <${Slider} label="top-k" min="0" max=${KEPT.length} step="1" value=${topK ? KEPT.indexOf(topK) : KEPT.length}
        says=${topK ? grouped(topK) : "all"} onMove=${(place) => change({ topK: KEPT[place] ?? null })} />
      <${Slider} label="top-p" min="0.05" max="1" step="0.05" value=${topP} says=${decimal(topP)}
        onMove=${(value) => change({ topP: value })} />
      <${Button} onClick=${() => setCounts(countsOf(probabilities))}>Draw ${DRAWS} times<//>
    </div>
    <p class="says" role="status"><${Says} probabilities=${probabilities} total=${logProbs.length} /></p>
    <table>
      <caption>${written} …</caption>
      <thead><tr><th scope="col">next token</th><td></td><th scope="col">probability</th>${counts ? html`<th scope="col" class="count">draws</th>` : html`<td></td>`}</tr></thead>
      <tbody>${rows}
        <${Row} name=${`${grouped(logProbs.length - NAMED)} others`} full=${full} before=${rest(model)} now=${rest(probabilities)}
          count=${counts && rest(counts)} />
      </tbody>
    </table>
    <p class="legend">Outlined: the model’s own probabilities. Filled: what is drawn from. With a hyphen: the word goes on.
      ${others.length > 0 && html`<br />Drawn of the others, for example: <i>${others.slice(-TOLD).join(" · ")}</i>`}</p>
  </div>`;
}
