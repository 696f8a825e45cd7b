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

function markSection() {
  const below = root.scrollHeight - scrollY - innerHeight; // the last headings never come to the top
  const line = Math.max(120, innerHeight - below);
  const next = headings.findIndex((heading) => heading.getBoundingClientRect().top > line);
  const current = links[(next < 0 ? links.length : next) - 1];
  if (links.some((link) => link === current && link.hasAttribute("aria-current"))) return;
  links.forEach((link) => link.removeAttribute("aria-current"));
  all("nav li.here").forEach((item) => item.classList.remove("here"));
  if (!current) return;
  current.setAttribute("aria-current", "true");
  current.closest("nav > ol > li").classList.add("here");
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
  unfold(location.hash)?.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link) unfold(link.getAttribute("href"));
});
addEventListener("hashchange", arrive);

// Code and boxes that scroll ----------------------------------------------------------------------

for (const block of all(".code")) {
  const copy = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "Copy" });
  copy.addEventListener("click", async () => {
    const done = navigator.clipboard?.writeText(block.querySelector("code").textContent);
    copy.textContent = await (done ?? Promise.reject()).then(() => "Copied", () => "Not allowed");
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  block.append(copy);
}

// Only what scrolls takes the keyboard's focus.
function markScrolling(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
const scrolling = new ResizeObserver((entries) => entries.forEach(({ target }) => markScrolling(target)));
all(".scroll, .code pre, .output").forEach((box) => scrolling.observe(box));

// Charts ------------------------------------------------------------------------------------------

const charts = all(".chart").map((box) => ({ box, view: null, drawn: false, job: Promise.resolve() }));

function chartConfig(room) {
  const style = getComputedStyle(root);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const [ink, muted, line] = [value("ink"), value("muted"), value("line")];
  const [ramp, series] = [value("ramp").split(" "), value("series").split(" ")];
  const guide = { labelColor: muted, titleColor: ink, labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: 600 };
  return {
    background: "transparent", font: value("sans"), padding: 2,
    axis: { ...guide, gridColor: line, domainColor: muted, tickColor: muted },
    legend: { ...guide, ...(room < 560 && { orient: "top" }) }, header: guide, title: { color: ink, subtitleColor: muted, fontSize: 14 },
    view: { stroke: line }, text: { color: ink }, rule: { color: muted }, mark: { color: series[0] },
    range: { category: series, ramp, heatmap: ramp, ordinal: ramp },
  };
}

/** `over` wins over `base`, at every depth. */
function merge(base, over) {
  if (!over || typeof over !== "object" || Array.isArray(over)) return over;
  const result = { ...base };
  for (const key in over) result[key] = merge(base?.[key], over[key]);
  return result;
}

/** Make a chart fit `room` pixels where it can: fewer columns, charts below one another, a narrower plot. */
function fit(spec, room) {
  if (spec.hconcat && room < 600) { spec.vconcat = spec.hconcat; delete spec.hconcat; }
  (spec.vconcat ?? []).forEach((part) => fit(part, room));
  const inner = spec.spec ?? spec;
  const facet = spec.facet?.field ? spec : inner.encoding?.facet;
  const width = typeof inner.width === "number" ? inner.width : 300;
  if (facet) facet.columns = Math.max(1, Math.min(facet.columns ?? Infinity, Math.floor((room - 40) / (width + 24))));
  const marks = JSON.stringify([inner.mark, inner.layer]);
  // Cells of a heat map keep their size: another width would leave seams between them.
  const stretches = typeof (inner.width ?? 0) === "number" && !/"rect"/.test(marks) && (inner.mark || inner.layer);
  if (stretches && !facet && width > room - 70) inner.width = Math.max(180, room - 70);
}

async function redraw(chart) {
  const { box } = chart;
  // The colours of heat maps follow the theme, like all others.
  const text = box.querySelector("script").textContent.replaceAll('"scheme":"blues"', '"range":"heatmap"');
  const spec = JSON.parse(text);
  chart.room = box.clientWidth;
  fit(spec, chart.room);
  spec.config = merge(spec.config, chartConfig(chart.room));
  const before = (chart.bound ?? []).map((name) => [name, chart.view.signal(name)]);
  chart.view?.finalize();
  const [controls, view] = all(".controls, .view", box);
  controls.replaceChildren();
  const result = await vegaEmbed(view, spec, { mode: "vega-lite", renderer: "canvas", actions: false, defaultStyle: false, bind: controls });
  chart.view = box.view = result.view; // at the box, whoever looks into the page finds it
  chart.bound = (result.vgSpec.signals ?? []).filter((signal) => signal.bind).map((signal) => signal.name);
  before.forEach(([name, value]) => chart.view.signal(name, value)); // what the reader had chosen
  await chart.view.runAsync();
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
arrive();
// Fonts first: a chart measures its labels when it is drawn.
document.fonts.ready.then(() => charts.forEach((chart) => near.observe(chart.box)));
