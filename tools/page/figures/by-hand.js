// Attention by hand (Part 1): a plane of words, a handle on the query, the stages of `attention` as a table.

import { Handle } from "./by-hand/handle.js";
import { Drawing, Legend } from "./by-hand/plane.js";
import { pair, Says } from "./by-hand/says.js";
import { FIRST, firstScene, sceneOf } from "./by-hand/scene.js";
import { Quote, Stages } from "./by-hand/table.js";
import { arrows } from "./lib/keys.js";
import { Button, html, useMemo, useState } from "./lib/ui.js";

export { firstScene };

export function ByHand({ scene: first }) {
  const [choice, setChoice] = useState(null); // nothing, until the reader has changed something
  const [pinned, setPinned] = useState(0); // the stage that is looked at
  const [pointed, setPointed] = useState(null); // the one that is pointed at
  const [quiet, setQuiet] = useState(false); // while the handle moves, it speaks itself
  const scene = useMemo(() => (choice ? sceneOf(first.rows, choice) : first), [choice]);
  const stage = pointed ?? pinned;

  function change(changes, silently = false) {
    setChoice((last) => ({ ...(last ?? FIRST), ...changes }));
    setQuiet(silently);
  }
  function choose(number) {
    setPointed(null);
    setPinned(number === pinned ? 0 : number);
  }

  const ask = (word) => change({ asks: word, query: null });
  const words = scene.rows.map(
    ({ word }) => html`<${Button} key=${word} pressed=${word === scene.asks && !scene.moved}
      tabindex=${word === scene.asks ? 0 : -1} onClick=${() => ask(word)}>${word}<//>`,
  );
  return html`<div class=${`by-hand at-${stage}`}>
    <p class="asking" lang="de" role="group" aria-label="The word that asks" onKeyDown=${arrows("button", { line: true })}>${words}</p>
    <p class="hint">Choose a word, here or in the plane, or drag the query by its round tip.</p>
    <div class="board">
      <div class="seen">
        <div class="plane">
          <${Drawing} scene=${scene} stage=${stage} onAsk=${ask} />
          <${Handle} kind="of-query" label="query" place=${scene.asked}
            text=${`${pair(scene.asked)}, answer ${pair(scene.answer)}`} onMove=${(query) => change({ query }, true)} />
        </div>
        <${Legend} scene=${scene} />
      </div>
      <div class="computed">
        <p class="said" aria-live=${quiet ? "off" : "polite"}><${Says} scene=${scene} stage=${stage} /></p>
        <details onToggle=${({ target }) => target.open || setPinned(0)}>
          <summary>How it is computed, step by step</summary>
          <${Stages} ...${{ scene, stage, pinned }} onPoint=${setPointed} onChoose=${choose} />
          <${Quote} stage=${stage} />
        </details>
      </div>
    </div>
  </div>`;
}
