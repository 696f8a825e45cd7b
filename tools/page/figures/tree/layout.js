// The drawing of the tree as data: where its nodes stand, and the lines that lead to them.

import { continued } from "../lib/text.js";
import { classes } from "../lib/ui.js";
import { countOf, forkOf, looksOf, reached } from "./known.js";
import { SHOWN } from "./scene.js";

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
  const { width, steps, greedy } = scene;
  const place = layout(width);
  const { kept, cut } = steps[step] ?? { kept: [], cut: [] };
  const start = (from) => place.kept(step === 1 ? (width - 1) / 2 : from);
  const lines = cut.map((node, i) => ({
    name: classes({ cut: true, of: follows(node, step, pointed) }),
    from: start(node.from),
    to: place.cut(i),
  }));
  for (const [i, node] of kept.entries()) {
    const name = `${looks[i]}${follows(node, step, pointed) ? " of" : ""}`;
    lines.push({ name, from: start(node.from), to: place.kept(i) });
  }
  if (greedy[step - 1])
    lines.push({ name: "own", from: step === 1 ? start(0) : place.greedy(), to: place.greedy() });
  const order = ["cut", "lost", "", "best", "of"]; // from below to above
  const above = ({ name }) => order.indexOf(order.findLast((each) => each && name.includes(each)) ?? "");
  return lines.sort((one, other) => above(one) - above(other));
}

/** A line where steps go across: through a box of width 1. */
function across({ from, to }, isFirst) {
  const end = "off" in to ? (isFirst ? 0.58 : 0.7) : 1; // a line to what is cut ends before it
  const bend = `${short(0.55 * end)} ${short(from.y)} ${short(0.5 * end)} ${short(to.y)}`;
  return `M0 ${short(from.y)}C${bend} ${end} ${short(to.y)}`;
}

/** A line where steps go down: through a box of height 1, which stands for `depth` rem. */
function down({ from, to }, depth) {
  const end = short(1 + (to.off ?? 0) / depth);
  const bend = "off" in to ? `.4 ${short(from.x + 0.2)} ${end}` : `.5 ${short(to.x)} .5`;
  return `M${short(from.x)} 0C${short(from.x)} ${bend} ${short(to.x)} ${end}`;
}

/** Both drawings of the lines of a step: the box, and a path with its classes for each line. */
function linesAsPaths(scene, step, looks, pointed) {
  const { columns, height, depth } = layout(scene.width);
  const isFirst = step === 1;
  const long = isFirst ? depth / 2 + 1 : depth; // the start is nearer
  const lines = linesOf(scene, step, looks, pointed);
  const paths = (draw) => lines.map((line) => ({ name: line.name, d: draw(line) }));
  return [
    { name: "across", box: `0 0 1 ${short(height)}`, paths: paths((line) => across(line, isFirst)) },
    { name: "down", box: `0 0 ${columns} 1`, paths: paths((line) => down(line, long)) },
  ];
}

/**
 * A step as data: its lines, its nodes in the order of the keyboard, the dots of hypotheses that wait. `looks` are the
 * classes of what it keeps, `isFork` says that greedy decoding leaves the winner here.
 */
export function stepOf(scene, step, looks, isFork, pointed) {
  const { kept, cut } = scene.steps[step] ?? { kept: [], cut: [] };
  const place = layout(scene.width);
  const greedy = scene.greedy[step - 1];
  const node = (kind, i, look, { piece, logp }) => ({
    name: `${kind}-${step}-${i}`,
    look,
    text: continued(piece),
    logp,
    style: `${placed(place[kind](i), place)};--letters:${[...continued(piece)].length}`,
  });
  const own = classes({ own: true, greedy: true, ended: greedy?.ended, fork: isFork });
  const nodes = greedy ? [node("greedy", 0, own, greedy)] : [];
  const dots = [];
  for (const [i, each] of kept.entries()) {
    if (each.waits) dots.push({ look: looks[i], style: placed(place.kept(i), place) });
    else nodes.push(node("kept", i, looks[i], each));
  }
  for (const [i, each] of cut.entries())
    nodes.push(node("cut", i, classes({ cut: true, of: follows(each, step, pointed) }), each));
  return { nodes, dots, cuts: cut.length > 0, lines: linesAsPaths(scene, step, looks, pointed) };
}

/** The tree around its steps as data: its size, the labels of its rows, where the start stands, what each step is given. */
export function treeOf(scene, at) {
  const { width, steps, greedy } = scene;
  const place = layout(width);
  const looks = looksOf(scene, at);
  const fork = reached(scene, at).over ? forkOf(scene) : -1;
  const nodes = [...steps.flatMap(({ kept, cut }) => [...kept, ...cut]), ...greedy];
  const size = {
    "--count": countOf(scene),
    "--shown": Math.min(at, countOf(scene)),
    "--columns": place.columns,
    "--height": short(place.height),
    "--depth": short(place.depth),
    "--line": short(place.line),
    "--letters": Math.max(...nodes.map(({ piece }) => [...continued(piece)].length)),
  };
  const places = Array.from({ length: width }, (_, i) => [`place ${i + 1}`, place.kept(i)]);
  const cut = place.cut((Math.min(width, SHOWN) - 1) / 2);
  const labels = [["greedy", place.greedy()], ...places, ["cut", cut]].map(([text, where]) => ({
    text,
    style: placed(where, place),
  }));
  const shown = Array.from({ length: Math.min(at, countOf(scene)) }, (_, i) => ({
    step: i + 1,
    looks: looks[i + 1]?.join("|"),
    isFork: fork === i,
  }));
  return { size, labels, start: placed(place.kept((width - 1) / 2), place), shown };
}
