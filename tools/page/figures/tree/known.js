// What is known of a scene at a step: it is taken from the steps up to there, so that nothing is told before it comes.

import { classes } from "../lib/ui.js";

export const START = "kept-0-0"; // the name of a node: what it is, its step, its place

/** So many steps are played: greedy decoding may take longer than the beam. */
export const countOf = ({ steps, greedy }) => Math.max(steps.length - 1, greedy.length);

/** The last step of the beam at a step of the figure, whether that was its last, and whether all is over. */
export function reached(scene, at) {
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
export function bestAt(scene, step) {
  const trail = trailOf(scene, step, scene.steps[step].best);
  return trail
    .map((place, each) => scene.steps[each].kept[place])
    .filter(({ waits }, each) => each && !waits);
}

/** The first place at which greedy decoding and the winner differ; -1 where they agree. */
export function forkOf(scene) {
  const winner = bestAt(scene, scene.steps.length - 1);
  return scene.greedy.findIndex(({ piece }, i) => piece !== winner[i]?.piece);
}

/** The step at which the greedy path is no longer in the beam; -1 where it stays. */
export const lostAt = ({ steps }) => steps.findIndex(({ greedy }) => greedy < 0);

/** How the hypotheses that a step keeps look from a later step: their classes. */
export function looksOf(scene, at) {
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

/** What the name of a node stands for; the start, where its step has not come yet. */
export function nodeNamed(scene, name, at) {
  const [kind, step, place] = name.split("-").map((part, i) => (i ? Number(part) : part));
  if (step > at || step === 0) return { kind: "kept", step: 0, place: 0, node: scene.steps[0].kept[0] };
  const node = kind === "greedy" ? scene.greedy[step - 1] : scene.steps[step][kind][place];
  return { kind, step, place, node };
}

/** What became of a proposal by now; "" where nothing has been decided about it. */
export function fateOf(scene, { kind, step, place }, piece, at) {
  if (kind === "greedy") {
    if (step + 1 > at) return "";
    return scene.greedy[step].piece === piece ? "taken" : "left";
  }
  if (step + 1 > reached(scene, at).last) return "";
  const next = scene.steps[step + 1].kept;
  return next.some((node) => !node.waits && node.from === place && node.piece === piece) ? "kept" : "cut";
}
