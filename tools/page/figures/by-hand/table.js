// The table of the stages: a row for each word, and below it the line of code of a stage.

import { decimal } from "../lib/text.js";
import { Button, classes, html, useEffect, useState } from "../lib/ui.js";
import { COMPARE, DIVIDE, MIX, SOFTMAX, STAGES } from "./stages.js";

const PAPER = 7; // a score's bar ends here, and leaves the paper where the score is larger

/** A number with a bar, whose length is in percent of its room. */
function Measure({ length, number, side = "" }) {
  const width = `width:${length.toFixed(1)}%`;
  return html`<span class="bar"><i><u class=${side} style=${width}></u></i><b>${number}</b></span>`;
}

function ScoreCell({ value, lit }) {
  const length = (50 * Math.abs(value)) / PAPER;
  const side = classes({ over: length > 50, left: value >= 0, right: value < 0 });
  return html`<td class=${classes({ score: true, lit })}>
    <${Measure} length=${Math.min(50, length)} number=${decimal(value)} side=${side} />
  </td>`;
}

function MixCell({ point, lit }) {
  const parts = point.map((value) => html`<span>${decimal(value)}</span> `);
  return html`<td class=${classes({ share: true, lit })}>${parts}</td>`;
}

/** A row for each word, with a cell for each stage; last the sums. */
export function Stages({ scene, stage, pinned, onPoint, onChoose }) {
  const headings = STAGES.map((each, i) => {
    const number = i + 1;
    return html`<th key=${number} scope="col" class=${classes({ lit: number === stage })}>
      <${Button} pressed=${number === pinned} aria-describedby="by-hand-code"
        onPointerEnter=${() => onPoint(number)} onPointerLeave=${() => onPoint(null)}
        onFocus=${() => onPoint(number)} onBlur=${() => onPoint(null)} onClick=${() => onChoose(number)}
      >${each.name} <small>${each.formula()}</small><//>
    </th>`;
  });
  const rows = scene.rows.map(({ word, product, score, weight, share }) => {
    return html`<tr key=${word}>
      <th scope="row" lang="de" class=${classes({ asks: word === scene.asks })}>${word}</th>
      <${ScoreCell} value=${product} lit=${stage === COMPARE} />
      <${ScoreCell} value=${score} lit=${stage === DIVIDE} />
      <td class=${classes({ weight: true, lit: stage === SOFTMAX })}>
        <${Measure} length=${100 * weight} number=${decimal(weight, 3)} />
      </td>
      <${MixCell} point=${share} lit=${stage === MIX} />
    </tr>`;
  });
  const empty = [COMPARE, DIVIDE].map(
    (number) => html`<td class=${classes({ lit: stage === number })}></td>`,
  );
  return html`<table class="stages">
    <thead><tr><th scope="col"><span>word</span></th>${headings}</tr></thead>
    <tbody>${rows}
      <tr class="sums"><th scope="row">sum</th>${empty}
        <td class=${classes({ weight: true, lit: stage === SOFTMAX })}>1.000</td>
        <${MixCell} point=${scene.answer} lit=${stage === MIX} />
      </tr>
    </tbody>
  </table>`;
}

/** The lines of the function `attention` on the page, or null where it is missing. */
const attentionCode = () => document.querySelector('[data-computes="attention"] code');

/** The range of `text` in an element, which may have cut it into pieces. */
function rangeOf(text, element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  let start = element.textContent.indexOf(text);
  let end = start + text.length;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (start >= 0 && start < node.length) range.setStart(node, start);
    if (end > 0 && end <= node.length) range.setEnd(node, end);
    start -= node.length;
    end -= node.length;
  }
  return range;
}

/** The line of code of a stage; it is lit where it stands on the page, too. */
export function Quote({ stage }) {
  const [source, setSource] = useState("");
  const code = STAGES[stage - 1]?.code;
  const line = code && source.split("\n").find((text) => text.includes(code));
  useEffect(() => setSource(attentionCode()?.textContent ?? ""), []);
  useEffect(() => {
    const { highlights } = globalThis.CSS ?? {};
    if (!line || !highlights) return undefined;
    highlights.set("by-hand", new Highlight(rangeOf(code, attentionCode())));
    return () => highlights.delete("by-hand");
  }, [code, line]);
  if (!line)
    return html`<p class="quote" id="by-hand-code">
      Choose a stage: here is its line of code.
    </p>`;
  const [before, after] = line.replace(/ *#.*/, "").trim().split(code);
  return html`<p class="quote" id="by-hand-code"><code>${before}<mark>${code}</mark>${after}</code></p>`;
}
