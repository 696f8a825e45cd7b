// One word asks (Part 1): its query, which can be turned, and the weights of eight keys.

import { apply, dot, matrixOf } from "./by-hand/scene.js";
import { softmax, sum } from "./model/arithmetic.js";
import { Slider } from "./lib/slider.js";
import { decimal, percent } from "./lib/text.js";
import { Button, html, useState } from "./lib/ui.js";

/** All that is shown of words { word, english, place }, of who asks, and of a turn in degrees. */
export function sceneOf({ words, asks, turn }) {
  const query = apply(matrixOf(turn), words[asks].place);
  const products = words.map(({ place }) => dot(query, place));
  const weights = softmax(products.map((product) => product / Math.sqrt(2)));
  const answer = [0, 1].map((axis) => sum(words.map(({ place }, i) => weights[i] * place[axis])));
  return { words, asks, turn, query, products, weights, answer };
}

/** What the page shows before anybody has touched it; `data` has the words, and who asks first. */
export const firstScene = (_, { words, asks }) => sceneOf({ words, asks, turn: 0 });

const vector = ([x, y]) => `(${decimal(x)}, ${decimal(y)})`;

/** What is to be seen. */
function Says({ scene: { words, asks, turn, query, weights, answer } }) {
  const best = weights.indexOf(Math.max(...weights));
  return html`<i>${words[asks].word}</i> asks with ${vector(query)}${turn ? ", a turned query," : ""} and receives ${vector(answer)}. Most weight has <i>${words[best].word}</i>: <b>${percent(weights[best])}</b>.`;
}

export function Ask({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { words, asks, turn, products, weights } = scene;
  const who = words.map(
    ({ word }, i) => html`<${Button} pressed=${i === asks} onClick=${() => change({ asks: i })}>${word}<//>`,
  );
  const row = ({ word, english }, i) => html`<tr key=${word}>
    <th scope="row"><span lang="de">${word}</span> <small>${english}</small></th>
    <td class="bars"><i><u class="guess" style=${`width:${(100 * weights[i]).toFixed(1)}%`}></u></i></td>
    <td>${decimal(products[i])}</td><td>${decimal(weights[i])}</td>
  </tr>`;
  return html`<div class="small asking">
    <div class="controls"><span class="who" role="group" aria-label="Who asks" lang="de">${who}</span>
      <${Slider} label="turn its query" min="-180" max="180" step="5" value=${turn} says=${`${decimal(turn, 0)}°`}
        onMove=${(value) => change({ turn: value })} />
    </div>
    <p class="says" role="status"><${Says} scene=${scene} /></p>
    <table>
      <thead><tr><th scope="col">word</th><td></td><th scope="col">q · k</th><th scope="col">weight</th></tr></thead>
      <tbody>${words.map(row)}</tbody>
    </table>
  </div>`;
}
