// The plan of the model as a map, with a sentence on its way through it. A box shows what a position has
// there: a vector, or the weights of attention; and the logit lens, what the generator would say of it.
//
// A *wish* is what is asked for: a text, a place, a layer, a position on each side. The model makes a
// *scene* of it: plain data, all that is shown. The first scene is written into the page when it is built.
//
// A *place* is what a box of the drawing has as data-place: "decoder cross norm", "decoder cross" (what
// cross-attention adds), "decoder cross sum" (the stream after it), "decoder final", …

import { likeliest, normalise, sum } from "./model/arithmetic.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { SPACE, START } from "./model/subwords.js";
import { hintFor } from "./lib/hints.js";
import { useModel } from "./lib/shipped.js";
import { SENTENCE, spelt } from "./lib/text.js";
import { Button, classes, html, useMemo, useRef, useState } from "./lib/ui.js";

const FIRST = { text: SENTENCE, place: "decoder cross sum", layer: 1, encoder: 6, decoder: 7 };
const PARTS = { encoder: ["attention", "feed-forward"], decoder: ["attention", "cross", "feed-forward"] };
const ATTENTION = ["encoder attention", "decoder attention", "decoder cross"];
const NAMES = {
  embedding: "embedding · √D",
  positions: "embedding + positions",
  cross: "cross-attention",
  final: "final norm",
};
const BEAM = 4; // of the paper, as alpha is
const ALPHA = 0.6;
const LONGEST = 80; // letters of a sentence
const MOST = 40; // subwords of a translation that are shown
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }; // in a table
const COLUMNS = 16; // of the squares that a vector is drawn as
const SHADES = 8;
const TINT = 45; // per cent of the accent behind a number, at most: what stands on it has to be read
const LEAST = 0.05; // a weight that still gets an arc
const MOMENT = 250; // milliseconds after a key, or of a mouse that only passes by, before the model is asked

// Places ---------------------------------------------------------------------------------------------

/** What a place is made of; `number` counts the parts of a layer, and is negative outside of layers. */
function placed(place) {
  const [side, part, kind = "adds"] = place.split(" ");
  return { side, part, kind, number: PARTS[side].indexOf(part) };
}

const sideOf = (place) => placed(place).side;

function partName({ side, part }) {
  if (part !== "attention") return NAMES[part] ?? part;
  return side === "encoder" ? "self-attention" : "masked self-attention";
}

function nameOf(place) {
  const parts = placed(place);
  const name = partName(parts);
  if (parts.kind === "norm") return `norm before ${name}`;
  if (parts.kind === "sum") return `sum after ${name}`;
  if (ATTENTION.includes(place)) return name;
  return parts.number < 0 ? name : `${name}: what it adds`;
}

/** The places of the stream, as the rows of the table: [{ place, layer, name }], no layer outside of layers. */
export function streamOf(side, layers) {
  const rows = [{ place: `${side} positions`, name: NAMES.positions }];
  for (let layer = 0; layer < layers; layer++) {
    for (const part of PARTS[side]) {
      const name = part === "attention" ? "self-attention" : (NAMES[part] ?? part);
      rows.push({ place: `${side} ${part} sum`, layer, name });
    }
  }
  rows.push({ place: `${side} final`, name: side === "encoder" ? "final norm" : "final norm, generator" });
  return rows;
}

/** The row of a place; within a part, that of the sum after it. `exact`: it is what the row shows. */
function rowOf({ place, layer, size }) {
  const { side, part, kind, number } = placed(place);
  if (part === "embedding") return { row: 0, exact: false };
  if (part === "positions") return { row: 0, exact: true };
  if (number < 0) return { row: 1 + size.layers * PARTS[side].length, exact: true };
  return { row: 1 + layer * PARTS[side].length + number, exact: kind === "sum" };
}

// From a wish to a scene -----------------------------------------------------------------------------

/** A sentence and its translation in the model: at each position the stream, and the weights. */
function* following(model, text) {
  const source = model.encode(text);
  const seen = { encoder: source.map(() => []), decoder: [] }; // by position, from the embedding on
  const memory = yield* model.reading(source, (states, weights) =>
    states.forEach((state, i) => seen.encoder[i].push({ state, weights: weights?.[i] })),
  );
  const path = yield* new Search(model, source, memory).translating(BEAM, ALPHA);
  const written = path.written.slice(0, MOST);
  const read = [START, ...written.slice(0, -1)];
  let past = null;
  for (const id of read) {
    const stream = [];
    past = model.step(memory, past, id, (state, weights) => stream.push({ state, weights })).past;
    seen.decoder.push(stream);
    yield;
  }
  const cut = path.written.length > MOST || !path.ended;
  const run = { model, ids: { encoder: source, decoder: read }, written, cut, seen };
  const encoder = yield* tableOf(run, "encoder");
  const decoder = yield* tableOf(run, "decoder");
  return { ...run, tables: { encoder, decoder } };
}

const begun = new Map(); // what was followed last, by text; who is interrupted goes on where it was

function* followed(model, text) {
  if (!begun.has(text)) {
    if (begun.size > 4) begun.clear();
    begun.set(text, { work: following(model, text), run: null });
  }
  const entry = begun.get(text);
  while (!entry.run) {
    const { done, value } = entry.work.next();
    if (done) entry.run = value;
    else yield;
  }
  return entry.run;
}

/** The vector that a position has at a place, in a layer. */
function vectorAt({ model, ids, seen }, place, layer, position) {
  const { side, part, kind, number } = placed(place);
  const stream = seen[side][position];
  if (part === "embedding") {
    const from = ids[side][position] * model.d_model;
    const row = model.vectors.slice(from, from + model.d_model);
    return row.map((value) => value * Math.sqrt(model.d_model));
  }
  if (part === "positions") return stream[0].state;
  if (number < 0) return normalise(stream[stream.length - 1].state, model.norms[side]);
  const before = layer * PARTS[side].length + number;
  const [{ state }, { state: after }] = stream.slice(before, before + 2);
  if (kind === "norm") return normalise(state, model[side][layer].norms[number]);
  return kind === "sum" ? after : after.map((value, i) => value - state[i]);
}

/** The weights of attention there, by head; null where there is none. */
function weightsAt({ seen }, place, layer, position) {
  if (!ATTENTION.includes(place)) return null;
  const { side, number } = placed(place);
  const heads = seen[side][position][layer * PARTS[side].length + number + 1].weights;
  return heads.map((weights) => Array.from(weights, (weight) => rounded(weight, 4)));
}

const rounded = (number, digits) => Math.round(number * 10 ** digits) / 10 ** digits;

/** The logit lens: the final norm of the stack, then the generator. What it finds likeliest. */
function lens({ model }, place, vector, count) {
  const { side, part } = placed(place);
  const ready = ["final", "memory", "generator"].includes(part);
  const logProbs = model.next(ready ? vector : normalise(vector, model.norms[side]));
  return likeliest(logProbs, count).map(({ id, logp }) => ({
    id,
    piece: model.words[id],
    share: rounded(Math.exp(logp), 5),
  }));
}

/**
 * The likeliest subword at each place of the stream and each position, as work that yields; `first` says
 * in which row a position names for the first time what it writes in the end (-1: in none).
 */
function* tableOf(run, side) {
  const rows = [];
  for (const { place, layer } of streamOf(side, run.model.N).slice(0, -1)) {
    const row = [];
    for (let position = 0; position < run.ids[side].length; position++) {
      row.push(...lens(run, place, vectorAt(run, place, layer, position), 1));
      yield;
    }
    rows.push(row);
  }
  rows.push(rows[rows.length - 1]); // the lens is the final norm
  const isWritten = (position) => (row) => row[position].id === run.written[position];
  const first = run.ids[side].map((_, position) =>
    side === "decoder" ? rows.findIndex(isWritten(position)) : -1,
  );
  const cells = rows.map((row) => row.map(({ piece, share }) => ({ piece, share: rounded(share, 3) })));
  return { rows: cells, first };
}

/** A vector as shades of two colours, below zero and above. */
function shaded(vector) {
  const largest = Math.max(...vector.map(Math.abs));
  const shades = Array.from(
    vector,
    (value) => Math.sign(value) * Math.ceil((Math.abs(value) / largest) * SHADES),
  );
  return { shades, largest: rounded(largest, 1), length: rounded(Math.hypot(...vector), 1) };
}

/** All that is shown of a wish, as work that yields. */
export function* sceneOf(model, wish) {
  const run = yield* followed(model, wish.text);
  const { ids, written, cut, tables } = run;
  const spell = (list) => list.map((id) => model.words[id]);
  const position = (side) => Math.min(wish[side], ids[side].length - 1);
  const choice = { ...wish, encoder: position("encoder"), decoder: position("decoder") };
  const side = sideOf(choice.place);
  const at = [choice.place, choice.layer, choice[side]];
  const vector = vectorAt(run, ...at);
  const next = side === "decoder" ? written[choice.decoder] : null;
  const weights = weightsAt(run, ...at);
  return {
    ...choice,
    pieces: { encoder: spell(ids.encoder), decoder: spell(ids.decoder), written: spell(written) },
    size: { layers: model.N, heads: model.h, width: model.d_model },
    tables,
    weights,
    strip: weights ? null : shaded(vector),
    says: lens(run, choice.place, vector, 5).map(({ id, piece, share }) => ({
      piece,
      share,
      next: id === next,
    })),
    cut,
  };
}

/** What the page shows before anybody has touched it; `data` is the drawing. */
export function firstScene(model, data) {
  const drawing = treeOf(data);
  delete drawing.attributes.viewBox; // it is as large as it says, and its parts may move
  delete drawing.attributes["aria-label"]; // which names one sentence
  return { ...finish(sceneOf(model, FIRST)), drawing };
}

// The drawing as a tree ------------------------------------------------------------------------------

const TOKENS = /<(\/?)([\w-]+)((?:"[^"]*"|[^">])*?)(\/?)>|([^<]+)/g;
const SIGNS = { lt: "<", gt: ">", amp: "&", quot: '"' };
const SPELLED = ["viewBox", "refX", "refY", "markerWidth", "markerHeight", "markerUnits"]; // HTML loses capitals

const unescaped = (text) => text.replace(/&(lt|gt|amp|quot);/g, (_, sign) => SIGNS[sign]);

function attributesIn(text) {
  const pairs = [...text.matchAll(/([\w:-]+)="([^"]*)"/g)].map(([, name, value]) => [
    SPELLED.find((each) => each.toLowerCase() === name.toLowerCase()) ?? name,
    unescaped(value),
  ]);
  return Object.fromEntries(pairs);
}

const isLeftOut = ({ class: name }) => name === "d-says"; // buttons stand there

/** An SVG as { tag, attributes, children }, where a child may be text. */
export function treeOf(source) {
  const root = { children: [] };
  const open = [root];
  for (const [, closes, tag, attributes, alone, text] of source.matchAll(TOKENS)) {
    const { children } = open[open.length - 1];
    if (closes) open.pop();
    else if (text === undefined) {
      const node = { tag, attributes: attributesIn(attributes), children: [] };
      if (!isLeftOut(node.attributes)) children.push(node);
      if (!alone) open.push(node);
    } else if (text.trim()) children.push(unescaped(text).replace(/\s+/g, " "));
  }
  return root.children[0];
}

/** Where each box leads, by place. */
function sectionsIn({ attributes, children }) {
  const inside = children.filter((child) => child.tag).map(sectionsIn);
  const own = attributes["data-place"] ? { [attributes["data-place"]]: attributes.href } : {};
  return Object.assign(own, ...inside);
}

/** A node as it is drawn; `dress` gives a box what it has beyond its own: attributes, and a last child. */
function Node({ node, dress }) {
  const { tag, attributes, children } = node;
  const place = attributes["data-place"];
  const [more, last] = place ? dress(place, node) : [{}, null];
  const inside = children.map((child) =>
    child.tag ? html`<${Node} node=${child} dress=${dress} />` : child,
  );
  return html`<${tag} ...${attributes} ...${more}>${inside}${last}<//>`;
}

/** What the stream says at a sum, beside its circle. */
function Said({ node, side, piece }) {
  const { x, y } = node.children.find(({ tag }) => tag === "use").attributes;
  const [left, anchor] = side === "encoder" ? [Number(x) + 19, "start"] : [Number(x) - 19, "end"];
  return html`<text class="said" x=${left} y=${Number(y) + 5} style=${`text-anchor:${anchor}`}>${spelt(piece)}</text>`;
}

/** A translation as it is read. */
const joined = (pieces) =>
  pieces
    .filter((piece) => piece !== "</s>")
    .join("")
    .replaceAll(SPACE, " ")
    .trim();

/** The drawing in its own size; its boxes have names, and at each sum stands what is said there. */
function Drawing({ drawing, scene, onPoint, onChoose }) {
  const dress = (place, node) => {
    const { side, kind } = placed(place);
    const more = {
      class: classes({ chosen: place === scene.place }),
      "aria-label": `${side}: ${nameOf(place)}`,
      onPointerEnter: () => onPoint(place),
      onClick: (event) => {
        event.preventDefault(); // the link is in the panel, too
        onChoose(place);
      },
      onKeyDown: (event) => {
        if (event.key !== " ") return;
        event.preventDefault();
        onChoose(place);
      },
    };
    if (kind !== "sum") return [more, null];
    const { row } = rowOf({ ...scene, place });
    const { piece } = scene.tables[side].rows[row][scene[side]];
    return [more, html`<${Said} node=${node} side=${side} piece=${piece} />`];
  };
  const translation = joined(scene.pieces.written);
  const label = `Encoder and decoder stacks, with the subwords of “${scene.text}” on the left and of “${translation}” on the right`;
  const attributes = { ...drawing.attributes, "aria-label": label };
  return html`<${Node} node=${{ ...drawing, attributes }} dress=${dress} />`;
}

/** The subwords of a side, as buttons that lie on the drawing; one stop for the keyboard. */
function Pieces({ kind, label, pieces, chosen, onChoose }) {
  function press(event, i) {
    const next = event.currentTarget.parentElement.children[i + (STEPS[event.key]?.[1] || NaN)];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }
  const buttons = pieces.map(
    (piece, i) =>
      html`<${Button} class="piece" pressed=${i === chosen} tabindex=${i === Math.max(0, chosen) ? 0 : -1}
        onClick=${() => onChoose(i)} onKeyDown=${(event) => press(event, i)}>${spelt(piece)}<//>`,
  );
  const letters = sum(pieces.map((piece) => [...spelt(piece)].length));
  const many = 7.4 * letters + 11 * pieces.length > 470; // pixels: two lines
  return html`<div class=${`pieces ${kind} ${classes({ many })}`} role="group" aria-label=${label}>${buttons}</div>`;
}

// The panel ------------------------------------------------------------------------------------------

/** A vector as coloured squares: one path for each shade. */
function Strip({ shades, largest, length }) {
  const paths = new Map();
  shades.forEach((shade, i) => {
    const square = `M${i % COLUMNS} ${Math.floor(i / COLUMNS)}h1v1h-1z`;
    if (shade) paths.set(shade, (paths.get(shade) ?? "") + square);
  });
  const drawn = [...paths].map(
    ([shade, d]) =>
      html`<path class=${shade < 0 ? "below" : "above"} fill-opacity=${Math.abs(shade) / SHADES} d=${d} />`,
  );
  const count = shades.length;
  return html`<div class="strip">
    <svg viewBox=${`0 0 ${COLUMNS} ${Math.ceil(count / COLUMNS)}`} role="img" aria-label=${`${count} numbers as colours`}>${drawn}</svg>
    <p class="legend">${count} numbers: <i class="above"></i> above zero, <i class="below"></i> below;
      the largest in size ${largest.toFixed(1)}, the length <b>${length.toFixed(1)}</b></p>
  </div>`;
}

/** What a position may look at: { pieces, own }, `own` its own number among them, or -1. */
function lookedAt({ place, pieces, encoder, decoder }) {
  if (place === "decoder attention") return { pieces: pieces.decoder.slice(0, decoder + 1), own: decoder };
  return { pieces: pieces.encoder, own: place === "encoder attention" ? encoder : -1 };
}

/** A weight in a narrow cell: .45, or 1 */
const short = (weight) => weight.toFixed(2).replace(/^0|\.00$/, "");

const tint = (share) => `--tint:${Math.round(TINT * share)}%`;

/** Arcs from the chosen subword down to the columns of those that it looks at. */
function Arcs({ weights, label }) {
  const wide = 10 * weights.length;
  const middle = wide / 2;
  const arcs = weights.map((weight, i) => {
    if (weight < LEAST) return null;
    const end = 10 * i + 5;
    const width = (1 + 7 * weight).toFixed(1);
    return html`<path key=${i} stroke-width=${width} d=${`M${middle} 0C${middle} 24 ${end} 16 ${end} 40`} />`;
  });
  return html`<svg class="arcs" viewBox=${`0 0 ${wide} 40`} preserveAspectRatio="none" role="img" aria-label=${label}>${arcs}</svg>`;
}

/** Where a row has most of its weight. */
function mostOf(weights, pieces) {
  const weight = Math.max(...weights);
  return `${spelt(pieces[weights.indexOf(weight)])} (${weight.toFixed(2)})`;
}

/** The weights of the chosen position: a row for each head, and the arcs of one, or of their mean. */
function Weights({ scene, head, onHead }) {
  const { weights } = scene;
  const { pieces, own } = lookedAt(scene);
  const mean = pieces.map((_, i) => sum(weights.map((row) => row[i])) / weights.length);
  const headings = pieces.map(
    (piece, i) =>
      html`<th scope="col" class=${classes({ own: i === own })}><span>${spelt(piece)}</span></th>`,
  );
  const rows = weights.map((row, number) => {
    const cells = row.map(
      (weight, i) =>
        html`<td style=${tint(weight)} title=${`head ${number + 1}, ${spelt(pieces[i])}: ${weight.toFixed(3)}`}>${short(weight)}</td>`,
    );
    const choose = () => onHead(number === head ? null : number);
    return html`<tr><th scope="row">
      <${Button} aria-label=${`head ${number + 1}`} title=${`arcs of head ${number + 1}`} pressed=${number === head} onClick=${choose}>${number + 1}<//>
    </th>${cells}</tr>`;
  });
  const drawn = head === null ? mean : weights[head];
  const whose = head === null ? "the mean of the heads" : `head ${head + 1}`;
  return html`<div class="weights">
    <div class="scroll"><div class="looks" style=${`--count:${pieces.length}`}>
      <p class="asks"><span>${spelt(scene.pieces[sideOf(scene.place)][scene[sideOf(scene.place)]])}</span></p>
      <${Arcs} weights=${drawn} label=${`Arcs, ${whose}: most weight on ${mostOf(drawn, pieces)}`} />
      <table aria-label="Weights: a row for each head, a column for each subword that is looked at">
        <thead><tr><td>head</td>${headings}</tr></thead><tbody>${rows}</tbody>
      </table>
    </div></div>
    <p class="legend">Each row has the sum 1. Arcs: ${whose}.</p>
  </div>`;
}

/** What the shown numbers are a row of. */
function shapeOf(place) {
  const length = sideOf(place) === "encoder" ? "S" : "T";
  const row = `one row of (B, ${length}, D)`;
  if (place === "decoder generator") return `it reads ${row} and makes one of (B, T, V)`;
  if (!ATTENTION.includes(place)) return row;
  return `for each head one row of (B, H, ${length}, ${place === "decoder attention" ? "T" : "S"})`;
}

/** What is to be thought of the probabilities at a place. */
export function meaningOf({ place, layer, size }) {
  const { side, part, kind, number } = placed(place);
  const adds = number >= 0 && kind === "adds";
  if (side === "encoder") {
    const curious = "A curiosity: the generator never hears the encoder.";
    if (adds) return `${curious} This is what it would say of what this part adds, after the final norm.`;
    return `${curious} But both share one matrix of vectors, so its stream often names the German subword itself.`;
  }
  if (part === "final" || part === "generator")
    return "What the generator does say: the probability of each next subword.";
  if (part === "embedding")
    return "What the generator would say of this vector, without positions and layers, after the final norm.";
  const whatIf = (left) =>
    html`What the generator would say if all ${left} were left out, and only the final norm were kept: the <em>logit lens</em>.`;
  if (part === "positions") return whatIf("layers");
  if (adds)
    return "What the generator would say if it heard nothing but what this part adds, after the final norm.";
  if (kind === "norm")
    return "The stream as the next part reads it, and what the generator would say of that, after the final norm.";
  if (layer === size.layers - 1 && number === PARTS.decoder.length - 1)
    return "Only the final norm is left after this sum: so this is what the generator does say.";
  return whatIf("later parts");
}

/** The likeliest subwords, in words. */
const likelyOf = ({ says }) => says.map(({ piece, share }) => `${spelt(piece)} ${share.toFixed(3)}`);

/** What a screen reader is told of a choice. */
function heardOf(scene) {
  const { place, weights } = scene;
  const { pieces } = lookedAt(scene);
  const heads = (weights ?? []).map((row, head) => `head ${head + 1} looks at ${mostOf(row, pieces)}`);
  return [nameOf(place), ...heads, ...likelyOf(scene)].join(", ");
}

function Panel({ scene, section, head, onHead }) {
  const { place, layer, pieces, size, says } = scene;
  const side = sideOf(place);
  const position = scene[side];
  const inLayer = placed(place).number < 0 ? "" : `, layer ${layer + 1} of ${size.layers}`;
  const next =
    side === "decoder" ? html`, where <b>${spelt(pieces.written[position])}</b> is written next` : "";
  const bars = says.map(
    ({ piece, share, next }) => html`<li class=${classes({ next })}><span>${spelt(piece)}</span>
      <span class="bar"><i style=${`width:${(100 * share).toFixed(1)}%`}></i></span><span>${share.toFixed(3)}</span></li>`,
  );
  return html`<p class="where"><b class="name">${nameOf(place)}</b><br />
      ${side}${inLayer}, at <b>${spelt(pieces[side][position])}</b>${next}: ${shapeOf(place)}</p>
    <div class="slot">${
      scene.weights
        ? html`<${Weights} scene=${scene} head=${head} onHead=${onHead} />`
        : html`<${Strip} ...${scene.strip} />`
    }</div>
    <ol>${bars}</ol>
    <p class="meaning">${meaningOf(scene)} <a href=${section}>About this box</a></p>`;
}

// The table ------------------------------------------------------------------------------------------

/** What stands in the panel, which may be out of sight, in a line. */
function inALine(scene) {
  const { place, layer, pieces } = scene;
  const side = sideOf(place);
  const at = placed(place).number < 0 ? "" : `, layer ${layer + 1}`;
  const where = `${side}: ${nameOf(place)}${at}, at ${spelt(pieces[side][scene[side]])}`;
  return `${where}: ${likelyOf(scene).join(", ")}`;
}

/** The logit lens of all positions: a row for each place in the stream. Arrow keys walk through it. */
function Lens({ scene, onChoose }) {
  const { pieces, size, tables } = scene;
  const side = sideOf(scene.place);
  const { rows, first } = tables[side];
  const stream = streamOf(side, size.layers);
  const chosen = rowOf(scene);
  const most = streamOf("decoder", size.layers).length; // room for the longer table

  function choose(row, position) {
    const { place, layer } = stream[row];
    onChoose({ place, [side]: position, ...(layer !== undefined && { layer }) });
  }

  function press(event, row, position) {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const next = [row + step[0], position + step[1]];
    const button = event.currentTarget
      .closest("tbody")
      .rows[next[0]]?.cells[next[1] + 1]?.querySelector("button");
    if (!button) return;
    button.focus();
    choose(...next);
  }

  const cell = (row, position) => {
    const { piece, share } = rows[row][position];
    const isStop = row === chosen.row && position === scene[side];
    const isFirst = row === first[position];
    return html`<td class=${classes({ first: isFirst })}><${Button}
      pressed=${isStop && chosen.exact} tabindex=${isStop ? 0 : -1} style=${tint(share)}
      title=${share.toFixed(3) + (isFirst ? ", what is written in the end" : "")}
      onClick=${() => choose(row, position)} onKeyDown=${(event) => press(event, row, position)}
    >${spelt(piece)}<//></td>`;
  };
  const body = stream.map(({ layer, name }, row) => {
    const number = layer === undefined ? "" : html`<span>${layer + 1}</span> `;
    return html`<tr class=${classes({ chosen: row === chosen.row, begins: layer !== stream[row - 1]?.layer })}>
      <th scope="row">${number}${name}</th>${rows[row].map((_, position) => cell(row, position))}
    </tr>`;
  });
  const headings = pieces[side].map((piece, position) => {
    const next = side === "decoder" ? html`<small>→ ${spelt(pieces.written[position])}</small>` : "";
    return html`<th scope="col" class=${classes({ chosen: position === scene[side] })}>${spelt(piece)}${next}</th>`;
  });
  const overruled = pieces.written
    .filter((_, position) => first[position] < 0)
    .map((piece) => `“${spelt(piece)}”`);
  const never = overruled.length
    ? ` Nowhere outlined is what was never the likeliest, but was written by the beam: ${overruled.join(", ")}.`
    : "";
  const says =
    side === "encoder"
      ? "The encoder never speaks: this is what the generator would say of its stream."
      : `Outlined is where a position first names what it writes in the end.${never}`;
  return html`<div class="lens" style=${`--rows:${most}`}>
    <p class="title">The logit lens of the whole ${side}: the likeliest subword at each place of its stream</p>
    <div class="scroll"><table aria-label=${`Logit lens of the ${side}: a row for each place of the stream, a column for each position`}>
      <thead><tr><td>layer, after</td>${headings}</tr></thead><tbody>${body}</tbody>
    </table></div>
    <p class="chosen-cell">${inALine(scene)}</p>
    <p class="legend">The deeper the colour, the more probable. ${says} The last two rows are alike, since the
      lens is the final norm and the generator.</p>
  </div>`;
}

// The figure -----------------------------------------------------------------------------------------

/** What is to be said of a text before, and of a scene after it has run through the model. */
export function hintOf(typed, scene) {
  const text = typed.trim();
  if (text === "") return hintFor(text);
  if (text !== scene.text) return "The sentence runs through the model …";
  if (scene.cut) return `It finds no end: the map shows its first ${scene.pieces.written.length} subwords.`;
  return hintFor(text, scene.pieces.encoder, LONGEST);
}

export function ModelMap({ scene: first }) {
  const [scene, setScene] = useState(first);
  const [typed, setTyped] = useState(first.text);
  const [head, setHead] = useState(null);
  const [touched, setTouched] = useState(false);
  const [line, run] = useModel();
  const wished = useRef(FIRST); // the last wish, perhaps not shown yet
  const waiting = useRef(null); // for the end of typing
  const resting = useRef(null); // for a mouse that stays
  const sections = useMemo(() => sectionsIn(first.drawing), []);

  async function wish(changes) {
    clearTimeout(resting.current);
    const before = wished.current;
    wished.current = { ...before, ...changes };
    const isShown = (each) => Object.keys(FIRST).every((key) => each[key] === scene[key]);
    if (isShown(before) && isShown(wished.current)) return;
    setTouched(true);
    const next = await run((model) => sceneOf(model, wished.current));
    if (next) setScene(next);
  }

  function point(place) {
    clearTimeout(resting.current);
    if (place === wished.current.place && place === scene.place) return;
    resting.current = setTimeout(() => wish({ place }), touched ? 0 : MOMENT);
  }

  function write(text, moment = 0) {
    setTyped(text);
    clearTimeout(waiting.current);
    const asked = text.trim();
    const isShown = asked === wished.current.text && asked === scene.text;
    if (asked && !isShown) waiting.current = setTimeout(() => wish({ text: asked }), moment);
  }

  /** Choose a position; on the other side, where its stack ends. */
  const choosing = (side) => (position) =>
    wish({ [side]: position, ...(sideOf(scene.place) !== side && { place: `${side} final` }) });

  const { pieces, size } = scene;
  const layers = [...Array(size.layers).keys()].map(
    (layer) =>
      html`<${Button} class="piece" pressed=${layer === scene.layer} onClick=${() => wish({ layer })}>${layer + 1}<//>`,
  );
  const decoder = { chosen: scene.decoder, onChoose: choosing("decoder") };
  return html`<div class=${classes({ map: true, touched })}>
    <div class="words">
      <label for="map-german">Your own sentence, in German</label>
      <input
        id="map-german" type="text" lang="de" maxlength=${LONGEST} autocomplete="off" spellcheck="false" value=${typed}
        onInput=${({ target }) => write(target.value, MOMENT)}
        onKeyDown=${({ key, target }) => key === "Enter" && write(target.value)}
      />
      <p class="translated" lang="en">${joined(pieces.written)}</p>
      <p class="line" role="status">${line || hintOf(typed, scene)}</p>
    </div>
    <div class="board">
      <div class="plan picture" onPointerLeave=${() => clearTimeout(resting.current)}>
        <${Drawing} drawing=${first.drawing} scene=${scene} onPoint=${point} onChoose=${(place) => wish({ place })} />
        <${Pieces} kind="source" label="Subwords of the source" pieces=${pieces.encoder} chosen=${scene.encoder} onChoose=${choosing("encoder")} />
        <${Pieces} kind="read" label="Subwords read so far" pieces=${pieces.decoder} ...${decoder} />
        <${Pieces} kind="written" label="Subwords written next" pieces=${pieces.written} ...${decoder} />
      </div>
      <div class="panel">
        <p class="hint">Point at a box and choose it, or choose a subword or a layer.</p>
        <div class="layers" role="group" aria-label="Layer"><span aria-hidden="true">layer</span>${layers}</div>
        <${Panel} scene=${scene} section=${sections[scene.place]} head=${head} onHead=${setHead} />
        <p class="heard" role="status">${touched ? heardOf(scene) : ""}</p>
      </div>
    </div>
    <${Lens} scene=${scene} onChoose=${wish} />
  </div>`;
}
