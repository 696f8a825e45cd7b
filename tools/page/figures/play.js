// What all figures that can be played with share. Each has its own file, which defines
//
//   stills[name](model, data)   the HTML of its still picture, which the build writes into the page:
//                               no browser, no scripts, and on paper this is what there is
//   live[name](figure)          takes over in the browser
//
// `data` is what the notebook's figure holds: the rows of a chart, or a drawing as a string.

const stills = {}, live = {};

const SENTENCE = "Ein kleines Mädchen hebt einen roten Ball auf."; // in the first picture of all
const [BEAM, ALPHA] = [4, 0.6]; // of the paper
const BUSY = 15; // milliseconds of searching after which the browser has its turn

/** Text that may stand in HTML. */
const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** A piece as it is read: without the mark of the space before it. */
const spelt = (piece) => piece.replace(SPACE, "").replace("</s>", "end") || "(space)";

/** A number with a true minus, and no minus before zero. */
const decimal = (number, digits = 2) => number.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** All that a search finds, while the page stays awake; null once `isWanted` says no. */
async function gather(walk, isWanted) {
  const found = [];
  let since = performance.now();
  for (const each of walk) {
    found.push(each);
    if (performance.now() - since < BUSY) continue;
    await pause(0);
    if (!isWanted()) return null;
    since = performance.now();
  }
  return found;
}

let loading, loaded = false;

/** The model of model.js beside the page, which is asked for when a figure first needs it. */
function theModel() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "model.js";
    script.onload = () => {
      script.remove();
      try { resolve(readModel(self.translatorFiles)); } catch (error) { reject(error); }
      delete self.translatorFiles; // a few megabytes that nobody needs any more
    };
    script.onerror = () => reject(script.remove());
    document.head.append(script);
  });
  loading.catch(() => (loading = null)); // the next touch tries again
  return loading;
}

const NO_MODEL = "The model could not be read: model.js is missing beside this page, or damaged. The picture stays as it was.";

/** The model, or null where there is none; `line` says what is going on. */
async function modelFor(line) {
  if (!loaded) line.textContent = "Reading the model, six megabytes …";
  const model = await theModel().catch(() => null);
  loaded = Boolean(model);
  line.textContent = model ? "" : NO_MODEL;
  return model;
}
