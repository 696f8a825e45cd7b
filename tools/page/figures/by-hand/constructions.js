// What is drawn at single stages: the shadows of the keys on the query, and the sum of the values.

import { dot, LIMIT, ROOT } from "./scene.js";
import { html } from "../lib/ui.js";

const LANE = 9; // between the shadows of two keys, in the units of the drawing

/** A point in the units of the drawing, a hundred to one and upside down. */
export const at = ([x, y]) => [Math.round(100 * x), Math.round(-100 * y)];
export const straight = (from, to) => `M${at(from)}L${at(to)}`;
export const degreesOf = ([x, y]) => ((-180 / Math.PI) * Math.atan2(y, x)).toFixed(1);

/** A shadow as a bar from the middle along the query; what leaves the paper ends in a point. */
function Shadow({ length, lane, longest, kind, from }) {
  const cut = Math.max(-longest, Math.min(longest, length));
  const side = Math.sign(cut);
  const end = cut === length ? "" : `m${-9 * side},-5l${9 * side},5l${-9 * side},5`;
  const d = `M0,${lane}H${Math.round(cut)}${end}`;
  return html`<path class=${kind} style=${from ? `--from:${from}` : null} d=${d} />`;
}

/**
 * The shadows of the keys on the query, side by side around its line, where the x-axis is turned to the
 * query. Divided they are shorter, and a thin line keeps their former length.
 */
export function Shadows({ scene: { asked, rows }, divided }) {
  const length = Math.hypot(...asked) || 1;
  const larger = Math.max(Math.abs(asked[0]), Math.abs(asked[1])) || 1;
  const longest = Math.round((100 * LIMIT * length) / larger); // to the edge of the plane
  const bars = rows.map(({ key, word }, number) => {
    const foot = dot(key, asked) / length;
    const lane = LANE * (number - (rows.length - 1) / 2);
    const back = foot < 0 ? " back" : "";
    const bar = (kind, factor, from) =>
      html`<${Shadow} kind=${kind} length=${100 * foot * factor} ...${{ lane, longest, from }} />`;
    if (divided)
      return html`<g key=${word}>${bar("former", 1)}${bar("shadow key short", 1 / ROOT, ROOT)}</g>`;
    const across = (-100 * (asked[0] * key[1] - asked[1] * key[0])) / length;
    const falls = `M${Math.round(100 * foot)},${Math.round(across)}V${lane}`;
    return html`<g key=${word}><path class=${`falls${back}`} d=${falls} />${bar(`shadow key${back}`, 1)}</g>`;
  });
  return html`<g class="shadows" transform=${`rotate(${degreesOf(asked)})`}>
    <path class="beyond" d=${`M${-longest},0H${longest}`} />${bars}
  </g>`;
}

/** Arrows to the values, times their weights, end to end. */
export function Chain({ rows }) {
  const joints = [[0, 0]];
  for (const { share } of rows) {
    const last = joints[joints.length - 1];
    joints.push([last[0] + share[0], last[1] + share[1]]);
  }
  const rays = rows.map(({ key }) => html`<path class="ray" d=${straight([0, 0], key)} />`);
  const d = `M${joints.map(at).join("L")}`;
  const dots = joints.slice(1).map((joint) => {
    const [x, y] = at(joint);
    return html`<circle class="joint" cx=${x} cy=${y} r="4" />`;
  });
  return html`${rays}<path class="chain" d=${d} />${dots}`;
}
