// A beam search as a tree that grows, and greedy decoding beside it (Part 7, "Beam search").
//
// tree/scene.js makes a scene of a choice; here it is played step by step.

import { READS, SEARCHED } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { Line, SentenceField, useSentence } from "./lib/sentence.js";
import { Slider } from "./lib/slider.js";
import { Button, classes, html, useEffect, useLayoutEffect, useMemo, useRef } from "./lib/ui.js";
import { Drawing, Key } from "./tree/drawing.js";
import { countOf } from "./tree/known.js";
import { firstScene, sceneOf } from "./tree/scene.js";
import { told } from "./tree/told.js";

export { firstScene };

/** What is said at a step, in the room of the longest that will be said. */
function Words({ scene, at, busy }) {
  const room = useMemo(() => {
    const all = [...Array(countOf(scene)).keys()].map((i) => told(scene, i + 1));
    return all.reduce((one, other) => (other.length > one.length ? other : one));
  }, [scene]);
  return html`<div class="told"><p role="status" aria-busy=${String(busy)}>${told(scene, at)}</p><p class="room" aria-hidden="true">${room}</p></div>`;
}

/** On paper the search is over. */
function useWholeOnPaper(player) {
  useEffect(() => {
    let before = null;
    const begin = () => {
      before = player.at;
      player.show(player.count);
    };
    const end = () => player.show(before);
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);
}

/** The whole search, for a page without scripts. */
export function Whole({ scene }) {
  const at = countOf(scene);
  return html`<div class="tree">
    <p lang=${READS.code}>${scene.read}</p>
    <p>${told(scene, at)}</p>
    <div class="scroll"><${Drawing} scene=${scene} at=${at} /></div>
    <${Key} scene=${scene} at=${at} />
  </div>`;
}

export function Tree({ scene: first }) {
  const search = useSentence(first, ["text", "width"], sceneOf, read, {}, true);
  const { scene, choice, busy, line, sentence } = search;
  const player = usePlayer(countOf(first), { at: 1 });
  const box = useRef(null);
  useWholeOnPaper(player);

  /** Change the choice; once its scene is there, `then` says where to look. */
  function choose(changes, then) {
    player.pause();
    search.choose(changes, (next) => then(countOf(next)));
  }

  /** Search for a sentence, and play. */
  function read(text) {
    choose({ text }, (count) => {
      player.restart(count);
      player.play();
    });
  }

  /** Stay at the step, or at the end. */
  const stay = (count) => player.restart(count, player.ended ? count : player.at);

  const at = Math.min(player.at, countOf(scene));
  useLayoutEffect(() => {
    if (!player.isUsed) return;
    const { current: frame } = box;
    const newest = frame.querySelector(".step:last-of-type");
    if (newest.offsetWidth > frame.clientWidth / 2) return; // steps go down
    const { right } = newest.getBoundingClientRect();
    frame.scrollLeft += right + newest.offsetWidth - frame.getBoundingClientRect().right;
  }, [scene, at]);

  return html`<div class="tree">
    <div class="words">
      <${SentenceField} id="searched" label=${`A sentence in ${READS.name}`} sentence=${sentence} />
      <div class="chips scroll" lang=${READS.code} role="group" aria-label="Sentences to try">
        ${SEARCHED.map((text) => html`<${Button} onClick=${() => sentence.write(text)}>${text}<//>`)}
      </div>
    </div>
    <div class="controls">
      <${Controls} player=${player} />
      <${Slider}
        label="Width" name="width" min="1" max="5" step="1" value=${choice.width} says=${String(choice.width)}
        onMove=${(width) => choose({ width }, stay)}
      />
    </div>
    <${Line} ...${{ line, sentence }} />
    <${Words} scene=${scene} at=${at} busy=${player.playing} />
    <div class=${classes({ scroll: true, searching: busy })} ref=${box}>
      <${Drawing} scene=${scene} at=${at} grows=${player.isUsed} />
    </div>
    <${Key} scene=${scene} at=${at} />
  </div>`;
}
