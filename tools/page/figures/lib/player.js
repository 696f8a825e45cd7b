// One player for all figures: it goes through steps, forth and back, at a pace, and can be stopped.

import { pause } from "../model/slices.js";
import { html, Button, useEffect, useRef, useState } from "./ui.js";

/**
 * Steps 1 to `count`; `at` is the one that is shown. `changed` is called after each change; `wait`
 * stands for the clock, and where motion is unwelcome (`still`), playing goes to the end at once.
 * A figure may hold on to another step while it plays (`held`); whatever stops the playing ends that.
 */
export class Player {
  constructor(
    count,
    { at = count, first = 1, pace = 700, changed = () => {}, wait = pause, still = () => false } = {},
  ) {
    Object.assign(this, { count, at, first, pace, changed, wait, still }); // pace: milliseconds for a step
    this.playing = false;
    this.held = null;
    this.turn = 0; // of several that play, only the last goes on
  }

  /** Has it shown or played anything yet? */
  get isUsed() {
    return this.turn > 0;
  }

  get ended() {
    return this.at >= this.count;
  }

  /** Show a step, and stay there. */
  show(at) {
    this.turn += 1;
    this.playing = false;
    this.held = null;
    this.at = Math.max(this.first, Math.min(at, this.count));
    this.changed();
  }

  step() {
    this.show(this.ended ? this.first : this.at + 1);
  }

  back() {
    this.show(this.at - 1);
  }

  pause() {
    this.show(this.at);
  }

  /** Other steps take the place of these. */
  restart(count, at = this.first) {
    this.count = count;
    this.show(at);
  }

  /** Go on to the end, or to the step `until`; from the beginning where the end is reached. Was it left to play? */
  async play(until = this.count) {
    const turn = ++this.turn;
    this.playing = true;
    if (this.ended) this.at = this.first;
    if (this.still()) this.at = until;
    this.changed();
    while (this.at < until) {
      await this.wait(this.pace);
      if (turn !== this.turn) return false;
      this.at += 1;
      this.changed();
    }
    this.playing = false;
    this.changed();
    return true;
  }

  toggle() {
    return this.playing ? this.pause() : this.play();
  }
}

/** The player of a component, which is drawn again after each change. */
export function usePlayer(count, options) {
  const [, draw] = useState(0);
  const player = useRef(null);
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const changed = () => draw((number) => number + 1);
  player.current ??= new Player(count, { still, changed, ...options });
  useEffect(() => () => player.current.pause(), []);
  return player.current;
}

/** The button that plays, and pauses. */
export const Play = ({ player }) =>
  html`<${Button} class="play" onClick=${() => player.toggle()}>${player.playing ? "Pause" : "Play"}<//>`;

/** Play, back and step. */
export const Controls = ({ player }) =>
  html`<span class="player" role="group" aria-label="Step by step">
    <${Play} player=${player} />
    <${Button} off=${player.at <= player.first} onClick=${() => player.back()}>Back<//>
    <${Button} onClick=${() => player.step()}>Step<//>
  </span>`;
