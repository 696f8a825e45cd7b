// The learning rate's schedule (Part 3), whose three numbers the reader sets.

import { Dot, lineOf, Plot } from "./lib/plot.js";
import { Slider } from "./lib/slider.js";
import { decimal, grouped } from "./lib/text.js";
import { html, useState } from "./lib/ui.js";

const LAST = 20_000; // updates on the axis
const STEPS = [1, ...Array.from({ length: 200 }, (_, number) => (LAST / 200) * (number + 1))];
const HIGHEST = [0.001, 0.002, 0.005, 0.01, 0.02]; // where the axis may end
const PAPER = { width: 512, factor: 1, warmup: 4000 }; // of the base model

/** The learning rate at a step, as `rate` computes it. */
export function rateAt(step, { width, factor, warmup }) {
  const counted = Math.max(step, 1);
  return factor * width ** -0.5 * Math.min(counted ** -0.5, counted * warmup ** -1.5);
}

/** All that is shown of a schedule: its rates at some steps, its peak among them. */
export function sceneOf({ width, factor, warmup }) {
  const settings = { width, factor, warmup };
  const steps = [...new Set([...STEPS, warmup])].sort((one, other) => one - other);
  return {
    ...settings,
    peak: rateAt(warmup, settings),
    last: rateAt(LAST, settings),
    rates: steps.map((step) => [step, rateAt(step, settings)]),
  };
}

/** What the page shows before anybody has touched it: a model half as wide as the paper’s. */
export const firstScene = () => sceneOf({ ...PAPER, width: 256 });

const OF_PAPER = sceneOf(PAPER);

/** The axes: the upper end is a round number, so that the paper's schedule keeps its height for a while. */
function axesFor(peak) {
  const highest = Math.max(peak, OF_PAPER.peak);
  const top = HIGHEST.find((end) => end >= highest) ?? highest;
  return {
    x: { from: 0, to: LAST, ticks: [0, 5000, 10_000, 15_000, LAST], name: "step", say: grouped },
    y: { from: 0, to: top, ticks: [0, top / 2, top], name: "learning rate", say: (tick) => String(tick) },
  };
}

/** How high a peak is beside the paper’s. */
function beside(peak) {
  const times = peak / OF_PAPER.peak;
  const factor = decimal(times, times < 10 ? 1 : 0);
  return factor === "1.0" ? "as high as" : `${factor} times`;
}

/** What is to be seen. */
function Says({ scene }) {
  const { peak, last, warmup } = scene;
  const same = Object.entries(PAPER).every(([name, value]) => scene[name] === value);
  const high = html`The rate rises to <b>${peak.toPrecision(2)}</b> at step ${grouped(warmup)}, and at step ${grouped(LAST)} it is ${last.toPrecision(2)}.`;
  return html`${high} ${same ? "This is the paper’s base model." : `The peak is ${beside(peak)} the paper’s.`}`;
}

export function Schedule({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { width, factor, warmup, peak, rates } = scene;
  const axes = axesFor(peak);
  const label = `Learning rate against the step: it rises in a straight line to ${peak.toPrecision(2)} at step ${warmup}, then falls.`;
  return html`<div class="small schedule">
    <div class="controls">
      <${Slider} label="warm-up" min="500" max="12000" step="500" value=${warmup} says=${grouped(warmup)}
        onMove=${(value) => change({ warmup: value })} />
      <${Slider} label="width D" min="6" max="11" step="1" value=${Math.log2(width)} says=${grouped(width)}
        onMove=${(power) => change({ width: 2 ** power })} />
      <${Slider} label="factor" min="0.25" max="3" step="0.25" value=${factor} says=${decimal(factor)}
        onMove=${(value) => change({ factor: value })} />
    </div>
    <p class="says" role="status"><${Says} scene=${scene} /></p>
    <${Plot} axes=${axes} label=${label} over=${html`<${Dot} axes=${axes} at=${[warmup, peak]} />`}>
      <path class="former" d=${lineOf(axes, OF_PAPER.rates)} /><path class="line" d=${lineOf(axes, rates)} />
    <//>
    <p class="key">Thin: the paper’s base model, with D = 512 and 4,000 steps of warm-up.</p>
  </div>`;
}
