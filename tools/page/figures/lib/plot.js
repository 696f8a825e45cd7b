// A small chart: lines over two axes. What is drawn has the size of one; words and dots are not stretched.

import { classes, html } from "./ui.js";

const percent = (share) => `${(100 * share).toFixed(2)}%`;

/** Where a value lies on an axis { from, to }, as a share of its length. */
export const shareOn = ({ from, to }, value) => (value - from) / (to - from);

/** A point [x, y] in the drawing, whose y goes downwards. */
const placed = ({ x, y }, [across, up]) => [shareOn(x, across), 1 - shareOn(y, up)];

/** Points [x, y] as a line. */
export const lineOf = (axes, points) =>
  `M${points.map((point) => placed(axes, point).map((share) => share.toFixed(4))).join("L")}`;

/** A dot at a point. */
export function Dot({ axes, at, kind = "" }) {
  const [left, top] = placed(axes, at).map(percent);
  return html`<span class=${`dot ${kind}`} style=${`left:${left};top:${top}`}></span>`;
}

/**
 * The chart. An axis has { from, to, ticks, name, say }: `say` makes words of a tick. `over` lies above
 * the drawing, `rest` goes to the box around both.
 */
export function Plot({ axes, label, children, over, ...rest }) {
  const { x, y } = axes;
  const say = ({ say: words = String }, tick) => words(tick);
  const rows = y.ticks.map((tick) => [tick, percent(1 - shareOn(y, tick))]);
  const column = (tick, number) => {
    const kind = classes({ tick: true, column: true, last: number === x.ticks.length - 1 });
    const left = `left:${percent(shareOn(x, tick))}`;
    return html`<span class=${kind} style=${left} aria-hidden="true">${say(x, tick)}</span>`;
  };
  return html`<div class="plot" role="img" aria-label=${label} ...${rest}>
    <span class="name-y" aria-hidden="true">${y.name}</span>
    ${rows.map(([tick, top]) => html`<span class="tick row" style=${`top:${top}`} aria-hidden="true">${say(y, tick)}</span>`)}
    <svg viewBox="0 0 1 1" preserveAspectRatio="none">
      ${y.ticks.map((tick) => html`<path class="grid" d=${`M0,${(1 - shareOn(y, tick)).toFixed(4)}H1`} />`)}${children}
    </svg>
    ${over}
    ${x.ticks.map(column)}
    <span class="name-x" aria-hidden="true">${x.name}</span>
  </div>`;
}
