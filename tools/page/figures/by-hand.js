// Attention by hand (Part 1): a plane of words, the stages of `attention` as a table, two experiments.

import { pause } from "./model/slices.js";
import { Handle } from "./by-hand/handle.js";
import { Drawing, Legend } from "./by-hand/plane.js";
import { pair, Says, WidthSays } from "./by-hand/says.js";
import { EXPERIMENTS, FIRST, firstScene, sceneOf } from "./by-hand/scene.js";
import { STAGES } from "./by-hand/stages.js";
import { Quote, Stages } from "./by-hand/table.js";
import { Controls, usePlayer } from "./lib/player.js";
import { Slider } from "./lib/slider.js";
import { decimal } from "./lib/text.js";
import { Button, html, useMemo, useState } from "./lib/ui.js";

export { firstScene };

const WIDEST = 9; // as a power of two: vectors of 512 numbers
const slowly = (milliseconds) => pause(2 * milliseconds); // there is more to be read than at a subword

/** Experiments that set everything at once, and a line on what is to be seen. */
function Experiments({ chosen, onChoose }) {
  const buttons = EXPERIMENTS.map(
    (each) =>
      html`<${Button} pressed=${each === chosen} onClick=${() => onChoose(each === chosen ? null : each)}>${each.name}<//>`,
  );
  const hint =
    "Press an experiment, and this line says what to see. Or drag the ring or a key, or click a word.";
  return html`<div class="experiments">
    ${buttons}<${Button} onClick=${() => onChoose(null)}>Start again<//>
    <p role="status">${chosen?.see ?? hint}</p>
  </div>`;
}

/** What the reader sets by a list, a slider and boxes. */
function Settings({ scene, onChange }) {
  const { rows, asks, width, divide } = scene;
  const box = (name, label) => html`<label><input
    type="checkbox" autocomplete="off" checked=${scene[name]} onChange=${({ target }) => onChange({ [name]: target.checked })}
  /><span>${label}</span></label>`;
  return html`<div class="controls">
    <label>asks <select lang="de" autocomplete="off" value=${asks}
      onChange=${({ target }) => onChange({ asks: target.value, query: null })}>
      ${rows.map(({ word }) => html`<option key=${word} value=${word}>${word}</option>`)}
    </select></label>
    <${Slider}
      label=${html`width d<sub>k</sub>`} min="1" max=${WIDEST} step="1" value=${Math.log2(width)}
      says=${String(width)} onMove=${(power) => onChange({ width: 2 ** power })}
    />
    ${box("divide", html`divide by √d<sub>k</sub>`)}${box("mask", "hide later words")}
    <p class="honest"><${WidthSays} width=${width} divide=${divide} /></p>
  </div>`;
}

export function ByHand({ scene: first }) {
  const [choice, setChoice] = useState(null); // nothing, until the reader has changed something
  const [pointed, setPointed] = useState(null); // the stage that is pointed at
  const [quiet, setQuiet] = useState(false); // while a handle moves, the handle itself speaks
  const [experiment, setExperiment] = useState(null);
  const player = usePlayer(STAGES.length, { first: 0, at: 0, wait: slowly });
  const scene = useMemo(() => (choice ? sceneOf(first.rows, choice) : first), [choice]);
  const stage = pointed ?? player.at;

  function change(changes, silently = false) {
    setChoice((last) => ({ ...(last ?? FIRST), ...changes }));
    setQuiet(silently);
  }

  function begin(chosen) {
    setExperiment(chosen);
    change(chosen?.choice ?? FIRST);
    player.show(0);
  }

  function choose(number) {
    setPointed(null);
    player.show(number === player.at ? 0 : number);
  }

  const ask = (word) => change({ asks: word, query: null });
  const keys = scene.rows.map(
    ({ word, key, weight }, number) => html`<${Handle}
      key=${word} kind="of-key" label=${`key of ${word}`} place=${key}
      text=${`${pair(key)}, weight ${decimal(weight)}`}
      onMove=${(point) => change({ keys: { ...scene.keys, [number]: point } }, true)}
      onChoose=${() => ask(word)}
    />`,
  );
  const query = html`<${Handle}
    kind="of-query" label="query" place=${scene.asked}
    text=${`${pair(scene.asked)}, answer ${pair(scene.answer)}`}
    onMove=${(point) => change({ query: point }, true)}
  />`;
  return html`<div class=${`by-hand at-${stage}`}>
    <${Experiments} chosen=${experiment} onChoose=${begin} />
    <${Settings} scene=${scene} onChange=${change} />
    <div class="board">
      <div class="seen">
        <div class="plane">
          <${Drawing} scene=${scene} stage=${stage} onAsk=${ask} />${keys}${query}
        </div>
        <${Legend} scene=${scene} />
      </div>
      <div class="computed">
        <${Controls} player=${player} />
        <${Stages} ...${{ scene, stage }} pinned=${player.at} onPoint=${setPointed} onChoose=${choose} />
        <${Quote} stage=${stage} />
        <p class="said" aria-live=${quiet ? "off" : "polite"}><${Says} scene=${scene} stage=${stage} /></p>
      </div>
    </div>
  </div>`;
}
