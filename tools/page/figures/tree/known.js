// What is known of a scene at a step: it is taken from the steps up to there, so that nothing is told before it comes.

import { classes } from "../lib/ui.js";

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
