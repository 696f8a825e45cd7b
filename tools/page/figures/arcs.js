// The drawing of a translation: two rows of subwords, and arcs of attention between them.

import { SPACE } from "./model/subwords.js";
import { READS, WRITES } from "./lib/corpus.js";
import { arrows } from "./lib/keys.js";
import { spelt } from "./lib/text.js";
import { classes, html } from "./lib/ui.js";

const WALK = arrows(".piece", { line: true });
const LEAST = 0.09; // a weight that still gets an arc

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

/** What is to be seen of a piece of the source, in words. */
export function lookedAt({ source, decisions }, s) {
  const seen = decisions.map(({ piece, weights }) => ({ piece: spelt(piece), weight: weights[s] }));
  const most = seen.filter(({ weight }) => weight >= LEAST).sort((one, other) => other.weight - one.weight);
  const whom = most.map(({ piece, weight }) => `${piece} (${weight.toFixed(2)})`).join(", ");
  return `${spelt(source[s])}: ${whom ? `the model looks here to write ${whom}` : "no piece looks here much"}.`;
}

/**
 * Source and target in two rows, or in two columns (tall), and an arc for each weight: those of the
 * decision `at`, or all that lead to the piece `toward` of the source, stand out.
 */
export function Drawing({ scene, at, tall = false, toward = null, onChoose, onLook, ...rest }) {
  const { source, decisions } = scene;
  const lines = [source, decisions.map(({ piece }) => piece)].map((pieces) => alongLine(pieces, tall));
  const [near, far] = tall ? [140, 200] : [40, 116]; // where the two lines face each other
  const length = Math.max(...lines.map(endOf));
  const [width, height] = tall ? [340, length] : [Math.max(640, length), far + 40];
  const point = (along, across) => (tall ? `${across} ${along}` : `${along} ${across}`);
  const middle = (near + far) / 2;
  const looking = toward !== null;
  const state = (t) => ({
    now: !looking && t === at,
    later: !looking && t > at,
    yours: t === scene.chosen.length,
  });
  const arcs = decisions.slice(0, looking ? undefined : at).flatMap(({ weights }, t) =>
    weights.map((weight, s) => {
      if (weight < LEAST) return null;
      const [from, to] = [lines[1][t].middle, lines[0][s].middle];
      const d = `M${point(from, far)}C${point(from, middle)} ${point(to, middle)} ${point(to, near)}`;
      const name = classes(looking ? { now: s === toward, aside: s !== toward } : state(t + 1));
      return html`<path class=${name || null} stroke-width=${(9 * weight).toFixed(1)} d=${d} />`;
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
  const look = (s) => ({
    role: "button",
    "aria-label": lookedAt(scene, s),
    tabindex: s === (toward ?? 0) ? 0 : -1,
    onMouseEnter: () => onLook(s),
    onMouseLeave: ({ currentTarget }) => currentTarget === document.activeElement || onLook(null),
    onFocus: () => onLook(s),
    onBlur: () => onLook(null),
    onClick: () => onLook(s),
  });
  const goTo = (step) => ({
    role: "button",
    "aria-label": inWords(scene, step),
    tabindex: step === at ? 0 : -1,
    onClick: () => onChoose(step),
    onKeyDown: ({ key }) => key === "Enter" && onChoose(step),
  });
  const asked = source.map((piece, s) =>
    box(piece, lines[0][s], tall ? 0 : near - 36, classes({ now: s === toward }), onLook && look(s)),
  );
  const written = decisions.map(({ piece, share }, t) =>
    box(piece, lines[1][t], far, classes(state(t + 1)), {
      style: `--doubt:${Math.round(100 * (1 - share))}%`,
      ...(onChoose && goTo(t + 1)),
    }),
  );
  const label = at > decisions.length ? "" : inWords(scene, at);
  const image = { role: "img", "aria-label": label, ...rest };
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  if (!onLook) return html`<svg ...${size} ...${image}>${arcs.reverse()}${asked}${written}</svg>`;
  const least = tall ? null : `min-width:${Math.round(0.7 * width)}px`; // no letter is drawn smaller than that
  const group = (name, code, says) => ({ class: name, lang: code, role: "group", "aria-label": says });
  return html`<svg ...${size} style=${least}>
    <g ...${image}>${arcs.reverse()}</g>
    <g ...${group("german", READS.code, `${READS.name}: where the model looks`)} onKeyDown=${WALK}>${asked}</g>
    <g ...${group("written", WRITES.code, "Written: where each piece comes from")} onKeyDown=${WALK}>${written}</g>
  </svg>`;
}
