// The translator of the first screen: a sentence that is an instrument. Every word can be touched.
//
// What the reader does becomes a choice, and that a scene, in translation.js; here the scene is drawn, and written.

import { READS, SENTENCES, WRITES } from "./lib/corpus.js";
import { arrows } from "./lib/keys.js";
import { Play, usePlayer } from "./lib/player.js";
import { MOMENT, SentenceField, useSentence } from "./lib/sentence.js";
import { spelt, wordsIn } from "./lib/text.js";
import { UMLAUTS } from "./lib/umlauts.js";
import { Button, classes, html, useEffect, useRef, useState } from "./lib/ui.js";
import { Drawing, inWords, LiveArcs } from "./arcs.js";
import { Blindfolds, verdictOn } from "./blindfolds.js";
import { Candidates, English, German, stop } from "./candidates.js";
import { addressOf, choiceIn, sceneOf, untouched } from "./translation.js";
import { BANK, thrown, withWord, wordsOf } from "./words.js";

const BEFORE = 150; // milliseconds in sight, before it writes by itself
const PACE = 280; // milliseconds for a word
const SEND = globalThis.navigator?.share ? "Send this" : "Copy a link";
const MOTIVE = "Blindfold the model. Touch a German word to cover it, an English one to overrule it.";

/** A button that throws another caption. */
function Die({ onThrow }) {
  return html`<${Button} class="die" onClick=${onThrow}>
    <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
      <rect x="1.5" y="1.5" width="17" height="17" rx="4" />
      <path d="M6 6h0M14 6h0M10 10h0M6 14h0M14 14h0" />
    </svg>
    <span>Surprise me</span>
  <//>`;
}

/** The field for a sentence, with the letters that other keyboards lack while one writes. */
function Field({ sentence }) {
  const { field, write } = sentence;
  function add(letter) {
    const { current: input } = field;
    input.focus();
    input.setRangeText(letter, input.selectionStart, input.selectionEnd, "end");
    write(input.value, MOMENT);
  }
  const stay = (event) => event.preventDefault(); // a click leaves the cursor in the field
  const [used, setUsed] = useState(false); // the letters stay: nothing moves under a finger
  function enter({ target, currentTarget }) {
    if (target !== field.current) return;
    setUsed(true); // and a phone's keyboard takes half of the screen: what is written stays above it
    if (innerWidth < 640)
      currentTarget.previousElementSibling.scrollIntoView({ block: "start", behavior: "instant" });
  }
  return html`<div class=${classes({ field: true, used })} onFocusIn=${enter}>
    <${SentenceField} id="german" label="A caption in German" sentence=${sentence} />
    <span class="umlauts" lang="de" role="group" aria-label="Umlauts">
      ${UMLAUTS.map((letter) => html`<${Button} onMouseDown=${stay} onClick=${() => add(letter)}>${letter}<//>`)}
    </span>
  </div>`;
}

/** German words with what they mean: a click puts one into the sentence. */
function Bank({ typed, write }) {
  const chosen = wordsOf(typed) ?? {};
  const button = ({ kind, word, means }, i) => html`<${Button} tabindex=${stop(i === 0)}
    pressed=${chosen[kind] === word} onClick=${() => write(withWord(typed, { kind, word }))}
  ><span lang="de">${word}</span><small>${means}</small><//>`;
  return html`<div class="bank scroll" role="group" aria-label="Words for the sentence" onKeyDown=${arrows("button", { line: true })}>
    ${BANK.map(button)}
  </div>`;
}

/** A grid of buttons: for each layer the mean of its heads (null), and every head. */
function Heads({ size, view, onChoose }) {
  const cell = (layer, head) => {
    const name = `layer ${layer + 1}, ${head === null ? "mean of its heads" : `head ${head + 1}`}`;
    const pressed = layer === view.layer && head === view.head;
    return html`<${Button} aria-label=${name} title=${name} pressed=${pressed} tabindex=${stop(pressed)} onClick=${() => onChoose({ layer, head })}>
      ${head === null ? "mean" : head + 1}
    <//>`;
  };
  const count = (length) => [...Array(length).keys()];
  const rows = count(size.layers).map(
    (layer) =>
      html`<div><span aria-hidden="true">layer ${layer + 1}</span>${[null, ...count(size.heads)].map((head) => cell(layer, head))}</div>`,
  );
  return html`<div class="heads" role="group" aria-label="Layer and head whose attention is drawn" onKeyDown=${arrows("button")}>
    <p>Whose attention the arcs are</p>${rows}
  </div>`;
}

/** Write once, when the figure has been in sight for a moment; a reader who goes into it goes first. */
function useOpening(figure, player) {
  const [opening, setOpening] = useState(true);
  useEffect(() => {
    const { current } = figure;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || location.hash.startsWith("#s=");
    let clock;
    const show = () => {
      clearTimeout(clock);
      seen.disconnect();
      setOpening(false);
    };
    const seen = new IntersectionObserver(
      ([{ isIntersecting }]) => {
        clearTimeout(clock);
        if (isIntersecting) clock = setTimeout(play, BEFORE);
      },
      { threshold: 0.5 },
    );
    const enter = ({ target }) => {
      if (!target.matches(":focus-visible")) return;
      show();
      if (player.playing) player.show(player.count);
    };
    const leave = () => current.removeEventListener("focusin", enter);
    function play() {
      show();
      if (player.isUsed || current.contains(document.activeElement)) return;
      player.restart(player.count);
      player.play().then(leave);
    }
    current.addEventListener("focusin", enter);
    if (still) show();
    else seen.observe(current.querySelector(".lines"));
    return () => {
      show();
      leave();
    };
  }, []);
  return opening;
}

/** What a friend who sent a sentence asks; `taps` are what has been tried since. */
function challengeOf({ taps, count, won }) {
  if (!count) return "A friend sent you this: change what you like.";
  const tried = `${taps} ${taps === 1 ? "tap" : "taps"}`;
  if (won) return `Back at the truth, in ${tried}.`;
  const words = count === 1 ? "one word" : `${count} words`;
  return `A friend overruled ${words}: can you get back to the truth? ${taps ? `${tried}.` : ""}`;
}

export function Translator({ scene: first }) {
  const names = ["text", "off", "covered", "chosen", "view", "at"];
  const translator = useSentence(first, names, sceneOf, translate, untouched(""));
  const { scene, choice, latest, line, sentence } = translator;
  const { open } = scene; // the word whose alternatives are shown
  const words = wordsIn(scene.decisions.map(({ piece }) => piece));
  const [sent, setSent] = useState(null); // what came of sending it
  const [game, setGame] = useState(null); // of a sentence that a friend has sent
  const [asked, setAsked] = useState(null); // the scene, if it came of a touch on a word
  const player = usePlayer(words.length, { first: 0, pace: PACE });
  const figure = useRef(null);
  const lines = useRef(null);
  const opening = useOpening(figure, player);
  const busy = opening || player.playing;
  const stays = player.held !== null; // the alternatives stay while the rest is written
  const count = Math.min(player.at, words.length);

  /** Change the choice; what comes of it is written from a word on, which `from(scene)` tells. */
  function choose(changes, from = () => 0, then = () => {}) {
    setSent(null);
    translator.choose(changes, (next, isTyped) => {
      latest.current = { ...latest.current, chosen: next.chosen, covered: next.covered };
      setGame((now) => now && (isTyped ? null : { ...now, won: now.won || next.says === next.truth }));
      const total = wordsIn(next.decisions.map(({ piece }) => piece)).length;
      const begin = isTyped ? 0 : from(next);
      player.restart(total, begin ?? total);
      if (begin !== null) {
        player.held = begin || null;
        player.play();
      }
      then(next);
    });
    const linked = choiceIn(location.hash, scene.size); // then no stale link is left
    if (linked) history.replaceState(null, "", addressOf(latest.current));
  }
  const tapped = () => setGame((now) => now && { ...now, taps: now.taps + (now.won ? 0 : 1) });
  const atOnce = () => null;

  /** Translate a text; it is written anew if it was typed here. */
  function translate(text, isOwn) {
    setGame(null);
    choose({ ...untouched(text) }, isOwn ? undefined : atOnce);
  }

  const touch = (word) => choose({ at: words[word][0] }, atOnce, setAsked);

  /** Another word: the rest is written anew, while the alternatives stay where they are. */
  function overrule({ ids }) {
    tapped();
    const [at] = words[open];
    choose({ chosen: [...scene.ids.slice(0, at), ...ids], at }, (next) => next.open + 1);
  }

  /** A blindfold on or off (of `off`), a word of the source covered or not (of `covered`). */
  function toggle(name, one) {
    tapped();
    const others = latest.current[name].filter((each) => each !== one);
    const isOn = others.length < latest.current[name].length;
    choose({ [name]: isOn ? others : [...others, one], chosen: [], at: null });
  }
  const takeBack = () => choose({ off: [], covered: [], chosen: [], at: null }, atOnce);

  async function send() {
    const { chosen } = latest.current;
    history.replaceState(
      null,
      "",
      addressOf({ ...latest.current, at: chosen.length ? null : words[open][0] }),
    );
    const { href: url } = location;
    const shared = navigator.share?.({ title: document.title, text: scene.says, url });
    const done = shared ?? navigator.clipboard?.writeText(url) ?? Promise.reject();
    setSent(
      await done.then(
        () => (shared ? "Sent" : "Link copied"),
        ({ name } = {}) => (name === "AbortError" ? null : "It is in the address bar"),
      ),
    );
  }

  useEffect(() => {
    const arrive = () => {
      const asked = choiceIn(location.hash, first.size);
      if (!asked) return;
      sentence.put(asked.text); // the address is what was chosen last
      choose({ ...asked, view: asked.view ?? first.view }, undefined, ({ decisions, says, truth }) => {
        const overruled = decisions.filter(({ own }) => own).length;
        const isPuzzle = overruled > 0 && says !== truth;
        setGame({ taps: 0, count: isPuzzle ? overruled : 0, won: !isPuzzle });
      });
    };
    arrive();
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);

  const secret = game && !game.won;
  const shown = player.playing && !stays ? Math.max(0, count - 1) : open; // what is spoken of
  const wordAt = (pieces) => pieces.map((each) => spelt(scene.decisions[each].piece)).join("");
  const reads = `To write “${wordAt(words[shown])}”, it looks ${inWords(scene, words[shown])}.`;
  const [verdict, telling] = verdictOn(scene);
  const before = words.slice(0, open).map(wordAt).join(" ");
  const touched = scene.off.length || scene.covered.length || scene.chosen.length;
  const nameOf = (piece) =>
    classes({ now: words[shown].includes(piece), later: busy && piece > (words[count - 1]?.at(-1) ?? -1) });
  const isStale = !sentence.typed.trim() || (scene === first && choice.text !== scene.text); // a friend's is on its way
  return html`<div class=${classes({ translator: true, playing: player.playing, stays, opening, stale: isStale, waiting: translator.busy })} ref=${figure}>
    <p class=${classes({ motive: true, game: Boolean(game) })} role="status">
      ${line || sentence.hint || (game ? challengeOf(game) : MOTIVE)}
    </p>
    <${Field} sentence=${sentence} />
    <${Blindfolds} off=${choice.off} onToggle=${(name) => toggle("off", name)} />
    <div class="lines" ref=${lines}>
      <${LiveArcs} box=${lines} scene=${scene} nameOf=${nameOf} label=${reads} />
      <${German} scene=${scene} choice=${choice} onCover=${(word) => toggle("covered", word)} />
      <${English} scene=${scene} words=${words} count=${busy ? count : words.length} open=${open} secret=${secret} busy=${player.playing || translator.busy} onOpen=${touch} />
      <p class=${classes({ ghost: true, same: secret || scene.says === scene.truth })} lang=${WRITES.code}><s>${scene.truth}</s></p>
    </div>
    <div class="still scroll"><${Drawing} scene=${scene} /></div>
    <${Candidates} offers=${scene.offers} before=${before} hidden=${player.playing && !stays} onChoose=${overrule} />
    <div class="controls">
      <p class="verdict">${(asked !== scene && verdict) || reads} ${telling && html`<${Button} onClick=${() => sentence.write(telling)}>Try: <span lang=${READS.code}>${telling}</span><//>`}</p>
      <${Play} player=${player} />
      <${Button} class="send" title="A link to what you see" onClick=${send}>${sent ?? SEND}<//>
      <${Button} off=${!touched || secret} onClick=${takeBack}>Take it back<//>
      <${Die} onThrow=${() => sentence.write(thrown(sentence.typed.trim()))} />
    </div>
    <${Bank} ...${sentence} />
    <details class="drawer">
      <summary>One head at a time, more captions, and why it errs</summary>
      <${Heads} size=${scene.size} view=${choice.view} onChoose=${(view) => choose({ view }, atOnce)} />
      <div class="chips" lang=${READS.code} role="group" aria-label="Captions to try">
        ${SENTENCES.map((text) => html`<${Button} onClick=${() => sentence.write(text)}>${text}<//>`)}
      </div>
      <p class="honest">It has read 29,000 captions and their translations, nothing else: away from captions it babbles. It writes
        piece by piece, and each time takes the likeliest; a word gets the product of its pieces, and need not come first in the list.
        All other words get as much as they do because <a href="#label-smoothing">label smoothing</a> gives them a share of every target.</p>
    </details>
  </div>`;
}
