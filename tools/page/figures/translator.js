// The translator of the first screen: type a caption, see its translation, overrule it.
//
// A *plan* is what is wished for: a text, how to search, the ids that the reader has chosen, the
// head whose attention is drawn. The model makes a *scene* of it: plain data, all that is shown.
// The first scene is written into the page when it is built.

import { likeliest, sum } from "./model/arithmetic.js";
import { pathsTo, searchFor } from "./model/search.js";
import { finish } from "./model/slices.js";
import { SPACE } from "./model/subwords.js";
import { Controls, usePlayer } from "./lib/player.js";
import { hintFor } from "./lib/hints.js";
import { useModel } from "./lib/shipped.js";
import { continued, grouped, percent, SENTENCE, spelt } from "./lib/text.js";
import { Button, classes, html, useEffect, useLayoutEffect, useRef, useState } from "./lib/ui.js";

const CAPTIONS = [
  SENTENCE,
  "Ein alter Mann, der eine Zeitung liest, sitzt auf einer Bank.",
  "Drei Jungen klettern auf einen Baum, während ihre Mutter zusieht.",
  "Ein Schornsteinfeger trägt eine Leiter durch die Straße.",
  "Ich habe heute leider keine Zeit.",
];
const BEAM = 4; // of the paper, as alpha is
const ALPHA = 0.6;
const SHOWN_FIRST = 4; // decisions: A, little, girl, rais
const LEAST = 0.09; // a weight that still gets an arc
const LONGEST = 160; // letters of a sentence
const MOMENT = 250; // milliseconds after a key, before the model is asked

// From a plan to a scene -----------------------------------------------------------------------------

/** Cross-attention of a path at its next symbol: of one head, or the mean of a layer. */
function weightsOf(path, { layer, head }) {
  const heads = path.next.cross[layer];
  const weights =
    head === null ? heads[0].map((_, s) => sum(heads.map((row) => row[s])) / heads.length) : heads[head];
  return [...weights].map((weight) => Math.round(1000 * weight) / 1000);
}

/** The five likeliest at a decision, the one that was taken among them, and what the others have. */
function offersOf(model, path) {
  const { logProbs } = path.from.next;
  const taken = path.written[path.written.length - 1];
  const best = likeliest(logProbs, 5);
  if (best.every(({ id }) => id !== taken)) best[4] = { id: taken, logp: logProbs[taken] };
  const offers = best.map(({ id, logp }) => ({ id, piece: model.words[id], share: Math.exp(logp) }));
  const rest = 1 - sum(offers.map(({ share }) => share));
  return { offers, taken, rest: Math.max(0, rest), others: logProbs.length - offers.length };
}

/** All that is shown of a plan, as work that yields. */
export function* sceneOf(model, plan) {
  const search = yield* searchFor(model, plan.text);
  let last = search.start;
  const chosen = []; // an address may ask for what there is not
  for (const id of plan.chosen) {
    if (!last.next || id >= model.words.length) continue;
    last = search.extend(last, id);
    chosen.push(id);
  }
  if (plan.beam) last = yield* search.translating(BEAM, ALPHA, last);
  else for (last of search.greedy(last)) yield;
  const paths = pathsTo(last);
  const source = search.ids.map((id) => model.words[id]);
  const runaway = "It finds no end, and is stopped after fifty subwords more than the source has.";
  return {
    ...plan,
    chosen,
    source,
    ids: last.written,
    decisions: paths.map((path) => ({
      piece: model.words[path.written[path.written.length - 1]],
      share: Math.exp(path.logp - path.from.logp),
      before: model.decode(path.from.written),
      weights: weightsOf(path.from, plan.view),
      ...offersOf(model, path),
    })),
    hint: last.ended ? hintFor(plan.text, source, LONGEST) : runaway,
    size: { layers: model.N, heads: model.h },
  };
}

const firstPlan = (model) => ({
  text: SENTENCE,
  beam: true,
  chosen: [],
  view: { layer: model.N - 1, head: null },
});

/** What the page shows before anybody has touched it. */
export const firstScene = (model) => finish(sceneOf(model, firstPlan(model)));

// Drawing --------------------------------------------------------------------------------------------

const apart = (piece) => piece.startsWith(SPACE) || piece === "</s>";

/** Boxes along a line, those of one word close together: what comes later moves none of them. */
function alongLine(pieces, tall) {
  let end = 4;
  return pieces.map((piece, i) => {
    const size = tall ? 28 : 12 + 10 * [...spelt(piece)].length;
    const from = end + (i === 0 ? 0 : apart(piece) ? 10 : 3);
    end = from + size;
    return { from, size, middle: from + size / 2, end };
  });
}

const endOf = (boxes) => Math.max(...boxes.map(({ end }) => end)) + 4;

/** What is to be seen of a decision, in words. */
export function inWords({ source, decisions, chosen = [] }, at) {
  const decision = decisions[at - 1];
  const seen = decision.weights.map((weight, s) => ({ weight, piece: spelt(source[s]) }));
  const most = seen.filter(({ weight }) => weight >= LEAST).sort((one, other) => other.weight - one.weight);
  const looks = most.map(({ weight, piece }) => `${piece} (${weight.toFixed(2)})`).join(", ");
  const after = decision.before ? ` after “${decision.before}”` : " first";
  const what = decision.piece === "</s>" ? "To end" : `To write ${spelt(decision.piece)}`;
  const whose = at === chosen.length ? "Your choice. " : "";
  return `${whose}${what}${after}, the model looks at ${looks || "nothing in particular"}.`;
}

/** Source and target in two rows, or in two columns (tall), and an arc for each weight. */
export function Drawing({ scene, at, tall = false, onChoose, ...rest }) {
  const { source, decisions } = scene;
  const lines = [source, decisions.map(({ piece }) => piece)].map((pieces) => alongLine(pieces, tall));
  const [near, far] = tall ? [140, 200] : [40, 150]; // where the two lines face each other
  const length = Math.max(...lines.map(endOf));
  const [width, height] = tall ? [340, length] : [Math.max(640, length), far + 40];
  const point = (along, across) => (tall ? `${across} ${along}` : `${along} ${across}`);
  const middle = (near + far) / 2;
  const state = (t) => ({ now: t === at, later: t > at, yours: t === scene.chosen.length });
  const arcs = decisions.slice(0, at).flatMap(({ weights }, t) =>
    weights.map((weight, s) => {
      if (weight < LEAST) return null;
      const [from, to] = [lines[1][t].middle, lines[0][s].middle];
      const d = `M${point(from, far)}C${point(from, middle)} ${point(to, middle)} ${point(to, near)}`;
      return html`<path class=${classes(state(t + 1)) || null} stroke-width=${(9 * weight).toFixed(1)} d=${d} />`;
    }),
  );
  const box = (piece, { from, size, middle: center }, edge, name, more) => {
    const frame = tall
      ? { x: edge, y: from, width: 140, height: size }
      : { x: from, y: edge, width: size, height: 36 };
    const [x, y] = tall ? [edge + 70, center + 6] : [center, edge + 24];
    return html`<g class=${`piece ${name}`} ...${more}>
      <rect rx="8" ...${frame} /><text x=${x} y=${y}>${spelt(piece)}</text>
    </g>`;
  };
  const asked = source.map((piece, s) => box(piece, lines[0][s], tall ? 0 : near - 36, "", {}));
  const written = decisions.map(({ piece, share }, t) =>
    box(piece, lines[1][t], far, classes(state(t + 1)), {
      style: `--doubt:${Math.round(100 * (1 - share))}%`,
      onClick: onChoose && (() => onChoose(t + 1)),
    }),
  );
  const label = at > decisions.length ? "" : inWords(scene, at);
  const least = tall || !onChoose ? null : `min-width:${Math.round(0.7 * width)}px`; // no letter is drawn smaller than that
  return html`<svg viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} style=${least} role="img" aria-label=${label} ...${rest}>
    ${arcs.reverse()}${asked}${written}
  </svg>`;
}

/** The end of what was written, as much as fits a line. */
const tailOf = (text) => (text.length > 30 ? `…${text.slice(-29)}` : text);

/** The likeliest subwords of a decision, each a button that overrules it; last, all others. */
function Offers({ decision, onChoose }) {
  const { before, offers, taken, rest, others } = decision;
  const item = ({ id, piece, share }, rank) => html`<li key=${rank}>
    <${Button} pressed=${id === taken} onClick=${() => onChoose(id)}>
      <span>${continued(piece)}</span><i style=${`width:${(100 * share).toFixed(1)}%`}></i><b>${percent(share)}</b>
    <//>
  </li>`;
  return html`<div class="offers">
    <p>${before ? html`What may follow “${tailOf(before)}”` : "What may come first"}<span class="choose">: choose another, and it goes on from there</span></p>
    <ol>${offers.map(item)}</ol>
    <p class="rest" title="Training asked for it: label smoothing gives a tenth of each target to the others.">
      <span>${grouped(others)} others</span><i style=${`width:${(100 * rest).toFixed(1)}%`}></i><b>${percent(rest)}</b>
    </p>
    <p class="honest">That much for the others is no accident: <a href="#label-smoothing">training</a> gives them a share of every target.</p>
  </div>`;
}

/** A grid of buttons: for each layer the mean of its heads (null), and every head. */
function Heads({ size, view, onChoose }) {
  const cell = (layer, head) => {
    const name = `layer ${layer + 1}, ${head === null ? "mean of its heads" : `head ${head + 1}`}`;
    const pressed = layer === view.layer && head === view.head;
    return html`<${Button} aria-label=${name} title=${name} pressed=${pressed} onClick=${() => onChoose({ layer, head })}>
      ${head === null ? "mean" : head + 1}
    <//>`;
  };
  const count = (length) => [...Array(length).keys()];
  const rows = count(size.layers).map(
    (layer) =>
      html`<div><span aria-hidden="true">layer ${layer + 1}</span>${[null, ...count(size.heads)].map((head) => cell(layer, head))}</div>`,
  );
  return html`<div class="heads" role="group" aria-label="Layer and head whose attention is drawn"><p>Arcs: attention to the source</p>${rows}</div>`;
}

/** The translation, its subwords tinted by how sure the model was of them. */
function English({ scene, at, busy }) {
  const words = scene.decisions.filter(({ piece }) => piece !== "</s>");
  const span = ({ piece, share }, t) =>
    html`${t && piece.startsWith(SPACE) ? " " : ""}<span
      class=${classes({ now: t + 1 === at, yours: t + 1 === scene.chosen.length })}
      style=${`--doubt:${Math.round(100 * (1 - share))}%`}
    >${piece.replace(SPACE, "")}</span>`;
  return html`<p class="english" lang="en" aria-live="polite" aria-busy=${String(busy)}>${words.length ? words.map(span) : "…"}</p>`;
}

// In an address --------------------------------------------------------------------------------------

/** `#s=sentence`, with `g` for greedy decoding, and a `w` for each id that the reader has chosen. */
export function addressOf({ text, beam, chosen }) {
  const parts = [
    `s=${encodeURIComponent(text)}`,
    ...(beam ? [] : ["g"]),
    ...(chosen.length ? [`w=${chosen.join(".")}`] : []),
  ];
  return `#${parts.join("&")}`;
}

/** What an address asks for; null where it asks for no sentence, or for what cannot be. */
export function planIn(hash) {
  if (!hash.startsWith("#s=")) return null;
  const asked = new Map(
    hash
      .slice(1)
      .split("&")
      .map((part) => part.split("=")),
  );
  const chosen = (asked.get("w") ?? "").split(".").filter(Boolean).map(Number);
  if (!chosen.every((id) => Number.isInteger(id) && id >= 0)) return null;
  try {
    const text = [...decodeURIComponent(asked.get("s"))].slice(0, LONGEST).join("").trim();
    return text ? { text, beam: !asked.has("g"), chosen } : null;
  } catch {
    return null; // an address may hold anything
  }
}

// The figure -----------------------------------------------------------------------------------------

export function Translator({ scene: first }) {
  const [scene, setScene] = useState(first);
  const [typed, setTyped] = useState(first.text);
  const [copied, setCopied] = useState(null); // what came of it
  const [line, run] = useModel();
  const player = usePlayer(first.decisions.length, { at: SHOWN_FIRST });
  const wished = useRef(first); // the last plan, perhaps not shown yet
  const waiting = useRef(null);
  const drawings = useRef(null);

  /** Change the plan; once its scene is there, `then` says where to look. */
  async function wish(changes, then) {
    clearTimeout(waiting.current);
    const { text, beam, chosen, view } = { ...wished.current, ...changes };
    wished.current = { text, beam, chosen, view };
    setCopied(null);
    if (planIn(location.hash)) history.replaceState(null, "", addressOf(wished.current)); // no stale one
    const next = await run((model) => sceneOf(model, wished.current));
    if (!next) return;
    setScene(next);
    then(next.decisions.length);
  }

  const fromStart = (count) => {
    player.restart(count);
    player.play();
  };

  function write(text, moment = 0) {
    setTyped(text);
    clearTimeout(waiting.current);
    const wanted = text.trim();
    // A wish that could not be fulfilled may be made again.
    const changed = wanted && (wanted !== wished.current.text || wanted !== scene.text);
    if (changed)
      waiting.current = setTimeout(() => wish({ text: text.trim(), chosen: [] }, fromStart), moment);
  }

  const overrule = (id) =>
    wish({ chosen: [...scene.ids.slice(0, player.at - 1), id] }, (count) => {
      const { at } = player;
      player.restart(count, at);
      if (at < count) player.play();
    });

  async function copyLink() {
    const address = addressOf(wished.current);
    history.replaceState(null, "", address);
    const done = navigator.clipboard?.writeText(location.href) ?? Promise.reject();
    setCopied(
      await done.then(
        () => "Copied",
        () => "It is in the address bar",
      ),
    );
  }

  useEffect(() => {
    const arrive = () => {
      const plan = planIn(location.hash);
      if (!plan) return;
      setTyped(plan.text);
      wish(plan, fromStart);
    };
    arrive();
    addEventListener("hashchange", arrive);
    return () => removeEventListener("hashchange", arrive);
  }, []);

  const at = Math.min(player.at, scene.decisions.length);
  useLayoutEffect(() => {
    if (player.turn === 0) return; // nobody has touched it
    const [rows] = drawings.current.children;
    const box = rows.querySelector(".piece.now");
    if (box) rows.scrollLeft += box.getBoundingClientRect().right - rows.getBoundingClientRect().right + 100;
  }, [scene, at]);
  const hint = typed.trim() === scene.text ? scene.hint : hintFor(typed, [], LONGEST);
  const drawing = (tall) => html`<div class=${`${tall ? "columns" : "rows"} scroll`}>
    <${Drawing} scene=${scene} at=${at} tall=${tall} onChoose=${(t) => player.show(t)} />
  </div>`;
  return html`<div class="translator">
    <div class="words">
      <label for="german">Type a caption in German</label>
      <input
        id="german" type="text" lang="de" maxlength=${LONGEST} autocomplete="off" spellcheck="false" value=${typed}
        onInput=${({ target }) => write(target.value, MOMENT)}
        onKeyDown=${({ key, target }) => key === "Enter" && write(target.value)}
      />
      <${English} scene=${scene} at=${at} busy=${player.playing} />
      <p class="line" role="status">${line || hint}</p>
    </div>
    <div class="drawings" ref=${drawings}>${[false, true].map(drawing)}</div>
    <p class="reads">${inWords(scene, at)}</p>
    <div class="controls">
      <${Controls} player=${player} />
      <label>written by <select autocomplete="off" value=${scene.beam ? "beam" : "greedy"}
        onChange=${({ target }) => wish({ beam: target.value === "beam" }, fromStart)}>
        <option value="beam">a beam of four</option><option value="greedy">greedy decoding</option>
      </select></label>
      ${scene.chosen.length ? html`<${Button} onClick=${() => wish({ chosen: [] }, fromStart)}>take your choice back<//>` : ""}
      <${Button} onClick=${copyLink}>${copied ?? "Copy the link to this"}<//>
    </div>
    <div class="chips scroll" lang="de" role="group" aria-label="Captions to try">
      ${CAPTIONS.map((text) => html`<${Button} onClick=${() => write(text)}>${text}<//>`)}
    </div>
    <p class="honest">It has read 29,000 captions and their translations, nothing else. Away from captions it babbles.</p>
    <div class="below">
      <${Offers} decision=${scene.decisions[at - 1]} onChoose=${overrule} />
      <${Heads} size=${scene.size} view=${scene.view} onChoose=${(view) => wish({ view }, () => {})} />
    </div>
  </div>`;
}
