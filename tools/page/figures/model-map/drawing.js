// The drawing: the encoder on the left, the decoder on the right, one layer of each, and the stream that runs down
// through them. Each box is a button; at each sum stands what the generator would write there.

import { arrows } from "../lib/keys.js";
import { spelt } from "../lib/text.js";
import { classes, html } from "../lib/ui.js";
import { nameOf, placed, sideOf } from "./places.js";

const WIDTH = 400;
const HEIGHT = 438;
const CENTRE = { encoder: 96, decoder: 304 };
const WIDE = 152; // of a box
const BLOCK = 78; // from one part of a layer to the next
const TOP = 106; // of the first norm
const KINDS = {
  embedding: "embedding",
  positions: "embedding",
  final: "norm",
  memory: "output",
  generator: "output",
};

/** A part of a layer: the norm, the part, the sum after it. */
function blockOf(side, part, number, label, kind) {
  const y = TOP + BLOCK * number;
  return [
    { place: `${side} ${part} norm`, y, high: 18, label: "norm", kind: "norm" },
    { place: `${side} ${part}`, y: y + 26, high: 24, label, kind },
    { place: `${side} ${part} sum`, y: y + 62, high: 0, kind: "norm" }, // a circle around its y
  ];
}

/** All boxes of a side: { place, y, high, label, kind }. */
function boxesOf(side) {
  const outside = (part, y, high, label) => ({ place: `${side} ${part}`, y, high, label, kind: KINDS[part] });
  const before = [
    outside("embedding", 38, 22, "embedding · √D"),
    outside("positions", 60, 20, "+ positions"),
  ];
  if (side === "encoder")
    return [
      ...before,
      ...blockOf(side, "attention", 0, "self-attention", "attention"),
      ...blockOf(side, "feed-forward", 1, "feed-forward", "feed"),
      outside("final", 270, 20, "final norm"),
      outside("memory", 304, 24, "memory"),
    ];
  return [
    ...before,
    ...blockOf(side, "attention", 0, "masked self-attention", "attention"),
    ...blockOf(side, "cross", 1, "cross-attention", "attention"),
    ...blockOf(side, "feed-forward", 2, "feed-forward", "feed"),
    outside("final", 348, 20, "final norm"),
    outside("generator", 380, 24, "generator"),
  ];
}

/** With what a finger may hit: half of the gap to the next box above and below. */
function withRoom(boxes) {
  const middle = (above, below) => (above.y + (above.high || 9) + below.y - (below.high ? 0 : 9)) / 2;
  return boxes.map((box, i) => ({
    ...box,
    from: i ? Math.max(middle(boxes[i - 1], box), box.y - 20) : box.y - 12,
    to: boxes[i + 1] ? Math.min(middle(box, boxes[i + 1]), box.y + box.high + 20) : box.y + box.high + 12,
  }));
}

const BOXES = [...withRoom(boxesOf("encoder")), ...withRoom(boxesOf("decoder"))];

/** Where the dot stands while a box is chosen. */
function spotOf(place) {
  const { y, high } = BOXES.find((box) => box.place === place);
  return [CENTRE[sideOf(place)] - (high ? WIDE / 2 : 0), y + high / 2];
}

/** The lines of the stream, and the way around each part. */
function Lines() {
  const paths = ["encoder", "decoder"].flatMap((side) => {
    const x = CENTRE[side];
    const parts = side === "encoder" ? 2 : 3;
    const end = side === "encoder" ? 304 : 412;
    const edge = side === "encoder" ? 10 : WIDTH - 10;
    const bow = Math.sign(edge - x) * 10;
    const around = Array.from({ length: parts }, (_, number) => {
      const [from, to] = [TOP - 9 + BLOCK * number, TOP + 62 + BLOCK * number];
      return `M${x} ${from}H${edge - bow}Q${edge} ${from} ${edge} ${from + 10}V${to - 10}Q${edge} ${to} ${edge - bow} ${to}H${x}`;
    });
    return [`M${x} 24V${end}`, ...around];
  });
  const toCross = TOP + BLOCK + 38;
  const bridge = `M${CENTRE.encoder + WIDE / 2} 316H190Q200 316 200 306V${toCross + 10}Q200 ${toCross} 210 ${toCross}H${CENTRE.decoder - WIDE / 2 - 4}`;
  return html`<g class="lines">${paths.map((d) => html`<path d=${d} />`)}
    <path d=${bridge} /><path class="tip" d=${`M${CENTRE.decoder - WIDE / 2 - 9} ${toCross - 4}l8 4l-8 4z`} /></g>`;
}

function Box({ box, scene, off, label, onPoint, onChoose }) {
  const { place, y, high, kind, from, to } = box;
  const { side, kind: role } = placed(place);
  const x = CENTRE[side];
  const inside =
    role === "sum"
      ? html`<circle class=${`kind-${kind}`} cx=${x} cy=${y} r="9" /><path class="plus" d=${`M${x - 5} ${y}h10M${x} ${y - 5}v10`} />`
      : html`<rect class=${`kind-${kind}`} x=${x - WIDE / 2} y=${y} width=${WIDE} height=${high} rx="5" />
        <text x=${x} y=${y + high / 2 + 5} text-anchor="middle">${label}</text>
        ${off ? html`<path class="cut" d=${`M${x - WIDE / 2} ${y}l${WIDE} ${high}m0 ${-high}l${-WIDE} ${high}`} />` : null}`;
  const press = (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    onChoose(place);
  };
  return html`<g role="button" tabindex=${place === scene.place ? 0 : -1} data-place=${place} aria-label=${`${side}: ${nameOf(place)}${off ? ", switched off" : ""}`}
    aria-pressed=${String(place === scene.place)} class=${classes({ box: true, chosen: place === scene.place, off })}
    onPointerEnter=${() => onPoint(place)} onClick=${() => onChoose(place)} onKeyDown=${press}><path class="hit" d=${`M${x - 88} ${from}h176V${to}h-176z`} />${inside}</g>`;
}

/** The drawing. `isOff` says what is switched off, `unmasked` that the mask is. */
export function Drawing({ scene, isOff, unmasked, onPoint, onChoose, label }) {
  const { layer, size, pieces } = scene;
  const boxes = BOXES.map(
    (box) =>
      html`<${Box} key=${box.place} box=${box} scene=${scene} off=${isOff(box.place)} onPoint=${onPoint} onChoose=${onChoose}
        label=${unmasked && box.place === "decoder attention" ? "self-attention" : box.label} />`,
  );
  const [x, y] = spotOf(scene.place);
  const ids = (
    side,
    name,
  ) => html`<rect class="ids" x=${CENTRE[side] - WIDE / 2} y="2" width=${WIDE} height="22" rx="5" />
    <text x=${CENTRE[side]} y="18" text-anchor="middle">${name}</text>`;
  return html`<svg class="drawn" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label=${label} onKeyDown=${arrows(".box")}>
    <rect class="layer" x="2" y="88" width="186" height="166" rx="8" /><rect class="layer" x="212" y="88" width="186" height="244" rx="8" />
    <${Lines} />
    ${ids("encoder", "source ids")}${ids("decoder", "target ids")}
    <text class="of" x="184" y="101" text-anchor="end">layer ${layer + 1} of ${size.layers}</text>
    <text class="of" x="216" y="101">layer ${layer + 1} of ${size.layers}</text>
    ${boxes}
    <text class="said" x=${CENTRE.decoder} y="430" text-anchor="middle">next: ${spelt(pieces.written[scene.decoder])}</text>
    <circle class="dot" r="6" style=${`transform:translate(${x}px,${y}px)`} />
  </svg>`;
}
