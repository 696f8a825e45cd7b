// Arcs of attention between the subwords that are read and those that are written: on the lines of text that a reader
// plays with, and in a drawing of its own for paper, and where there are no scripts.

import { READS, WRITES } from "./lib/corpus.js";
import { goesOn, spelt } from "./lib/text.js";
import { classes, html, useLayoutEffect, useRef, useState } from "./lib/ui.js";

/** Arcs of decisions, each from its place to those of the source that it looks at; `nameOf(t)` is a class. */
function Arcs({ decisions, from, to, nameOf }) {
  const arcs = decisions.flatMap(({ weights }, t) =>
    weights.map((weight, s) => {
      if (!weight || !from[t] || !to[s]) return null;
      const [[x, y], [far, up]] = [from[t], to[s]];
      const middle = (y + up) / 2;
      const d = `M${x} ${y}C${x} ${middle} ${far} ${middle} ${far} ${up}`;
      return html`<path class=${nameOf(t) || null} stroke-width=${(9 * weight).toFixed(1)} d=${d} />`;
    }),
  );
  return arcs.reverse();
}

/** What is to be seen of decisions, in words. */
export function inWords({ source, decisions }, word) {
  const seen = (t) => {
    const all = decisions[t].weights.map((weight, s) => ({ weight, piece: spelt(source[s]) }));
    const most = all.filter(({ weight }) => weight).sort((one, other) => other.weight - one.weight);
    const told = most.slice(0, 2).map(({ weight, piece }) => `“${piece}” (${weight.toFixed(2)})`);
    return told.join(", ") || "nothing in particular";
  };
  if (word.length === 1) return `at ${seen(word[0])}`;
  return word.map((t) => `for “${spelt(decisions[t].piece)}” at ${seen(t)}`).join(", ");
}

// On paper -------------------------------------------------------------------------------------------

/** Boxes along a line, those of one word close together. */
function alongLine(pieces) {
  let end = 4;
  return pieces.map((piece, i) => {
    const from = end + (i === 0 ? 0 : goesOn(piece) || !/\w/.test(piece) ? 3 : 10);
    const size = 12 + 10 * [...spelt(piece)].length;
    end = from + size;
    return { from, size, middle: from + size / 2, end };
  });
}

/** Source and target in two rows, and an arc for each weight. */
export function Drawing({ scene, label }) {
  const { source, decisions, says } = scene;
  const lines = [source, decisions.map(({ piece }) => piece)].map(alongLine);
  const width = Math.max(640, ...lines.flat().map(({ end }) => end + 4));
  const [to, from] = [
    lines[0].map(({ middle }) => [middle, 40]),
    lines[1].map(({ middle }) => [middle, 116]),
  ];
  const box = (piece, { from: x, size, middle }, y, style) => html`<g class="piece" style=${style}>
    <rect rx="8" x=${x} y=${y} width=${size} height="36" /><text x=${middle} y=${y + 24}>${spelt(piece)}</text>
  </g>`;
  return html`<svg viewBox=${`0 0 ${width} 156`} width=${width} height="156" role="img" aria-label=${label ?? `Written: “${says}”`}>
    <${Arcs} decisions=${decisions} from=${from} to=${to} nameOf=${() => ""} />
    <g lang=${READS.code}>${source.map((piece, s) => box(piece, lines[0][s], 4))}</g>
    <g lang=${WRITES.code}>${decisions.map(({ piece, share }, t) =>
      box(piece, lines[1][t], 116, `--doubt:${Math.round(100 * (1 - share))}%`),
    )}</g>
  </svg>`;
}

// On lines of text -----------------------------------------------------------------------------------

/** Where the middle of each subword is, at its lower or upper edge, in a box. */
function middles(box, selector, edge) {
  const { left, top } = box.getBoundingClientRect();
  return [...box.querySelectorAll(selector)].map((each) => {
    const place = each.getBoundingClientRect();
    return [place.left + place.width / 2 - left, place[edge] - top].map(Math.round);
  });
}

/**
 * Arcs behind the lines of a box with `[data-s]` and `[data-t]`, which are measured whenever they move, as is the place of
 * the open word, `--left` around the box. `nameOf(t)` is the class of a decision. Where nothing is looked at any more, the last arcs fall.
 */
export function LiveArcs({ box, scene, nameOf, label }) {
  const [places, place] = useState({ from: [], to: [] });
  const standing = useRef(null);
  const measure = () => {
    const left = box.current.querySelector("[aria-expanded=true]")?.offsetLeft ?? 0;
    box.current.parentElement.style.setProperty("--left", `${left}px`);
    const now = {
      from: middles(box.current, "[data-t]", "top"),
      to: middles(box.current, "[data-s]", "bottom"),
    };
    place((before) => (JSON.stringify(now) === JSON.stringify(before) ? before : now));
  };
  useLayoutEffect(measure);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const { decisions, off } = scene;
  const blind = off.includes("eyes");
  if (!blind) standing.current = { decisions, ...places };
  return html`<svg class=${classes({ arcs: true, fallen: blind })} role="img" aria-label=${label}>
    ${standing.current && html`<${Arcs} ...${standing.current} nameOf=${blind ? () => "" : nameOf} />`}
  </svg>`;
}
