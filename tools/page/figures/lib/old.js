// What the figures that are drawn by hand still share.

import { theModel } from "./shipped.js";

export const BEAM = 4; // of the paper
export const ALPHA = 0.6;

/** Text that may stand in HTML. */
export const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

let loaded = false;

/** The model, or null where there is none; `line` says what is going on. */
export async function modelFor(line) {
  if (!loaded) line.textContent = "Reading the model, six megabytes …";
  const model = await theModel().catch(() => null);
  loaded = Boolean(model);
  line.textContent = model
    ? ""
    : "The model could not be read: model.js is missing beside this page, or damaged. The picture stays as it was.";
  return model;
}
