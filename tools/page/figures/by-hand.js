// Attention by hand: a query that can be dragged, and all that follows from it, stage by stage.

import { all } from "../script/dom.js";
import { decimal } from "./lib/text.js";
import { escaped } from "./lib/old.js";
import { softmax, sum } from "./model/arithmetic.js";

const LIMIT = 2.6; // of both axes
const WIDER = 8; // √64: so much larger are the scores of vectors of 64 numbers that nobody divides
const PAPER = 7; // a score's bar ends here, and leaves the paper where the score is larger
const LONG = [2.4, 0.6]; // a long query; without the division it collapses the softmax
const FIRST = { asks: "hebt", query: null, root: true, mask: false, stage: null };

/** The stages: name, formula, and what computes them in the function `attention`. */
const STAGES = [
  { name: "compare", formula: () => "q · k", code: "query @ key.transpose(-2, -1)" },
  { name: "divide", formula: ({ root }) => (root ? "÷ √2" : "÷ √2 × 8"), code: "/ math.sqrt(d_k)" },
  { name: "mask", formula: ({ mask }) => (mask ? "not later" : "all open"),
    code: "scores.masked_fill(closed, torch.finfo(scores.dtype).min)" },
  { name: "softmax", formula: () => "weight w", code: "scores.softmax(dim=-1)" },
  { name: "mix", formula: () => "w · value", code: "dropped @ value" },
];
const [COMPARE, DIVIDE, MASK, SOFTMAX, MIX] = STAGES.keys();

// Attention ---------------------------------------------------------------------------------------

/** The words of the notebook's rows, in their order: [{ word, place: [x, y] }]. */
const wordsOf = (rows) => rows.filter(({ asks }) => asks === rows[0].asks)
  .map(({ word, english, x, y }) => ({ word, english, place: [x, y] }));

/** What the reader's choices mean: who asks and with which query, all stages for each word, the answer. */
function attend(words, state) {
  const asking = words.findIndex(({ word }) => word === state.asks);
  const query = state.query ?? words[asking].place;
  const rows = words.map(({ word, english, place: [x, y] }, number) => {
    const product = query[0] * x + query[1] * y;
    const score = (product / Math.SQRT2) * (state.root ? 1 : WIDER);
    return { word, english, place: [x, y], product, score, open: !state.mask || number <= asking };
  });
  softmax(rows.map((row) => (row.open ? row.score : -Infinity))).forEach((weight, number) => {
    rows[number].weight = weight;
    rows[number].share = rows[number].place.map((value) => weight * value);
  });
  const answer = [0, 1].map((axis) => sum(rows.map(({ share }) => share[axis])));
  const moved = query.some((value, axis) => value !== words[asking].place[axis]);
  return { ...state, query, rows, answer, moved };
}

const pair = (point) => `(${point.map((value) => decimal(value)).join(", ")})`;

/** How many times as large, in words' length. */
function times(factor) {
  if (factor > 1e6) return "more than a million";
  return factor < 10 ? factor.toFixed(1) : String(Math.round(factor)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** One or two sentences on what is to be seen. */
function sentence({ asks, rows, answer, root, moved }) {
  const [first, second] = rows.filter((row) => row.open).sort((a, b) => b.weight - a.weight);
  const percent = (row) => `${decimal(100 * row.weight, row.weight > 0.99 && row.weight < 0.9995 ? 1 : 0)} %`;
  const [best, next, who] = [first, second ?? first, { word: asks }].map(({ word }) => `<em>${escaped(word)}</em>`);
  const receives = `${moved ? `The query, moved away from ${who},` : who} receives ${pair(answer)}: `;
  if (!second) return `${receives}only ${best} is open, and gets all weight, whatever the query is.`;
  const lead = first.score - second.score;
  const apart = `e<sup>${decimal(lead)}</sup> ≈ ${times(Math.exp(lead))} times`;
  if (first.weight <= 0.95) {
    const wider = root ? "" : " Undivided scores, as of vectors of 64 numbers, lie 8 times as far apart.";
    return `${receives}${percent(first)} of ${best}, ${percent(second)} of ${next}. `
      + `Their scores lie ${decimal(lead)} apart, so one weight is ${apart} the other.${wider}`;
  }
  const what = root ? "Nearly all weight falls on one word." : "The softmax has collapsed.";
  const why = root ? "" : "Undivided scores, as of vectors of 64 numbers, are 8 times as large. ";
  return `<strong>${what}</strong> ${why}${best} is ${decimal(lead)} ahead of ${next} and so gets ${apart} its `
    + `weight, ${percent(first)} of all. Hardly anything is mixed: the answer is nearly the vector of ${best}.`;
}

// The plane ---------------------------------------------------------------------------------------

/** A point in the units of the drawing, a hundred to one and upside down. */
const at = ([x, y]) => [Math.round(100 * x), Math.round(-100 * y)];
const line = (from, to, name) => `<path class="${name}" d="M${at(from)}L${at(to)}"/>`;

function arrow(to, name) {
  const length = Math.hypot(...to);
  if (length < 0.3) return line([0, 0], to, name);
  const neck = to.map((value) => value * (1 - 0.22 / length));
  const turn = `translate(${at(to)}) rotate(${((-180 / Math.PI) * Math.atan2(to[1], to[0])).toFixed(1)})`;
  return `${line([0, 0], neck, name)}<path class="${name} head" transform="${turn}" d="M0,0L-24,-11V11Z"/>`;
}

function axes() {
  const ticks = [-2, -1, 1, 2];
  const grid = [...ticks, 0].map((value) => {
    const name = value ? "grid" : "axis";
    return line([value, -LIMIT], [value, LIMIT], name) + line([-LIMIT, value], [LIMIT, value], name);
  });
  const labels = ticks.map((value) => `<text class="tick" x="${100 * value}" y="255">${decimal(value, 0)}</text>`
    + `<text class="tick" x="-248" y="${6 - 100 * value}">${decimal(value, 0)}</text>`);
  return grid.join("") + labels.join("");
}

/** What the stage that is pointed at does, in the plane: shadows of the keys on the query, or shares end to end. */
function construction({ stage, query, rows }) {
  if (stage === COMPARE || stage === DIVIDE) {
    const square = query[0] ** 2 + query[1] ** 2 || 1;
    const foot = (row) => query.map((value) => (value * row.product) / square);
    return rows.map((row) => line(row.place, foot(row), "help") + line([0, 0], foot(row), "help")).join("");
  }
  if (stage !== MIX) return "";
  let [x, y] = [0, 0];
  const ends = rows.filter((row) => row.open).map(({ share }) => at([(x += share[0]), (y += share[1])]));
  const joints = ends.map(([cx, cy]) => `<circle class="joint" cx="${cx}" cy="${cy}" r="4"/>`);
  return `<path class="chain" d="M0,0L${ends.join("L")}"/>${joints.join("")}`;
}

const radius = (weight) => Math.round(48 * Math.sqrt(weight)); // so that areas compare as weights do

function marks(seen) {
  const discs = seen.rows.map(({ place, weight, open }) => {
    const [x, y] = at(place);
    const disc = open ? `<circle class="disc" cx="${x}" cy="${y}" r="${radius(weight)}"/>` : "";
    return `${disc}<circle class="${open ? "dot" : "dot closed"}" cx="${x}" cy="${y}" r="5"/>`;
  });
  const names = seen.rows.map(({ word, english, place, weight, open }) => {
    const [x, y] = at(place);
    const name = `class="${open ? "" : "closed"}" data-word="${escaped(word)}"`;
    const gloss = `<tspan class="gloss" x="${x}" dy="19">${escaped(english)}</tspan>`;
    return `<text ${name} x="${x}" y="${y - 30 - Math.max(13, radius(weight))}">${escaped(word)}${gloss}</text>`;
  });
  const arrows = arrow(seen.query, "query") + arrow(seen.answer, "answer");
  return discs.join("") + construction(seen) + arrows + names.join("");
}

function legendItem(name, point) {
  const sample = `<svg viewBox="0 0 30 10" aria-hidden="true"><path class="${name}" d="M0,5H30"/></svg>`;
  return `<span>${sample}${name} <b>${pair(point)}</b></span> `;
}
const legend = ({ query, answer }) => legendItem("query", query) + legendItem("answer", answer);

const described = ({ asks, query, answer }) => `Words in a plane. ${asks} asks: a dashed arrow, the query, leads to `
  + `${pair(query)}, a thick one, the answer, to ${pair(answer)}. The larger a word's disc, the more weight it gets.`;

// The table ---------------------------------------------------------------------------------------

function scoreCell(value, lit) {
  const [length, side] = [(50 * Math.abs(value)) / PAPER, value < 0 ? "right" : "left"];
  const name = length > 50 ? `over ${side}` : side;
  const bar = `<u class="${name}" style="width:${Math.min(50, length).toFixed(1)}%"></u>`;
  return `<td class="score${lit}">${decimal(value)}<i>${bar}</i></td>`;
}

/** A row for each word, with a cell for each stage; last the sums. */
function tableRows(seen) {
  const lit = STAGES.map((_, number) => (number === seen.stage ? " lit" : ""));
  const spans = (point) => point.map((value) => `<span>${decimal(value)}</span>`).join(" ");
  const mixed = (point) => `<td class="share${lit[MIX]}">${spans(point)}</td>`;
  const rows = seen.rows.map(({ word, english, product, score, open, weight, share }) => {
    const head = `<th scope="row"${word === seen.asks ? ' class="asks"' : ""}>${escaped(word)} <small class="gloss">${escaped(english)}</small></th>`;
    const closed = `<td class="closed${lit[MASK]}">closed</td>`;
    const scores = scoreCell(product, lit[COMPARE]) + scoreCell(score, lit[DIVIDE]);
    const bar = `<i><u style="width:${(100 * weight).toFixed(1)}%"></u></i>`;
    return `<tr>${head}${scores}${open ? scoreCell(score, lit[MASK]) : closed}`
      + `<td class="weight${lit[SOFTMAX]}">${decimal(weight, 3)}${bar}</td>${mixed(share)}</tr>`;
  });
  const empty = [COMPARE, DIVIDE, MASK].map((number) => `<td class="${lit[number]}"></td>`).join("");
  const sums = `<th scope="row">sum</th>${empty}<td class="weight${lit[SOFTMAX]}">1.000</td>${mixed(seen.answer)}`;
  return `${rows.join("")}<tr class="sums">${sums}</tr>`;
}

function headings(seen, playing) {
  const cells = STAGES.map(({ name, formula }, number) => {
    const text = `${name} <small>${formula(seen)}</small>`;
    const button = `<button type="button" aria-pressed="false" aria-describedby="by-hand-code">${text}</button>`;
    return `<th scope="col">${playing ? button : `<span>${text}</span>`}</th>`;
  });
  return `<tr><th scope="col"><span>word</span></th>${cells.join("")}</tr>`;
}

// The whole figure --------------------------------------------------------------------------------

const controls = (words) => `<div class="controls">
  <label>asks <select autocomplete="off">${words.map(({ word }) => `<option>${escaped(word)}</option>`).join("")}</select></label>
  <label><input type="checkbox" autocomplete="off" name="root">divide by the root of the width</label>
  <label><input type="checkbox" autocomplete="off" name="mask">hide later words</label>
  <button type="button" name="collapse">let the softmax collapse</button>
  <button type="button" name="again">start again</button></div>`;
const HANDLE = `<div class="handle" tabindex="0" role="slider" aria-label="query"
  aria-roledescription="point in the plane" aria-valuemin="-${LIMIT}" aria-valuemax="${LIMIT}"></div>`;
const HINT = '<p class="hint">Drag the ring, or click a word. With the keyboard: arrow keys on the ring.</p>';
const QUOTE = '<tr class="quote"><td colspan="6" id="by-hand-code"></td></tr>';

/** The figure as HTML; what only serves playing is left out of the still picture. */
function frame(words, state, playing) {
  const seen = attend(words, state);
  const [corner, side] = [-100 * LIMIT, 200 * LIMIT];
  const drawing = `<svg viewBox="${corner} ${corner} ${side} ${side}" role="img" aria-label="${described(seen)}">
    ${axes()}<g>${marks(seen)}</g></svg>`;
  const plane = `<div class="plane">${drawing}${playing ? HANDLE : ""}</div><p class="legend">${legend(seen)}</p>`;
  const head = `<thead>${headings(seen, playing)}${playing ? QUOTE : ""}</thead>`;
  return `${playing ? controls(words) : ""}<div class="by-hand" data-words="${escaped(JSON.stringify(words))}"><div class="left">${plane}${playing ? HINT : ""}</div>
    <table>${head}<tbody>${tableRows(seen)}</tbody></table></div><p class="said">${sentence(seen)}</p>`;
}

/** The lines of the function `attention` on the page; where it is missing, nothing. */
const attentionCode = () => document.querySelector('[data-computes="attention"] code');

/** The range of `text` in an element, which may have cut it into pieces. */
function rangeOf(text, element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), range = document.createRange();
  let start = element.textContent.indexOf(text), end = start + text.length;
  for (let node; (node = walker.nextNode()); start -= node.length, end -= node.length) {
    if (start >= 0 && start < node.length) range.setStart(node, start);
    if (end > 0 && end <= node.length) range.setEnd(node, end);
  }
  return range;
}

export const still = (_, data) => frame(wordsOf(data), FIRST, false);

export const live = (figure) => {
  const stage = figure.querySelector(".stage"), words = JSON.parse(stage.querySelector(".by-hand").dataset.words);
  stage.innerHTML = frame(words, FIRST, true);
  const get = (selector) => stage.querySelector(selector);
  const [handle, plane, table, select, said] = [".handle", ".plane", "table", "select", ".said"].map(get);
  const buttons = all("thead button", table), drawing = get("svg[role]");
  let state = FIRST, pinned = null, heard = null;

  /** Take over what the reader changed, and draw it. */
  function change(changes, spoken = true) {
    state = { ...state, ...changes };
    const seen = attend(words, state), [x, y] = seen.query;
    drawing.querySelector("g").innerHTML = marks(seen);
    drawing.setAttribute("aria-label", described(seen));
    get(".legend").innerHTML = legend(seen);
    table.tBodies[0].innerHTML = tableRows(seen);
    said.setAttribute("aria-live", spoken ? "polite" : "off"); // while the ring moves, the ring itself speaks
    const text = sentence(seen);
    if (text !== heard) said.innerHTML = heard = text;
    handle.style.left = `${50 + (50 * x) / LIMIT}%`;
    handle.style.top = `${50 - (50 * y) / LIMIT}%`;
    handle.setAttribute("aria-valuenow", x);
    handle.setAttribute("aria-valuetext", `${pair(seen.query)}, answer ${pair(seen.answer)}`);
    buttons.forEach((button, number) => (button.lastChild.textContent = STAGES[number].formula(seen)));
    select.value = state.asks;
    get("[name=root]").checked = state.root;
    get("[name=mask]").checked = state.mask;
  }

  /** Light the code of a stage, here and where it stands on the page. */
  function light(number) {
    const { code } = STAGES[number] ?? {}, block = attentionCode();
    const whole = code && block?.textContent.split("\n").find((text) => text.includes(code));
    const [before, after] = whole?.replace(/ *#.*/, "").trim().split(code) ?? [];
    get(".quote td").innerHTML = whole
      ? `<code>${escaped(before)}<mark>${escaped(code)}</mark>${escaped(after)}</code>`
      : "Point at a stage: here is its line of code.";
    buttons.forEach((button, place) => {
      button.parentNode.classList.toggle("lit", place === number);
      button.setAttribute("aria-pressed", place === pinned);
    });
    self.CSS?.highlights?.delete("by-hand");
    if (whole) self.CSS?.highlights?.set("by-hand", new Highlight(rangeOf(code, block)));
    change({ stage: number });
  }

  const kept = (value) => Math.round(100 * Math.max(-LIMIT, Math.min(LIMIT, value))) / 100;
  const moveTo = (point) => change({ query: point.map(kept) }, false);
  function pointOf(event) {
    const { left, top, width, height } = plane.getBoundingClientRect();
    return [((event.clientX - left) / width - 0.5) * 2 * LIMIT, (0.5 - (event.clientY - top) / height) * 2 * LIMIT];
  }

  handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", (event) => {
    if (handle.hasPointerCapture(event.pointerId)) moveTo(pointOf(event));
  });
  handle.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!direction) return;
    event.preventDefault();
    const { query } = attend(words, state);
    moveTo(query.map((value, axis) => value + (event.shiftKey ? 0.5 : 0.1) * direction[axis]));
  });
  drawing.addEventListener("click", (event) => {
    const [x, y] = pointOf(event);
    const near = words.find(({ place }) => Math.hypot(place[0] - x, place[1] - y) < 0.35);
    const asks = event.target.closest("[data-word]")?.dataset.word ?? near?.word;
    if (asks) change({ asks, query: null });
  });
  select.addEventListener("change", () => change({ asks: select.value, query: null }));
  get(".controls").addEventListener("click", ({ target: { name, checked } }) => {
    if (name === "root" || name === "mask") change({ [name]: checked });
    if (name === "collapse") change({ asks: "Mädchen", query: LONG, root: false, mask: false });
    if (name === "again") change({ ...FIRST, stage: state.stage });
  });
  buttons.forEach((button, number) => {
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => light(number));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => light(pinned));
    button.addEventListener("click", () => light((pinned = pinned === number ? null : number)));
  });
  light(null);
};
