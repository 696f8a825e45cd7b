// The two lines of text, all words of which are buttons; the path that was left; and what could have stood at a word.

import { SPACE } from "./model/subwords.js";
import { READS, WRITES } from "./lib/corpus.js";
import { arrows } from "./lib/keys.js";
import { percent, spelt, wordsIn } from "./lib/text.js";
import { Button, classes, html } from "./lib/ui.js";

const SMOOTHED = "Training asked for it: label smoothing gives a tenth of each target to the others.";
const WALK = arrows("button", { line: true }); // a row of buttons is one stop of the tab key
export const stop = (isHere) => (isHere ? 0 : -1);
const shown = (piece) => (piece === SPACE ? "" : spelt(piece));

/** The sentence that is read: a click covers a word, another uncovers it. The choice is ahead of what the model says. */
export function German({ scene, choice, onCover }) {
  const { source } = scene;
  const covered = choice.text === scene.text ? choice.covered : scene.covered;
  const words = wordsIn(source);
  const piece = (s) => html`<span data-s=${s}>${shown(source[s])}</span>`;
  const word = (pieces, i) => {
    if (i === words.length - 1) return html`<small>${pieces.map(piece)}</small>`;
    return html`<${Button} class="word" tabindex=${stop(i === 0)} pressed=${covered.includes(i)} onClick=${() => onCover(i)}>${pieces.map(piece)}<//>`;
  };
  const label = `${READS.name}: a click covers a word, and the model no longer sees it`;
  return html`<p class=${classes({ german: true, blind: choice.off.includes("eyes") })} lang=${READS.code} role="group" aria-label=${label} onKeyDown=${WALK}>${words.map(word)}</p>`;
}

/**
 * The translation: the first `count` words are written. Its subwords are tinted by how sure the model was of them; a
 * click on a word shows what could have stood there.
 */
export function English({ scene, words, count, open, secret, busy, onOpen }) {
  const { decisions, ended } = scene;
  const piece = (t) => {
    const { piece: text, share } = decisions[t];
    return html`<span data-t=${t} style=${`--doubt:${Math.round(100 * (1 - share))}%`}>${shown(text)}</span>`;
  };
  const word = (pieces, i) => {
    const name = classes({
      word: true,
      later: i >= count,
      yours: !secret && pieces.some((t) => decisions[t].own),
    });
    if (decisions[pieces[0]].piece === "</s>") return html`<small class=${name}>${pieces.map(piece)}</small>`;
    return html`<${Button} class=${name} tabindex=${stop(i === open)} aria-expanded=${String(i === open)} onClick=${() => onOpen(i)}>${pieces.map(piece)}<//>`;
  };
  return html`<p class="english" lang=${WRITES.code} aria-live="polite" aria-busy=${String(busy)} onKeyDown=${WALK}>${words.map(word)}${ended ? "" : " …"}</p>`;
}

/** What could stand at a word, under it: each a button that overrules the model; last, all others. */
export function Candidates({ offers, before, hidden, onChoose }) {
  const bar = (share) => `--share:${(100 * share).toFixed(1)}%`;
  const item = (offer) => html`<li key=${String(offer.ids)}>
    <${Button} pressed=${offer.taken} style=${bar(offer.share)} onClick=${() => offer.taken || onChoose(offer)}>
      <span>${offer.word}</span><i></i><b>${percent(offer.share)}</b>
    <//>
  </li>`;
  const label = before ? `What may follow “${before}”` : "What may come first";
  return html`<div class=${classes({ offers: true, unseen: hidden })} role="group" aria-label=${label}>
    <ol>${offers.list.map(item)}</ol>
    <p class="rest" style=${bar(offers.rest)} title=${SMOOTHED}>
      <span>all else</span><i></i><b>${percent(offers.rest)}</b>
    </p>
  </div>`;
}
