// Attention by hand: eight words in a plane, whose three roles can be turned apart by three matrices.
//
// A *wish* is what the reader has chosen: who asks, three angles, what was dragged, how scores are made.
// A *scene* is all that follows from it, plain data; it needs no model. *Stages* are the steps of the
// function `attention`, numbered from 1; at stage 0 their results are seen all at once.

import { softmax, sum } from "./model/arithmetic.js";
import { pause } from "./model/slices.js";
import { Controls, usePlayer } from "./lib/player.js";
import { decimal, grouped } from "./lib/text.js";
import { Button, classes, html, useEffect, useMemo, useRef, useState } from "./lib/ui.js";

const LIMIT = 2.6; // of both axes; nothing is dragged farther from the middle
const WIDEST = 9; // as a power of two: vectors of 512 numbers
const PAPER = 7; // a score's bar ends here, and leaves the paper where the score is larger
const APART = 0.03; // points that lie closer are drawn as one
const LANE = 7; // between the shadows of two keys, in the units of the drawing

/** What a word's vector becomes, by which matrix. */
const ROLES = [
  { role: "query", letter: "Q" },
  { role: "key", letter: "K" },
  { role: "value", letter: "V" },
];

export const FIRST = {
  asks: "hebt",
  angles: { query: 0, key: 0, value: 0 },
  query: null, // a vector that takes the place of the asking word's, before its matrix
  keys: {}, // the same for keys, by number
  width: 2,
  divide: true,
  mask: false,
};

/** A query so long that undivided scores, as of 64 numbers, leave all weight to one word. */
const COLLAPSED = { ...FIRST, asks: "Mädchen", query: [2.4, 0.6], width: 64, divide: false };

// From a wish to a scene -----------------------------------------------------------------------------

/** The words of the notebook's rows, in their order. */
function wordsOf(rows) {
  const own = rows.filter(({ asks }) => asks === rows[0].asks);
  return own.map(({ word, english, x, y }) => ({ word, english, place: [x, y] }));
}

/** A turn, anticlockwise and in degrees, as a matrix for rows: x W, as in the text. */
export function matrixOf(angle) {
  const radians = (angle * Math.PI) / 180;
  const [cos, sin] = [Math.cos(radians), Math.sin(radians)];
  return [
    [cos, sin],
    [-sin, cos],
  ];
}

const dot = (one, other) => one[0] * other[0] + one[1] * other[1];
/** A row times a matrix. */
const apply = ([first, second], [x, y]) => first.map((value, i) => x * value + y * second[i]);
const distance = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);

/** Scores of a query: before and after the division, and which of them are open. */
function scoresOf(query, keys, asking, { width, divide, mask }) {
  return keys.map((key, number) => {
    const product = dot(query, key) * Math.sqrt(width / 2);
    const score = divide ? product / Math.sqrt(width) : product;
    return { product, score, open: !mask || number <= asking };
  });
}

const weightsOf = (scores) => softmax(scores.map(({ score, open }) => (open ? score : -Infinity)));

/** All that is shown of a wish. */
export function sceneOf(words, wish) {
  const [toQuery, toKey, toValue] = ROLES.map(({ role }) => matrixOf(wish.angles[role]));
  const asking = words.findIndex(({ word }) => word === wish.asks);
  const queries = words.map(({ place }, number) =>
    apply(toQuery, (number === asking && wish.query) || place),
  );
  const keys = words.map(({ place }, number) => apply(toKey, wish.keys[number] ?? place));
  const scores = queries.map((query, number) => scoresOf(query, keys, number, wish));
  const weights = scores.map(weightsOf);
  const rows = words.map(({ word, english, place }, number) => {
    const value = apply(toValue, place);
    const weight = weights[asking][number];
    const moved = distance(wish.keys[number] ?? place, place) > 0.005;
    const share = value.map((part) => weight * part);
    return {
      word,
      english,
      place,
      key: keys[number],
      value,
      ...scores[asking][number],
      weight,
      share,
      moved,
    };
  });
  return {
    ...wish,
    asking,
    rows,
    asked: queries[asking],
    answer: [0, 1].map((axis) => sum(rows.map(({ share }) => share[axis]))),
    moved: distance(wish.query ?? words[asking].place, words[asking].place) > 0.005,
    weights: weights.map((row) => row.map((weight) => Math.round(1e4 * weight) / 1e4)),
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (_, data) => sceneOf(wordsOf(data), FIRST);

// In words -------------------------------------------------------------------------------------------

const pair = (point) => `(${point.map((value) => decimal(value)).join(", ")})`;
const name = (word) => html`<em>${word}</em>`;
const matrix = (letter) => html`<span class="matrix-name">W<sup>${letter}</sup></span>`;
const applied = (letter) => html`<span class="matrix-name">x W<sup>${letter}</sup></span>`;

/** Several in a row: a, b and c. */
function listed(items) {
  return items.map((item, i) => [i === 0 ? "" : i === items.length - 1 ? " and " : ", ", item]);
}

/** A root as it is read: √64 = 8, √8 ≈ 2.8. */
function rootOf(square, sign = `√${square}`) {
  const root = Math.sqrt(square);
  return Number.isInteger(root) ? `${sign} = ${root}` : `${sign} ≈ ${root.toFixed(1)}`;
}

/** How many times as large, in words' length. */
function timesOf(factor) {
  if (factor > 1e6) return "more than a million";
  return factor < 10 ? factor.toFixed(1) : grouped(Math.round(factor));
}

const percentOf = ({ weight }) => `${decimal(100 * weight, weight > 0.99 && weight < 0.9995 ? 1 : 0)} %`;

/** What was moved by hand. */
function Moved({ scene }) {
  const keys = scene.rows.filter(({ moved }) => moved).map(({ word }) => name(word));
  const moved = [];
  if (scene.moved) moved.push("the query");
  if (keys.length) moved.push(html`the key${keys.length > 1 ? "s" : ""} of ${listed(keys)}`);
  return moved.length ? html` <span class="moved">Moved: ${listed(moved)}.</span>` : null;
}

/** Who asks, and what comes of it. */
function Answer({ scene }) {
  const { asks, rows, answer, angles, width, divide, moved } = scene;
  const [first, second] = rows.filter(({ open }) => open).sort((one, other) => other.weight - one.weight);
  const turned = angles.query || angles.key || angles.value;
  const asksWith = turned && !moved ? html` asks with ${applied("Q")} and` : "";
  const who = moved
    ? html`The query, moved away from that of ${name(asks)},`
    : html`${name(asks)}${asksWith}`;
  const receives = html`${who} receives ${pair(answer)}`;
  const alike = angles.query === angles.key && angles.query !== 0;
  const same = alike
    ? html` ${matrix("Q")} and ${matrix("K")} turn alike: the scores are as without them.`
    : "";
  if (!second)
    return html`${receives}: only ${name(first.word)} is open, and gets all weight, whatever the query is.`;
  const lead = first.score - second.score;
  const times = html`e<sup>${decimal(lead)}</sup> ≈ ${timesOf(Math.exp(lead))} times`;
  const wide = `of vectors of ${width === 2 ? "two" : width} numbers`;
  if (first.weight <= 0.95) {
    const wider = divide ? "" : ` Undivided, scores ${wide} lie ${rootOf(width)} times as far apart.`;
    const ofValues = angles.value ? html` (${applied("V")})` : "";
    return html`${receives}: ${percentOf(first)} of the value${ofValues} of ${name(first.word)},
      ${" "}${percentOf(second)} of that of ${name(second.word)}. Their scores lie ${decimal(lead)} apart,
      so one weight is ${times} the other.${wider}${same}`;
  }
  const what = divide ? "Nearly all weight falls on one word." : "The softmax has collapsed.";
  const why = divide ? "" : ` Undivided, scores ${wide} are ${rootOf(width)} times as large as divided.`;
  return html`<strong>${what}</strong>${why} ${name(first.word)} is ${decimal(lead)} ahead of
    ${" "}${name(second.word)} and so gets ${times} its weight, ${percentOf(first)} of all.
    Hardly anything is mixed: the answer is nearly the value of ${name(first.word)}.${same}`;
}

const most = (rows, measure) => rows.reduce((best, row) => (measure(row) > measure(best) ? row : best));

const STAGE_SAYS = {
  compare({ rows, width, asks }) {
    const best = most(rows, ({ product }) => product);
    const wider =
      width === 2 ? "" : html` As of vectors of ${width} numbers, all are √${width / 2} times as long.`;
    return html`each key throws its shadow on the query of ${name(asks)}. Shadow times query, in length,
      is q · k; backwards it is negative. The largest has ${name(best.word)},
      ${" "}${decimal(best.product)}.${wider}`;
  },
  divide({ rows, width, divide }) {
    const best = most(rows, ({ score }) => score);
    if (!divide)
      return html`nothing is divided, so the shadows stay as long as they were. The largest score is
        ${" "}${decimal(best.score)}.`;
    return html`all shadows shrink alike, by ${rootOf(width)}. Who was ahead still is, by less:
      the largest score, of ${name(best.word)}, is ${decimal(best.score)}.`;
  },
  mask({ rows, asks, mask, asking }) {
    const closed = rows.filter(({ open }) => !open).map(({ word }) => name(word));
    if (!mask)
      return html`all words are open. Hide later words, and what comes after ${name(asks)} is struck out.`;
    if (!closed.length) return html`no word comes after ${name(asks)}, so all ${asking + 1} are open.`;
    const are = closed.length > 1 ? "are" : "is";
    return html`${name(asks)} may not look at what comes later: ${listed(closed)} ${are} struck out.`;
  },
  softmax({ rows }) {
    const best = most(rows, ({ weight }) => weight);
    return html`scores become weights, positive and with sum one. A disc is as large as its weight:
      ${" "}${name(best.word)} has the largest, ${decimal(best.weight, 3)}.`;
  },
  mix({ answer, asks }) {
    return html`the arrow to each value, times its weight. Laid end to end, they lead to the answer for
      ${" "}${name(asks)}, ${pair(answer)}.`;
  },
};

/** One or two sentences on what is to be seen. */
function Says({ scene, stage }) {
  if (stage === 0) return html`<${Answer} scene=${scene} /><${Moved} scene=${scene} />`;
  const { name: title } = STAGES[stage - 1];
  const heading = `${stage}. ${title[0].toUpperCase()}${title.slice(1)}:`;
  return html`<strong>${heading}</strong> ${STAGE_SAYS[title](scene)}<${Moved} scene=${scene} />`;
}

/** What the width of the vectors has to do with it. */
function WidthSays({ width, divide }) {
  if (width === 2) {
    const two = "The vectors of this plane have two numbers.";
    if (divide)
      return html`${two} Wider ones spread a dot product √(d<sub>k</sub>/2) times as far.
        The division takes that back.`;
    return html`${two} Undivided, their scores lie ${rootOf(2)} times as far apart.`;
  }
  const farther = rootOf(width / 2, `√(${width}/2)`);
  const spread = `A dot product of ${width} numbers spreads ${farther} times as far as one of two`;
  return divide
    ? `${spread}. Divided by √${width}, it spreads as before.`
    : `${spread}, and nothing takes that back.`;
}

// The plane ------------------------------------------------------------------------------------------

/** A point in the units of the drawing, a hundred to one and upside down. */
const at = ([x, y]) => [Math.round(100 * x), Math.round(-100 * y)];
const straight = (from, to) => `M${at(from)}L${at(to)}`;
const degreesOf = ([x, y]) => ((-180 / Math.PI) * Math.atan2(y, x)).toFixed(1);

function Arrow({ to, kind }) {
  const length = Math.hypot(...to);
  if (length < 0.3) return html`<path class=${kind} d=${straight([0, 0], to)} />`;
  const neck = to.map((value) => value * (1 - 0.22 / length));
  const place = `translate(${at(to)}) rotate(${degreesOf(to)})`;
  return html`<path class=${kind} d=${straight([0, 0], neck)} />
    <path class=${`${kind} head`} transform=${place} d="M0,0L-24,-11V11Z" />`;
}

function Axes() {
  const ticks = [-2, -1, 1, 2];
  const grid = [...ticks, 0].map(
    (value) => html`<path class=${value ? "grid" : "axis"} d=${straight([value, -LIMIT], [value, LIMIT])} />
      <path class=${value ? "grid" : "axis"} d=${straight([-LIMIT, value], [LIMIT, value])} />`,
  );
  const labels = ticks.map(
    (value) => html`<text class="tick" x=${100 * value} y="255">${decimal(value, 0)}</text>
      <text class="tick" x="-248" y=${6 - 100 * value}>${decimal(value, 0)}</text>`,
  );
  return [grid, labels];
}

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
function Shadows({ scene: { asked, rows, width, divide }, divided }) {
  const length = Math.hypot(...asked) || 1;
  const larger = Math.max(Math.abs(asked[0]), Math.abs(asked[1])) || 1;
  const longest = Math.round((100 * LIMIT * length) / larger); // to the edge of the plane
  const spread = 100 * Math.sqrt(width / 2);
  const bars = rows.map(({ key, word }, number) => {
    const foot = dot(key, asked) / length;
    const lane = LANE * (number - (rows.length - 1) / 2);
    const bar = (kind, factor, from) =>
      html`<${Shadow} kind=${kind} length=${foot * spread * factor} ...${{ lane, longest, from }} />`;
    if (divided) {
      const root = Math.sqrt(width);
      const short = divide ? bar("shadow short", 1 / root, root) : "";
      return html`<g key=${word}>${bar(divide ? "former" : "shadow", 1)}${short}</g>`;
    }
    const across = (-100 * (asked[0] * key[1] - asked[1] * key[0])) / length;
    const falls = `M${Math.round(100 * foot)},${Math.round(across)}V${lane}`;
    return html`<g key=${word}><path class="falls" d=${falls} />${bar("shadow", 1)}</g>`;
  });
  return html`<g class="shadows" transform=${`rotate(${degreesOf(asked)})`}>
    <path class="beyond" d=${`M${-longest},0H${longest}`} />${bars}
  </g>`;
}

/** Arrows to the values, times their weights, end to end. */
function Chain({ rows }) {
  const joints = [[0, 0]];
  for (const { share } of rows.filter(({ open }) => open)) {
    const last = joints[joints.length - 1];
    joints.push([last[0] + share[0], last[1] + share[1]]);
  }
  const rays = rows
    .filter(({ open }) => open)
    .map(({ value }) => html`<path class="ray" d=${straight([0, 0], value)} />`);
  const d = `M${joints.map(at).join("L")}`;
  const dots = joints.slice(1).map((joint) => {
    const [x, y] = at(joint);
    return html`<circle class="joint" cx=${x} cy=${y} r="4" />`;
  });
  return html`${rays}<path class="chain" d=${d} />${dots}`;
}

const radius = (weight) => Math.round(48 * Math.sqrt(weight)); // so that areas compare as weights do
const isApart = ({ key, value }) => distance(key, value) > APART;

/** How much of a box, given by its middle and half its sides, lies in another. */
function overlap([middle, half], [otherMiddle, otherHalf]) {
  const [width, height] = [0, 1].map((axis) =>
    Math.max(0, half[axis] + otherHalf[axis] - Math.abs(middle[axis] - otherMiddle[axis])),
  );
  return width * height;
}

/** The place of a label, by its middle, that covers the least of what is taken; then it is taken, too. */
function freest(places, half, taken) {
  const inside = [0, 0].map((_, axis) => 100 * LIMIT - half[axis]);
  const kept = places.map((place) =>
    place.map((value, axis) => Math.max(-inside[axis], Math.min(value, inside[axis]))),
  );
  const costs = kept.map((place) => sum(taken.map((box) => overlap([place, half], box))));
  const best = kept[costs.indexOf(Math.min(...costs))];
  taken.push([best, half]);
  return best;
}

/** Keys and values of all words; which of their marks are seen at a stage, the style sheet says. */
function Marks({ rows, stage, onAsk }) {
  const sized = stage === 0 || stage >= SOFTMAX;
  const discs = rows.map(({ word, key, weight, open, moved }) => {
    const [x, y] = at(key);
    const disc = open ? html`<circle class="disc" cx=${x} cy=${y} r=${radius(weight)} />` : "";
    const cross = open
      ? html`<circle class="ring" cx=${x} cy=${y} r="15" />`
      : html`<path class="strike" d=${`M${x - 12},${y - 12}l24,24m0,-24l-24,24`} />`;
    return html`<g key=${word} class=${classes({ moved, closed: !open })}>
      ${disc}${cross}<circle class="dot" cx=${x} cy=${y} r="5" />
    </g>`;
  });
  const taken = rows.flatMap(({ key, value }) => [key, value].map((point) => [at(point), [8, 8]]));
  const names = rows.map(({ word, english, key, weight, open }) => {
    const [x, y] = at(key);
    const room = Math.max(13, sized ? radius(weight) : 0);
    const gloss = stage === SOFTMAX ? decimal(weight) : english;
    const half = 5 * word.length + 4;
    const [above, below] = [y - room - 27, y + room + 25];
    const places = (key[1] < 0 ? [below, above] : [above, below]).map((middle) => [x, middle]);
    const line = freest(places, [half, 20], taken)[1] - 3; // the upper of two
    return html`<g key=${word} class=${classes({ closed: !open })}>
      <text class="word" x=${x} y=${line} onClick=${() => onAsk(word)}>
        <tspan class="own">${word}</tspan><tspan class="gloss" x=${x} dy="19">${gloss}</tspan>
      </text>
      ${open ? "" : html`<path class="through" d=${`M${x - half},${line - 6}h${2 * half}`} />`}
    </g>`;
  });
  const values = rows.filter(isApart).map(({ word, value, open }) => {
    const [x, y] = at(value);
    const half = 4 * word.length;
    const beside = [x + 11 + half, x - 11 - half].map((middle) => [middle, y]);
    const name = freest([[x, y - 18], [x, y + 19], ...beside], [half, 9], taken);
    return html`<g key=${word} class=${classes({ value: true, closed: !open })}>
      <rect x=${x - 6} y=${y - 6} width="12" height="12" />
      <text x=${name[0]} y=${name[1] + 5}>${word}</text>
    </g>`;
  });
  return [discs, values, names];
}

function describe({ asks, asked, answer }, stage) {
  const seen = stage === 0 ? "" : ` Drawn is the stage ${STAGES[stage - 1].name}.`;
  const query = `a dashed arrow, the query, leads to ${pair(asked)}`;
  const arrows = `${query}, a thick one, the answer, to ${pair(answer)}`;
  const weights = "The larger the disc of a key, the more weight it gets.";
  return `Words in a plane. ${asks} asks: ${arrows}. ${weights}${seen}`;
}

/** The drawing; its handles lie above it. */
function Drawing({ scene, stage, onAsk }) {
  const [corner, side] = [-100 * LIMIT, 200 * LIMIT];
  const [discs, values, names] = Marks({ rows: scene.rows, stage, onAsk });
  const answered = stage === 0 || stage === MIX;
  const shadowed = stage === COMPARE || stage === DIVIDE;
  const room = `${corner} ${corner} ${side} ${side}`;
  return html`<svg viewBox=${room} role="img" aria-label=${describe(scene, stage)}>
    <${Axes} />${discs}
    ${shadowed ? html`<${Shadows} scene=${scene} divided=${stage === DIVIDE} />` : ""}
    <${Arrow} to=${scene.asked} kind="query" />
    ${answered ? html`<${Arrow} to=${scene.answer} kind="answer" />` : ""}
    ${stage === MIX ? html`<${Chain} rows=${scene.rows} />` : ""}
    ${values}${names}
  </svg>`;
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** A point that is dragged, or moved by arrow keys; `onChoose` is called where it was only touched. */
function Handle({ kind, label, place, text, onMove, onChoose }) {
  const dragged = useRef(false);
  const start = useRef(null);
  function moveTo([x, y]) {
    const far = Math.max(1, Math.hypot(x, y) / LIMIT);
    onMove([x, y].map((value) => Math.round((100 * value) / far) / 100));
  }
  function drag(event) {
    const { clientX, clientY, currentTarget, pointerId } = event;
    if (!currentTarget.hasPointerCapture(pointerId)) return;
    const [fromX, fromY] = start.current;
    if (!dragged.current && Math.hypot(clientX - fromX, clientY - fromY) < 4) return; // a hand trembles
    dragged.current = true;
    const { left, top, width, height } = currentTarget.parentElement.getBoundingClientRect();
    moveTo([((clientX - left) / width - 0.5) * 2 * LIMIT, (0.5 - (clientY - top) / height) * 2 * LIMIT]);
  }
  function press(event) {
    if ((event.key === "Enter" || event.key === " ") && onChoose) {
      event.preventDefault();
      onChoose();
    }
    const direction = STEPS[event.key];
    if (!direction) return;
    event.preventDefault();
    moveTo(place.map((value, axis) => value + (event.shiftKey ? 0.5 : 0.1) * direction[axis]));
  }
  function grasp({ clientX, clientY, currentTarget, pointerId }) {
    dragged.current = false;
    start.current = [clientX, clientY];
    currentTarget.setPointerCapture(pointerId);
  }
  const [left, top] = [50 + (50 * place[0]) / LIMIT, 50 - (50 * place[1]) / LIMIT];
  return html`<div
    class=${`handle ${kind}`} style=${`left:${left.toFixed(2)}%;top:${top.toFixed(2)}%`}
    tabindex="0" role="slider" aria-label=${label} aria-roledescription="point in the plane"
    aria-valuemin=${-LIMIT} aria-valuemax=${LIMIT} aria-valuenow=${place[0].toFixed(2)} aria-valuetext=${text}
    onPointerDown=${grasp} onPointerMove=${drag} onKeyDown=${press}
    onClick=${() => !dragged.current && onChoose?.()}
  ></div>`;
}

/** What the marks of the plane mean; where the three roles coincide, it says so. */
function Legend({ scene }) {
  const { asked, answer, rows, angles, moved } = scene;
  const turned = (role, letter) => (angles[role] ? html` ${applied(letter)}` : "");
  const item = (sample, text) =>
    html`<span><svg viewBox="0 0 30 12" aria-hidden="true">${sample}</svg>${text}</span>`;
  const key = html`<circle class="disc" cx="15" cy="6" r="6" /><circle class="dot" cx="15" cy="6" r="3" />`;
  const value = html`<g class="value"><rect x="10" y="1" width="10" height="10" /></g>`;
  const dashed = html`<path class="query" d="M0,6H30" />`;
  const thick = html`<path class="answer" d="M0,6H30" />`;
  const apart = rows.some(isApart) ? turned("value", "V") : ": where the key is";
  return html`<p class="legend">
    ${item(dashed, html`query${moved ? "" : turned("query", "Q")} <b>${pair(asked)}</b>`)}
    ${item(thick, html`answer <b>${pair(answer)}</b>`)}
    ${item(key, html`key${turned("key", "K")}, its disc: weight`)}
    ${item(value, html`value${apart}`)}
  </p>`;
}

// The matrices ---------------------------------------------------------------------------------------

/** Degrees between −180 and 180. */
const within = (angle) => ((((angle + 180) % 360) + 360) % 360) - 180;

/** A matrix that turns: a dial, and its four numbers. */
function Dial({ role, letter, angle, onTurn }) {
  function drag({ clientX, clientY, currentTarget, pointerId }) {
    if (!currentTarget.hasPointerCapture(pointerId)) return;
    const { left, top, width, height } = currentTarget.getBoundingClientRect();
    const degrees = Math.round(
      (180 / Math.PI) * Math.atan2(top + height / 2 - clientY, clientX - left - width / 2),
    );
    const near = 45 * Math.round(degrees / 45);
    onTurn(within(Math.abs(degrees - near) <= 3 ? near : degrees)); // so that a hand finds the way back
  }
  function grasp(event) {
    event.currentTarget.setPointerCapture(event.pointerId);
    drag(event);
  }
  function press(event) {
    const step = event.shiftKey ? 15 : 5;
    const turns = {
      ArrowLeft: -step,
      ArrowDown: -step,
      ArrowRight: step,
      ArrowUp: step,
      PageUp: 45,
      PageDown: -45,
      End: 180 - angle,
      Home: -angle,
    };
    if (!(event.key in turns)) return;
    event.preventDefault();
    onTurn(within(angle + turns[event.key]));
  }
  const marks = [0, 45, 90, 135, 180, 225, 270, 315].map(
    (degrees) => html`<path class="tick" transform=${`rotate(${degrees})`} d="M37,0H42" />`,
  );
  const [x, y] = apply(matrixOf(angle), [20, 0]).map((value) => value.toFixed(1));
  const sector = `M0,0L20,0A20,20 0 0 ${angle > 0 ? 0 : 1} ${x},${-y}Z`;
  const four = matrixOf(angle).flat();
  return html`<div class=${`dial of-${role}`}>
    <p class="title" id=${`by-hand-${role}`}>${matrix(letter)} <span>${role}</span></p>
    <div
      class="knob" tabindex="0" role="slider" aria-labelledby=${`by-hand-${role}`}
      aria-valuemin="-180" aria-valuemax="180" aria-valuenow=${angle}
      aria-valuetext=${angle ? `turns by ${decimal(angle, 0)} degrees` : "identity"}
      onPointerDown=${grasp} onPointerMove=${drag} onKeyDown=${press}
    >
      <svg viewBox="-48 -48 96 96" aria-hidden="true">
        <circle class="rim" r="42" />${marks}${angle ? html`<path class="sweep" d=${sector} />` : ""}
        <g transform=${`rotate(${-angle})`}>
          <path class="hand" d="M0,0H34" /><circle class="grip" cx="34" r="7" />
        </g>
      </svg>
    </div>
    <p class="matrix" aria-hidden="true">${four.map((number) => html`<span>${decimal(number)}</span>`)}</p>
  </div>`;
}

/** The three of them, and the way back. */
function Dials({ angles, onTurn }) {
  const turned = Object.values(angles).some((angle) => angle !== 0);
  const apart = new Set(Object.values(angles)).size > 1;
  const told = apart ? "The roles lie apart." : "All three are turned alike.";
  const dials = ROLES.map(
    ({ role, letter }) => html`<${Dial}
      key=${role} ...${{ role, letter }} angle=${angles[role]}
      onTurn=${(angle) => onTurn({ ...angles, [role]: angle })}
    />`,
  );
  return html`<div class="dials">
    <div class="three">${dials}</div>
    <p class="back">
      <${Button} off=${!turned} onClick=${() => onTurn(FIRST.angles)}>back to the identity<//>
      <span>${turned ? told : "Each turns all eight vectors x at once."}</span>
    </p>
  </div>`;
}

// The weights of all ---------------------------------------------------------------------------------

const HEAT_HINT =
  "Click below the diagonal, and that row asks. Click above it, where later words are: they close, or open.";

/** A table of the weights: a row for each word that asks; above its diagonal lies what the mask closes. */
function Heat({ scene, onAsk, onMask }) {
  const { rows, weights, asking, mask } = scene;
  const [cell, setCell] = useState(null); // [row, column] that is pointed at
  const [stop, setStop] = useState(null); // the cell that the keyboard comes back to
  const isLater = ([row, column]) => column > row;
  const choose = (place) => (isLater(place) ? onMask() : onAsk(rows[place[0]].word));
  const isTheStop = (row, column) => String(stop ?? [asking, asking]) === String([row, column]);

  function press(event, place) {
    if (event.key === "Enter" || event.key === " ") choose(place);
    else if (!STEPS[event.key]) return;
    event.preventDefault();
    const [right, up] = STEPS[event.key] ?? [0, 0];
    const [row, column] = [place[0] - up, place[1] + right].map((number) =>
      Math.max(0, Math.min(number, rows.length - 1)),
    );
    event.currentTarget.closest("table").rows[row + 1].cells[column + 1].focus();
  }

  function told([row, column]) {
    const [who, whom] = [rows[row].word, rows[column].word];
    const number = decimal(weights[row][column]);
    return mask && isLater([row, column])
      ? `${who} may not look at ${whom}: closed`
      : `${who} looks at ${whom}: ${number}`;
  }

  const square = (row, column) => {
    const place = [row, column];
    const later = isLater(place);
    const closed = mask && later;
    const weight = weights[row][column];
    const arrive = () => {
      setCell(place);
      setStop(place);
    };
    return html`<td
      key=${column} role="gridcell" class=${classes({ later, closed, edge: column === row + 1 })}
      style=${`--weight:${(100 * weight).toFixed(1)}%`}
      aria-label=${told(place)} tabindex=${isTheStop(row, column) ? 0 : -1}
      onClick=${() => choose(place)} onKeyDown=${(event) => press(event, place)}
      onPointerEnter=${() => setCell(place)} onFocus=${arrive} onBlur=${() => setCell(null)}
    ><span>${closed ? "×" : decimal(weight).replace(/^0/, "")}</span></td>`;
  };
  const line = ({ word }, row) => {
    const asks = row === asking;
    return html`<tr key=${word} role="row" class=${classes({ asks })} aria-selected=${String(asks)}>
      <th role="rowheader" scope="row" onClick=${() => onAsk(word)}>${word}</th>
      ${rows.map((_, column) => square(row, column))}
    </tr>`;
  };
  const heads = rows.map(({ word }) => html`<th role="columnheader" scope="col"><span>${word}</span></th>`);
  const aimed = cell !== null && isLater(cell);
  return html`<div class="heat">
    <p class="title">Who looks at whom, and how much</p>
    <table role="grid" class=${classes({ aimed })} aria-label="Weights: a row asks, a column is looked at"
      onPointerLeave=${() => setCell(null)}>
      <thead><tr role="row"><td role="gridcell"></td>${heads}</tr></thead>
      <tbody>${rows.map(line)}</tbody>
    </table>
    <p class="readout">${cell ? told(cell) : HEAT_HINT}</p>
    <p class="back"><${Button} pressed=${mask} onClick=${onMask}>hide later words<//></p>
  </div>`;
}

// The stages -----------------------------------------------------------------------------------------

/** The stages: name, formula, and what computes them in the function `attention`. */
const STAGES = [
  {
    name: "compare",
    formula: ({ width }) => (width === 2 ? "q · k" : `q · k × √${width / 2}`),
    code: "query @ key.transpose(-2, -1)",
  },
  {
    name: "divide",
    formula: ({ divide, width }) => (divide ? `÷ √${width}` : "not divided"),
    code: "/ math.sqrt(query.size(-1))",
  },
  {
    name: "mask",
    formula: ({ mask }) => (mask ? "not later" : "all open"),
    code: "scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)",
  },
  { name: "softmax", formula: () => "weight w", code: "scores.softmax(dim=-1)" },
  { name: "mix", formula: () => "w · value", code: "weights @ value" },
];
const [COMPARE, DIVIDE, MASK, SOFTMAX, MIX] = STAGES.map((_, number) => number + 1);

/** A number with a bar, whose length is in percent of its room. */
function Measure({ length, number, side = "" }) {
  const width = `width:${length.toFixed(1)}%`;
  return html`<span class="bar"><i><u class=${side} style=${width}></u></i><b>${number}</b></span>`;
}

function ScoreCell({ value, lit }) {
  const length = (50 * Math.abs(value)) / PAPER;
  const side = classes({ over: length > 50, left: value >= 0, right: value < 0 });
  return html`<td class=${classes({ score: true, lit })}>
    <${Measure} length=${Math.min(50, length)} number=${decimal(value)} side=${side} />
  </td>`;
}

function MixCell({ point, lit }) {
  const parts = point.map((value) => html`<span>${decimal(value)}</span> `);
  return html`<td class=${classes({ share: true, lit })}>${parts}</td>`;
}

/** A row for each word, with a cell for each stage; last the sums. */
function Stages({ scene, stage, pinned, onPoint, onChoose }) {
  const headings = STAGES.map((each, i) => {
    const number = i + 1;
    return html`<th key=${number} scope="col" class=${classes({ lit: number === stage })}>
      <${Button} pressed=${number === pinned} aria-describedby="by-hand-code"
        onPointerEnter=${() => onPoint(number)} onPointerLeave=${() => onPoint(null)}
        onFocus=${() => onPoint(number)} onBlur=${() => onPoint(null)} onClick=${() => onChoose(number)}
      >${each.name} <small>${each.formula(scene)}</small><//>
    </th>`;
  });
  const rows = scene.rows.map(({ word, english, product, score, open, weight, share }) => {
    const masked = html`<td class=${classes({ closed: true, lit: stage === MASK })}>closed</td>`;
    return html`<tr key=${word}>
      <th scope="row" class=${classes({ asks: word === scene.asks })}>
        ${word} <small class="gloss">${english}</small>
      </th>
      <${ScoreCell} value=${product} lit=${stage === COMPARE} />
      <${ScoreCell} value=${score} lit=${stage === DIVIDE} />
      ${open ? html`<${ScoreCell} value=${score} lit=${stage === MASK} />` : masked}
      <td class=${classes({ weight: true, lit: stage === SOFTMAX })}>
        <${Measure} length=${100 * weight} number=${decimal(weight, 3)} />
      </td>
      <${MixCell} point=${share} lit=${stage === MIX} />
    </tr>`;
  });
  const empty = [COMPARE, DIVIDE, MASK].map(
    (number) => html`<td class=${classes({ lit: stage === number })}></td>`,
  );
  return html`<table class="stages">
    <thead><tr><th scope="col"><span>word</span></th>${headings}</tr></thead>
    <tbody>${rows}
      <tr class="sums"><th scope="row">sum</th>${empty}
        <td class=${classes({ weight: true, lit: stage === SOFTMAX })}>1.000</td>
        <${MixCell} point=${scene.answer} lit=${stage === MIX} />
      </tr>
    </tbody>
  </table>`;
}

// The code of a stage --------------------------------------------------------------------------------

/** The lines of the function `attention` on the page, or null where it is missing. */
const attentionCode = () => document.querySelector('[data-computes="attention"] code');

/** The range of `text` in an element, which may have cut it into pieces. */
function rangeOf(text, element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  let start = element.textContent.indexOf(text);
  let end = start + text.length;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (start >= 0 && start < node.length) range.setStart(node, start);
    if (end > 0 && end <= node.length) range.setEnd(node, end);
    start -= node.length;
    end -= node.length;
  }
  return range;
}

/** The line of code of a stage; it is lit where it stands on the page, too. */
function Quote({ stage }) {
  const [source, setSource] = useState("");
  const code = STAGES[stage - 1]?.code;
  const line = code && source.split("\n").find((text) => text.includes(code));
  useEffect(() => setSource(attentionCode()?.textContent ?? ""), []);
  useEffect(() => {
    const { highlights } = globalThis.CSS ?? {};
    if (!line || !highlights) return undefined;
    highlights.set("by-hand", new Highlight(rangeOf(code, attentionCode())));
    return () => highlights.delete("by-hand");
  }, [code, line]);
  if (!line)
    return html`<p class="quote" id="by-hand-code">
      Point at a stage, or play them: here is its line of code.
    </p>`;
  const [before, after] = line.replace(/ *#.*/, "").trim().split(code);
  return html`<p class="quote" id="by-hand-code"><code>${before}<mark>${code}</mark>${after}</code></p>`;
}

// The figure -----------------------------------------------------------------------------------------

const slowly = (milliseconds) => pause(2 * milliseconds); // there is more to be read than at a subword

/** What the reader sets by boxes, a list and buttons. */
function Settings({ scene, onChange, onAgain }) {
  const { rows, asks, width, divide } = scene;
  return html`<div class="controls">
    <label>asks <select autocomplete="off" value=${asks}
      onChange=${({ target }) => onChange({ asks: target.value, query: null })}>
      ${rows.map(({ word }) => html`<option key=${word} value=${word}>${word}</option>`)}
    </select></label>
    <label class="width"><span>width d<sub>k</sub></span> <input
      type="range" autocomplete="off" min="1" max=${WIDEST} step="1" value=${Math.log2(width)}
      aria-valuetext=${`${width} numbers`}
      onInput=${({ target }) => onChange({ width: 2 ** target.value })}
    /> <output>${width}</output></label>
    <label><input type="checkbox" autocomplete="off" checked=${divide}
      onChange=${({ target }) => onChange({ divide: target.checked })}
    /><span>divide by √d<sub>k</sub></span></label>
    <${Button} onClick=${() => onAgain(COLLAPSED)}>let the softmax collapse<//>
    <${Button} onClick=${() => onAgain(FIRST)}>start again<//>
  </div>`;
}

export function ByHand({ scene: first }) {
  const [wish, setWish] = useState(null); // nothing, until the reader has changed something
  const [pointed, setPointed] = useState(null); // the stage that is pointed at
  const [quiet, setQuiet] = useState(false); // while a handle moves, the handle itself speaks
  const player = usePlayer(STAGES.length, { first: 0, at: 0, wait: slowly });
  const scene = useMemo(() => (wish ? sceneOf(first.rows, wish) : first), [wish]);
  const stage = pointed ?? player.at;

  function change(changes, silently = false) {
    setWish((last) => ({ ...(last ?? FIRST), ...changes }));
    setQuiet(silently);
  }

  const ask = (word) => change({ asks: word, query: null });
  const back = (role, point) => apply(matrixOf(-scene.angles[role]), point); // before the matrix

  function begin(wanted) {
    change(wanted);
    player.show(0);
  }

  function choose(number) {
    setPointed(null);
    player.show(number === player.at ? 0 : number);
  }

  const keys = scene.rows.map(
    ({ word, key, weight }, number) => html`<${Handle}
      key=${word} kind="of-key" label=${`key of ${word}`} place=${key}
      text=${`${pair(key)}, weight ${decimal(weight)}`}
      onMove=${(point) => change({ keys: { ...scene.keys, [number]: back("key", point) } }, true)}
      onChoose=${() => ask(word)}
    />`,
  );
  const query = html`<${Handle}
    kind="of-query" label="query" place=${scene.asked}
    text=${`${pair(scene.asked)}, answer ${pair(scene.answer)}`}
    onMove=${(point) => change({ query: back("query", point) }, true)}
  />`;
  return html`<div class=${`by-hand at-${stage}`}>
    <${Settings} scene=${scene} onChange=${change} onAgain=${begin} />
    <p class="honest"><${WidthSays} width=${scene.width} divide=${scene.divide} /></p>
    <div class="board">
      <div class="seen">
        <div class="plane">
          <${Drawing} scene=${scene} stage=${stage} onAsk=${ask} />${keys}${query}
        </div>
        <p class="said" aria-live=${quiet ? "off" : "polite"}><${Says} scene=${scene} stage=${stage} /></p>
        <${Controls} player=${player} />
        <${Legend} scene=${scene} />
        <p class="hint">
          Drag the ring or any key; click a word, and it asks. By keyboard: arrow keys on each of them.
        </p>
      </div>
      <div class="turned">
        <${Dials} angles=${scene.angles} onTurn=${(angles) => change({ angles }, true)} />
        <${Heat} scene=${scene} onAsk=${ask} onMask=${() => change({ mask: !scene.mask })} />
      </div>
    </div>
    <${Quote} stage=${stage} />
    <${Stages} ...${{ scene, stage }} pinned=${player.at} onPoint=${setPointed} onChoose=${choose} />
  </div>`;
}
