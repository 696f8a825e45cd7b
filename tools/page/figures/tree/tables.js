// Beside the tree: what was proposed at a node, the hypotheses that have ended, and the key.

import { continued, decimal, grouped } from "../lib/text.js";
import { classes, html } from "../lib/ui.js";
import { countOf, endedAt, forkOf, reached } from "./known.js";
import { SHOWN } from "./scene.js";
import { about, share } from "./words.js";

/** What was proposed at a node, with what became of it. */
export function Proposals({ scene, name, at }) {
  const { words, rows, text, others, rest } = about(scene, name, at);
  const number = Math.max(scene.width, SHOWN);
  const taken = name.startsWith("greedy") ? "taken?" : "kept?";
  const decidedBy = rows.some((row) => row.fate);
  const heading = decidedBy ? taken : "";
  const row = ({
    piece,
    share: part,
    logp,
    fate: became,
    meant,
  }) => html`<tr class=${classes({ meant, [became]: became })}>
    <td>${continued(piece)}</td><td class="num">${share(part)}</td><td class="num">${decimal(logp)}</td><td>${became}</td>
  </tr>`;
  const empty = html`<tr class="empty"><td colspan="4">${"\u00a0"}</td></tr>`;
  return html`<div class="about">
    <p role="status">${words}</p>
    <table>
      <caption>${rows.length ? `Proposed ${text ? `after “${text}”` : "first"}` : "It proposes nothing any more"}</caption>
      <thead><tr><th>subword</th><th class="num">probability</th><th class="num">total</th><th>${heading}</th></tr></thead>
      <tbody>
        ${rows.map(row)}${[...Array(number - rows.length)].map(() => empty)}
        ${rows.length ? html`<tr class="rest"><td>${grouped(others)} others</td><td class="num">${share(rest)}</td><td></td><td></td></tr>` : empty}
      </tbody>
    </table>
  </div>`;
}

/** The hypotheses that have ended, ranked; each place of the beam has a row. */
export function Ranking({ scene, at }) {
  const ended = endedAt(scene, at);
  const longest = endedAt(scene, countOf(scene)).reduce(
    (one, { text }) => (text.length > one.length ? text : one),
    "",
  );
  const said = (text) =>
    html`<td><span class="roomy"><span>${text}</span><span class="room" aria-hidden="true">${longest}</span></span></td>`;
  const row = (_, i) => {
    const { text, logp, length, score } = ended[i] ?? {};
    if (text === undefined)
      return html`<tr class="empty"><td class="num">${i + 1}</td>${said(i ? "" : "None has ended yet.")}<td></td><td></td><td></td></tr>`;
    return html`<tr><td class="num">${i + 1}</td>${said(text)}
      <td class="num">${decimal(logp, 3)}</td><td class="num">${length}</td><td class="num">${decimal(score, 3)}</td></tr>`;
  };
  return html`<div class="ranks scroll"><table>
    <caption>Hypotheses that have ended</caption>
    <thead><tr><th class="num">rank</th><th>sentence</th><th class="num">log-prob.</th><th class="num">length</th><th class="num">score</th></tr></thead>
    <tbody>${[...Array(scene.width)].map(row)}</tbody>
  </table></div>`;
}

/** What the looks of the tree mean; that of the end has its room from the beginning. */
export function Key({ scene, at }) {
  const { over } = reached(scene, at);
  const end = over && forkOf(scene) >= 0 ? "fork" : "later";
  return html`<p class="key" aria-hidden="true">
    <span><small>−1.23</small> log-probability so far</span> <span>beyond the dashed line: the best that are cut</span>
    <span>grey: given up</span> <span class="greedy">the greedy path</span>
    <span class="best">${over ? "the winner" : "the best so far"}</span> <span class=${end}>greedy leaves the winner</span>
  </p>`;
}
