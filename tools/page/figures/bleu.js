// BLEU of one sentence (Part 8), as `corpus_bleu` computes it with sacreBLEU.

import { sum } from "./model/arithmetic.js";
import { cleaned } from "./model/subwords.js";
import { decimal } from "./lib/text.js";
import { Button, html, useState } from "./lib/ui.js";

const ORDERS = [1, 2, 3, 4];
const LONGEST = 200; // letters of a text
const FIRST = { reference: "A man is throwing a log", translation: "A man is throwing a stone" };
const [UNKNOWN, ONE_WORD] = ["<unk>", "\ufffd"]; // an unknown word is one wrong word
const WRONG = "stone";

/** Words of a plain text and its signs, cut as the tokenization 13a cuts them. */
export const tokensOf = (text) =>
  ` ${cleaned(text).join(" ")} `
    .replace(/[!-&(-+/:-@[-`{-~]/g, " $& ")
    .replace(/([^0-9])([.,])/gu, "$1 $2 ") // a number keeps its point
    .replace(/([.,])([^0-9])/gu, " $1 $2")
    .replace(/([0-9])-/g, "$1 - ")
    .split(" ")
    .filter(Boolean);

const gramsOf = (tokens, n) => tokens.slice(n - 1).map((_, i) => tokens.slice(i, i + n).join(" "));

/** The n-grams of a text, and which of them the other text has, each as often as it has it. */
function compare(tokens, other, n) {
  const left = new Map();
  for (const gram of gramsOf(other, n)) left.set(gram, (left.get(gram) ?? 0) + 1);
  return gramsOf(tokens, n).map((gram) => {
    const count = left.get(gram) ?? 0;
    left.set(gram, count - 1);
    return { gram, matches: count > 0 };
  });
}

const isHit = (grams) => grams.some(({ matches }) => matches);

/** The precisions as fractions [over, under]: in place of no match half a match, next time a quarter, and so on. */
function fractionsOf(rows) {
  let share = 1;
  return rows.map((grams) => {
    const count = grams.filter(({ matches }) => matches).length;
    if (count || !grams.length) return [count, grams.length];
    share *= 2;
    return [1, share * grams.length];
  });
}

/** All that is shown of a reference and a translation. */
export function sceneOf({ reference, translation }) {
  const right = tokensOf(reference);
  const written = tokensOf(translation.replaceAll(UNKNOWN, ONE_WORD));
  const rows = ORDERS.map((n) => compare(written, right, n));
  const fractions = fractionsOf(rows);
  const penalty = written.length < right.length ? Math.exp(1 - right.length / written.length) : 1;
  // Of a reference without four words only shorter n-grams count.
  const counted = right.length < ORDERS.length ? fractions.filter(([, all]) => all) : fractions;
  const logs = counted.map(([over, under]) => Math.log(under ? over / under : 0));
  const bleu = isHit(rows[0]) ? 100 * penalty * Math.exp(sum(logs) / logs.length) : 0;
  const lengths = [right.length, written.length];
  return {
    reference,
    translation,
    lengths,
    wanted: compare(right, written, 1),
    rows,
    counted,
    penalty,
    bleu,
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = () => sceneOf(FIRST);

// Spoiling a translation -----------------------------------------------------------------------------

const SPOILING = {
  "drop a word": (words, at) => words.filter((_, i) => i !== at),
  "swap two words": (words, at) => {
    const pair = words.slice(at, at + 2).reverse();
    return [...words.slice(0, at), ...pair, ...words.slice(at + 2)];
  },
  "change a word": (words, at) => words.map((word, i) => (i === at ? WRONG : word)),
};

/** The reference spoilt at its first place; or at the next one, if the translation is spoilt so already. */
function spoilt(spoil, { reference, translation }) {
  const words = cleaned(reference);
  const all = new Set(words.map((_, at) => spoil(words, at).join(" ")));
  all.delete(words.join(" "));
  const texts = [...all];
  return texts[(texts.indexOf(translation) + 1) % texts.length];
}

// Drawing --------------------------------------------------------------------------------------------

const Gram = ({ gram, matches }) =>
  html`<span class=${`box ${matches ? "hit" : "miss"}`}>${gram.replaceAll(ONE_WORD, UNKNOWN)}</span>`;

const slashed = ([over, under]) => `${over}/${under}`;

/** A row of the table; `counts` is what stands at its end. */
const Row = ({ name, grams, counts }) =>
  html`<tr><th scope="row">${name}</th><td class="boxes">${grams.map(Gram)}</td><td>${counts}</td></tr>`;

/** What is remarkable about a score above zero. */
function remarks({ lengths: [right, written], rows }) {
  const isShort = right < ORDERS.length;
  const isEmpty = rows.some((grams) => grams.length && !isHit(grams));
  return [
    written < right && "It is shorter than the reference.",
    isShort && "The reference has no four words, so only shorter n-grams count.",
    isEmpty &&
      "A zero would make BLEU zero: sacreBLEU counts half a match in its place, then a quarter, and so on.",
  ].filter(Boolean);
}

function Result({ scene }) {
  const { lengths, rows, counted, penalty, bleu } = scene;
  const [right, written] = lengths;
  if (bleu === 0) {
    const why = isHit(rows[0]) ? "The translation has no four words" : "No word matches";
    return html`${`${why}, so BLEU is `}<b>0</b>.`;
  }
  const isShorter = written < right;
  const factor = isShorter ? decimal(penalty) : "1";
  const rest = `${factor}. BLEU = 100 · ${factor} · (${counted.map(slashed).join(" · ")})`;
  const begins = isShorter
    ? html`Brevity penalty: e<sup>${`1 − ${right}/${written}`}</sup>${` = ${rest}`}`
    : `Brevity penalty: ${rest}`;
  return html`${begins}<sup>${`1/${counted.length}`}</sup> = <b>${decimal(bleu, 1)}</b>${[".", ...remarks(scene)].join(" ")}`;
}

export function Bleu({ scene: first }) {
  const [scene, setScene] = useState(first);
  const change = (changes) => setScene((last) => sceneOf({ ...last, ...changes }));
  const { wanted, rows } = scene;
  const field = (name, label) => html`<label class="field"><span>${label}</span><input
    type="text" autocomplete="off" spellcheck="false" maxlength=${LONGEST} value=${scene[name]}
    onInput=${({ target }) => change({ [name]: target.value })} /></label>`;
  const spoiling = Object.entries(SPOILING).map(([name, spoil]) => {
    const translation = spoilt(spoil, scene);
    return html`<${Button} off=${translation === undefined} onClick=${() => change({ translation })}>${name}<//>`;
  });
  const precisions = rows.map((grams, i) => {
    const count = grams.filter(({ matches }) => matches).length;
    return html`<${Row} name=${`n = ${i + 1}`} grams=${grams} counts=${slashed([count, grams.length])} />`;
  });
  return html`<div class="small bleu">
    <div class="controls">${field("reference", "Reference")}${field("translation", "Translation")}<span class="name">Copy the reference, but</span>${spoiling}</div>
    <table>
      <thead><tr><td></td><th scope="col" class="boxes">n-grams</th><th scope="col">precision</th></tr></thead>
      <tbody><${Row} name="reference" grams=${wanted} counts="" />${precisions}</tbody>
    </table>
    <p class="result" role="status"><${Result} scene=${scene} /></p>
    <p class="key"><span class="box hit">in both</span> <span class="box miss">not in the other, or not as often</span></p>
  </div>`;
}
