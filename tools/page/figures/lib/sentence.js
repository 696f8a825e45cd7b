// The sentence of all figures: what is typed in one of them is shown by the others once they are in sight.

import { READS } from "./corpus.js";
import { hintFor } from "./hints.js";
import { useScene } from "./scene.js";
import { respelt } from "./umlauts.js";
import { html, useEffect, useRef, useState } from "./ui.js";

export const LONGEST = 120; // letters of a sentence
export const MOMENT = 250; // milliseconds after a key, before the model is asked

/** The part of a text that is asked for: as many whole words as fit, or the beginning of a word that does not. */
export function fitted(text) {
  const letters = [...text.trim()];
  if (letters.length <= LONGEST) return letters.join("");
  const kept = letters.slice(0, LONGEST + 1).join("");
  const end = kept.search(/\s+\S*$/);
  return end < 0 ? letters.slice(0, LONGEST).join("") : kept.slice(0, end);
}

/** A text as the model reads it: German as it should be spelt. */
export const readBy = (model, text) =>
  READS.code === "de" ? respelt(text, (word) => model.encode(word)) : text;

/** What is to be said of a sentence that was typed as `text` and read as `read`, in these subwords. */
export const hintOfRead = (text, read, pieces) =>
  hintFor(read, pieces) || (read === text ? "" : `Read as “${read}”`);

/** What is to be said of what is typed, beside a scene with a text and a hint. */
function hintOf(typed, scene) {
  const text = fitted(typed);
  if (text !== typed.trim()) return `Of a long sentence only ${LONGEST} letters are read, in whole words.`;
  if (text === scene.text) return scene.hint;
  return text ? "The sentence runs through the model …" : hintFor(typed);
}

let shared = null; // the last sentence that was asked for, in whichever figure
const listeners = new Set();

function share(text) {
  shared = text;
  for (const hear of listeners) hear();
}

/**
 * A figure with a sentence: what `useScene` returns, and the `sentence`: what is `typed` and the `hint` about it;
 * `field`, a ref to the input; `write(text, moment)`, for what is typed; `put(text)`, for a text that the figure asks
 * for by itself. The scenes have a `text` and a `hint`.
 *
 * `read(text, isOwn)` is called for a text that is to be shown; `isOwn` is false if it was typed in another figure. What
 * is still being typed is part of the next choice, with the changes `fresh`: `then(scene, isTyped)` learns of it. A figure
 * that is `alone` has a sentence of its own.
 */
export function useSentence(first, names, sceneOf, read, fresh = {}, alone = false) {
  const shown = useScene(first, names, sceneOf);
  const [typed, setTyped] = useState(first.text);
  const field = useRef(null);
  const own = useRef({ asked: first.text, pending: null, isNear: false }).current;
  own.shown = shown.scene.text;
  own.read = read;

  function drop() {
    clearTimeout(own.pending?.clock);
    own.pending = null;
  }

  /** This text is shown here, and shall be everywhere. */
  function claim(text) {
    drop();
    own.asked = text;
    if (!alone) share(text);
  }

  /** End a typing at once; returns the text that was not asked for yet, or null. */
  function settle() {
    const text = own.pending?.text ?? null;
    if (text) claim(text);
    return text;
  }

  function choose(changes, then = () => {}) {
    const text = settle();
    const all = text ? { ...changes, ...fresh, text } : changes;
    return shown.choose(all, (scene) => then(scene, text !== null));
  }

  function put(text) {
    setTyped(text);
    claim(text);
  }

  function write(text, moment = 0) {
    setTyped(text);
    drop();
    const wanted = fitted(text);
    const isShown = wanted === own.asked && wanted === own.shown; // what failed may be asked for again
    if (!wanted || isShown) return;
    const clock = setTimeout(() => own.read(settle(), true), moment);
    own.pending = { text: wanted, clock };
  }

  /** Follow another figure, if this one is in sight. */
  function hear() {
    if (alone || !own.isNear || shared === null || shared === own.asked) return;
    drop();
    own.asked = shared;
    setTyped(shared);
    own.read(shared, false);
  }

  useEffect(() => {
    const watch = new IntersectionObserver(([{ isIntersecting }]) => {
      own.isNear = isIntersecting;
      hear();
    });
    watch.observe(field.current.closest("figure"));
    listeners.add(hear);
    return () => {
      watch.disconnect();
      listeners.delete(hear);
    };
  }, []);
  return { ...shown, choose, sentence: { typed, hint: hintOf(typed, shown.scene), field, write, put } };
}

/** What the model is doing, in sight of the whole figure; else what is to be said of the sentence. */
export const Line = ({ line, sentence: { hint } }) =>
  html`<p class=${line ? "line now" : "line"} role="status">${line || hint}</p>`;

/** The field for a sentence, and its label. */
export function SentenceField({
  id,
  label = `Your sentence in ${READS.name}, the same in all figures`,
  sentence,
}) {
  const { typed, field, write } = sentence;
  function enter({ key, target }) {
    if (key !== "Enter") return;
    write(target.value);
    if (matchMedia("(pointer: coarse)").matches) target.blur(); // its keyboard hides half of the figure
  }
  return html`<label for=${id}>${label}</label>
    <input
      id=${id} type="text" lang=${READS.code} autocomplete="off" spellcheck="false" value=${typed} ref=${field}
      onInput=${({ target }) => write(target.value, MOMENT)}
      onKeyDown=${enter}
    />`;
}
