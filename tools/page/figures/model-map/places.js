// The places of the map: what a box of the drawing has as data-place.
//
// "decoder cross norm" is the norm before cross-attention, "decoder cross" what cross-attention adds,
// "decoder cross sum" the stream after it; outside of layers: "decoder final", "encoder memory", …

export const PARTS = {
  encoder: ["attention", "feed-forward"],
  decoder: ["attention", "cross", "feed-forward"],
};
export const ATTENTION = ["encoder attention", "decoder attention", "decoder cross"];
const NAMES = {
  embedding: "embedding · √D",
  positions: "embedding + positions",
  cross: "cross-attention",
  final: "final norm",
};

/** What a place is made of; `number` counts the parts of a layer, and is negative outside of layers. */
export function placed(place) {
  const [side, part, kind = "adds"] = place.split(" ");
  return { side, part, kind, number: PARTS[side].indexOf(part) };
}

export const sideOf = (place) => placed(place).side;

function partName({ side, part }) {
  if (part !== "attention") return NAMES[part] ?? part;
  return side === "encoder" ? "self-attention" : "masked self-attention";
}

export function nameOf(place) {
  const parts = placed(place);
  const name = partName(parts);
  if (parts.kind === "norm") return `norm before ${name}`;
  if (parts.kind === "sum") return `sum after ${name}`;
  if (ATTENTION.includes(place)) return name;
  return parts.number < 0 ? name : `${name}: what it adds`;
}
