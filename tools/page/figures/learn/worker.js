// A model that learns in a thread of its own, so that the page stays awake.
//
// The first message says which model: { parts, seed, running }. Later ones let it go on or pause:
// { running }. It reports at the start, and after every few updates.

import { Learner, UPDATES } from "./training.js";

const EVERY = 10; // updates from report to report

let learner = null;
let running = false;
let waiting = false; // a turn is on its way

function goOn() {
  if (waiting || !running || learner.step >= UPDATES) return;
  waiting = true;
  setTimeout(turn); // not at once: a message may have come
}

function turn() {
  waiting = false;
  if (!running) return;
  let loss = 0;
  for (let i = 0; i < EVERY; i++) loss += learner.update() / EVERY;
  self.postMessage({ loss, ...learner.look() });
  goOn();
}

self.onmessage = ({ data }) => {
  if (!learner) {
    learner = new Learner(data.parts, data.seed);
    self.postMessage(learner.look());
  }
  running = data.running;
  goOn();
};
