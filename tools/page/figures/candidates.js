// The translation as a line of text, what could have stood at one of its words, and the path that was left.

import { SPACE } from "./model/subwords.js";
import { WRITES } from "./lib/corpus.js";
import { continued, grouped, percent } from "./lib/text.js";
import { Button, classes, html, useLayoutEffect, useRef } from "./lib/ui.js";

const SMOOTHED = "Training asked for it: label smoothing gives a tenth of each target to the others.";

/** The path that the reader has left: its rest stands above the place where it went another way. */
export function Ghost({ ghost }) {
  return html`<p class="ghost" lang=${WRITES.code}>${
    ghost &&
    html`<span class="room" aria-hidden="true">${ghost.before}${ghost.rest.startsWith(" ") ? " " : ""}</span><s title="What you have overruled">${ghost.rest.trim()}</s>`
  }</p>`;
}

/** The translation, its subwords tinted by how sure the model was of them. */
export function English({ scene, at, busy }) {
  const words = scene.decisions.filter(({ piece }) => piece !== "</s>");
  const next = words.findIndex(({ piece }, t) => t >= at && piece.startsWith(SPACE)); // of the next word
  const span = ({ piece, share }, t) =>
    html`${t && piece.startsWith(SPACE) ? " " : ""}<span
      class=${classes({ now: t + 1 === at, later: next >= 0 && t >= next, yours: t + 1 === scene.chosen.length })}
      style=${`--doubt:${Math.round(100 * (1 - share))}%`}
    >${piece.replace(SPACE, "")}</span>`;
  return html`<p class="english" lang=${WRITES.code} aria-live="polite" aria-busy=${String(busy)}>${words.length ? words.map(span) : "…"}</p>`;
}

/** The offers of a decision: as long as it is the same one, they stay in their places. */
function useInPlace({ read, decisions }, at) {
  const kept = useRef(null);
  const decision = decisions[at - 1];
  const where = [read, at, decision.before].join("|");
  const same = kept.current?.where === where && kept.current.offers.some(({ id }) => id === decision.taken);
  if (!same) kept.current = { where, offers: decision.offers, rest: decision.rest };
  return { ...decision, ...kept.current };
}

/**
 * The likeliest subwords of a decision, under its word, each a button that overrules it; last, all others.
 * What is said of them stands beside.
 */
export function Candidates({ scene, at, hidden, onChoose, children }) {
  const { before, offers, taken, rest, others, piece } = useInPlace(scene, at);
  const row = useRef(null);
  const space = before && (piece.startsWith(SPACE) || piece === "</s>") ? " " : "";
  useLayoutEffect(() => {
    // Where the line is broken, the text before the word says nothing of its place.
    const word = row.current.parentNode.querySelectorAll(".english span")[at - 1];
    const room = row.current.querySelector(".room");
    const broken = word && word.offsetTop > word.parentNode.firstElementChild.offsetTop;
    room.style.width = broken ? `${word.offsetLeft - word.parentNode.offsetLeft}px` : "";
  });
  const item = ({ id, piece: offered, share }) => html`<li key=${id}>
    <${Button} pressed=${id === taken} onClick=${() => id === taken || onChoose(id)}>
      <span>${continued(offered)}</span><i style=${`width:${(100 * share).toFixed(1)}%`}></i><b>${percent(share)}</b>
    <//>
  </li>`;
  return html`<div class="candidates" ref=${row}>
    <div class="under">
      <span class="room" aria-hidden="true">${before}${space}</span>
      <div class=${classes({ offers: true, unseen: hidden })} role="group" aria-label=${before ? `What may follow “${before}”` : "What may come first"}>
        <ol>${offers.map(item)}</ol>
        <p class="rest" title=${SMOOTHED}>
          <span>${grouped(others)} others</span><i style=${`width:${(100 * rest).toFixed(1)}%`}></i><b>${percent(rest)}</b>
        </p>
      </div>
    </div>
    <div class="beside">${children}</div>
  </div>`;
}
