// The model beside the page, for every figure that computes with it.

import { readingModel } from "../model/file.js";
import { inSlices } from "../model/slices.js";
import { Button, html, useRef, useState } from "./ui.js";

let asked = null; // the promise of the model

/** What the side file leaves in the window. */
function files() {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "model.js";
    script.onload = () => {
      script.remove();
      if (self.translatorFiles) resolve(self.translatorFiles);
      else reject(new Error("model.js is damaged"));
      delete self.translatorFiles; // a few megabytes that nobody needs any more
    };
    script.onerror = () => {
      script.remove();
      reject(new Error("model.js is not beside this page, or the connection broke"));
    };
    document.head.append(script);
  });
}

/** The model, which is asked for when a figure first needs it; the next touch tries again. */
function theModel() {
  asked ??= files().then((found) => inSlices(readingModel(found)));
  asked.catch(() => (asked = null));
  return asked;
}

/** Why the model could not be read, and a way to try again. */
const Failure = ({
  error,
  again,
}) => html`The model could not be read: ${error.message}. The picture stays as it
  was. <${Button} class="again" onClick=${again}>Try again<//>`;

/**
 * Work with the model: [a line that says what is going on, run]. `run(work, again)` calls `work(model)`,
 * a generator, in slices, and returns a promise of what it returns: undefined where `run` was called again
 * since, as the last choice counts; null where there is no model, and the line offers `again()`. A result that is `known`
 * is returned at once, while the model is read for what may come next.
 */
export function useModel() {
  const [line, say] = useState("");
  const turn = useRef(0);
  const isRead = useRef(false);
  async function run(work, again, known) {
    const mine = ++turn.current;
    const isWanted = () => mine === turn.current;
    say(known || isRead.current ? "" : "Reading the model …");
    const reading = theModel();
    if (known) return known;
    let model;
    try {
      model = await reading;
    } catch (error) {
      if (!isWanted()) return undefined;
      say(html`<${Failure} error=${error} again=${again} />`);
      return null;
    }
    isRead.current = true;
    say("");
    if (!isWanted()) return undefined;
    const result = await inSlices(work(model), isWanted);
    return isWanted() ? result : undefined;
  }
  return [line, run];
}
