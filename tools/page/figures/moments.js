// A training at stored moments: what the model writes, where it looks, its loss (Part 3, "Watch it learn").

import { Play, usePlayer } from "./lib/player.js";
import { continued, decimal, grouped } from "./lib/text.js";
import { Button, classes, html, useState } from "./lib/ui.js";
import { joined } from "./model-map/pieces.js";

const ROWS = 16; // subwords of a translation that are shown at most
const MORE = 2; // subwords that are shown beyond the last translation: a fresh model finds no end
const CELL = 22; // its width
const HIGH = 18;
const LEFT = 88; // of the map: what is written
const TOP = 74; // what is read, aslant

/** What is shown of a sentence at a moment; weights in per cent. */
function shown({ written, attention }, most) {
  const pieces = written.slice(0, most);
  const rows = attention.slice(0, most).map((row) => row.map((weight) => Math.round(100 * weight)));
  return { pieces, rows, more: written.length - pieces.length };
}

/** What the page shows, before anybody has touched it the last moment; `log` is that of the run, by epoch. */
export function firstScene(_, { moments, log }) {
  const most = moments[moments.length - 1].sentences.map(({ written }) =>
    Math.min(ROWS, written.length + MORE),
  );
  return {
    reads: moments[0].sentences.map(({ read }) => read),
    moments: moments.map(({ updates, sentences }) => ({
      updates,
      sentences: sentences.map((each, i) => shown(each, most[i])),
    })),
    losses: log.map(({ updates, nll }) => [updates, Math.round(1e4 * nll) / 1e4]),
  };
}

// Words ----------------------------------------------------------------------------------------------

const textOf = ({ pieces, more }) => `${joined(pieces)}${more ? " …" : ""}`;

/** The loss that was measured last. */
function lossAt(losses, updates) {
  const known = losses.filter(([when]) => when <= updates);
  if (!known.length) return `The validation loss is first measured at update ${grouped(losses[0][0])}.`;
  const [when, loss] = known[known.length - 1];
  return `Validation loss ${decimal(loss)}${when < updates ? " at the end of the epoch before" : ""}.`;
}

/** What is said of a moment. */
function told({ moments, losses }, at) {
  const { updates } = moments[at];
  const begins = updates ? "" : "The weights are still random. ";
  return `${begins}${lossAt(losses, updates)}`;
}

// Drawing --------------------------------------------------------------------------------------------

/**
 * Where the last layer looks: columns are read, rows are written, a strong colour is much weight. There is `room` for as
 * many rows. `say` spells what is read or written; rows that are `wrong` are marked.
 */
export function Alignment({ reads, scene, room, say = continued, wrong = () => false }) {
  const { pieces, rows } = scene;
  const aslant = Math.max(...reads.map((piece) => say(piece).length)) > 2;
  const top = aslant ? TOP : HIGH;
  const row = (piece, i) => {
    const y = top + HIGH * (i + 0.5);
    const text = wrong(piece, i) ? `✗ ${say(piece)}` : say(piece);
    return html`<text class=${classes({ written: true, wrong: wrong(piece, i) })} x=${LEFT - 7} y=${y}>${text}</text>
    ${rows[i].map((weight, column) =>
      weight
        ? html`<rect x=${LEFT + CELL * column} y=${y - HIGH / 2} width=${CELL} height=${HIGH} fill-opacity=${weight / 100}><title>${`${say(piece)} on ${say(reads[column])}: ${weight} %`}</title></rect>`
        : null,
    )}`;
  };
  const column = (piece, i) => {
    const [x, y] = [LEFT + CELL * (i + 0.5), top - 7];
    const turned = aslant ? `rotate(-50 ${x} ${y})` : null;
    return html`<text class=${aslant ? "read" : "read upright"} x=${x} y=${y} transform=${turned}>${say(piece)}</text>`;
  };
  const label = `Cross-attention, written “${pieces.map(say).join(" ")}”: ${pieces.length} rows, ${reads.length} columns`;
  const [wide, tall] = [LEFT + CELL * reads.length + 44, top + HIGH * room + 1];
  return html`<svg class="alignment" viewBox=${`0 0 ${wide} ${tall}`} width=${1.2 * wide} role="img" aria-label=${label}>
    <g lang="de">${reads.map(column)}</g>${pieces.map(row)}
    <rect class="frame" x=${LEFT} y=${top} width=${CELL * reads.length} height=${HIGH * room} />
  </svg>`;
}

/** The height at x of a line through points [x, y]; null before the first. */
function between(points, x) {
  const next = points.findIndex(([each]) => each >= x);
  if (next < 0) return points[points.length - 1][1];
  const [to, high] = points[next];
  if (to === x) return high;
  if (next === 0) return null;
  const [from, low] = points[next - 1];
  return low + ((high - low) * (x - from)) / (to - from);
}

/** The loss against updates, a step of the slider as wide as any other, with a dot where it is; `says` is a sentence on it. */
export function Loss({ losses, steps, at, name, says }) {
  const highest = Math.ceil(Math.max(...losses.map(([, loss]) => loss)));
  const ticks = [...Array(highest + 1).keys()];
  const across = steps.map((when, i) => [when, i / (steps.length - 1)]);
  const marks = [0, 1, 2, 3, 4].map((i) => across[Math.round((i * (steps.length - 1)) / 4)]);
  const down = (loss) => 1 - loss / highest;
  const points = losses.map(([when, loss]) => [between(across, when), loss]);
  const line = points.map(([x, loss]) => `${x.toFixed(4)} ${down(loss).toFixed(4)}`).join("L");
  const now = across[at][1];
  const loss = between(points, now);
  const percent = (share) => `${(100 * share).toFixed(2)}%`;
  const dot = loss === null ? "" : `left:${percent(now)};top:${percent(down(loss))}`;
  const label = `The ${name} against updates. ${says}`;
  return html`<div class="loss">
    <p class="title">${name}</p>
    <div class="curve" role="img" aria-label=${label}>
      ${ticks.map((tick) => html`<span class="tick" style=${`top:${percent(down(tick))}`}>${tick}</span>`)}
      <svg viewBox="0 0 1 1" preserveAspectRatio="none">
        ${ticks.map((tick) => html`<path class="grid-line" d=${`M0 ${down(tick)}H1`} />`)}
        ${marks.map(([, x]) => html`<path class="grid-line" d=${`M${x} 0V1`} />`)}
        <path class="now" d=${`M${now} 0V1`} /><path class="line-of-losses" d=${`M${line}`} />
      </svg>
      ${dot && html`<i class="dot" style=${dot}></i>`}
      ${marks.map(([when, x]) => html`<span class="update" style=${`left:${percent(x)};translate:-${percent(x)}`}>${x ? "" : "update "}${grouped(when)}</span>`)}
    </div>
  </div>`;
}

// The figure -----------------------------------------------------------------------------------------

/** Play, a slider over the moments, and the update at which it stands. */
export function Moment({ player, steps }) {
  const where = `update ${grouped(steps[player.at - 1])} of ${grouped(steps[steps.length - 1])}`;
  return html`<div class="controls">
    <${Play} player=${player} />
    <input type="range" min="0" max=${player.count - 1} step="1" value=${player.at - 1} autocomplete="off"
      aria-label="Moment of the training" aria-valuetext=${where} onInput=${({ target }) => player.show(Number(target.value) + 1)} />
    <span class="at">${where}</span>
  </div>`;
}

/** The last moment, for a page without scripts. */
export const Whole = ({ scene }) => html`<${Moments} scene=${scene} from=${scene.moments.length} />`;

/** Begins before the training has. */
export function Moments({ scene, from = 1 }) {
  const { reads, moments, losses } = scene;
  const [chosen, choose] = useState(0);
  const player = usePlayer(moments.length, { at: from });
  const at = player.at - 1;
  const { updates, sentences } = moments[at];
  const steps = moments.map((moment) => moment.updates);
  const room = Math.max(...moments.map((moment) => moment.sentences[chosen].pieces.length));
  const chips = reads.map(
    (pieces, i) => html`<${Button} pressed=${i === chosen} onClick=${() => choose(i)}>${joined(pieces)}<//>`,
  );
  return html`<div class="moments">
    <${Moment} ...${{ player, steps }} />
    <div class="chips" lang="de" role="group" aria-label="Sentences">${chips}</div>
    <p class="wrote" lang="en">${textOf(sentences[chosen]) || html`<i>it writes nothing yet</i>`}</p>
    <div class="board">
      <div>
        <p class="title">attention of the last layer, from what it writes to what it reads</p>
        <${Alignment} reads=${reads[chosen]} scene=${sentences[chosen]} room=${room} />
      </div>
      <${Loss} ...${{ losses, steps, at }} name="validation loss after each epoch" says=${lossAt(losses, updates)} />
    </div>
    <p class="line" role="status" aria-busy=${String(player.playing)}>${told(scene, at)}</p>
  </div>`;
}
