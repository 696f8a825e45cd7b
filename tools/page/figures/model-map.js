// The whole model as a map, with a sentence on its way through it. A box shows what a position has there: a vector, or
// the weights of attention, and what the generator would say of it. The player leads from the embedding to the
// generator, and parts can be unplugged.
//
// A *choice* is what is asked for, a *scene* all that is shown of it: see model-map/scene.js. The first scene is
// written into the page when it is built.

import { pause } from "./model/slices.js";
import { READS, WRITES } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { Line, MOMENT, SentenceField, useSentence } from "./lib/sentence.js";
import { Button, classes, html, useEffect, useRef, useState } from "./lib/ui.js";
import { Drawing } from "./model-map/drawing.js";
import { Panel } from "./model-map/panel.js";
import { Pieces } from "./model-map/pieces.js";
import { sideOf } from "./model-map/places.js";
import { FIRST, firstScene, sceneOf } from "./model-map/scene.js";
import { captionOf, stopAt, stopsOf } from "./model-map/stops.js";
import { isCut, namesOf, Unplug } from "./model-map/unplug.js";

export { firstScene, sceneOf };

/** The drawing, or at least the chosen box, comes into view where the panel hides it; who has left it may go. */
function reveal(drawing) {
  const { top, bottom } = drawing.getBoundingClientRect();
  if (top > innerHeight || bottom < 0) return;
  for (const each of [drawing, drawing.querySelector(".chosen")])
    each.scrollIntoView({ block: "nearest", behavior: "instant" });
}

export function ModelMap({ scene: first }) {
  const map = useSentence(first, Object.keys(FIRST), sceneOf, (text) => map.choose({ text }));
  const { scene, latest, line, sentence } = map;
  const stops = stopsOf(first.size);
  const arriving = useRef(null); // the promise of the scene of a stop
  const drawing = useRef(null);
  const resting = useRef(null); // for a mouse that stays
  const wait = async (milliseconds) => {
    await pause(2 * milliseconds); // two lines are read there
    await arriving.current;
  };
  const player = usePlayer(stops.length, { wait }); // as if at its end: to play is to begin
  const byHand = useRef(0); // the turn of the player that a choice by hand has ended
  const [closed, setClosed] = useState(0); // the turn at which the panel was closed
  const isOpen = player.turn > closed; // and covers what is below it, where there is little room

  function go(changes) {
    clearTimeout(resting.current);
    arriving.current = map.choose(changes, () => reveal(drawing.current));
  }

  /** A box, a layer or a word is chosen by hand: the player stands still, at its stop if there is one. */
  function choose(changes) {
    player.show(stopAt(stops, { ...latest.current, ...changes }) + 1 || player.at);
    byHand.current = player.turn;
    go(changes);
  }

  useEffect(() => {
    const { place, layer } = stops[player.at - 1];
    const isThere = stopAt(stops, latest.current) === player.at - 1;
    if (player.turn !== byHand.current && !isThere) go({ place, layer });
  }, [player.turn, player.at]);

  function point(place) {
    clearTimeout(resting.current);
    if (player.playing || place === latest.current.place) return;
    resting.current = setTimeout(() => choose({ place }), MOMENT);
  }

  /** A box that is chosen already closes the panel. */
  function chooseBox(place) {
    if (isOpen && place === latest.current.place) setClosed(player.turn);
    else choose({ place });
  }

  /** Other parts are unplugged: the panel no longer hides what comes of it. */
  function cutOff(cuts) {
    setClosed(player.turn);
    map.choose({ cuts });
  }

  /** Choose a position; on the other side, where its stack ends. */
  const choosing = (side) => (position) =>
    choose({ [side]: position, ...(sideOf(scene.place) !== side && { place: `${side} final` }) });

  const { pieces, size } = scene;
  const layers = [...Array(size.layers).keys()].map(
    (layer) =>
      html`<${Button} class="piece" pressed=${layer === scene.layer} onClick=${() => choose({ layer })}>${layer + 1}<//>`,
  );
  const source = { language: READS.code, chosen: scene.encoder, onChoose: choosing("encoder") };
  const target = { language: WRITES.code, chosen: scene.decoder, onChoose: choosing("decoder") };
  const { cuts, translation, intact } = scene;
  const same = `The sentence stays the same${cuts.includes("mask") ? ": to the right of the newest word there is nothing to see" : ""}.`;
  const outcome = translation === intact ? same : "Struck out is what it was.";
  const caption = isCut(cuts, scene.place)
    ? ["Unplugged: whatever it finds,", "nothing of it is passed on."]
    : captionOf(scene, stops[stopAt(stops, scene)]);
  const label = `Encoder and decoder, with the subwords of “${scene.read}” on the left and of “${translation}” on the right`;
  return html`<div class=${classes({ "model-map": true, open: isOpen })}>
    <div class="words">
      <${SentenceField} id="map-german" sentence=${sentence} />
    </div>
    <${Line} ...${{ line, sentence }} />
    <${Pieces} kind="source" name="source" label="Subwords of the source" pieces=${pieces.encoder} ...${source} />
    <${Pieces} kind="read" name="reads" label="Subwords read so far" pieces=${pieces.decoder} ...${target} />
    <${Pieces} kind="written" name="writes" label="Subwords written next" pieces=${pieces.written} ...${target} />
    <div class="board">
      <div class="whole" ref=${drawing} onPointerLeave=${() => clearTimeout(resting.current)}>
        <${Drawing} scene=${scene} label=${label} isOff=${(place) => isCut(cuts, place)}
          unmasked=${cuts.includes("mask")} onPoint=${point} onChoose=${chooseBox} />
        <div class="layers" role="group" aria-label="Layer"><span aria-hidden="true">layer</span>${layers}</div>
      </div>
      <${Unplug} cuts=${map.choice.cuts} onChange=${cutOff}>
        <div class="comes"><p class="translated"><span lang=${WRITES.code}>${translation}</span>${translation !== intact && html`<s lang=${WRITES.code}>${intact}</s>`}</p>
          <p role="status">${cuts.length > 0 && `Unplugged: ${namesOf(cuts)}. ${outcome}`}</p></div>
      <//>
      <div class="panel">
        <div class="head"><${Controls} player=${player} /><${Button} class="close" aria-label="Close" onClick=${() => setClosed(player.turn)}>✕<//></div>
        <${Panel} scene=${scene} section=${first.sections[scene.place]} caption=${caption} />
      </div>
    </div>
  </div>`;
}
