// The scene of a figure: what the model makes of the reader's last wish.

import { useModel } from "./shipped.js";
import { useRef, useState } from "./ui.js";

/**
 * A figure that begins with the scene `first`. Its plan is the entries of the scene called `names`.
 *
 * Returns the scene that is shown; the last `plan`, also as `wished.current`, and whether it is `busy`, since that is
 * not shown yet; the `line` that says what the model is doing; and `wish(changes, then)`. This asks for a scene of the plan
 * with these changes. `then(scene)` is called once it is there, and never if there is no model or another wish came.
 */
export function useScene(first, names, sceneOf) {
  const [scene, setScene] = useState(first);
  const [busy, setBusy] = useState(false);
  const [line, run] = useModel();
  const [plan, setPlan] = useState(() => Object.fromEntries(names.map((name) => [name, first[name]])));
  const wished = useRef(plan);

  async function wish(changes, then = () => {}) {
    const asked = { ...wished.current, ...changes };
    wished.current = asked;
    setPlan(asked);
    setBusy(true);
    const next = await run((model) => sceneOf(model, asked));
    if (wished.current === asked) setBusy(false);
    if (!next) return;
    setScene(next);
    then(next);
  }
  return { scene, plan, wished, busy, line, wish };
}
