// Label smoothing (Part 3): the target for one word, the model's guess, and what the guess costs.

import { sum } from "./model/arithmetic.js";
import { Dot, lineOf, Plot } from "./lib/plot.js";
import { Slider } from "./lib/slider.js";
import { decimal } from "./lib/text.js";
import { html, useState } from "./lib/ui.js";

const WORDS = ["a", "dog", "runs", "man", "ball", "<s>", "</s>", "<unk>", "<blank>"];
const RIGHT = WORDS.indexOf("dog");
const PADDING = WORDS.indexOf("<blank>");
const [LEAST, MOST] = [0.2, 0.999]; // probabilities that can be chosen
const GUESSES = [...Array.from({ length: 160 }, (_, step) => (200 + 5 * step) / 1000), MOST];
const AXES = {
  x: { from: LEAST, to: 1, ticks: [0.2, 0.4, 0.6, 0.8, 1], name: "probability of the right word" },
  y: { from: 0, to: 2, ticks: [0, 0.5, 1, 1.5, 2], name: "loss" },
};
const FIRST = { smoothing: 0.1, probability: 0.98 };

/** A distribution with one probability for the right word; the others but padding share the rest. */
export const sharedOut = (probability) =>
  WORDS.map((_, word) => {
    if (word === PADDING) return 0;
    return word === RIGHT ? probability : (1 - probability) / (WORDS.length - 2);
  });

/** The divergence KL(t ‖ p) of the target from the guess, as `LabelSmoothing` computes it. */
export function lossOf(smoothing, probability) {
  const target = sharedOut(1 - smoothing);
  const guess = sharedOut(probability);
  return sum(target.map((t, word) => (t > 0 ? t * (Math.log(t) - Math.log(guess[word])) : 0)));
}

/** All that is shown of a smoothing and of a probability for the right word. */
export function sceneOf({ smoothing, probability }) {
  const losses = (amount) => GUESSES.map((each) => [each, lossOf(amount, each)]);
  return {
    smoothing,
    probability,
    target: sharedOut(1 - smoothing),
    guess: sharedOut(probability),
    loss: lossOf(smoothing, probability),
    plain: losses(0),
    smoothed: losses(smoothing),
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = () => sceneOf(FIRST);

/** One or two sentences on what is to be seen. */
function Says({ scene: { smoothing, probability, loss } }) {
  const best = 1 - smoothing;
  const cost = html`The guess costs <b>${decimal(loss)}</b>.`;
  if (smoothing === 0) return html`${cost} Without smoothing, more certainty always pays.`;
  const away = probability - best;
  if (Math.abs(away) < 0.0005) return html`${cost} It equals the target: nothing is left to learn.`;
  return away > 0
    ? html`${cost} It is surer than the target, and so it costs more than at ${decimal(best)}.`
    : html`${cost} It is less sure than the target, ${decimal(best)}.`;
}

/** Target and guess as two bars for each word. */
function Bars({ scene: { target, guess } }) {
  const row = (word, number) => {
    const [wanted, given] = [target[number], guess[number]].map(
      (share) => `width:${(100 * share).toFixed(1)}%`,
    );
    return html`<tr key=${word}>
      <th scope="row">${word}</th>
      <td class="bars"><i><u class="target" style=${wanted}></u></i><i><u class="guess" style=${given}></u></i></td>
      <td>${decimal(target[number], 3)}</td><td>${decimal(guess[number], 3)}</td>
    </tr>`;
  };
  return html`<table>
    <thead><tr><th scope="col">word</th><td></td><th scope="col" class="target">target</th><th scope="col" class="guess">guess</th></tr></thead>
    <tbody>${WORDS.map(row)}</tbody>
  </table>`;
}

export function Smoothing({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { smoothing, probability, loss, plain, smoothed } = scene;
  const label = `Loss against the probability of the right word: lowest at ${decimal(1 - smoothing)}. At ${decimal(probability)} it is ${decimal(loss)}.`;
  const dots = html`<${Dot} axes=${AXES} at=${[1 - smoothing, 0]} kind="lowest" />
    <${Dot} axes=${AXES} at=${[probability, loss]} />`;
  return html`<div class="small smoothing">
    <div class="controls">
      <${Slider} label="smoothing ε" min="0" max="0.5" step="0.01" value=${smoothing} says=${decimal(smoothing)}
        onMove=${(value) => change({ smoothing: value })} />
      <${Slider} label="guess for “dog”" min=${LEAST} max=${MOST} step="0.001" value=${probability} says=${decimal(probability, 3)}
        onMove=${(value) => change({ probability: value })} />
    </div>
    <p class="says" role="status"><${Says} scene=${scene} /></p>
    <div class="two">
      <${Bars} scene=${scene} />
      <${Plot} axes=${AXES} label=${label} over=${dots}>
        <path class="former" d=${lineOf(AXES, plain)} /><path class="line" d=${lineOf(AXES, smoothed)} />
      <//>
    </div>
    <p class="key">Thin: without smoothing. Bold: with ε; the ring is where guess and target are equal.</p>
  </div>`;
}
