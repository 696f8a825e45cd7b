// Charts: drawn by Vega-Lite once they are near the screen, in the colours of the theme.

import { all, markScrolling, root } from "./dom.js";
import { dressed } from "./fit.js";

const charts = all(".chart").map((box) => ({ box, view: null, drawn: false, job: Promise.resolve() }));

let loadingVega;

/** Vega-Lite, which is only text in the page until a chart needs it. */
function vega() {
  loadingVega ??= new Promise((ready) => {
    addEventListener("vega", ready, { once: true });
    const text = `${document.getElementById("vega").textContent};dispatchEvent(new Event("vega"));`;
    document.head.append(
      Object.assign(document.createElement("script"), { type: "module", textContent: text }),
    );
  });
  return loadingVega;
}

async function redraw(chart) {
  const { box } = chart;
  await vega();
  chart.room = box.clientWidth;
  const style = getComputedStyle(root);
  const spec = dressed(box.querySelector("script").textContent, chart.room, (name) =>
    style.getPropertyValue(`--${name}`).trim(),
  );
  const before = (chart.bound ?? []).map((name) => [name, chart.view.signal(name)]);
  chart.view?.finalize();
  const [controls, view] = all(".controls, .view", box);
  controls.replaceChildren();
  const result = await vegaEmbed(view, spec, {
    mode: "vega-lite",
    renderer: "canvas",
    actions: false,
    defaultStyle: false,
    bind: controls,
  });
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

const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      near.unobserve(entry.target);
      draw(charts.find((chart) => chart.box === entry.target));
    }
  },
  { rootMargin: "700px" },
);

let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(
    () => charts.filter((c) => c.drawn && Math.abs(c.box.clientWidth - c.room) > 24).forEach(draw),
    200,
  );
});

/** Draw what has been drawn once more, after another theme was chosen. */
export function drawAgain() {
  charts.filter((chart) => chart.drawn).forEach(draw);
}

/** Draw each chart when it is near. Fonts first: a chart measures its labels when it is drawn. */
export function startCharts() {
  document.fonts.ready.then(() => charts.forEach((chart) => near.observe(chart.box)));
}
