// Three blindfolds for the model, and what is to be said once it wears them.

import { TELLING } from "./lib/corpus.js";
import { spelt, wordsIn } from "./lib/text.js";
import { Button, html } from "./lib/ui.js";

const SWITCHES = {
  eyes: {
    name: "cover its eyes",
    means: "cross-attention is zero",
    icon: "M1.5 10Q10 1 18.5 10Q10 19 1.5 10ZM12.5 10a2.5 2.5 0 1 1-5 0a2.5 2.5 0 1 1 5 0",
  },
  order: {
    name: "forget the order",
    means: "no positions",
    icon: "M2 6h4l7 8h5M2 14h4l7-8h5m-3-3l3 3-3 3m0 2l3 3-3 3",
  },
  wrote: {
    name: "forget what it wrote",
    means: "decoder self-attention is zero",
    icon: "M3 17l1-4L14 3l3 3L7 16zM12 5l3 3",
  },
};

/** The switches: large, and pressed while they are on. */
export const Blindfolds = ({ off, onToggle }) =>
  html`<div class="blindfolds" role="group" aria-label="Blindfold the model">${Object.entries(SWITCHES).map(
    ([
      key,
      { name, means, icon },
    ]) => html`<${Button} pressed=${off.includes(key)} onClick=${() => onToggle(key)}>
      <svg viewBox="0 0 20 20" width="22" height="22" aria-hidden="true"><path d=${icon} /></svg>
      <span>${name}<small>${means}</small></span>
    <//>`,
  )}</div>`;

/** What has become of a translation, and a caption on which more can be seen: [words, caption or nothing]. */
export function verdictOn({ off, covered, says, truth, ended, read, source }) {
  const same = says === truth;
  const words = wordsIn(source).map((pieces) => pieces.map((s) => spelt(source[s])).join(""));
  const hidden = covered.map((word) => `“${words[word]}”`).join(", ");
  const key = ["wrote", "order"].find((name) => off.includes(name) && read !== TELLING[name]);
  const caption = off.length === 1 ? TELLING[key] : undefined;
  if (!ended) return ["It finds no end any more, and was stopped."];
  if (off.includes("eyes"))
    return [
      off.length > 1
        ? "It sees nothing, and it shows."
        : "It sees no German any more: whatever you type, it says this.",
    ];
  if (off.includes("order"))
    return [
      same ? "The same: here a bag of words is enough." : "It got the words in a bag, without their order.",
      caption,
    ];
  if (off.includes("wrote"))
    return [
      same ? "The same: here the German is enough." : "It no longer knows what it has written.",
      caption,
    ];
  if (hidden)
    return [
      same ? `It cannot see ${hidden}, and does not miss it.` : `It cannot see ${hidden}, and does without.`,
    ];
  return [""];
}
