// The maps as they are drawn: all heads small, and one of them large.

import { arrows } from "../lib/keys.js";
import { READS, WRITES } from "../lib/corpus.js";
import { decimal, spelt } from "../lib/text.js";
import { Button, classes, html, useMemo } from "../lib/ui.js";

const SHADES = 8; // of a small map
const LEAST = 5; // hundredths that still get a number
const WALK_MAPS = arrows("button", { arrive: (button) => button.click() });
const WALK_CELLS = arrows("[role=gridcell]");

/** A head, or the mean of a layer, in words. */
export const headName = (layer, head, heads) =>
  `layer ${layer + 1}, ${head === heads ? "mean of its heads" : `head ${head + 1}`}`;

/** What a cell says: [query, key]. */
export function cellInWords({ kind, queries, keys, map }, [query, key]) {
  const weight = map[query][key];
  const [asks, looked] = [queries[query], keys[key]].map((piece) => `“${spelt(piece)}”`);
  if (weight === undefined) return `Masked: ${asks} may not attend to ${looked}, which comes later.`;
  const who = kind === "cross" ? `To write ${asks}, the model gives ${looked}` : `${asks} gives ${looked}`;
  return `${who} ${weight ? decimal(weight / 100) : "less than 0.005"} of its weight.`;
}

/** A small map as a path for each shade: [{ shade, d }]. */
function shadesOf(map) {
  const paths = new Map();
  for (const [query, row] of map.entries())
    for (const [key, weight] of row.entries()) {
      const shade = Math.round((SHADES * weight) / 100);
      if (shade) paths.set(shade, `${paths.get(shade) ?? ""}M${key} ${query}h1v1h-1z`);
    }
  return [...paths].map(([shade, d]) => ({ shade, d }));
}

function Small({ map, columns, row }) {
  const drawn = useMemo(
    () => shadesOf(map).map(({ shade, d }) => html`<path fill-opacity=${shade / SHADES} d=${d} />`),
    [map],
  );
  return html`<svg viewBox=${`0 0 ${columns} ${map.length}`} preserveAspectRatio="none" aria-hidden="true">
    ${drawn}${row !== null && html`<rect class="row" y=${row} width=${columns} height="1" />`}
  </svg>`;
}

/** The maps of all heads of a kind, a row for each layer, the mean at its end; one of them is chosen. */
export function AllMaps({ layers, columns, view, row, onChoose }) {
  const heads = layers[0].length - 1;
  const headings = [...Array(heads).keys()].map((head) => `head ${head + 1}`);
  const square = (map, layer, head) => {
    const isChosen = layer === view.layer && head === view.head;
    return html`<${Button} pressed=${isChosen} tabindex=${isChosen ? 0 : -1} aria-label=${headName(layer, head, heads)}
      onClick=${() => onChoose({ layer, head })}><${Small} map=${map} columns=${columns} row=${row} /><//>`;
  };
  return html`<div class="overview" role="group" aria-label="All heads" style=${`--heads:${heads + 1};--shape:${columns / layers[0][0].length}`} onKeyDown=${WALK_MAPS}>
    <span></span>${[...headings, "mean"].map((heading) => html`<span aria-hidden="true">${heading}</span>`)}
    ${layers.map((maps, layer) => html`<span class="layer" aria-hidden="true">layer ${layer + 1}</span>${maps.map((map, head) => square(map, layer, head))}`)}
  </div>`;
}

/** One map: a row for each query. `cell`, [query, key], is the one that was asked last, or null. */
export function Large({ shown, cell, onPoint }) {
  const { queries, keys, map, kind } = shown;
  const [askedQuery, askedKey] = cell ?? [];
  const square = (query, key) => {
    const weight = map[query][key];
    const asked = query === askedQuery && key === askedKey;
    const isStop = cell ? asked : !query && !key; // of the keyboard
    return html`<td
      role="gridcell" class=${classes({ asked, closed: weight === undefined })} style=${`--weight:${weight ?? 0}%`}
      aria-label=${cellInWords(shown, [query, key])} tabindex=${isStop ? 0 : -1}
      onPointerEnter=${() => onPoint([query, key])} onFocus=${() => onPoint([query, key])}
    >${weight >= LEAST ? weight : ""}</td>`;
  };
  const queryLanguage = kind === "encoder" ? READS.code : WRITES.code;
  const keyLanguage = kind === "decoder" ? WRITES.code : READS.code;
  const line = (piece, query) => html`<tr role="row" class=${classes({ asked: query === askedQuery })}>
    <th role="rowheader" scope="row" lang=${queryLanguage}>${spelt(piece)}</th>${keys.map((_, key) => square(query, key))}
  </tr>`;
  const headings = keys.map(
    (piece) =>
      html`<th role="columnheader" scope="col" lang=${keyLanguage}><span>${spelt(piece)}</span></th>`,
  );
  const asks = { cross: "writes", encoder: "asks", decoder: "has read" }[kind];
  return html`<div class="scroll">
    <table role="grid" style=${`--count:${keys.length}`} aria-label="Weights in hundredths: a row for each query, a column for each key" onKeyDown=${WALK_CELLS}>
      <thead><tr role="row"><th role="columnheader" scope="col" class="corner">${asks}</th>${headings}</tr></thead>
      <tbody>${queries.map(line)}</tbody>
    </table>
  </div>`;
}
