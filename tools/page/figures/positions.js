// Sinusoidal positions (Part 2): the waves of one position, and its inner product with all others.

import { sum } from "./model/arithmetic.js";
import { dragged } from "./lib/hands.js";
import { Dot, lineOf, Plot } from "./lib/plot.js";
import { Slider } from "./lib/slider.js";
import { decimal } from "./lib/text.js";
import { html, useState } from "./lib/ui.js";

const WIDTH = 64; // D of the encoding
const LAST = 80; // the last position
const FARTHEST = 10; // steps by which the query can be turned
const WAVES = [0, 4, 8, 12, 16]; // pairs of features whose sine is drawn
const POSITIONS = Array.from({ length: LAST + 1 }, (_, position) => position);
const PAIRS = Array.from({ length: WIDTH / 2 }, (_, pair) => pair);
const X = { from: 0, to: LAST, ticks: [0, 20, 40, 60, 80], name: "position" };
const OF_WAVES = {
  x: { ...X, name: "" },
  y: {
    from: 0.4,
    to: WAVES.length + 0.6,
    ticks: WAVES.map((_, row) => WAVES.length - row),
    name: "wave",
    say: (row) => `i = ${WAVES[WAVES.length - row]}`,
  },
};
const OF_PRODUCTS = { x: X, y: { from: 0, to: WIDTH / 2, ticks: [0, 8, 16, 24, 32], name: "inner product" } };

export const frequencyOf = (pair) => 10_000 ** ((-2 * pair) / WIDTH);

/** The encoding of a position, as `PositionalEncoding` computes it. */
export const encodingOf = (position) =>
  PAIRS.flatMap((pair) => [Math.sin(position * frequencyOf(pair)), Math.cos(position * frequencyOf(pair))]);

/** An encoding turned by some steps: each pair of sine and cosine by the angle of these steps. */
export const turned = (encoding, steps) =>
  PAIRS.flatMap((pair) => {
    const angle = steps * frequencyOf(pair);
    const [sin, cos] = [encoding[2 * pair], encoding[2 * pair + 1]];
    return [sin * Math.cos(angle) + cos * Math.sin(angle), cos * Math.cos(angle) - sin * Math.sin(angle)];
  });

const dot = (one, other) => sum(one.map((value, feature) => value * other[feature]));

/** All that is shown of a position, and of the steps by which its query is turned. */
export function sceneOf({ position, steps }) {
  const query = turned(encodingOf(position), steps);
  return { position, steps, products: POSITIONS.map((other) => dot(query, encodingOf(other))) };
}

/** What the page shows before anybody has touched it. */
export const firstScene = () => sceneOf({ position: 40, steps: 0 });

/** A wave as a line in its row, drawn finely enough for its length. */
function waveOf(pair, row) {
  const frequency = frequencyOf(pair);
  const count = Math.ceil(Math.max(20, 4 * LAST * frequency));
  const places = Array.from({ length: count + 1 }, (_, number) => (number * LAST) / count);
  return places.map((place) => [place, heightOf(pair, row, place)]);
}

const heightOf = (pair, row, position) => WAVES.length - row + 0.4 * Math.sin(position * frequencyOf(pair));

/** What is to be seen. */
function Says({ scene: { position, steps, products } }) {
  const best = products.indexOf(Math.max(...products));
  const next = best === LAST ? best - 1 : best + 1;
  const falls = html`Its neighbour ${next} gets ${decimal(products[next], 1)}.`;
  if (steps === 0)
    return html`Position <b>${position}</b> gives itself the highest product, ${decimal(products[position], 1)}. ${falls}
      ${" "}Drag it: the curve moves along and keeps its shape, for only the distance counts.`;
  const where = `${Math.abs(steps)} step${Math.abs(steps) > 1 ? "s" : ""} ${steps > 0 ? "ahead" : "back"}`;
  const aim = position + steps;
  const looks =
    aim < 0 || aim > LAST ? `would look at ${decimal(aim, 0)}, beyond this chart.` : `now looks at ${aim}.`;
  return html`W<sup>Q</sup> turns the query ${where}: position <b>${position}</b> ${looks} ${aim === best ? falls : ""}`;
}

export function Positions({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { position, steps, products } = scene;
  const hand = dragged(([across]) =>
    change({ position: Math.round(LAST * Math.max(0, Math.min(across, 1))) }),
  );
  const upright = ({ x, y }) =>
    lineOf({ x, y }, [
      [position, y.from],
      [position, y.to],
    ]);
  const crossings = WAVES.map(
    (pair, row) =>
      html`<${Dot} key=${pair} axes=${OF_WAVES} at=${[position, heightOf(pair, row, position)]} />`,
  );
  const peak = html`<${Dot} axes=${OF_PRODUCTS} at=${[position, products[position]]} />`;
  const values = WAVES.map((pair) => decimal(Math.sin(position * frequencyOf(pair)))).join(", ");
  return html`<div class="small positions">
    <div class="controls">
      <${Slider} label="position" min="0" max=${LAST} step="1" value=${position} says=${String(position)}
        onMove=${(value) => change({ position: value })} />
      <${Slider} label=${html`W<sup>Q</sup> turns by`} min=${-FARTHEST} max=${FARTHEST} step="1" value=${steps} says=${decimal(steps, 0)}
        onMove=${(value) => change({ steps: value })} />
    </div>
    <p class="says" role="status"><${Says} scene=${scene} /></p>
    <${Plot} axes=${OF_WAVES} class="plot waves" label=${`Five sine waves. At position ${position} they are at ${values}.`} over=${crossings} ...${hand}>
      <path class="here" d=${upright(OF_WAVES)} />
      ${WAVES.map((pair, row) => html`<path key=${pair} class="wave" d=${lineOf(OF_WAVES, waveOf(pair, row))} />`)}
    <//>
    <${Plot} axes=${OF_PRODUCTS} label=${`Inner product of position ${position} with every position: ${decimal(products[position], 1)} with itself.`} over=${peak} ...${hand}>
      <path class="here" d=${upright(OF_PRODUCTS)} />
      <path class="line" d=${lineOf(
        OF_PRODUCTS,
        products.map((product, other) => [other, product]),
      )} />
    <//>
    <p class="key">Above: the sines of five of the ${WIDTH / 2} pairs. Below: inner products, D = ${WIDTH}. Drag in either.</p>
  </div>`;
}
