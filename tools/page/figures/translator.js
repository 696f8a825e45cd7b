// The translator of the first screen: make a German caption, see its translation, and derail it.
//
// What the reader chooses becomes a scene in translation.js; here it is drawn, and played.

import { READS, SENTENCES } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { MOMENT, SentenceField, useSentence } from "./lib/sentence.js";
import { spelt } from "./lib/text.js";
import { UMLAUTS } from "./lib/umlauts.js";
import { Button, classes, html, useEffect, useLayoutEffect, useRef, useState } from "./lib/ui.js";
import { Drawing, inWords, lookedAt } from "./arcs.js";
import { Candidates, English, Ghost } from "./candidates.js";
import { addressOf, choiceIn, sceneOf } from "./translation.js";
import { BANK, thrown, withWord, wordsOf } from "./words.js";

const BEFORE = 150; // milliseconds in sight, before it plays by itself

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

/** The field for a sentence, with the letters that other keyboards lack, and a die. */
function Field({ sentence }) {
  const { typed, field, write } = sentence;
  function add(letter) {
    const { current: input } = field;
    if (document.activeElement !== input) input.setSelectionRange(input.value.length, input.value.length);
    input.focus();
    input.setRangeText(letter, input.selectionStart, input.selectionEnd, "end");
    write(input.value, MOMENT);
  }
  const stay = (event) => event.preventDefault(); // a click leaves the cursor in the field
  const label = "Type a German caption, or build one from these words";
  return html`<div class="field">
    <${SentenceField} id="german" label=${label} sentence=${sentence} />
    <span class="umlauts" lang="de" role="group" aria-label="Umlauts">
      ${UMLAUTS.map((letter) => html`<${Button} onMouseDown=${stay} onClick=${() => add(letter)}>${letter}<//>`)}
    </span>
    <${Die} onThrow=${() => write(thrown(typed.trim()))} />
  </div>`;
}

/** German words with what they mean: a click puts one into the sentence. */
function Bank({ typed, write }) {
  const chosen = wordsOf(typed) ?? {};
  const button = ({ kind, word, means }) => html`<${Button}
    pressed=${chosen[kind] === word} onClick=${() => write(withWord(typed, { kind, word }))}
  ><span lang="de">${word}</span><small>${means}</small><//>`;
  return html`<div class="bank scroll" role="group" aria-label="Words for the sentence">${BANK.map(button)}</div>`;
}

/** Why the beam has not taken the likeliest piece; nothing where it has, or where the reader has chosen. */
function whyTaken({ beam, chosen, decisions }, at) {
  const { offers, taken } = decisions[at - 1];
  const [best] = offers;
  if (!beam || at <= chosen.length || best.id === taken) return "";
  const { piece } = offers.find(({ id }) => id === taken);
  return ` “${spelt(best.piece)}” is likelier here, but the beam found a better whole sentence with “${spelt(piece)}”.`;
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

/** Play once, when the translation has been in sight for a moment; a reader who goes into it goes first. */
function useOpening(figure, player, stop) {
  useEffect(() => {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || location.hash.startsWith("#s=")) return;
    const { current } = figure;
    let clock;
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
    const enter = ({ target }) => {
      if (!target.matches(":focus-visible")) return;
      give();
      if (player.playing) player.show(stop);
    };
    const leave = () => current.removeEventListener("focusin", enter);
    function play() {
      give();
      if (player.isUsed || current.contains(document.activeElement)) return;
      player.restart(player.count);
      player.play(stop).then(leave);
    }
    seen.observe(current.querySelector(".outcome"));
    current.addEventListener("focusin", enter);
    return () => {
      give();
      leave();
    };
  }, []);
}

export function Translator({ scene: first }) {
  const names = ["text", "beam", "chosen", "old", "view"];
  const translator = useSentence(first, names, sceneOf, translate, { chosen: [], old: [] });
  const { scene, latest, line, sentence } = translator;
  const [copied, setCopied] = useState(null); // what came of it
  const [toward, look] = useState(null); // a piece of the source
  const player = usePlayer(first.decisions.length, { at: first.stop });
  const figure = useRef(null);
  const drawings = useRef(null);
  useOpening(figure, player, first.stop);

  /** Change the choice; once its scene is there, `then` says where to look. */
  function choose(changes, then) {
    setCopied(null);
    translator.choose(changes, (next, isTyped) => {
      latest.current = { ...latest.current, chosen: next.chosen };
      look(null);
      (isTyped ? fromStart : then)(next);
    });
    const linked = choiceIn(location.hash, scene.size); // then no stale link is left
    if (linked) history.replaceState(null, "", addressOf(latest.current));
  }

  /** Translate a text; it is played if it was typed here. */
  function translate(text, isOwn) {
    const toStop = ({ decisions, stop }) => player.restart(decisions.length, stop);
    choose({ text, chosen: [], old: [] }, isOwn ? fromStart : toStop);
  }

  function fromStart({ decisions, stop }) {
    player.restart(decisions.length);
    player.play(stop);
  }

  const at = Math.min(player.at, scene.decisions.length);
  const stays = player.held !== null; // the candidates stay while the rest is written
  const under = stays ? Math.min(player.held, scene.decisions.length) : at; // the word of the candidates

  /** Another piece: the rest is written anew, while the candidates stay where they are. */
  const overrule = (id) =>
    choose({ chosen: [...scene.ids.slice(0, under - 1), id], old: scene.ids }, async ({ decisions }) => {
      player.restart(decisions.length, under);
      player.held = under;
      if (await player.play()) player.show(under);
    });

  const takeBack = () =>
    choose({ chosen: [], old: [] }, ({ decisions }) => player.restart(decisions.length, under));

  async function copyLink() {
    const address = addressOf({ ...latest.current, at: under });
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
      const asked = choiceIn(location.hash, first.size);
      if (!asked) return;
      const { at: stop, ...choice } = asked;
      sentence.put(choice.text); // the address is what was chosen last
      choose(choice, (next) => (stop ? player.restart(next.decisions.length, stop) : fromStart(next)));
    };
    arrive();
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);

  useLayoutEffect(() => {
    if (!player.isUsed) return;
    const [rows] = drawings.current.children;
    const box = rows.querySelector(".written .now");
    if (box) rows.scrollLeft += box.getBoundingClientRect().right - rows.getBoundingClientRect().right + 100;
  }, [scene, at]);
  function goTo(step) {
    look(null);
    player.show(step);
  }

  const drawing = (tall) => html`<div class=${`${tall ? "columns" : "rows"} scroll`}>
    <${Drawing} scene=${scene} at=${at} tall=${tall} toward=${toward} onChoose=${goTo} onLook=${look} />
  </div>`;
  return html`<div class=${classes({ translator: true, playing: player.playing })} ref=${figure}>
    <${Field} sentence=${sentence} />
    <${Bank} ...${sentence} />
    <p class="line" role="status">${line || sentence.hint}</p>
    <div class="drawings" ref=${drawings}>${[false, true].map(drawing)}</div>
    <div class="outcome">
      <div class="paths">
        <${Ghost} ghost=${scene.ghost} />
        <${English} scene=${scene} at=${player.playing ? at : under} busy=${player.playing} />
      </div>
      <${Candidates} scene=${scene} at=${under} hidden=${player.playing && !stays} onChoose=${overrule}>
        <p class=${classes({ try: true, unseen: player.playing && !stays })}>
          Choose another piece, a word or part of one, and the rest is written anew. The more orange, the less sure the
          model was.
        </p>
        <p class="reads">${toward === null ? inWords(scene, at) : lookedAt(scene, toward)}${whyTaken(scene, under)}</p>
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
          onChange=${({ target }) => choose({ beam: target.value === "beam" }, fromStart)}>
          <option value="beam">a beam of four</option><option value="greedy">greedy decoding</option>
        </select></label>
        <${Button} onClick=${copyLink}>${copied ?? "Copy the link to this"}<//>
      </div>
      <${Heads} size=${scene.size} view=${scene.view} onChoose=${(view) => choose({ view }, () => {})} />
      <div class="chips" lang=${READS.code} role="group" aria-label="Captions to try">
        ${SENTENCES.map((text) => html`<${Button} onClick=${() => sentence.write(text)}>${text}<//>`)}
      </div>
      <p class="honest">It has read 29,000 captions and their translations, nothing else: away from captions it babbles. The
        other candidates get as much as they do because <a href="#label-smoothing">label smoothing</a> gives them a share of every target.</p>
      </details>
    </div>
  </div>`;
}
