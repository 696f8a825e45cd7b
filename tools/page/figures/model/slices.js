// Long work as a generator: it yields now and then, so that the browser may have its turn.

const BUSY = 15; // milliseconds of work after which it has

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** All of the work at once: what it returns. */
export function finish(work) {
  let step = work.next();
  while (!step.done) step = work.next();
  return step.value;
}

/** The work in slices: what it returns, or null once `isWanted` says no. */
export async function inSlices(work, isWanted = () => true) {
  let since = performance.now();
  for (;;) {
    const { done, value } = work.next();
    if (done) return value;
    if (performance.now() - since < BUSY) continue;
    await pause(0);
    if (!isWanted()) return null;
    since = performance.now();
  }
}

/** What a generator yields, as work that returns it in a list. */
export function* listing(walk) {
  const found = [];
  for (const each of walk) {
    found.push(each);
    yield;
  }
  return found;
}
