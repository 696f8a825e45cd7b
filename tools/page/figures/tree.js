// A beam search as a tree that grows, and greedy decoding beside it (Part 7, "Beam search").
//
// Nodes stand on a grid of steps and rows: one row for each place of the beam, the last one for
// greedy decoding. tree.css lays the steps from left to right, or from top to bottom where the
// figure is narrow.

import { all, markScrolling } from "../script/dom.js";
import { ALPHA, escaped, modelFor } from "./lib/old.js";
import { decimal, SENTENCE, spelt } from "./lib/text.js";
import { likeliest } from "./model/arithmetic.js";
import { lengthPenalty, Search } from "./model/search.js";
import { finish, inSlices, listing, pause } from "./model/slices.js";

const SENTENCES = [
  SENTENCE,
  "Ein Kind schläft auf dem Schoß seiner Mutter.", // alpha decides
  "Eine Gruppe junger Leute sammelt Muscheln am Strand.", // the width decides
];
const WIDTH = 3; // of the beam, at first
const PACE = 800; // milliseconds for a step

/** A search that computes no path twice, so that one path is one object. */
class TreeSearch extends Search {
  extend(path, id) {
    path.longer ??= new Map();
    if (!path.longer.has(id)) path.longer.set(id, super.extend(path, id));
    return path.longer.get(id);
  }
}

// Words -----------------------------------------------------------------------------------------

const share = (logp) => (Math.exp(logp) < 0.005 ? "under 0.01" : decimal(Math.exp(logp)));
const probability = (path) => share(path.logp - path.from.logp);
const lastOf = (path) => path.written[path.written.length - 1];
const piece = ({ search }, path) => spelt(search.model.words[lastOf(path)]);
const italic = (text) => `<i>${escaped(text)}</i>`;
const textOf = ({ search }, { written }) => italic(search.model.decode(written).replace(/\.$/, "") || "nothing");

/** What greedy decoding has written after so many steps; once it has ended, all of it. */
const greedyAt = ({ greedy }, step) => greedy[Math.min(step, greedy.length) - 1];

/** What is shown: the beams, the last of them, its best path; and who wins in the end, and where greedy leaves. */
function view({ search, steps, greedy, alpha, shown }) {
  const beams = steps.slice(0, shown), now = beams[beams.length - 1];
  const winner = search.best(steps[steps.length - 1], alpha), rival = greedy[greedy.length - 1];
  const fork = rival.written.findIndex((id, i) => id !== winner.written[i]); // -1 where both agree
  return { beams, now, best: search.best(now, alpha), winner, rival, fork };
}

/** The step at which the greedy path is no longer in the beam; 0 where it stays. */
const lostAt = (state) => state.steps.findIndex((paths, i) => !paths.includes(greedyAt(state, i + 1))) + 1;

/** The paths that have become this one, and it. */
function pathOf(path) {
  const paths = [];
  for (; path.from; path = path.from) paths.push(path);
  return paths.reverse();
}

/** Why the search has stopped. */
function whyOver({ search, alpha }, { now, winner }) {
  const going = now.filter((path) => !path.ended);
  if (!going.length) return "The search is over: every hypothesis has ended.";
  if (!going.some((path) => path.next)) return "The search is over: the longest length is reached.";
  const reach = Math.max(...going.map((path) => path.logp)) / lengthPenalty(search.longest, alpha);
  return `The search is over: the best that has ended scores ${decimal(search.score(winner, alpha))}, `
    + `and what goes on can never come above ${decimal(reach)}.`;
}

/** The winner and greedy decoding, in a few sentences that follow from both. */
function verdict(state, { winner, rival, fork }) {
  const { search, alpha, width } = state;
  const [ours, theirs] = [winner, rival].map((path) => search.score(path, alpha));
  if (fork < 0) {
    const who = width === 1 ? "A beam of one is greedy decoding" : "Greedy decoding and the beam agree";
    return `${who}: both write ${textOf(state, winner)}, with log-probability ${decimal(winner.logp)} `
      + `and score ${decimal(ours)}.`;
  }
  const [won, taken] = [winner, rival].map((path) => pathOf(path)[fork]);
  const choice = (path) => `${italic(piece(state, path))} (${probability(path)})`;
  const digits = Math.abs(ours - theirs) < 0.01 ? 4 : 2;
  const [worth, its] = [[winner, ours], [rival, theirs]].map(([path, score]) =>
    `log-probability ${decimal(path.logp, digits)} and score ${decimal(score, digits)}`);
  const lost = lostAt(state);
  const after = fork ? `After ${textOf(state, taken.from)} greedy` : "Greedy";
  return `${after} took ${choice(taken)}, the winner ${choice(won)}. Greedy’s sentence, ${textOf(state, rival)}, `
    + `ends with ${its}; the winner’s, ${textOf(state, winner)}, with ${worth}. `
    + `${theirs > ours ? "So greedy’s has the higher score. " : ""}`
    + `${theirs < ours && winner.logp < rival.logp ? "Only the length penalty puts the winner in front. " : ""}`
    + `Greedy’s path ${lost ? `fell out of the beam at step ${lost}` : "stayed in the beam to the end of the search"}.`;
}

/** What the step that is shown has brought. */
function told(state) {
  const { search, steps, alpha, shown } = state, seen = view(state);
  if (shown >= steps.length) return `${whyOver(state, seen)} ${verdict(state, seen)}`;
  const place = seen.now.indexOf(greedyAt(state, shown)) + 1;
  return `Step ${shown} of ${steps.length}. The best so far is ${textOf(state, seen.best)}, with score `
    + `${decimal(search.score(seen.best, alpha))}. The greedy path `
    + `${place ? `is at place ${place}` : `fell out of the beam at step ${lostAt(state)}`}.`;
}

/** All that is known about the path of one node. */
function about(state, { path, step, row }) {
  const { search, alpha, width } = state;
  const after = path.from.written.length ? ` after ${textOf(state, path.from)}` : "";
  const known = `Step ${step}, ${row < width ? `place ${row + 1}` : "greedy"}: ${italic(piece(state, path))} has `
    + `probability ${probability(path)}${after}. The whole: log-probability ${decimal(path.logp)}, divided by `
    + `${decimal(lengthPenalty(path.written.length, alpha))}, is ${decimal(search.score(path, alpha))}.`;
  if (!path.next) return `${known}${path.ended ? " It has ended." : ""}`;
  const next = row < width ? view(state).beams[step] ?? [] : [greedyAt(state, step + 1)];
  const proposed = likeliest(path.next.logProbs, width).map(({ id, logp }) => {
    const kept = next.some((longer) => longer.from === path && lastOf(longer) === id);
    return `${italic(spelt(search.model.words[id]))} ${share(logp)}${kept ? " (kept)" : ""}`;
  });
  return `${known} What it proposes next: ${proposed.join(", ")}.`;
}

// Drawing ---------------------------------------------------------------------------------------

/** What stands on the grid: paths with their step, row, the row they come from, and marks. */
function nodesOf(state) {
  const { width, greedy, shown } = state, { beams, now, best, fork } = view(state);
  const leading = new Set(pathOf(best)), alive = new Set(now.flatMap(pathOf)), nodes = [];
  const put = (path, i, row, origin, marks) => {
    const waits = path.written.length <= i; // it had ended before
    const ended = !waits && path.ended, fresh = i === beams.length - 1;
    nodes.push({ path, step: i + 1, row, origin, waits, marks: { waits, ended, new: fresh, ...marks } });
  };
  beams.forEach((paths, i) => paths.forEach((path, row) => {
    const before = path.written.length <= i ? path : path.from;
    const marks = { best: leading.has(path), lost: !alive.has(path), greedy: greedy.includes(path) };
    put(path, i, row, i ? beams[i - 1].indexOf(before) : (width - 1) / 2, marks);
  }));
  greedy.slice(0, shown).forEach((path, i) => put(path, i, width, width, { greedy: true, fork: i === fork }));
  return nodes;
}

const classOf = ({ marks }) => Object.keys(marks).filter((mark) => marks[mark]).join(" ");

/** A line from the node before, in units of the grid; tree.css turns it. */
function lineOf(node, width) {
  const { step, row, origin } = node, [x, y, from] = [step - 0.5, row + 0.5, origin + 0.5];
  if (step === 1 && row === width) return "";
  const start = step === 1 ? 0 : x - 1;
  return `<path class="${classOf(node)}" d="M${start} ${from}C${x - 0.5} ${from} ${x - 0.5} ${y} ${x} ${y}"/>`;
}

/** The tree. Only where it can be played with are its nodes buttons. */
function drawing(state) {
  const { search, steps, alpha, width, greedy, playable } = state, nodes = nodesOf(state);
  const columns = Math.max(steps.length, greedy.length), tag = playable ? "button" : "span";
  const place = (step, row) => `style="--step:${step};--row:${row}"`;
  const boxes = nodes.map((node, number) => {
    const { path, step, row, waits } = node, at = `${place(step, row)} class="node ${classOf(node)}"`;
    if (waits) return `<span ${at}></span>`;
    const more = playable ? `type="button" tabindex="-1" data-node="${number}"` : `title="${probability(path)}"`;
    return `<${tag} ${at} ${more}><b>${escaped(piece(state, path))}</b>`
      + `<small>${decimal(search.score(path, alpha))}</small></${tag}>`;
  });
  const count = (length) => [...Array(length).keys()];
  const labels = [
    ...count(columns).map((i) => `<span class="step" ${place(i + 1, 0)}>${i + 1}</span>`),
    ...count(width).map((i) => `<span class="row" ${place(1, i)}>place ${i + 1}</span>`),
    `<span class="row" ${place(1, width)}>greedy</span>`,
    `<span class="node waits" ${place(0.5, (width - 1) / 2)}></span>`, // the start
  ];
  const label = `Tree of a search, up to step ${view(state).beams.length}, and greedy decoding: subwords and scores`;
  const [role, size] = [playable ? "group" : "img", `--steps:${columns};--rows:${width + 1}`];
  return `<div class="tree" role="${role}" aria-label="${label}" style="${size}">`
    + `<svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true"><g>`
    + `${nodes.map((node) => lineOf(node, width)).join("")}</g></svg>${labels.join("")}${boxes.join("")}</div>`;
}

/** The ended hypotheses, ranked. */
function ranking(state) {
  const { search, alpha } = state, score = (path) => search.score(path, alpha);
  const row = (kind, cells) => `<tr>${cells.map((cell, i) =>
    `<${kind}${i === 1 ? "" : ` class="num"`}>${cell}</${kind}>`).join("")}</tr>`;
  const ended = view(state).now.filter((path) => path.ended).sort((one, other) => score(other) - score(one));
  const rows = ended.map((path, i) => {
    const numbers = [decimal(path.logp, 3), path.written.length, decimal(score(path), 3)];
    return row("td", [i + 1, escaped(search.model.decode(path.written)), ...numbers]);
  });
  const none = row("td", ["", "Nothing yet.", "", "", ""]);
  return `<table><thead>${row("th", ["rank", "ended", "log-prob.", "length", "score"])}</thead>`
    + `<tbody>${rows.join("") || none}</tbody></table>`;
}

const asked = ({ sentence, width, alpha, shown, steps }) => `<i lang="de">${sentence}</i> `
  + `<span>Width ${width}, α = ${decimal(alpha, 1)}, `
  + `step ${Math.min(shown, steps.length)} of ${steps.length}</span>`;

const KEY = `<span class="best">the best so far, in the end the winner</span> `
  + `<span class="greedy">the greedy path</span> <span class="lost">given up</span> `
  + `<span class="fork">greedy leaves the winner</span>`;

const frame = (state) => `<p class="asked">${asked(state)}</p><div class="scroll">${drawing(state)}</div>`
  + `<p class="key" aria-hidden="true">${KEY}</p><p class="told" role="status">${told(state)}</p>`
  + `<div class="ranks scroll">${ranking(state)}</div>`;

export const still = (model) => {
  const [sentence] = SENTENCES, search = finish(TreeSearch.opening(model, sentence));
  const steps = [...search.beam(WIDTH, ALPHA)], greedy = [...search.greedy()];
  return frame({ sentence, search, width: WIDTH, alpha: ALPHA, steps, greedy, shown: Infinity, playable: false });
};

// Playing ---------------------------------------------------------------------------------------

const options = SENTENCES.map((text) => `<option>${text}</option>`).join("");
const CONTROLS = `<label>Sentence <select lang="de" autocomplete="off">${options}</select></label>
  <span><button type="button" name="play">Play</button> <button type="button" name="on">Step</button>
  <button type="button" name="back">Back</button> <button type="button" name="again">Start again</button></span>
  <label>Width <input type="range" name="width" min="1" max="5" value="${WIDTH}" autocomplete="off"> <output>${WIDTH}</output></label>
  <label>Length penalty α <input type="range" name="alpha" min="0" max="2" step="0.1" value="${ALPHA}" autocomplete="off">
  <output>${ALPHA}</output></label>`;
const HINT = "Once the search is played, point at a subword, or take the arrow keys to it: here is its probability.";

export const live = (figure) => {
  const find = (selector) => figure.querySelector(selector);
  let wanted = { sentence: SENTENCES[0], width: WIDTH, alpha: ALPHA, shown: Infinity };
  let state = { ...wanted, steps: [], playable: true }; // what is drawn
  const searches = new Map();
  let turn = 0, playing = false, nodes = [], pointed = null;
  const above = `<div class="controls">${CONTROLS}</div><p class="line" role="status"></p>`;
  find(".stage").insertAdjacentHTML("beforebegin", above);
  find(".told").insertAdjacentHTML("beforebegin", `<p class="about" role="status">${HINT}</p>`);
  const [box, line, controls] = [".stage > .scroll", ".line", ".controls"].map(find);

  /** Search step by step, so that the page stays awake; null where the reader wants something else by now. */
  async function searchAll(model, { sentence, width, alpha }, isWanted) {
    if (!searches.has(sentence)) searches.set(sentence, finish(TreeSearch.opening(model, sentence)));
    const search = searches.get(sentence);
    const steps = await inSlices(listing(search.beam(width, alpha)), isWanted);
    const greedy = steps && await inSlices(listing(search.greedy()), isWanted);
    return greedy && { search, steps, greedy };
  }

  /** Mark a node and say what is known about it. */
  function point(node) {
    pointed = node;
    const buttons = all("button", box);
    const stop = node ?? nodes.find(({ step, marks }) => step === 1 && marks.best);
    buttons.forEach((button) => {
      button.tabIndex = nodes[button.dataset.node] === stop ? 0 : -1; // one stop for the keyboard
      button.classList.toggle("pointed", nodes[button.dataset.node] === node);
    });
    find(".about").innerHTML = node ? about(state, node) : HINT;
  }

  function draw() {
    const focused = nodes[document.activeElement.dataset.node];
    const same = (one) => nodes.find(({ path, row }) => path === one?.path && row === one.row);
    nodes = nodesOf(state);
    box.innerHTML = drawing(state);
    point(same(pointed) ?? null);
    if (focused) box.querySelector("[tabindex='0']").focus({ preventScroll: true });
    find(".asked").innerHTML = asked(state);
    find(".told").innerHTML = told(state);
    find(".ranks").innerHTML = ranking(state);
    markScrolling(box);
    const newest = box.querySelector("button.new");
    if (newest) box.scrollLeft = newest.offsetLeft + 2 * newest.offsetWidth - box.clientWidth;
  }

  /** Search with what has changed, and draw; false where that could not be. */
  async function show(change) {
    const mine = ++turn, isWanted = () => mine === turn;
    wanted = { ...wanted, ...change };
    const model = await modelFor(line);
    const found = model && isWanted() && await searchAll(model, wanted, isWanted);
    if (!found) return false;
    if (wanted.shown >= found.steps.length) wanted.shown = Infinity; // all, however long the next search is
    state = { ...state, ...wanted, ...found };
    box.classList.toggle("grows", "shown" in change);
    draw();
    return true;
  }

  const following = () => (wanted.shown >= (state.steps.length || Infinity) ? 1 : wanted.shown + 1);

  function setPlaying(now) {
    playing = now;
    controls.querySelector("[name=play]").textContent = now ? "Pause" : "Play";
    find(".told").setAttribute("aria-busy", Boolean(now)); // read aloud when it stands still
  }

  async function play() {
    const own = {};
    setPlaying(own);
    while (playing === own && await show({ shown: following() }) && state.shown < Infinity) await pause(PACE);
    if (playing === own) setPlaying(false);
  }

  controls.addEventListener("click", async ({ target: { name } }) => {
    const was = playing;
    if (!["play", "on", "back", "again"].includes(name)) return;
    setPlaying(false);
    if (name === "play" && !was) play();
    if (name === "on") show({ shown: following() });
    if (name === "again") show({ shown: 1 });
    if (name !== "back" || !await show({})) return;
    show({ shown: Math.max(1, Math.min(state.shown, state.steps.length) - 1) });
  });
  controls.addEventListener("input", ({ target: { name, value, nextElementSibling } }) => {
    setPlaying(false);
    if (!name) return show({ sentence: value, shown: 1 });
    nextElementSibling.textContent = decimal(Number(value), name === "alpha" ? 1 : 0);
    show({ [name]: Number(value) });
  });
  const nodeAt = ({ target }) => nodes[target.closest("button")?.dataset.node];
  for (const kind of ["pointerover", "focusin", "click"]) {
    box.addEventListener(kind, (event) => nodeAt(event) && nodeAt(event) !== pointed && point(nodeAt(event)));
  }
  box.addEventListener("keydown", (event) => {
    const arrows = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    const [across, down] = arrows[event.key] ?? [], from = event.target.closest("button");
    if (across === undefined || !from) return;
    event.preventDefault();
    const middle = ({ left, right, top, bottom }) => [(left + right) / 2, (top + bottom) / 2];
    const [x, y] = middle(from.getBoundingClientRect());
    const distance = (button) => { // rather straight on than aslant
      const [to, below] = middle(button.getBoundingClientRect());
      const ahead = (to - x) * across + (below - y) * down;
      return ahead > 5 ? ahead + 3 * Math.abs((to - x) * down + (below - y) * across) : Infinity;
    };
    const [nearest] = all("button", box).sort((one, other) => distance(one) - distance(other));
    if (distance(nearest) < Infinity) nearest.focus();
  });
};
