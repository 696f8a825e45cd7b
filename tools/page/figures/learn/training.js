// Training a Transformer to copy: random sequences, Adam with the paper's schedule, and a look at
// what has been learnt.

import { Transformer } from "./model.js";
import { meanLoss, Tape } from "./tape.js";

// The script's ids: four special tokens, then those that are copied, here ten letters.
const [START, END] = [0, 1];
const FIRST = 4;
export const NAMES = ["<s>", "end", "pad", "unk", ..."ABCDEFGHIJ"];
const LENGTH = 6; // of a sequence
export const SIZES = {
  vocabulary: NAMES.length,
  layers: 2,
  width: 32,
  inner: 64,
  heads: 2,
  longest: LENGTH + 1,
};
const BATCH = 32;
export const FACTOR = 0.15;
export const WARM_UP = 50;
export const UPDATES = 300; // then a training ends
export const TESTS = 50; // sequences to judge by
export const PARTS = ["mask", "positions", "residuals", "shift"]; // what can be switched off

/** Random numbers that are the same for the same seed, on every machine (mulberry32). */
export class Random {
  constructor(seed) {
    this.state = seed;
  }

  /** From zero to one. */
  uniform() {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), this.state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** From the normal distribution (Box and Muller). */
  normal() {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }

  sequence() {
    return Array.from({ length: LENGTH }, () => FIRST + Math.floor(this.uniform() * (NAMES.length - FIRST)));
  }
}

/** The paper's schedule (§5.3): a rise in a straight line, then a slow fall. */
const rate = (step, width) => FACTOR * width ** -0.5 * Math.min(step ** -0.5, step * WARM_UP ** -1.5);

/** Adam (§5.3). It resets the gradients. */
class Adam {
  constructor(parameters) {
    this.step = 0;
    this.moments = parameters.map((parameter) => {
      const { length } = parameter.data;
      return { parameter, m: new Float64Array(length), v: new Float64Array(length) };
    });
  }

  update(learningRate) {
    this.step += 1;
    const first = 1 - 0.9 ** this.step;
    const second = 1 - 0.98 ** this.step;
    for (const { parameter, m, v } of this.moments) {
      const { data, grad } = parameter;
      for (let i = 0; i < data.length; i++) {
        m[i] = 0.9 * m[i] + 0.1 * grad[i];
        v[i] = 0.98 * v[i] + 0.02 * grad[i] ** 2;
        data[i] -= (learningRate * (m[i] / first)) / (Math.sqrt(v[i] / second) + 1e-9);
      }
      grad.fill(0);
    }
  }
}

/** A model that learns to copy. `parts` says for each of `PARTS` whether the model has it. */
export class Learner {
  constructor(parts, seed) {
    this.parts = parts;
    this.random = new Random(seed);
    this.model = new Transformer(SIZES, parts, this.random);
    this.adam = new Adam(Object.values(this.model.parameters));
    const tests = new Random(seed + 1_000_000); // other sequences than those of training
    this.tests = Array.from({ length: TESTS }, () => tests.sequence());
    const isClear = (ids) => new Set(ids).size === LENGTH; // no token twice: one place to look at
    this.example = Math.max(0, this.tests.findIndex(isClear));
  }

  /** The loss of some sequences; on a tape, so that it can be differentiated. */
  loss(tape, sequences) {
    const size = sequences.length;
    const target = sequences.map((ids) => [...ids, END]);
    const read = this.parts.shift ? sequences.map((ids) => [START, ...ids]) : target;
    const memory = this.model.encode(tape, sequences.flat(), size);
    const [logProbs] = this.model.decode(tape, memory, read.flat(), size, this.parts.mask);
    return meanLoss(tape, logProbs, target.flat());
  }

  /** One update: the loss before it. */
  update(sequences = Array.from({ length: BATCH }, () => this.random.sequence())) {
    const tape = new Tape();
    const loss = this.loss(tape, sequences);
    tape.backward();
    this.adam.update(rate(this.adam.step + 1, this.model.width));
    return loss;
  }

  get step() {
    return this.adam.step;
  }

  /**
   * How many of the tests are copied exactly. And of the example: what it is, what is written, and
   * for each token that is written the weights of the source's, as a mean over the heads.
   */
  look() {
    const { written, weights } = this.model.greedy(this.tests.flat(), TESTS, START, LENGTH + 1);
    const isCopy = (ids, i) => ids.join() === [...this.tests[i], END].join();
    const { heads } = this.model;
    const mean = (row, column) => {
      let total = 0;
      for (let h = 0; h < heads; h++)
        total += weights[((this.example * heads + h) * (LENGTH + 1) + row) * LENGTH + column];
      return Math.round((1000 * total) / heads) / 1000;
    };
    const source = this.tests[this.example];
    return {
      step: this.step,
      exact: written.filter(isCopy).length,
      source,
      written: written[this.example],
      weights: [...source, END].map((_, row) => source.map((_, column) => mean(row, column))),
    };
  }
}
