// The translator of the first screen: make a German caption, see its translation, and derail it.
//
// The plan that the reader wishes for becomes a scene in translation.js; here it is drawn, and played.

import { KNOWN, READS, SENTENCES } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { hintFor } from "./lib/hints.js";
import { useModel } from "./lib/shipped.js";
import { Button, classes, html, useEffect, useLayoutEffect, useRef, useState } from "./lib/ui.js";
import { Drawing, inWords, lookedAt } from "./arcs.js";
import { Candidates, English, Ghost } from "./candidates.js";
import { addressOf, LONGEST, planIn, sceneOf } from "./translation.js";
import { BANK, thrown, UMLAUTS, withWord, wordsOf } from "./words.js";

const MOMENT = 250; // milliseconds after a key, before the model is asked
const BEFORE = 700; // milliseconds in sight, before it plays by itself

/** A button that throws another caption. */
function Die({ onThrow }) {
  return html`<${Button} class="die" onClick=${onThrow}>
    <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
      <rect x="1.5" y="1.5" width="17" height="17" rx="4" />
      <path d="M6 6h0M14 6h0M10 10h0M6 14h0M14 14h0" />
    </svg>
    Surprise me
  <//>`;
}

/** A field for a sentence, with the letters that other keyboards lack, and a die. */
function Field({ typed, onWrite }) {
  const input = useRef(null);
  function add(letter) {
    const { selectionStart: from, selectionEnd: to, value } = input.current;
    if ([...value].length - (to - from) >= LONGEST) return;
    input.current.setRangeText(letter, from, to, "end");
    onWrite(input.current.value, MOMENT);
  }
  const stay = (event) => event.preventDefault(); // a click leaves the cursor in the field
  return html`<div class="field">
    <label for="german">${KNOWN ? "Type a German caption, or build one from these words" : `Type a sentence in ${READS.name}`}</label>
    <span class="umlauts" lang="de" role="group" aria-label="Umlauts">
      ${READS.code === "de" && UMLAUTS.map((letter) => html`<${Button} onMouseDown=${stay} onClick=${() => add(letter)}>${letter}<//>`)}
    </span>
    <input
      id="german" type="text" lang=${READS.code} maxlength=${LONGEST} autocomplete="off" spellcheck="false" value=${typed} ref=${input}
      onInput=${({ target }) => onWrite(target.value, MOMENT)}
      onKeyDown=${({ key, target }) => key === "Enter" && onWrite(target.value)}
    />
    ${KNOWN && html`<${Die} onThrow=${() => onWrite(thrown(typed.trim()))} />`}
  </div>`;
}

/** German words with what they mean: a click puts one into the sentence. */
function Bank({ typed, onWrite }) {
  const chosen = wordsOf(typed) ?? {};
  const button = ({ kind, word, means }) => html`<${Button}
    pressed=${chosen[kind] === word} onClick=${() => onWrite(withWord(typed, { kind, word }))}
  ><span lang="de">${word}</span><small>${means}</small><//>`;
  return html`<div class="bank" role="group" aria-label="Words for the sentence">${BANK.map(button)}</div>`;
}

/** A grid of buttons: for each layer the mean of its heads (null), and every head. */
function Heads({ size, view, onChoose }) {
  const cell = (layer, head) => {
    const name = `layer ${layer + 1}, ${head === null ? "mean of its heads" : `head ${head + 1}`}`;
    const pressed = layer === view.layer && head === view.head;
    return html`<${Button} aria-label=${name} title=${name} pressed=${pressed} onClick=${() => onChoose({ layer, head })}>
      ${head === null ? "mean" : head + 1}
    <//>`;
  };
  const count = (length) => [...Array(length).keys()];
  const rows = count(size.layers).map(
    (layer) =>
      html`<div><span aria-hidden="true">layer ${layer + 1}</span>${[null, ...count(size.heads)].map((head) => cell(layer, head))}</div>`,
  );
  return html`<div class="heads" role="group" aria-label="Layer and head whose attention is drawn"><p>Arcs: attention to the source</p>${rows}</div>`;
}

/** Play once, when the figure has been in sight for a moment; a reader who goes into it goes first. */
function useOpening(figure, player, stop) {
  useEffect(() => {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || location.hash.startsWith("#s=")) return;
    const { turn } = player;
    let clock;
    let playing = 0; // the player's turn, once it plays
    const seen = new IntersectionObserver(
      ([{ isIntersecting }]) => {
        clearTimeout(clock);
        if (isIntersecting) clock = setTimeout(play, BEFORE);
      },
      { threshold: 0.5 },
    );
    const give = () => {
      clearTimeout(clock);
      seen.disconnect();
    };
    function play() {
      give();
      if (player.turn !== turn) return;
      player.restart(player.count);
      player.play(stop);
      playing = player.turn;
    }
    const enter = ({ target }) => {
      if (!target.matches(":focus-visible")) return;
      give();
      if (playing === player.turn) player.show(stop);
    };
    const { current } = figure;
    seen.observe(current);
    current.addEventListener("focusin", enter);
    return () => {
      give();
      current.removeEventListener("focusin", enter);
    };
  }, []);
}

export function Translator({ scene: first }) {
  const [scene, setScene] = useState(first);
  const [typed, setTyped] = useState(first.text);
  const [copied, setCopied] = useState(null); // what came of it
  const [toward, look] = useState(null); // a piece of the source
  const [line, run] = useModel();
  const player = usePlayer(first.decisions.length, { at: first.stop });
  const wished = useRef(first); // the last plan, perhaps not shown yet
  const waiting = useRef(null); // of a text that is still being typed: it, and the clock
  const held = useRef(null); // where the candidates stand while the rest is written
  const figure = useRef(null);
  const drawings = useRef(null);
  useOpening(figure, player, first.stop);

  /** Change the plan; once its scene is there, `then` says where to look. */
  async function wish(changes, then) {
    const typing = waiting.current;
    clearTimeout(typing?.clock);
    waiting.current = null;
    if (typing) changes = { ...changes, text: changes.text ?? typing.text, chosen: [], old: [] };
    const { text, beam, chosen, old, view } = { ...wished.current, ...changes };
    wished.current = { text, beam, chosen, old, view };
    setCopied(null);
    const linked = planIn(location.hash, scene.size); // then no stale link is left
    if (linked) history.replaceState(null, "", addressOf(wished.current));
    const next = await run((model) => sceneOf(model, wished.current));
    if (!next) return;
    wished.current = { ...wished.current, chosen: next.chosen };
    look(null);
    setScene(next);
    (typing ? fromStart : then)(next);
  }

  function fromStart({ decisions, stop }) {
    player.restart(decisions.length);
    player.play(stop);
  }

  function write(text, moment = 0) {
    setTyped(text);
    clearTimeout(waiting.current?.clock);
    waiting.current = null;
    const wanted = text.trim();
    // A wish that could not be fulfilled may be made again.
    if (!wanted || (wanted === wished.current.text && wanted === scene.text)) return;
    const clock = setTimeout(() => wish({ text: wanted }, fromStart), moment);
    waiting.current = { text: wanted, clock };
  }

  const at = Math.min(player.at, scene.decisions.length);
  const stays = held.current?.turn === player.turn;
  const under = stays ? Math.min(held.current.at, scene.decisions.length) : at; // the word of the candidates

  /** Another piece: the rest is written anew, while the candidates stay where they are. */
  const overrule = (id) =>
    wish({ chosen: [...scene.ids.slice(0, under - 1), id], old: scene.ids }, async ({ decisions }) => {
      player.restart(decisions.length, under);
      const played = player.play();
      const { turn } = player;
      held.current = { turn, at: under };
      await played;
      if (player.turn === turn) player.show(under);
    });

  const takeBack = () =>
    wish({ chosen: [], old: [] }, ({ decisions }) => player.restart(decisions.length, under));

  async function copyLink() {
    const address = addressOf({ ...wished.current, at: under });
    history.replaceState(null, "", address);
    const done = navigator.clipboard?.writeText(location.href) ?? Promise.reject();
    setCopied(
      await done.then(
        () => "Copied",
        () => "It is in the address bar",
      ),
    );
  }

  useEffect(() => {
    const arrive = () => {
      const plan = planIn(location.hash, first.size);
      if (!plan) return;
      setTyped(plan.text);
      clearTimeout(waiting.current?.clock);
      waiting.current = null; // the address is the last wish
      wish(plan, (next) => (plan.at ? player.restart(next.decisions.length, plan.at) : fromStart(next)));
    };
    arrive();
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);

  useLayoutEffect(() => {
    if (player.turn === 0) return; // nobody has touched it
    const [rows] = drawings.current.children;
    const box = rows.querySelector(".piece.now[style]");
    if (box) rows.scrollLeft += box.getBoundingClientRect().right - rows.getBoundingClientRect().right + 100;
  }, [scene, at]);
  const hint = typed.trim() === scene.text ? scene.hint : hintFor(typed, [], LONGEST);
  const drawing = (tall) => html`<div class=${`${tall ? "columns" : "rows"} scroll`}>
    <${Drawing} scene=${scene} at=${at} tall=${tall} toward=${toward} onChoose=${(t) => player.show(t)} onLook=${look} />
  </div>`;
  return html`<div class=${classes({ translator: true, playing: player.playing })} ref=${figure}>
    <${Field} typed=${typed} onWrite=${write} />
    ${KNOWN && html`<${Bank} typed=${typed} onWrite=${write} />`}
    <p class="line" role="status">${line || hint}</p>
    <div class="drawings" ref=${drawings}>${[false, true].map(drawing)}</div>
    <div class="outcome">
      <div class="paths">
        <${Ghost} ghost=${scene.ghost} />
        <${English} scene=${scene} at=${player.playing ? at : under} busy=${player.playing} />
      </div>
      <${Candidates} scene=${scene} at=${under} hidden=${player.playing && !stays} onChoose=${overrule}>
        <p class=${classes({ try: true, unseen: player.playing && !stays })}>
          Choose another piece, a word or part of one, and the rest is written anew.
        </p>
        <p class="reads">${toward === null ? inWords(scene, at) : lookedAt(scene, toward)}</p>
      <//>
    </div>
    <div class="foot">
      <div class="controls">
        <${Controls} player=${player} />
        <${Button} off=${!scene.chosen.length} onClick=${takeBack}>Take it back<//>
      </div>
      <details class="drawer">
        <summary>Heads, search, link</summary>
      <div class="controls">
        <label>Written by <select autocomplete="off" value=${scene.beam ? "beam" : "greedy"}
          onChange=${({ target }) => wish({ beam: target.value === "beam" }, fromStart)}>
          <option value="beam">a beam of four</option><option value="greedy">greedy decoding</option>
        </select></label>
        <${Button} onClick=${copyLink}>${copied ?? "Copy the link to this"}<//>
      </div>
      <${Heads} size=${scene.size} view=${scene.view} onChoose=${(view) => wish({ view }, () => {})} />
      <div class="chips" lang=${READS.code} role="group" aria-label="Captions to try">
        ${SENTENCES.map((text) => html`<${Button} onClick=${() => write(text)}>${text}<//>`)}
      </div>
      ${
        KNOWN &&
        html`<p class="honest">It has read 29,000 captions and their translations, nothing else: away from captions it babbles. That the
        others at a word get so much is no accident: <a href="#label-smoothing">training</a> gives them a share of every target.</p>`
      }
      </details>
    </div>
  </div>`;
}
