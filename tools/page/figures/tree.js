// A beam search as a tree that grows, and greedy decoding beside it (Part 7, "Beam search").
//
// tree/scene.js makes a scene of a plan; here it is played step by step.

import { READS, SEARCHED } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { useScene } from "./lib/scene.js";
import { SentenceField, useSentence } from "./lib/sentence.js";
import { decimal } from "./lib/text.js";
import { Button, classes, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib/ui.js";
import { Drawing } from "./tree/drawing.js";
import { countOf, START } from "./tree/known.js";
import { firstScene, opening, sceneOf } from "./tree/scene.js";
import { Key, Proposals, Ranking } from "./tree/tables.js";
import { told } from "./tree/words.js";

export { firstScene, opening };

const BEGINS = 3; // the step that is shown first: enough to see what a tree is

/** What is said at a step, in the room of the longest that will be said. */
function Words({ scene, at, busy }) {
  const room = useMemo(() => {
    const all = [...Array(countOf(scene)).keys()].map((i) => told(scene, i + 1));
    return all.reduce((one, other) => (other.length > one.length ? other : one));
  }, [scene]);
  return html`<div class="told roomy"><p role="status" aria-busy=${String(busy)}>${told(scene, at)}</p><p class="room" aria-hidden="true">${room}</p></div>`;
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
    <p class="asked"><i lang=${READS.code}>${scene.read}</i></p>
    <p class="told">${told(scene, at)}</p>
    <div class="scroll"><${Drawing} scene=${scene} at=${at} pointed=${START} onPoint=${null} /></div>
    <${Key} scene=${scene} at=${at} />
    <${Ranking} scene=${scene} at=${at} />
  </div>`;
}

export function Tree({ scene: first }) {
  const { scene, plan, busy, line, wish } = useScene(first, ["text", "width", "alpha"], sceneOf);
  const sentence = useSentence(scene, search);
  const player = usePlayer(countOf(first), { at: Math.min(BEGINS, countOf(first)) });
  const [name, point] = useState(START);
  const box = useRef(null);
  useWholeOnPaper(player);

  /** Change the plan; once its scene is there, `then` says where to look. */
  function change(changes, then) {
    const text = sentence.settle();
    player.pause();
    wish(text ? { ...changes, text } : changes, (next) => {
      point(START);
      then(countOf(next));
    });
  }

  /** Search for a sentence; it is played if it was typed here. */
  function search(text, isOwn) {
    change({ text }, (count) => {
      player.restart(count);
      if (isOwn) player.play();
    });
  }

  /** Stay at the step, or at the end. */
  const stay = (count) => player.restart(count, player.ended ? count : player.at);

  const at = Math.min(player.at, countOf(scene));
  useLayoutEffect(() => {
    if (player.turn === 0) return;
    const { current: frame } = box;
    const newest = frame.querySelector(".step:last-of-type");
    if (newest.offsetWidth > frame.clientWidth / 2) return; // steps go down
    const { right } = newest.getBoundingClientRect();
    frame.scrollLeft += right + newest.offsetWidth - frame.getBoundingClientRect().right;
  }, [scene, at]);

  const pointed = Number(name.split("-")[1]) <= at ? name : START;
  const range = (what, named, from, to, by) => html`<label>${named}
    <input
      type="range" name=${what} min=${from} max=${to} step=${by} value=${plan[what]} autocomplete="off"
      onInput=${({ target }) => change({ [what]: Number(target.value) }, stay)}
    />
    <output>${decimal(plan[what], by < 1 ? 1 : 0)}</output></label>`;
  return html`<div class="tree">
    <div class="words">
      <${SentenceField} id="searched" sentence=${sentence} />
      <div class="chips scroll" lang=${READS.code} role="group" aria-label="Sentences to try">
        ${SEARCHED.map((text) => html`<${Button} onClick=${() => sentence.write(text)}>${text}<//>`)}
      </div>
    </div>
    <div class="controls">
      <${Controls} player=${player} />
      ${range("width", "Width", 1, 5, 1)}${range("alpha", "Length penalty α", 0, 2, 0.1)}
    </div>
    <p class="line" role="status">${line || sentence.hint}</p>
    <p class="asked"><i lang=${READS.code}>${scene.read}</i> <span>width ${scene.width}, α = ${decimal(scene.alpha, 1)}, step ${at}</span></p>
    <${Words} scene=${scene} at=${at} busy=${player.playing} />
    <div class=${classes({ scroll: true, searching: busy })} ref=${box}>
      <${Drawing} scene=${scene} at=${at} pointed=${pointed} onPoint=${point} grows=${player.turn > 0} />
    </div>
    <${Key} scene=${scene} at=${at} />
    <div class="below">
      <${Ranking} scene=${scene} at=${at} />
      <${Proposals} scene=${scene} name=${pointed} at=${at} />
    </div>
  </div>`;
}
