// The model beside the page or in it, for every figure that computes with it.

import { readingModel } from "../model/file.js";
import { inSlices } from "../model/slices.js";
import { useRef, useState } from "./ui.js";

const NO_MODEL =
  "The model could not be read: model.js is missing beside this page, or damaged. The picture stays as it was.";

let asked = null; // the promise of the model

/** What the page holds, or what the side file leaves in the window. */
async function files() {
  const inside = document.getElementById("model-inside");
  if (inside) return JSON.parse(inside.textContent);
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "model.js";
    script.onload = () => {
      script.remove();
      resolve(self.translatorFiles);
      delete self.translatorFiles; // a few megabytes that nobody needs any more
    };
    script.onerror = () => reject(script.remove());
    document.head.append(script);
  });
}

/** The model, which is asked for when a figure first needs it; the next touch tries again. */
export function theModel() {
  asked ??= files().then((found) => inSlices(readingModel(found)));
  asked.catch(() => (asked = null));
  return asked;
}

/**
 * Work with the model: [a line that says what is going on, run]. `run(work)` calls `work(model)`,
 * a generator, in slices, and returns a promise of what it returns; null where there is no model,
 * or where `run` was called again since: the last wish counts.
 */
export function useModel() {
  const [line, say] = useState("");
  const turn = useRef(0);
  const ready = useRef(false);
  async function run(work) {
    const mine = ++turn.current;
    const isWanted = () => mine === turn.current;
    if (!ready.current) say("Reading the model …");
    const model = await theModel().catch(() => null);
    ready.current = Boolean(model);
    if (isWanted() || model) say(model ? "" : NO_MODEL);
    if (!model || !isWanted()) return null;
    const result = await inSlices(work(model), isWanted);
    return isWanted() ? result : null;
  }
  return [line, run];
}
