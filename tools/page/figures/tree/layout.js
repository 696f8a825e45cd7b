// The drawing of the tree as data: where its nodes stand, and the lines that lead to them.

import { continued } from "../lib/text.js";
import { classes } from "../lib/ui.js";
import { countOf, forkOf, looksOf, reached } from "./known.js";

/**
 * Where things stand: where steps go across, `y` in rem from the top; where they go down, `x` in columns
 * (greedy, then a column for each place).
 */
const GREEDY = { x: 0.5, y: 1.4 };
const keptAt = (place) => ({ x: 1.5 + place, y: 3.3 + 2.9 * place + 1.45 });
const startAt = (width) => keptAt((width - 1) / 2);

const short = (number) => String(Math.round(1000 * number) / 1000);

/** The variables by which tree.css places a node. */
const placed = ({ x, y }, width) => `--x:${short(x / (width + 1))};--y:${short(y)}`;

/** The lines that lead to the nodes of a step, those that matter most above the others. */
function linesOf({ width, steps, greedy }, step, looks) {
  const kept = steps[step]?.kept ?? [];
  const start = (from) => (step === 1 ? startAt(width) : from);
  const lines = kept.map(({ from }, i) => ({ name: looks[i], from: start(keptAt(from)), to: keptAt(i) }));
  if (greedy[step - 1]) lines.push({ name: "own", from: start(GREEDY), to: GREEDY });
  const above = ({ name }) => (name.includes("best") ? 2 : name.includes("lost") ? 0 : 1);
  return lines.sort((one, other) => above(one) - above(other));
}

/** A line where steps go across: through a box of width 1. */
const across = ({ from, to }) =>
  `M0 ${short(from.y)}C.55 ${short(from.y)} .5 ${short(to.y)} 1 ${short(to.y)}`;

/** A line where steps go down: through a box of height 1. */
const down = ({ from, to }) => `M${short(from.x)} 0C${short(from.x)} .5 ${short(to.x)} .5 ${short(to.x)} 1`;

/**
 * A step as data: its nodes, the dots of hypotheses that wait, and its lines in both drawings. `looks` are the classes
 * of what it keeps, `isFork` says that greedy decoding leaves the winner here.
 */
export function stepOf(scene, step, looks, isFork) {
  const { width } = scene;
  const kept = scene.steps[step]?.kept ?? [];
  const greedy = scene.greedy[step - 1];
  const node = (look, where, { piece, logp }) => {
    const text = continued(piece);
    return { look, text, logp, style: `${placed(where, width)};--letters:${[...text].length}` };
  };
  const own = classes({ own: true, greedy: true, ended: greedy?.ended, fork: isFork });
  const nodes = greedy ? [node(own, GREEDY, greedy)] : [];
  const dots = [];
  for (const [i, each] of kept.entries()) {
    if (each.waits) dots.push({ look: looks[i], style: placed(keptAt(i), width) });
    else nodes.push(node(looks[i], keptAt(i), each));
  }
  const lines = linesOf(scene, step, looks);
  const paths = (draw) => lines.map((line) => ({ name: line.name, d: draw(line) }));
  return {
    nodes,
    dots,
    lines: [
      { name: "across", box: `0 0 1 ${short(keptAt(width - 0.5).y)}`, paths: paths(across) },
      { name: "down", box: `0 0 ${width + 1} 1`, paths: paths(down) },
    ],
  };
}

/** The tree around its steps as data: its size, the labels of its rows, where the start stands, what each step is given. */
export function treeOf(scene, at) {
  const { width, steps, greedy } = scene;
  const looks = looksOf(scene, at);
  const fork = reached(scene, at).over ? forkOf(scene) : -1;
  const nodes = [...steps.flatMap(({ kept }) => kept), ...greedy];
  const count = countOf(scene);
  const size = {
    "--count": count,
    "--shown": Math.min(at, count),
    "--columns": width + 1,
    "--height": short(keptAt(width - 0.5).y),
    "--letters": Math.max(...nodes.map(({ piece }) => [...continued(piece)].length)),
  };
  const places = Array.from({ length: width }, (_, i) => [`place ${i + 1}`, keptAt(i)]);
  const labels = [["greedy", GREEDY], ...places].map(([text, where]) => ({
    text,
    style: placed(where, width),
  }));
  const shown = Array.from({ length: Math.min(at, count) }, (_, i) => ({
    step: i + 1,
    looks: looks[i + 1]?.join("|"),
    isFork: fork === i,
  }));
  return { size, labels, start: placed(startAt(width), width), shown };
}
