// How a chart is made to fit the room that there is for it, in pixels, and the colours of the page.
// The build asks too: for the heights to keep free, and for pictures where scripts are off.

const LETTER = 7; // width of a letter of a label, about
const GUIDES = 78; // width of an axis with its labels and title
const LEGEND = 120; // width of a legend beside a chart, about
const SPACIOUS = 800; // room in which a chart is drawn wider than it asks for

/** `over` wins over `base`, at every depth. */
function merge(base, over) {
  if (!over || typeof over !== "object" || Array.isArray(over)) return over;
  const result = { ...base };
  for (const key in over) result[key] = merge(base?.[key], over[key]);
  return result;
}

/** The different values of a field; a row of a table of heat maps holds them in a list. */
function valuesOf(rows, field) {
  const packed = rows.map((row) => row[`${field}s`] ?? []);
  const longest = packed.reduce((one, other) => (other.length > one.length ? other : one), []);
  return longest.length ? longest : [...new Set(rows.map((row) => row[field]))];
}

/** Words in lines that are no longer than `room`. */
function wrapped(text, room) {
  const [first, ...words] = text.split(" ");
  const lines = [first];
  for (const word of words) {
    const longer = `${lines[lines.length - 1]} ${word}`;
    if (longer.length * LETTER < room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Entries of a legend above the chart, in as many columns as have room. */
function fitLegend(encoding, rows, room) {
  const { color } = encoding;
  if (!color?.field || color.type !== "nominal" || color.legend === null) return;
  const names = valuesOf(rows, color.field).map(String);
  const width = Math.max(...names.map((name) => name.length)) * LETTER + 30;
  const inOneRow = names.join("").length * LETTER + names.length * 30 < room;
  color.legend = {
    orient: "top",
    ...color.legend,
    ...(!inOneRow && { columns: Math.max(1, Math.floor(room / width)) }),
  };
}

/** Cells of a heat map get smaller, by whole pixels: else there were seams between them. */
function fitCells(plot, rows, room) {
  const [columns, names] = ["x", "y"].map((axis) => valuesOf(rows, plot.encoding[axis].field));
  const letters = Math.max(...names.map((name) => `${name}`.length));
  const left = room - Math.max(GUIDES, letters * LETTER + 30);
  const step = Math.floor(left / columns.length);
  if (plot.width?.step > step) {
    plot.width.step = step;
    plot.height.step = Math.max(step, 26); // words need their height
  } else if (plot.width > left) plot.width = columns.length * step;
}

/** Change a chart so that it fits: parts below one another, fewer columns, a narrower plot. */
function fit(spec, room, data = spec.datasets ?? {}) {
  const narrow = room < 600;
  const wider = room > SPACIOUS ? 1.5 : 1;
  if (typeof spec.title === "string")
    spec.title = { text: wrapped(spec.title, room), anchor: "start", frame: "group" };
  if (spec.hconcat && narrow) {
    spec.vconcat = spec.hconcat;
    delete spec.hconcat;
  }
  (spec.vconcat ?? []).forEach((part) => fit(part, room, data));
  if (!spec.mark && !spec.layer) return spec;
  const rows = (part) => part.data?.values ?? data[part.data?.name ?? spec.data?.name] ?? [];
  const facet = spec.encoding?.facet;
  const cells = (spec.mark?.type ?? spec.mark) === "rect";
  if (narrow)
    [spec, ...(spec.layer ?? [])].forEach(
      (part) => part.encoding && fitLegend(part.encoding, rows(part), room),
    );
  if (facet) {
    facet.columns = Math.max(
      cells ? 1 : 2,
      Math.min(facet.columns ?? Infinity, Math.floor((room - 40) / (spec.width + 24))),
    );
    if (!cells) spec.width = Math.min(wider * spec.width, Math.floor((room - GUIDES) / facet.columns) - 24);
  } else if (cells && !spec.encoding.column) {
    fitCells(spec, rows(spec), room);
  } else if (!cells && typeof (spec.width ?? 0) === "number") {
    if ((spec.width ?? 300) > room - GUIDES) spec.width = room - GUIDES;
    else if (spec.width)
      spec.width = Math.max(spec.width, Math.min(wider * spec.width, room - GUIDES - LEGEND));
  }
  return spec;
}

/** Sizes in all charts. */
function chartSizes(room) {
  const size = room > SPACIOUS ? 13 : 12;
  const guide = { labelFontSize: size, titleFontSize: size, titleFontWeight: 600 };
  const narrow = room < 600 && { orient: "top" };
  return {
    padding: 2,
    axis: guide,
    axisQuantitative: { labelSeparation: 4 },
    legend: { ...guide, ...narrow },
    header: guide,
    title: { fontSize: 15 },
  };
}

/** The theme's colours for all charts; `value` gives those of page.css by name. */
function chartColours(value) {
  const [ink, muted, line] = [value("ink"), value("muted"), value("line")];
  const [ramp, diverging, series] = ["ramp", "diverging", "series"].map((name) => value(name).split(" "));
  const guide = { labelColor: muted, titleColor: ink };
  return {
    background: "transparent",
    font: value("sans"),
    axis: { ...guide, gridColor: line, domainColor: muted, tickColor: muted },
    legend: guide,
    header: guide,
    title: { color: ink, subtitleColor: muted },
    view: { stroke: line },
    text: { color: ink },
    rule: { color: muted },
    mark: { color: series[0] },
    range: { category: series, ramp, diverging, heatmap: ramp, ordinal: ramp },
  };
}

/** A chart, given as JSON, as the page draws it. */
export function dressed(text, room, value) {
  // The colours of heat maps follow the theme, like all others.
  const spec = fit(
    JSON.parse(
      text
        .replaceAll('"scheme":"blues"', '"range":"heatmap"')
        .replaceAll('"scheme":"redblue"', '"range":"diverging"'),
    ),
    room,
  );
  spec.config = merge(merge(spec.config, chartSizes(room)), chartColours(value));
  return spec;
}
