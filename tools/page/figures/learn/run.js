// A run as the page sees it: what has been reported, and the thread that reports.

import { Learner, PARTS, UPDATES } from "./training.js";
import source from "./worker.js" with { type: "text" };

/** What is known of a run before its first update. */
export const freshRun = (parts, seed) => ({ parts, seed, losses: [], ...new Learner(parts, seed).look() });

/** All parts but some. */
export const partsWithout = (...off) => Object.fromEntries(PARTS.map((part) => [part, !off.includes(part)]));

export class Run {
  constructor(scene, changed, failed) {
    Object.assign(this, { scene, changed, failed });
    this.worker = null;
  }

  get ended() {
    return this.scene.step >= UPDATES;
  }

  /** Begin again, perhaps with other parts or another seed. The last picture stays until the first report. */
  begin({ parts = this.scene.parts, seed = this.scene.seed }, running) {
    this.end();
    this.scene = { ...this.scene, parts, seed, step: 0, exact: 0, losses: [] };
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = () => this.failed();
    this.worker.postMessage({ parts, seed, running });
    this.changed();
  }

  hear({ loss, ...looked }) {
    const losses = loss === undefined ? [] : [...this.scene.losses, loss];
    this.scene = { ...this.scene, ...looked, losses };
    if (this.ended) this.end();
    this.changed();
  }

  /** Let it train, or pause. */
  go(running) {
    if (this.ended) return;
    if (this.worker) this.worker.postMessage({ running });
    else if (running) this.begin({}, true);
  }

  end() {
    if (!this.worker) return;
    this.worker.onmessage = null; // a report that is on its way belongs to the past
    this.worker.terminate();
    this.worker = null;
  }
}
