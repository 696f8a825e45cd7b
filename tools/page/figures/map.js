// The plan of the model as a map, with a sentence in it. Pointing at a box shows the vector that a
// position has there, and the logit lens: what the generator would say of it.

import { all } from "../script/dom.js";
import { ALPHA, BEAM, escaped, modelFor } from "./lib/old.js";
import { SENTENCE, spelt } from "./lib/text.js";
import { likeliest, normalise } from "./model/arithmetic.js";
import { Search } from "./model/search.js";
import { finish } from "./model/slices.js";
import { START } from "./model/subwords.js";

const FIRST = { place: "decoder cross sum", layer: 1, encoder: 6, decoder: 7 }; // in the still picture
const PARTS = { encoder: ["attention", "feed-forward"], decoder: ["attention", "cross", "feed-forward"] };
const NAMES = {
  embedding: "embedding · √D", positions: "embedding + positions", cross: "cross-attention", final: "final norm",
};
const COLUMNS = 32, SHADES = 8;

// A place is what a box of the drawing has as data-place: "decoder cross norm", "decoder cross" (what
// cross-attention adds), "decoder cross sum" (the stream after it), "decoder final", …

const sideOf = (place) => place.split(" ")[0];

function nameOf(place) {
  const [side, part, kind] = place.split(" ");
  const self = side === "encoder" ? "self-attention" : "masked self-attention";
  const name = part === "attention" ? self : NAMES[part] ?? part;
  if (kind === "norm") return `norm before ${name}`;
  if (kind === "sum") return `sum after ${name}`;
  return PARTS[side].includes(part) ? `${name}: what it adds` : name;
}

// What the model does with the sentence ----------------------------------------------------------

/** The ids of the sentence and the ids of its translation, and the stream after each sum. */
function follow(model, written) {
  const source = model.encode(SENTENCE), target = [START, ...written.slice(0, -1)];
  const encoder = source.map(() => []); // by position, from the embedding on
  const memory = finish(model.reading(source, (states) => states.forEach((state, i) => encoder[i].push(state))));
  let past = null;
  const decoder = target.map((id) => {
    const stream = [];
    past = model.step(memory, past, id, (state) => stream.push(state)).past;
    return stream;
  });
  return { model, written, ids: { encoder: source, decoder: target }, streams: { encoder, decoder } };
}

/** The vector that a position has at a place, in a layer. */
function vectorAt({ model, ids, streams }, place, layer, position) {
  const [side, part, kind] = place.split(" ");
  const stream = streams[side][position], number = PARTS[side].indexOf(part);
  if (part === "embedding") {
    const from = ids[side][position] * model.d_model;
    return model.vectors.slice(from, from + model.d_model).map((value) => value * Math.sqrt(model.d_model));
  }
  if (part === "positions") return stream[0];
  if (number < 0) return normalise(stream[stream.length - 1], model.norms[side]);
  const before = layer * PARTS[side].length + number;
  if (kind === "norm") return normalise(stream[before], model[side][layer].norms[number]);
  const after = stream[before + 1];
  return kind === "sum" ? after : after.map((value, i) => value - stream[before][i]);
}

/** The logit lens: the final norm of the stack, then the generator. */
function lens({ model }, place, vector) {
  const ready = /final|memory|generator/.test(place);
  const side = sideOf(place);
  return likeliest(model.next(ready ? vector : normalise(vector, model.norms[side])), 5);
}

/** The likeliest piece there. */
function saidAt(run, place, { layer, ...at }) {
  const vector = vectorAt(run, place, layer, at[sideOf(place)]);
  return spelt(run.model.words[lens(run, place, vector)[0].id]);
}

// The panel --------------------------------------------------------------------------------------

/** A vector as a table of colours: one path for each shade. */
function strip(vector) {
  const largest = Math.max(...vector.map(Math.abs)), paths = {};
  vector.forEach((value, i) => {
    const shade = Math.ceil((Math.abs(value) / largest) * SHADES);
    const name = `class="${value < 0 ? "below" : "above"}" fill-opacity="${shade / SHADES}"`;
    paths[name] = `${paths[name] ?? ""}M${i % COLUMNS} ${Math.floor(i / COLUMNS)}h1v1h-1z`;
  });
  const drawn = Object.entries(paths).map(([name, path]) => `<path ${name} d="${path}"/>`).join("");
  const length = Math.hypot(...vector).toFixed(1), most = largest.toFixed(1);
  return `<svg class="strip" viewBox="0 0 ${COLUMNS} ${vector.length / COLUMNS}" role="img"
    aria-label="${vector.length} numbers as colours">${drawn}</svg>
    <p class="legend">${vector.length} numbers: <span class="above"></span> above zero,
    <span class="below"></span> below; the largest in size ${most}, the length <b>${length}</b></p>`;
}

function bars({ model, written }, place, position, best) {
  const next = place.startsWith("decoder") ? written[position] : null;
  return best.map(({ id, logp }) => {
    const share = Math.exp(logp);
    return `<li${id === next ? ' class="next"' : ""}><span>${escaped(spelt(model.words[id]))}</span>
      <span class="bar"><span style="width:${(100 * share).toFixed(1)}%"></span></span>
      <span>${share.toFixed(3)}</span></li>`;
  }).join("");
}

function meaning(place) {
  const [side, part, kind] = place.split(" ");
  const adds = PARTS[side].includes(part) && !kind;
  if (side === "encoder" && !adds) return "A curiosity here, since the encoder never speaks: it shares its matrix of " +
    "vectors with the generator, so the stream often names the German subword itself.";
  if (/final|generator/.test(part)) return "What the generator does say: the probability of each next token.";
  if (adds) return "What the generator would say if it heard nothing but this part.";
  if (kind === "norm") return "The stream as the next part reads it, and what the generator would say of that.";
  return "What the generator would say if all later layers were left out, and only the final norm were kept: " +
    "the <em>logit lens</em>.";
}

function panel(run, section, { place, layer, ...at }) {
  const side = sideOf(place), position = at[side];
  const word = (id) => `<b>${escaped(spelt(run.model.words[id]))}</b>`;
  const next = side === "decoder" ? `, where ${word(run.written[position])} is written next` : "";
  const vector = vectorAt(run, place, layer, position);
  const inLayer = PARTS[side].includes(place.split(" ")[1]) ? `, layer ${layer + 1} of ${run.model.N}` : "";
  const made = place === "decoder generator" ? ", from which it makes one of (B, T, V)" : "";
  return `<p class="where"><b>${nameOf(place)}</b><br>${side}${inLayer},
    at ${word(run.ids[side][position])}${next}: one row of (B, ${side === "encoder" ? "S" : "T"}, D)${made}</p>
    ${strip(vector)}<ol>${bars(run, place, position, lens(run, place, vector))}</ol>
    <p>${meaning(place)} <a href="${section}">About this box</a></p>`;
}

// The whole picture --------------------------------------------------------------------------------

/** The drawing in its own size, its boxes named, and at each sum what is said there. */
function drawing(run, data, shown) {
  return data.replace(/ viewbox="[^"]*"/i, "")
    .replace(/data-place="([^"]+)"/g, (attribute, place) =>
      `${attribute} aria-label="${sideOf(place)}: ${nameOf(place)}"${place === shown.place ? ' class="chosen"' : ""}`)
    .replace(/(data-place="(\S+) (\S+) sum".*?x="(\d+)" y="(\d+)".*?)<\/a>/gs, (_, box, side, part, x, y) => {
      const [left, anchor] = side === "encoder" ? [Number(x) + 19, "start"] : [Number(x) - 19, "end"];
      const said = escaped(saidAt(run, `${side} ${part} sum`, shown));
      const where = `x="${left}" y="${Number(y) + 5}" style="text-anchor:${anchor}"`;
      return `${box}<text class="said" ${where}>${said}</text></a>`;
    });
}

function pieces(run, kind, ids, chosen, label) {
  const spans = ids.map((id, i) =>
    `<span class="piece${i === chosen ? " chosen" : ""}">${escaped(spelt(run.model.words[id]))}</span>`).join("");
  return `<div class="pieces ${kind}" role="group" aria-label="${label}">${spans}</div>`;
}

export const still = (model, data) => {
  const search = finish(Search.opening(model, SENTENCE));
  const { written } = finish(search.translating(BEAM, ALPHA));
  const run = follow(model, written), [box] = data.match(new RegExp(`<a [^>]*data-place="${FIRST.place}"[^>]*`));
  const [, section] = box.match(/href="([^"]+)"/);
  return `<div class="map" data-written="${written.join(" ")}" data-layers="${model.N}">
    <div class="plan picture">${drawing(run, data, FIRST)}
      ${pieces(run, "source", run.ids.encoder, FIRST.encoder, "Subwords of the source")}
      ${pieces(run, "read", run.ids.decoder, FIRST.decoder, "Subwords read so far")}
      ${pieces(run, "written", written, FIRST.decoder, "Subwords written next")}</div>
    <div class="panel"><div class="layers" role="group" aria-label="Layer" hidden></div>
      <div class="reading">${panel(run, section, FIRST)}</div></div>
  </div>`;
};

export const live = (figure) => {
  const map = figure.querySelector(".map"), written = map.dataset.written.split(" ").map(Number);
  const [line, heard] = ["line", "heard"].map((className) =>
    Object.assign(document.createElement("p"), { className, role: "status" }));
  const boxes = all("[data-place]", map), layers = map.querySelector(".layers");
  const shown = { ...FIRST };
  let run; // what the model has made of the sentence
  let resting; // a mouse that only passes by asks for no model
  map.querySelector(".panel").append(line, heard);

  function draw() {
    const section = boxes.find((box) => box.dataset.place === shown.place).getAttribute("href");
    map.querySelector(".reading").innerHTML = panel(run, section, shown);
    heard.textContent = all(".panel li", map).map((item) => item.innerText).join(", ");
    for (const box of boxes) {
      box.classList.toggle("chosen", box.dataset.place === shown.place);
      const said = box.querySelector(".said");
      if (said) said.textContent = saidAt(run, box.dataset.place, shown);
    }
    for (const button of all("button", map)) {
      const { side, number } = button.dataset;
      button.setAttribute("aria-pressed", shown[side] === Number(number));
      button.classList.toggle("chosen", shown[side] === Number(number));
    }
  }

  /** Take a choice over, and show it: at the first touch the model has to be read before. */
  async function show(choice) {
    clearTimeout(resting);
    Object.assign(shown, choice);
    map.classList.add("touched");
    const model = await modelFor(line);
    if (!model) return;
    run ??= follow(model, written);
    draw();
  }

  /** Show it after a moment. */
  function showSoon(choice) {
    clearTimeout(resting);
    resting = setTimeout(() => show(choice), run ? 0 : 250);
  }

  /** A button that chooses a position of a side, or a layer. */
  function chooser(text, side, number) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    Object.assign(button.dataset, { side, number });
    button.className = shown[side] === number ? "piece chosen" : "piece";
    button.setAttribute("aria-pressed", shown[side] === number);
    button.addEventListener("click", () => {
      const moves = side !== "layer" && sideOf(shown.place) !== side;
      show({ [side]: number, ...(moves && { place: `${side} final` }) });
    });
    return button;
  }

  for (const group of all(".pieces", map)) {
    const side = group.classList.contains("source") ? "encoder" : "decoder";
    all("span", group).forEach((span, i) => span.replaceWith(chooser(span.textContent, side, i)));
    if (group.classList.contains("written")) all("button", group).forEach((button) => (button.tabIndex = -1)); // as "read"
  }
  const choices = Array.from({ length: map.dataset.layers }, (_, layer) => chooser(layer + 1, "layer", layer));
  layers.append("layer ", ...choices);
  layers.insertAdjacentHTML("beforebegin", '<p class="hint">Point at a box, or choose a subword or a layer.</p>');
  layers.hidden = false;

  for (const box of boxes) {
    const { place } = box.dataset;
    for (const kind of ["pointerenter", "focus"]) box.addEventListener(kind, () => showSoon({ place }));
    box.addEventListener("click", (event) => { // the keyboard follows the link; who points has one in the panel
      if (event.detail) event.preventDefault();
      show({ place });
    });
  }
  map.querySelector(".plan").addEventListener("pointerleave", () => clearTimeout(resting));
};
