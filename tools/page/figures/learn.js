// Two Transformers that learn to copy in the reader's browser, each with switches (Part 4, "Break it").
//
// A *run* is a model with its parts and a seed. It learns in a thread of its own, which reports
// after every few updates: the loss, how many copies are exact, and what is written for an example.

import { Run, freshRun, partsWithout } from "./learn/run.js";
import { NAMES, PARTS, SIZES, TESTS, UPDATES } from "./learn/training.js";
import { Button, classes, html, useRef, useState } from "./lib/ui.js";

const SEED = 1;
const WORDS = {
  mask: "causal mask",
  positions: "positions",
  residuals: "residual connections",
  shift: "shift right",
};
const REASONS = {
  mask: "In training it read the answers from the future; in writing there is none.",
  positions: "It knows the letters, but not their order.",
  residuals: "Without a direct path through the stack it hardly learns.",
  shift: "In training it reads the very token that it must write, and so learns nothing else.",
};
const LINES = ["a solid line", "a dashed line"];
const TICKS = [3, 1, 0.1, 0.01, 0.001]; // of the loss
const [LOWEST, HIGHEST] = [0.0001, 5];

/** What the page shows before anybody has touched it: the full model, and one that can see the future. */
export const firstScene = () => ({
  runs: [freshRun(partsWithout(), SEED), freshRun(partsWithout("mask"), SEED)],
});

// Words ----------------------------------------------------------------------------------------------

/** A model's name: what it lacks. */
export function nameOf(parts) {
  const lacks = PARTS.filter((part) => !parts[part]).map((part) => WORDS[part]);
  if (!lacks.length) return "full model";
  const last = lacks.pop();
  return `without ${lacks.length ? `${lacks.join(", ")} and ` : ""}${last}`;
}

const capital = (words) => words.replace(/^./, (letter) => letter.toUpperCase());
const sayLoss = (losses) => (losses.length ? losses[losses.length - 1].toPrecision(2) : "–");
const spelt = (ids) => ids.map((id) => NAMES[id]).join(" ");

/** Is the token at a place the right one? After the source comes the end. */
const isRight = ({ source, written }, place) => NAMES[written[place]] === (NAMES[source[place]] ?? "end");

/** The outcome of a run, and the reason where a single part is off. */
function outcome({ parts, losses, exact }) {
  const lacks = PARTS.filter((part) => !parts[part]);
  const reason = lacks.length === 1 ? ` ${REASONS[lacks[0]]}` : "";
  return `${capital(nameOf(parts))}: loss ${sayLoss(losses)}, ${exact} of ${TESTS} exact copies.${reason}`;
}

/** What is said aloud: only when a training begins, pauses or ends, or what went wrong. */
function told(state, scenes) {
  const start = `Two layers of width ${SIZES.width} learn to copy six random letters. Press Start.`;
  const results = scenes.map(outcome).join(" ");
  const ended = `After ${UPDATES} updates. ${results}`;
  return { start, training: "Training …", paused: `Paused. ${results}`, ended }[state] ?? state;
}

// Drawing --------------------------------------------------------------------------------------------

/** How far down a loss lies, as a share of the height: its logarithm counts. */
const depth = (loss) =>
  Math.log(HIGHEST / Math.max(LOWEST, Math.min(loss, HIGHEST))) / Math.log(HIGHEST / LOWEST);

/** The losses of all runs against updates. */
function Curves({ scenes }) {
  const path = ({ step, losses }) =>
    losses
      .map((loss, i) => {
        const x = (step * (i + 1)) / losses.length / UPDATES;
        return `${i ? "L" : "M"}${x.toFixed(4)} ${depth(loss).toFixed(4)}`;
      })
      .join("");
  const ends = scenes.map(({ parts, losses }) => `${nameOf(parts)} ${sayLoss(losses)}`).join(", ");
  return html`<div class="curves" role="img" aria-label=${`Loss against updates, on a logarithmic scale. Now: ${ends}`}>
    <span class="axis" aria-hidden="true">loss, log scale</span>
    ${TICKS.map((tick) => html`<span class="tick" style=${`top:${(100 * depth(tick)).toFixed(2)}%`}>${tick}</span>`)}
    <svg viewBox="0 0 1 1" preserveAspectRatio="none">
      ${TICKS.map((tick) => html`<path class="grid-line" d=${`M0 ${depth(tick).toFixed(4)}H1`} />`)}
      ${scenes.map((scene, i) => html`<path class=${`curve run-${i}`} d=${path(scene)} />`)}
    </svg>
    ${[0, 1, 2, 3].map((third) => html`<span class="update" style=${`left:${(100 * third) / 3}%`}>${(third * UPDATES) / 3}${third === 3 ? " updates" : ""}</span>`)}
  </div>`;
}

const CELL = 20;
const LEFT = 44; // of the map: what is written
const TOP = 22; // what is read

/** Where the last layer looks: columns are read, rows are written, a strong colour is much weight. */
function Attention({ scene }) {
  const { source, written, weights } = scene;
  const middle = (place, from) => from + CELL * (place + 0.5);
  const label = `It reads ${spelt(source)} and writes ${spelt(written)}.`;
  const row = (id, place) => {
    const right = isRight(scene, place);
    return html`<text class=${classes({ written: true, right })} x=${LEFT - 8} y=${middle(place, TOP)}>${NAMES[id]}${right ? " ✓" : ""}</text>
      ${weights[place].map(
        (weight, column) =>
          html`<rect x=${LEFT + CELL * column} y=${TOP + CELL * place} width=${CELL} height=${CELL} fill-opacity=${weight} />`,
      )}`;
  };
  const [width, height] = [CELL * source.length, CELL * written.length];
  return html`<svg class="map-of-copy" viewBox=${`0 0 ${LEFT + width + 1} ${TOP + height + 1}`} role="img" aria-label=${label}>
    ${source.map((id, column) => html`<text class="read" x=${middle(column, LEFT)} y=${TOP - 9}>${NAMES[id]}</text>`)}
    ${written.map(row)}
    <rect class="frame" x=${LEFT} y=${TOP} width=${width} height=${height} />
  </svg>`;
}

/** One model: its switches, what it has reached, and an example. */
function Model({ scene, number, onSwitch }) {
  const { parts, losses, exact } = scene;
  return html`<fieldset class="model">
    <legend><svg viewBox="0 0 30 4" role="img" aria-label=${LINES[number]}><path class=${`curve run-${number}`} d="M0 2H30" /></svg> ${capital(nameOf(parts))}</legend>
    <div class="switches">
      ${PARTS.map(
        (part) => html`<label>
          <input type="checkbox" role="switch" autocomplete="off" checked=${parts[part]} onChange=${() => onSwitch(part)} /> ${WORDS[part]}
        </label>`,
      )}
    </div>
    <dl>
      <div><dt>loss</dt><dd>${sayLoss(losses)}</dd></div>
      <div><dt>exact copies</dt><dd>${exact} of ${TESTS}</dd></div>
    </dl>
    <${Attention} scene=${scene} />
  </fieldset>`;
}

// The figure -----------------------------------------------------------------------------------------

export function Learn({ scene }) {
  const [, draw] = useState(0);
  const [state, setState] = useState("start"); // or training, paused, ended, or what went wrong
  const own = useRef(null);
  own.current ??= scene.runs.map((each) => new Run(each, changed, failed));
  const runs = own.current;
  const scenes = runs.map((run) => run.scene);
  const [{ seed }] = scenes;
  const training = state === "training";

  function changed() {
    draw((number) => number + 1);
    if (own.current.every((run) => run.ended)) setState("ended");
  }

  function failed() {
    for (const run of own.current) run.end();
    setState("The training could not start: this browser allows no worker here.");
  }

  /** Begin both again with a seed, and train or wait. */
  function beginAll(next, running) {
    for (const run of runs) run.begin({ seed: next }, running);
    setState(running ? "training" : "start");
  }

  function toggle() {
    if (state === "ended") return beginAll(seed + 1, true);
    for (const run of runs) run.go(!training);
    setState(training ? "paused" : "training");
  }

  /** Take a part out of a model or put it back: the model begins again. */
  function flip(run, part) {
    const { parts } = run.scene;
    run.begin({ parts: { ...parts, [part]: !parts[part] } }, training);
    if (!training) setState("start");
  }

  const words = { training: "Pause", ended: "Train again" };
  return html`<div class="learn">
    <div class="controls">
      <${Button} class="go" onClick=${toggle}>${words[state] ?? "Start"}<//>
      <${Button} off=${scenes.every(({ step }) => step === 0)} onClick=${() => beginAll(seed, false)}>Reset<//>
      <span class="at">update ${Math.max(...scenes.map(({ step }) => step))} of ${UPDATES}, seed ${seed}</span>
    </div>
    <${Curves} scenes=${scenes} />
    <div class="models">
      ${scenes.map((each, i) => html`<${Model} scene=${each} number=${i} onSwitch=${(part) => flip(runs[i], part)} />`)}
    </div>
    <p class="key">
      The maps show cross-attention in the last layer, the mean of both heads: columns are read, rows are written, ✓ is right.
    </p>
    <p class="line" role="status">${told(state, scenes)}</p>
  </div>`;
}
