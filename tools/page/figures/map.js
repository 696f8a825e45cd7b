// The plan of the model as a map, with a sentence on its way through it. A box shows what a position has
// there: a vector, or the weights of attention; and the logit lens, what the generator would say of it.
// A ride leads one token from the source ids to the generator.
//
// A *wish* is what is asked for, a *scene* all that is shown of it: see map/scene.js. The first scene is
// written into the page when it is built.

import { pause } from "./model/slices.js";
import { WRITES } from "./lib/corpus.js";
import { usePlayer } from "./lib/player.js";
import { useScene } from "./lib/scene.js";
import { MOMENT, SentenceField, useSentence } from "./lib/sentence.js";
import { Button, classes, html, useRef, useState } from "./lib/ui.js";
import { Lens } from "./map/lens.js";
import { heardOf, Panel } from "./map/panel.js";
import { joined, Pieces } from "./map/pieces.js";
import { sideOf } from "./map/places.js";
import { Plan } from "./map/plan.js";
import { captionOf, Ride, stopAt, stopsOf } from "./map/ride.js";
import { FIRST, firstScene, opening, sceneOf } from "./map/scene.js";
import { headSwitches, isCut, Unplug, useCuts } from "./map/unplug.js";

export { firstScene, opening, sceneOf };

const PACE = 2400; // milliseconds at a stop: two lines are read there
const LEFT = 120; // pixels of the plan in the window, with which it counts as left
const WISHES = Object.keys(FIRST);

/** The ride over the stops: its player, the stop that is shown, and `go`, to a stop or to play. */
function useRide(stops, scene, wished, wish) {
  const [begun, setBegun] = useState(false);
  const arriving = useRef(null); // the promise of the scene of a stop
  const box = useRef(null);
  const seen = useRef(0);
  const place = stopAt(stops, wished.current) + 1;
  const wait = async (milliseconds) => {
    await Promise.all([pause(milliseconds), arriving.current]);
  };
  const player = usePlayer(stops.length, { at: place, wait });
  player.pace = PACE;
  seen.current ||= place;

  /** Scroll to the chosen box, if it is out of sight or behind the panel; but a reader who has left the plan may go. */
  function reveal() {
    const plan = box.current?.querySelector(".plan");
    const { top, bottom } = plan?.getBoundingClientRect() ?? {};
    const isInSight = top < innerHeight - LEFT && bottom > LEFT;
    if (isInSight) plan.querySelector(".chosen")?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  /** Ask for the scene of the stop that the player is at. */
  function arrive() {
    if (seen.current === player.at) return;
    seen.current = player.at;
    const stop = stops[player.at - 1];
    const source = scene.attended[Math.min(wished.current.decoder, scene.attended.length - 1)];
    const isSource = sideOf(stop.place) === "encoder";
    const { place, layer, start = false } = stop;
    arriving.current = wish({ place, layer, start, ...(isSource && { encoder: source }) });
    arriving.current.then(reveal);
  }
  const drawn = player.changed;
  player.changed = () => {
    drawn();
    arrive();
  };

  function go(to) {
    if (to !== "play") player.show(to);
    else if (begun) player.toggle();
    else {
      player.show(1);
      player.play();
    }
    setBegun(true);
  }

  /** A box, a layer or a word is chosen by hand: the ride stands still where that is. */
  function leave(changes) {
    const at = stopAt(stops, { ...wished.current, ...changes }) + 1;
    seen.current = at || player.at;
    player.show(seen.current);
  }
  const shown = stopAt(stops, scene);
  return { player, go, leave, reveal, box, stop: stops[shown], before: stops[shown - 1] };
}

export function ModelMap({ scene: first }) {
  const { scene, wished, line, wish: ask } = useScene(first, WISHES, sceneOf);
  const sentence = useSentence(scene, read);
  const [touched, setTouched] = useState(false);
  const stops = stopsOf(first.size);
  const ride = useRide(stops, scene, wished, wish);
  const state = useCuts(scene.read); // what is switched off
  const [head, setHead] = useState(null);
  const resting = useRef(null); // for a mouse that stays

  /** Ask for another scene, unless it is shown already. */
  async function wish(changes) {
    const text = sentence.settle();
    const before = wished.current;
    const wanted = { ...before, ...changes, ...(text && { text }) };
    const isShown = (each) => WISHES.every((key) => each[key] === scene[key]);
    if (isShown(before) && isShown(wanted)) return;
    setTouched(true);
    await ask(wanted);
  }

  function read(text, isOwn) {
    if (isOwn) choose({ text });
    else ask({ text });
  }

  function choose(chosen) {
    const changes = { ...chosen, start: false };
    clearTimeout(resting.current);
    ride.leave(changes);
    return wish(changes);
  }

  function point(place) {
    clearTimeout(resting.current);
    if (ride.player.playing || (place === wished.current.place && place === scene.place)) return;
    resting.current = setTimeout(() => choose({ place }), touched ? 0 : MOMENT);
  }

  /** Choose a position; on the other side, where its stack ends. */
  const choosing = (side) => (position) =>
    choose({ [side]: position, ...(sideOf(scene.place) !== side && { place: `${side} final` }) });

  const { pieces, size } = scene;
  const layers = [...Array(size.layers).keys()].map(
    (layer) =>
      html`<${Button} class="piece" pressed=${layer === scene.layer} onClick=${() => choose({ layer })}>${layer + 1}<//>`,
  );
  const decoder = { chosen: scene.decoder, onChoose: choosing("decoder") };
  const translation = joined(pieces.written);
  const label = `Encoder and decoder, with the subwords of “${scene.read}” on the left and of “${translation}” on the right`;
  return html`<div class=${classes({ map: true, touched })} ref=${ride.box}>
    <div class="words">
      <${SentenceField} id="map-german" sentence=${sentence} />
      <p class="translated"><span lang=${WRITES.code}>${translation}</span> <small>greedy decoding</small></p>
      <p class="line" role="status">${line || sentence.hint}</p>
    </div>
    <${Pieces} kind="source" name="source" label="Subwords of the source" pieces=${pieces.encoder} chosen=${scene.encoder} onChoose=${choosing("encoder")} />
    <${Pieces} kind="read" name="reads" label="Subwords read so far" pieces=${pieces.decoder} ...${decoder} />
    <${Pieces} kind="written" name="writes" label="Subwords written next" pieces=${pieces.written} ...${decoder} />
    <div class="board">
      <div class="left">
        <div class="plan" onPointerLeave=${() => clearTimeout(resting.current)}>
          <${Plan} scene=${scene} sections=${first.sections} ids=${scene.start} label=${label}
            isOff=${(place) => isCut(state.cuts, place, scene.layer)} unmasked=${state.cuts.includes("mask")}
            onPoint=${point} onChoose=${(place) => choose({ place }).then(ride.reveal)} />
          <div class="layers" role="group" aria-label="Layer"><span aria-hidden="true">layer</span>${layers}</div>
        </div>
        <${Unplug} intact=${translation} text=${scene.read} layers=${size.layers} state=${state} />
      </div>
      <div class="panel">
        <${Ride} player=${ride.player} stops=${stops} isStop=${Boolean(ride.stop)} onStop=${ride.go} />
        <${Panel} scene=${scene} section=${first.sections[scene.place]} head=${head} onHead=${setHead}
          caption=${captionOf(scene, ride.stop, ride.before)} switches=${headSwitches(state, scene)} />
        <p class="heard" role="status">${touched ? heardOf(scene) : ""}</p>
      </div>
    </div>
    <${Lens} scene=${scene} onChoose=${choose} />
  </div>`;
}
