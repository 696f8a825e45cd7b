// A beam search as a tree that grows, and greedy decoding beside it (Part 7, "Beam search").
//
// A *plan* is a sentence, a width and an alpha. The model makes a *scene* of it: all steps of the
// search, each with what it keeps and the best of what it cuts. What is drawn and said at a step
// is taken from the scene up to that step, so that nothing is known before it comes.

import { likeliest } from "./model/arithmetic.js";
import { lengthPenalty, searchFor } from "./model/search.js";
import { finish, listing } from "./model/slices.js";
import { READS, SEARCHED } from "./lib/corpus.js";
import { Controls, usePlayer } from "./lib/player.js";
import { hintFor } from "./lib/hints.js";
import { useModel } from "./lib/shipped.js";
import { continued, decimal, grouped, SENTENCE } from "./lib/text.js";
import { Button, classes, html, useLayoutEffect, useMemo, useRef, useState } from "./lib/ui.js";

const FIRST = { text: SENTENCE, width: 3, alpha: 0.6 };
const SHOWN = 3; // of what a step cuts, and at least of what a hypothesis proposes
const LONGEST = 80; // letters of a sentence
const MOMENT = 300; // milliseconds after a key, before the model is asked
const START = "kept-0-0"; // the name of a node: what it is, its step, its place

// From a plan to a scene -----------------------------------------------------------------------------

const rounded = (number) => Math.round(1e5 * number) / 1e5;

/** The steps of a search, as work that yields: the paths before, the paths then, the best of those cut. */
function* growing(search, width, alpha) {
  const steps = [];
  let paths = [search.start];
  while (!search.decided(paths, alpha)) {
    const ended = paths.filter((path) => path.ended);
    const free = width - ended.length;
    const candidates = search.candidates(paths, free + Math.min(width, SHOWN));
    const kept = [];
    for (const { path, id } of candidates.slice(0, free)) {
      kept.push(search.extend(path, id));
      yield;
    }
    steps.push({ before: paths, paths: [...ended, ...kept], cut: candidates.slice(free) });
    paths = [...ended, ...kept];
  }
  return steps;
}

/** A path as it is told and drawn, with the likeliest that it proposes next. */
function noted(search, path, { width, alpha }) {
  const { words } = search.model;
  const number = Math.max(width, SHOWN);
  const proposed = path.next ? likeliest(path.next.logProbs, number) : [];
  return {
    piece: words[path.written[path.written.length - 1]] ?? "",
    text: search.model.decode(path.written),
    share: rounded(Math.exp(path.logp - (path.from?.logp ?? 0))),
    logp: rounded(path.logp),
    score: rounded(search.score(path, alpha)),
    length: path.written.length,
    ended: path.ended,
    proposals: proposed.map(({ id, logp }) => ({
      piece: words[id],
      share: rounded(Math.exp(logp)),
      logp: rounded(path.logp + logp),
    })),
  };
}

/** All that is shown of a plan, as work that yields. */
export function* sceneOf(model, plan) {
  const { text, width, alpha } = plan;
  const search = yield* searchFor(model, text);
  const grown = yield* growing(search, width, alpha);
  const greedy = yield* listing(search.greedy());
  const steps = [{ kept: [noted(search, search.start, plan)], cut: [], best: 0, greedy: 0 }];
  for (const [i, { before, paths, cut }] of grown.entries()) {
    const from = (path) => before.indexOf(path);
    steps.push({
      kept: paths.map((path) => {
        const waits = before.includes(path); // it had ended before, and keeps its place
        return { ...noted(search, path, plan), waits, from: from(waits ? path : path.from) };
      }),
      cut: cut.map(({ path, id, total }) => ({
        piece: model.words[id],
        text: model.decode([...path.written, id]),
        share: rounded(Math.exp(total - path.logp)),
        logp: rounded(total),
        from: from(path),
      })),
      best: paths.indexOf(search.best(paths, alpha)),
      greedy: paths.indexOf(greedy[Math.min(i, greedy.length - 1)]),
    });
    yield;
  }
  const own = [];
  for (const path of greedy) {
    own.push(noted(search, path, plan));
    yield;
  }
  return {
    ...plan,
    steps, // the first is the start
    greedy: own,
    subwords: model.words.length,
    pieces: search.ids.map((id) => model.words[id]),
    longest: search.longest,
  };
}

/** What the page shows before anybody has touched it, as work that yields. */
export const opening = (model) => sceneOf(model, FIRST);

export const firstScene = (model) => finish(opening(model));

// What is known at a step ----------------------------------------------------------------------------

const planOf = ({ text, width, alpha }) => ({ text, width, alpha });

/** So many steps are played: greedy decoding may take longer than the beam. */
export const countOf = ({ steps, greedy }) => Math.max(steps.length - 1, greedy.length);

/** The last step of the beam at a step of the figure, whether that was its last, and whether all is over. */
function reached(scene, at) {
  const last = Math.min(at, scene.steps.length - 1);
  return { last, done: last === scene.steps.length - 1, over: at >= countOf(scene) };
}

/** The places through which a hypothesis has come, step by step. */
function trailOf({ steps }, step, place) {
  const trail = [];
  let from = place;
  for (let each = step; each >= 0; each--) {
    trail[each] = from;
    from = steps[each].kept[from].from;
  }
  return trail;
}

/** The best hypothesis of a step, symbol by symbol. */
function bestAt(scene, step) {
  const trail = trailOf(scene, step, scene.steps[step].best);
  return trail
    .map((place, each) => scene.steps[each].kept[place])
    .filter(({ waits }, each) => each && !waits);
}

/** The first place at which greedy decoding and the winner differ; -1 where they agree. */
function forkOf(scene) {
  const winner = bestAt(scene, scene.steps.length - 1);
  return scene.greedy.findIndex(({ piece }, i) => piece !== winner[i]?.piece);
}

/** The step at which the greedy path is no longer in the beam; -1 where it stays. */
const lostAt = ({ steps }) => steps.findIndex(({ greedy }) => greedy < 0);

/** How the hypotheses that a step keeps look from a later step: their classes. */
function looksOf(scene, at) {
  const { last } = reached(scene, at);
  const { kept, best } = scene.steps[last];
  const trails = kept.map((_, place) => trailOf(scene, last, place));
  return scene.steps.slice(0, last + 1).map((step, number) => {
    const alive = new Set(trails.map((trail) => trail[number]));
    return step.kept.map(({ ended, waits }, place) =>
      classes({
        best: trails[best][number] === place,
        lost: !alive.has(place),
        greedy: step.greedy === place,
        ended: ended && !waits,
        waits,
        new: number === at,
      }),
    );
  });
}

/** The hypotheses that have ended, the best first. */
export function endedAt(scene, at) {
  const { kept } = scene.steps[reached(scene, at).last];
  return kept.filter(({ ended }) => ended).sort((one, other) => other.score - one.score);
}

// Words ----------------------------------------------------------------------------------------------

const NUMBERS = ["no", "one", "two", "three", "four", "five"];
const capital = (words) => words.replace(/^./, (letter) => letter.toUpperCase());
const share = (number) => (number < 0.005 ? "under 0.01" : decimal(number));

/** A whole sentence in quotation marks, among the words of another. */
const cited = ({ text }) => `“${text.replace(/\.$/, "")}”`;

/** A hypothesis in quotation marks, to the letter. */
function quoted({ text, piece }) {
  if (piece !== "</s>") return `“${text}”`;
  return text ? `“${text}” with its end` : "the end alone";
}

/** Where the greedy path is at a step of the beam. */
function whereGreedy(scene, step) {
  const place = scene.steps[step].greedy + 1;
  return place
    ? `The greedy path is at place ${place}.`
    : `The greedy path fell out at step ${lostAt(scene)}.`;
}

/** What a step has kept and cut. */
function keptAndCut({ steps, subwords }, at) {
  const going = steps[at - 1].kept.filter(({ proposals }) => proposals.length).length;
  const ended = steps[at - 1].kept.filter((node) => node.ended).length;
  const kept = steps[at].kept.filter(({ waits }) => !waits);
  const last = kept[kept.length - 1];
  const keeps = ended === 1 ? "has ended and keeps its place" : "have ended and keep their places";
  const one = going === 1;
  const who = one ? "One hypothesis" : `${capital(NUMBERS[going])} hypotheses`;
  const proposers = at === 1 ? "The start" : who;
  const proposed = `${proposers} ${one ? "proposes" : "propose"} ${grouped(going * subwords)} candidates`;
  const places = ended ? `${capital(NUMBERS[ended])} ${keeps}. ` : "";
  const total = `a log-probability of ${decimal(last.logp)}`;
  const [best] = steps[at].cut;
  const cut = `the best that is cut, ${quoted(best)}, ${decimal(best.logp)}.`;
  if (kept.length === 1)
    return `${places}${proposed}; the likeliest is kept. This, ${quoted(last)}, has ${total}, ${cut}`;
  return `${places}${proposed}; the ${NUMBERS[kept.length]} likeliest are kept. The last of them, ${quoted(last)}, has ${total}, ${cut}`;
}

/** Why the search has stopped. */
function whyOver({ steps, alpha, longest }) {
  const { kept, best } = steps[steps.length - 1];
  const going = kept.filter(({ ended }) => !ended);
  if (!going.length) return "The search is over: every hypothesis has ended.";
  if (going.every(({ length }) => length >= longest))
    return "The search is over: the longest length is reached.";
  const reach = Math.max(...going.map(({ logp }) => logp)) / lengthPenalty(longest, alpha);
  return (
    `The search is over: the best that has ended scores ${decimal(kept[best].score)}, ` +
    `and what goes on can never come above ${decimal(reach)}.`
  );
}

/** The winner and greedy decoding, in a few sentences that follow from both. */
function verdict(scene) {
  const { steps, greedy, width } = scene;
  const fork = forkOf(scene);
  const { kept, best } = steps[steps.length - 1];
  const winner = kept[best];
  const rival = greedy[greedy.length - 1];
  if (fork < 0) {
    const who = width === 1 ? "A beam of one is greedy decoding" : "Greedy decoding and the beam agree";
    return `${who}: both write ${cited(winner)}, with log-probability ${decimal(winner.logp)} and score ${decimal(winner.score)}.`;
  }
  const digits = Math.abs(winner.score - rival.score) < 0.01 ? 4 : 2;
  const choice = ({ piece, share: part }) => `“${continued(piece)}” (${share(part)})`;
  const worth = ({ logp, score }) =>
    `log-probability ${decimal(logp, digits)} and score ${decimal(score, digits)}`;
  const after = fork ? `After “${greedy[fork - 1].text}” greedy` : "Greedy";
  const lost = lostAt(scene);
  return [
    `${after} took ${choice(greedy[fork])}, the winner ${choice(bestAt(scene, steps.length - 1)[fork])}.`,
    `Greedy’s sentence, ${cited(rival)}, has ${worth(rival)}; the winner’s, ${cited(winner)}, ${worth(winner)}.`,
    rival.score > winner.score ? "So greedy’s has the higher score." : "",
    rival.score < winner.score && winner.logp < rival.logp
      ? "Only the length penalty puts the winner in front."
      : "",
    `Greedy’s path ${lost < 0 ? "stayed in the beam to the end of the search" : `fell out of the beam at step ${lost}`}.`,
  ]
    .filter(Boolean)
    .join(" ");
}

/** What is known at a step, in words. */
export function told(scene, at) {
  const { last, done, over } = reached(scene, at);
  const { kept, best } = scene.steps[last];
  if (over) return `${whyOver(scene)} ${verdict(scene)}`;
  if (done) return `${whyOver(scene)} Its best is ${quoted(kept[best])}. Greedy decoding still goes on.`;
  const score = `The best so far is ${quoted(kept[best])}, with score ${decimal(kept[best].score)}.`;
  return `Step ${at}. ${keptAndCut(scene, at)} ${score} ${whereGreedy(scene, at)}`;
}

/** What the name of a node stands for; the start, where its step has not come yet. */
function nodeNamed(scene, name, at) {
  const [kind, step, place] = name.split("-").map((part, i) => (i ? Number(part) : part));
  if (step > at || step === 0) return { kind: "kept", step: 0, place: 0, node: scene.steps[0].kept[0] };
  const node = kind === "greedy" ? scene.greedy[step - 1] : scene.steps[step][kind][place];
  return { kind, step, place, node };
}

/** What became of a proposal by now; "" where nothing has been decided about it. */
function fateOf(scene, { kind, step, place }, piece, at) {
  if (kind === "greedy") {
    if (step + 1 > at) return "";
    return scene.greedy[step].piece === piece ? "taken" : "left";
  }
  if (step + 1 > reached(scene, at).last) return "";
  const next = scene.steps[step + 1].kept;
  return next.some((node) => !node.waits && node.from === place && node.piece === piece) ? "kept" : "cut";
}

/** A node in words: where it stands, what it was worth, how it came to its place. */
function inWords({ steps, greedy, alpha }, { kind, step, place, node }) {
  if (step === 0) {
    return (
      "At the start nothing is written. Point at a subword, or go to it by the arrow keys: " +
      "here is what it has proposed."
    );
  }
  const parent = kind === "greedy" ? greedy[step - 2] : steps[step - 1].kept[node.from];
  const where = { kept: `place ${place + 1}`, cut: "cut", greedy: "greedy" }[kind];
  const after = parent?.text ? ` after “${parent.text}”` : "";
  const part = `Step ${step}, ${where}: “${continued(node.piece)}”${after} has probability ${share(node.share)}.`;
  const whole = `${part} The whole: log-probability ${decimal(node.logp)}`;
  if (kind === "cut") {
    const { kept } = steps[step];
    return `${whole}; the last that is kept has ${decimal(kept[kept.length - 1].logp)}.`;
  }
  const penalty = decimal(lengthPenalty(node.length, alpha));
  return `${whole}, divided by ${penalty}, is ${decimal(node.score)}.${node.ended ? " It has ended." : ""}`;
}

/**
 * All that is known of a node: in words, and what was proposed there. What was cut has proposed
 * nothing itself; it stands among the proposals of its hypothesis.
 */
export function about(scene, name, at) {
  const found = nodeNamed(scene, name, at);
  const { kind, step, node } = found;
  const isCut = kind === "cut";
  const proposer = isCut ? { kind: "kept", step: step - 1, place: node.from } : found;
  const from = isCut ? scene.steps[step - 1].kept[node.from] : node;
  const proposals = [...from.proposals];
  if (isCut && proposals.every(({ piece }) => piece !== node.piece)) proposals[proposals.length - 1] = node;
  const rows = proposals.map(({ piece, share: part, logp }) => ({
    piece,
    share: part,
    logp,
    fate: fateOf(scene, proposer, piece, at),
    meant: isCut && piece === node.piece,
  }));
  const rest = 1 - rows.reduce((total, row) => total + row.share, 0);
  return {
    words: inWords(scene, found),
    rows,
    text: from.text,
    others: scene.subwords - rows.length,
    rest: Math.max(0, rest),
  };
}

// Drawing --------------------------------------------------------------------------------------------

/**
 * Where things stand. Where steps go across: `y`, in rem from the top. Where they go down: `x`, in
 * columns (greedy, then a column for each place), and for what is cut `off`, in rem from the middle.
 */
function layout(width) {
  const cuts = Math.min(width, SHOWN);
  const line = 3.3 + 2.9 * width + 0.35;
  return {
    columns: width + 1,
    line,
    height: line + 0.35 + 2.15 * cuts,
    depth: Math.max(3.2, 1.45 * cuts + 0.7),
    greedy: () => ({ x: 0.5, y: 1.4 }),
    kept: (place) => ({ x: 1.5 + place, y: 3.3 + 2.9 * place + 1.45 }),
    cut: (place) => ({
      x: width + 1,
      y: line + 0.35 + 2.15 * place + 1.07,
      off: 1.45 * (place - (cuts - 1) / 2),
    }),
  };
}

const short = (number) => String(Math.round(1000 * number) / 1000);

/** The variables by which tree.css places a node. */
const placed = ({ x, y, off = 0 }, { columns }) =>
  `--x:${short(x / columns)};--y:${short(y)}${off ? `;--off:${short(off)}` : ""}`;

/** Has a node grown from the one that is pointed at? */
const follows = ({ from }, step, pointed) => step > 1 && pointed === `kept-${step - 1}-${from}`;

/** The lines that lead to the nodes of a step, those that matter most above the others. */
function linesOf(scene, step, looks, pointed) {
  const { width } = scene;
  const place = layout(width);
  const kept = (at) => place.kept(step === 1 ? (width - 1) / 2 : at);
  const lines = [];
  for (const [i, node] of (scene.steps[step]?.cut ?? []).entries())
    lines.push({
      name: classes({ cut: true, of: follows(node, step, pointed) }),
      from: kept(node.from),
      to: place.cut(i),
    });
  for (const [i, node] of (looks ? scene.steps[step].kept : []).entries()) {
    const name = `${looks[i]}${follows(node, step, pointed) ? " of" : ""}`;
    lines.push({ name, from: kept(node.from), to: place.kept(i) });
  }
  if (scene.greedy[step - 1]) {
    const from = step === 1 ? kept(0) : place.greedy();
    lines.push({ name: "own", from, to: place.greedy() });
  }
  const weight = ({ name }) => ["cut", "lost", "best", "of"].findIndex((each) => name.includes(each));
  const order = { 0: 0, 1: 1, "-1": 2, 2: 3, 3: 4 };
  return lines.sort((one, other) => order[weight(one)] - order[weight(other)]);
}

/** Lines from the step before to this one: where steps go across, and where they go down. */
function Lines({ scene, step, looks, pointed }) {
  const { columns, height, depth } = layout(scene.width);
  const lines = linesOf(scene, step, looks, pointed);
  const long = step === 1 ? depth / 2 + 1 : depth; // the start is nearer
  const before = step === 1 ? 0.58 : 0.7; // a line to what is cut ends before it
  const across = ({ name, from, to }) => {
    const end = "off" in to ? before : 1;
    const bend = `${short(0.55 * end)} ${short(from.y)} ${short(0.5 * end)} ${short(to.y)}`;
    return html`<path class=${name} d=${`M0 ${short(from.y)}C${bend} ${end} ${short(to.y)}`} />`;
  };
  const down = ({ name, from, to }) => {
    const end = short(1 + (to.off ?? 0) / long);
    const bend = "off" in to ? `.4 ${short(from.x + 0.2)} ${end}` : `.5 ${short(to.x)} .5`;
    return html`<path class=${name} d=${`M${short(from.x)} 0C${short(from.x)} ${bend} ${short(to.x)} ${end}`} />`;
  };
  const drawn = (name, [wide, tall], path) =>
    html`<svg class=${name} viewBox=${`0 0 ${wide} ${tall}`} preserveAspectRatio="none" aria-hidden="true">${lines.map(path)}</svg>`;
  return html`${drawn("across", [1, short(height)], across)}${drawn("down", [columns, 1], down)}`;
}

/** A subword and its log-probability; whoever points at it is told more. */
function Node({ name, look, piece, logp, style, pointed, onPoint }) {
  const letters = [...continued(piece)].length;
  const cut = name.startsWith("cut") ? ", cut" : "";
  return html`<button
    type="button" class=${classes({ node: true, [look]: look, pointed: pointed === name })} style=${`${style};--letters:${letters}`}
    aria-label=${`${continued(piece)} ${decimal(logp)}${cut}`} tabindex=${pointed === name ? 0 : -1}
    onPointerEnter=${() => onPoint(name)} onFocus=${() => onPoint(name)}
  ><b>${continued(piece)}</b><small>${decimal(logp)}</small></button>`;
}

/**
 * One step: greedy decoding, what is kept, what is cut, and the lines that lead there. It is drawn
 * again only where something about it has changed.
 */
function Step({ scene, step, looks, fork, pointed, onPoint }) {
  const draw = () => {
    const { kept, cut } = scene.steps[step] ?? { kept: [], cut: [] };
    const place = layout(scene.width);
    const look = looks?.split("|");
    const node = (kind, i, own, { piece, logp }) =>
      html`<${Node}
        name=${`${kind}-${step}-${i}`} look=${own} piece=${piece} logp=${logp} style=${placed(place[kind](i), place)}
        pointed=${pointed} onPoint=${onPoint}
      />`;
    const greedy = scene.greedy[step - 1];
    return html`
      <${Lines} scene=${scene} step=${step} looks=${look} pointed=${pointed} />
      <span class="number" aria-hidden="true">${step}</span>
      ${greedy && node("greedy", 0, `own greedy${greedy.ended ? " ended" : ""}${fork ? " fork" : ""}`, greedy)}
      ${kept.map((each, i) =>
        each.waits
          ? html`<span class=${`node ${look[i]}`} style=${placed(place.kept(i), place)}></span>`
          : node("kept", i, look[i], each),
      )}
      ${cut.length > 0 && html`<i class="line-of-the-cut"></i>`}
      ${cut.map((each, i) => node("cut", i, follows(each, step, pointed) ? "cut of" : "cut", each))}
    `;
  };
  const content = useMemo(draw, [scene, step, looks, fork, pointed]);
  return html`<div class="step" role="group" aria-label=${`step ${step}`}>${content}</div>`;
}

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/** From one of some buttons to the next in the direction of an arrow key, rather straight on than aslant. */
function goOn(event) {
  const from = event.target.closest(".node");
  if (!from || !(event.key in ARROWS)) return;
  event.preventDefault();
  const [right, down] = ARROWS[event.key];
  const middle = (button) => {
    const box = button.getBoundingClientRect();
    return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  };
  const [x, y] = middle(from);
  const far = (button) => {
    const [toX, toY] = middle(button);
    const ahead = (toX - x) * right + (toY - y) * down;
    const aside = Math.abs((toX - x) * down) + Math.abs((toY - y) * right);
    return ahead > 5 ? ahead + 3 * aside : Infinity;
  };
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const nearest = buttons.reduce((one, other) => (far(other) < far(one) ? other : one));
  if (far(nearest) < Infinity) nearest.focus();
}

/** The tree, as far as it has grown. Its room is that of the whole. */
function Drawing({ scene, at, pointed, onPoint, grows }) {
  const { width } = scene;
  const looks = looksOf(scene, at);
  const { over } = reached(scene, at);
  const fork = over ? forkOf(scene) : -1;
  const place = layout(width);
  const { kept, cut } = {
    kept: scene.steps.flatMap((step) => step.kept),
    cut: scene.steps.flatMap((step) => step.cut),
  };
  const letters = Math.max(
    ...[...kept, ...cut, ...scene.greedy].map(({ piece }) => [...continued(piece)].length),
  );
  const touches = (step) => [step, step - 1].includes(Number(pointed.split("-")[1]));
  const size = {
    "--count": countOf(scene),
    "--columns": place.columns,
    "--height": short(place.height),
    "--depth": short(place.depth),
    "--line": short(place.line),
    "--letters": letters,
  };
  const label = (name, where) =>
    html`<span class=${`label ${name.split(" ")[0]}`} style=${placed(where, place)}>${name}</span>`;
  const count = (length) => [...Array(length).keys()];
  return html`<div
    class=${classes({ grid: true, grows })} role="group" onKeyDown=${goOn} style=${size}
    aria-label="The search as a tree: subwords, and the log-probability of all up to each"
  >
    <div class="labels" aria-hidden="true">
      ${label("greedy", place.greedy())}${count(width).map((i) => label(`place ${i + 1}`, place.kept(i)))}${label("cut", place.cut((Math.min(width, SHOWN) - 1) / 2))}
    </div>
    <button
      type="button" class=${classes({ node: true, start: true, pointed: pointed === START })} aria-label="the start"
      style=${placed(place.kept((width - 1) / 2), place)} tabindex=${pointed === START ? 0 : -1}
      onPointerEnter=${() => onPoint(START)} onFocus=${() => onPoint(START)}
    ></button>
    ${count(Math.min(at, countOf(scene))).map(
      (i) => html`<${Step}
        key=${i} scene=${scene} step=${i + 1} looks=${looks[i + 1]?.join("|")} fork=${fork === i}
        pointed=${touches(i + 1) ? pointed : ""} onPoint=${onPoint}
      />`,
    )}
  </div>`;
}

/** What was proposed at a node, with what became of it. */
function Proposals({ scene, name, at }) {
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
function Ranking({ scene, at }) {
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

/** What is said at a step, in the room of the longest that will be said. */
function Words({ scene, at, busy }) {
  const room = useMemo(() => {
    const all = [...Array(countOf(scene)).keys()].map((i) => told(scene, i + 1));
    return all.reduce((one, other) => (other.length > one.length ? other : one));
  }, [scene]);
  return html`<div class="told roomy"><p role="status" aria-busy=${String(busy)}>${told(scene, at)}</p><p class="room" aria-hidden="true">${room}</p></div>`;
}

/** What the looks of the tree mean; that of the end has its room from the beginning. */
function Key({ scene, at }) {
  const { width } = scene;
  const { over } = reached(scene, at);
  const cut =
    width === 1 ? "the best that is cut" : `the best ${NUMBERS[Math.min(width, SHOWN)]} that are cut`;
  const end = over && forkOf(scene) >= 0 ? "fork" : "later";
  return html`<p class="key" aria-hidden="true">
    <span><small>−1.23</small> log-probability of all up to there</span> <span>behind the dashed line: ${cut}</span>
    <span>grey: given up since</span> <span class="greedy">the greedy path</span>
    <span class="best">${over ? "the winner" : "the best so far"}</span> <span class=${end}>greedy leaves the winner</span>
  </p>`;
}

// The figure -----------------------------------------------------------------------------------------

export function Tree({ scene: first }) {
  const [scene, setScene] = useState(first);
  const [typed, setTyped] = useState(first.text);
  const [asked, setAsked] = useState(planOf(first)); // the last plan, perhaps not drawn yet
  const [searching, setSearching] = useState(false);
  const [name, point] = useState(START);
  const [line, run] = useModel();
  const player = usePlayer(countOf(first));
  const wished = useRef(asked);
  const waiting = useRef(null);
  const box = useRef(null);

  /** Change the plan; once its scene is there, `then` says where to look. */
  async function wish(changes, then) {
    clearTimeout(waiting.current);
    const plan = { ...wished.current, ...changes };
    wished.current = plan;
    setAsked(plan);
    setSearching(true);
    player.pause();
    const next = await run((model) => sceneOf(model, plan));
    if (wished.current === plan) setSearching(false);
    if (!next) return;
    setScene(next);
    point(START);
    then(countOf(next));
  }

  const fromStart = (count) => {
    player.restart(count);
    player.play();
  };

  /** Stay at the step, or at the end. */
  const stay = (count) => player.restart(count, player.ended ? count : player.at);

  function write(text, moment = 0) {
    setTyped(text);
    clearTimeout(waiting.current);
    const changed = text.trim() && text.trim() !== wished.current.text;
    if (changed) waiting.current = setTimeout(() => wish({ text: text.trim() }, fromStart), moment);
  }

  const at = Math.min(player.at, countOf(scene));
  useLayoutEffect(() => {
    if (player.turn === 0) return;
    const newest = box.current.querySelector(".step:last-of-type");
    if (newest && newest.offsetWidth < box.current.clientWidth / 2)
      box.current.scrollLeft = newest.offsetLeft + 2 * newest.offsetWidth - box.current.clientWidth;
  }, [scene, at]);

  const pointed = Number(name.split("-")[1]) <= at ? name : START;
  const range = (what, named, from, to, by) => html`<label>${named}
    <input
      type="range" name=${what} min=${from} max=${to} step=${by} value=${asked[what]} autocomplete="off"
      onInput=${({ target }) => wish({ [what]: Number(target.value) }, stay)}
    />
    <output>${decimal(asked[what], by < 1 ? 1 : 0)}</output></label>`;
  return html`<div class="tree">
    <div class="words">
      <label for="searched">A sentence in ${READS.name}</label>
      <input
        id="searched" type="text" lang=${READS.code} maxlength=${LONGEST} autocomplete="off" spellcheck="false" value=${typed}
        onInput=${({ target }) => write(target.value, MOMENT)}
        onKeyDown=${({ key, target }) => key === "Enter" && write(target.value)}
      />
      <div class="chips scroll" lang=${READS.code} role="group" aria-label="Sentences to try">
        ${SEARCHED.map((text) => html`<${Button} onClick=${() => write(text)}>${text}<//>`)}
      </div>
    </div>
    <div class="controls">
      <${Controls} player=${player} />
      ${range("width", "Width", 1, 5, 1)}${range("alpha", "Length penalty α", 0, 2, 0.1)}
    </div>
    <p class="line" role="status">${line || (searching ? "Searching …" : hintFor(typed, typed.trim() === scene.text ? scene.pieces : [], LONGEST))}</p>
    <p class="asked"><i lang=${READS.code}>${scene.text}</i> <span>width ${scene.width}, α = ${decimal(scene.alpha, 1)}, step ${at}</span></p>
    <${Words} scene=${scene} at=${at} busy=${player.playing} />
    <div class=${classes({ scroll: true, searching })} ref=${box}>
      <${Drawing} scene=${scene} at=${at} pointed=${pointed} onPoint=${point} grows=${player.turn > 0} />
    </div>
    <${Key} scene=${scene} at=${at} />
    <div class="below">
      <${Ranking} scene=${scene} at=${at} />
      <${Proposals} scene=${scene} name=${pointed} at=${at} />
    </div>
  </div>`;
}
