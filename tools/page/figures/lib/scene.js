// The scene of a figure: what the model makes of the reader's last wish.

import { useModel } from "./shipped.js";
import { useRef, useState } from "./ui.js";

/**
 * A figure that begins with the scene `first`. Its plan is the entries of the scene called `names`.
 *
 * Returns the scene that is shown; the last `plan`, also as `wished.current`, and whether it is `busy`, since that is
 * not shown yet; the `line` that says what the model is doing; and `wish(changes, then)`. This asks for a scene of the plan
 * with these changes. `then(scene)` is called once it is there, and never if another wish came or there is no model.
 * Without a model the plan is again that of the scene, and the line offers to try once more.
 */
export function useScene(first, names, sceneOf) {
  const [scene, setScene] = useState(first);
  const [busy, setBusy] = useState(false);
  const [line, run] = useModel();
  const planOf = (shown) => Object.fromEntries(names.map((name) => [name, shown[name]]));
  const [plan, setPlan] = useState(() => planOf(first));
  const wished = useRef(plan);
  const shown = useRef(first);

  async function wish(changes, then = () => {}) {
    const asked = { ...wished.current, ...changes };
    const expect = (plan) => {
      wished.current = plan;
      setPlan(plan);
    };
    expect(asked);
    setBusy(true);
    const next = await run(
      (model) => sceneOf(model, asked),
      () => wish(changes, then),
    );
    const isLast = wished.current === asked;
    if (isLast) setBusy(false);
    if (isLast && !next) expect(planOf(shown.current));
    if (!next) return;
    shown.current = next;
    setScene(next);
    then(next);
  }
  return { scene, plan, wished, busy, line, wish };
}
