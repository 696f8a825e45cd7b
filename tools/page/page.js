// What the page does beyond being read: theme, contents, copying code, charts, printing.

const root = document.documentElement;
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// Theme -------------------------------------------------------------------------------------------

const button = document.getElementById("theme");

function setTheme(theme) {
  root.dataset.theme = theme;
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${button.textContent.toLowerCase()} theme`);
  charts.filter((chart) => chart.drawn).forEach(draw);
}

function chosenTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; } // storage may be forbidden
}

button.addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", theme); } catch {}
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!chosenTheme()) setTheme(event.matches ? "dark" : "light");
});

// Contents ----------------------------------------------------------------------------------------

const contents = document.getElementById("contents");
const wide = matchMedia("(min-width: 68rem)");
const links = all("nav a");
const headings = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));

/** Show or hide the sections of a Part in the contents. */
function showSections(item, shown) {
  item.classList.toggle("open", shown);
  item.querySelector("button")?.setAttribute("aria-expanded", shown);
}

for (const item of all("nav > ol > li:has(ol)")) {
  const more = Object.assign(document.createElement("button"), { type: "button", className: "more" });
  more.setAttribute("aria-label", `Sections of ${item.querySelector("a").textContent}`);
  more.addEventListener("click", () => showSections(item, !item.classList.contains("open")));
  if (item.querySelectorAll("li").length > 1) item.querySelector("a").after(more); // else a stop for one line
  showSections(item, false);
}

function markSection() {
  const below = root.scrollHeight - scrollY - innerHeight; // the last headings never come to the top
  const line = Math.max(120, innerHeight - below);
  const passed = (heading) => heading.checkVisibility() && heading.getBoundingClientRect().top <= line;
  const current = links[headings.findLastIndex(passed)]; // those in a closed fold are nowhere
  if (current?.hasAttribute("aria-current")) return;
  links.forEach((link) => link.removeAttribute("aria-current"));
  all("nav li.open").forEach((item) => showSections(item, false));
  document.getElementById("here").textContent = current?.textContent ?? "";
  if (!current) return;
  current.setAttribute("aria-current", "true");
  showSections(current.closest("nav > ol > li"), true);
  const [nav, top] = [current.closest("nav"), current.offsetTop];
  if (top < nav.scrollTop + 40 || top > nav.scrollTop + nav.clientHeight - 60) nav.scrollTop = top - nav.clientHeight / 3;
}

function placeContents() {
  contents.open = wide.matches;
}

contents.addEventListener("click", (event) => {
  if (event.target.closest("a") && !wide.matches) contents.open = false;
});
addEventListener("scroll", () => requestAnimationFrame(markSection), { passive: true });
wide.addEventListener("change", placeContents);

// Folds -------------------------------------------------------------------------------------------

/** Open what the target of a hash is folded into, or heads; return the target where that was needed. */
function unfold(hash) {
  let target = null;
  try { target = document.getElementById(decodeURIComponent(hash.slice(1))); } catch {} // an address may hold anything
  const folds = all("details:not([open])").filter((fold) => fold.contains(target));
  folds.forEach((fold) => (fold.open = true));
  return folds.length ? target : null;
}

function arrive() {
  if (location.hash) layOut();
  unfold(location.hash)?.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  const fold = event.target.closest(".section > summary")?.parentElement;
  if (fold && !fold.open) history.replaceState(null, "", `#${fold.querySelector("[id]").id}`); // its heading's address
  if (!link) return;
  layOut();
  unfold(link.getAttribute("href"));
});
addEventListener("hashchange", arrive);

// Code and boxes that scroll ----------------------------------------------------------------------

// One button for all blocks: it moves to the one that is pointed at, focused, or on the screen.
const copy = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "Copy" });
copy.addEventListener("click", async () => {
  const done = navigator.clipboard?.writeText(copy.parentElement.querySelector("code").textContent);
  copy.textContent = await (done ?? Promise.reject()).then(() => "Copied", () => "Not allowed");
  setTimeout(() => (copy.textContent = "Copy"), 1500);
});

function moveCopy(block) {
  if (block && block !== copy.parentElement && document.activeElement !== copy) block.append(copy);
}
["pointerover", "focusin"].forEach((event) => addEventListener(event, ({ target }) => moveCopy(target.closest?.(".code"))));
const onScreen = new IntersectionObserver((entries) => moveCopy(entries.find((entry) => entry.isIntersecting)?.target));

// Only what scrolls takes the keyboard's focus.
function markScrolling(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
const scrolling = new ResizeObserver((entries) => entries.forEach(({ target }) => markScrolling(target)));
all(".scroll, .code pre, .output").forEach((box) => scrolling.observe(box));
all(".code").forEach((block) => onScreen.observe(block));

// Laying out -------------------------------------------------------------------------------------
// The page opens fast because what is far from the screen is not laid out (see page.css). This is
// made up for bit by bit, so that the page has its height soon, or at once before a jump.

const waitingBlocks = all("article > *");

function layOut(count = waitingBlocks.length) {
  waitingBlocks.splice(0, count).forEach((block) => (block.style.contentVisibility = "visible"));
  if (!waitingBlocks.length) root.dataset.ready = "";
}

function layOutIdly() {
  const next = self.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  layOut(20);
  if (waitingBlocks.length) next(layOutIdly);
}

// Charts ------------------------------------------------------------------------------------------

const charts = all(".chart").map((box) => ({ box, view: null, drawn: false, job: Promise.resolve() }));

let loadingVega;

/** Vega-Lite, which is only text in the page until a chart needs it. */
function vega() {
  loadingVega ??= new Promise((ready) => {
    addEventListener("vega", ready, { once: true });
    const text = document.getElementById("vega").textContent + ';dispatchEvent(new Event("vega"));';
    document.head.append(Object.assign(document.createElement("script"), { type: "module", textContent: text }));
  });
  return loadingVega;
}

async function redraw(chart) {
  const { box } = chart;
  await vega();
  chart.room = box.clientWidth;
  const style = getComputedStyle(root);
  const spec = dressed(box.querySelector("script").textContent, chart.room, (name) => style.getPropertyValue(`--${name}`).trim());
  const before = (chart.bound ?? []).map((name) => [name, chart.view.signal(name)]);
  chart.view?.finalize();
  const [controls, view] = all(".controls, .view", box);
  controls.replaceChildren();
  const result = await vegaEmbed(view, spec, { mode: "vega-lite", renderer: "canvas", actions: false, defaultStyle: false, bind: controls });
  chart.view = box.view = result.view; // at the box, whoever looks into the page finds it
  chart.bound = (result.vgSpec.signals ?? []).filter((signal) => signal.bind).map((signal) => signal.name);
  before.forEach(([name, value]) => chart.view.signal(name, value)); // what the reader had chosen
  await chart.view.runAsync();
  const label = { role: "img", "aria-label": view.closest("figure").querySelector("figcaption").textContent };
  Object.entries(label).forEach(([name, value]) => view.querySelector("canvas").setAttribute(name, value));
  view.removeAttribute("role");
  markScrolling(view.closest(".scroll")); // a wider picture does not resize its box
  box.dataset.drawn = root.dataset.theme;
}

/** Draw a chart, after the drawing of it that is under way. */
function draw(chart) {
  chart.drawn = true;
  chart.job = chart.job.then(() => redraw(chart));
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((entry) => entry.isIntersecting)) {
    near.unobserve(entry.target);
    draw(charts.find((chart) => chart.box === entry.target));
  }
}, { rootMargin: "700px" });

let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => charts.filter((c) => c.drawn && Math.abs(c.box.clientWidth - c.room) > 24).forEach(draw), 200);
});

// Printing: light, unfolded, pictures instead of charts that may not be drawn ----------------------

addEventListener("beforeprint", () => {
  root.dataset.shown = root.dataset.theme;
  root.dataset.theme = "light";
  layOut();
  all("details:not([open])").forEach((fold) => { fold.open = true; fold.dataset.folded = ""; });
  all(".chart > noscript").forEach((picture) => picture.insertAdjacentHTML("afterend", picture.textContent));
});
addEventListener("afterprint", () => {
  root.dataset.theme = root.dataset.shown;
  all("details[data-folded]").forEach((fold) => { fold.open = false; delete fold.dataset.folded; });
  all(".chart > img").forEach((picture) => picture.remove());
});

button.hidden = false;
setTheme(root.dataset.theme);
placeContents();
markSection();
addEventListener("load", layOutIdly);
// Fonts first: a chart measures its labels when it is drawn.
document.fonts.ready.then(() => charts.forEach((chart) => near.observe(chart.box)));

// Figures to play with -----------------------------------------------------------------------------

for (const figure of all(".playable")) {
  live[figure.dataset.play](figure);
}

arrive(); // last: figures have their final height by now
