// The scene of a figure: what the model makes of the reader's last choice.

import { useModel } from "./shipped.js";
import { useRef, useState } from "./ui.js";

/**
 * A figure that begins with the scene `first`. Its choice is the entries of the scene called `names`. The scene may hold
 * `answers`, by what they differ from it: other scenes, which need no model.
 *
 * Returns the scene that is shown; the last `choice`, also as `latest.current`, and whether it is `busy`, since that is
 * not shown yet; the `line` that says what the model is doing; and `choose(changes, then)`. This asks for a scene of the
 * choice with these changes. `then(scene)` is called once it is there, and never if another choice came or there is no
 * model. Without a model the choice is again that of the scene, and the line offers to try once more.
 */
export function useScene(first, names, sceneOf) {
  const [scene, setScene] = useState(first);
  const [busy, setBusy] = useState(false);
  const [line, run] = useModel();
  const choiceOf = (shown) => Object.fromEntries(names.map((name) => [name, shown[name]]));
  const [choice, setChoice] = useState(() => choiceOf(first));
  const latest = useRef(choice);
  const shown = useRef(first);
  const [known] = useState(() => [{}, ...(first.answers ?? [])].map((each) => ({ ...first, ...each })));

  function expect(asked) {
    latest.current = asked;
    setChoice(asked);
  }

  async function choose(changes, then = () => {}) {
    const asked = { ...latest.current, ...changes };
    expect(asked);
    setBusy(true);
    const next = await run(
      (model) => sceneOf(model, asked),
      () => choose(changes, then),
      known.find((each) => JSON.stringify(choiceOf(each)) === JSON.stringify(asked)),
    );
    if (next === undefined) return; // another choice has come
    setBusy(false);
    if (next === null) {
      expect(choiceOf(shown.current));
      return;
    }
    shown.current = next;
    setScene(next);
    then(next);
  }
  return { scene, choice, latest, busy, line, choose };
}
