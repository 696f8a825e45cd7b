// How figures say numbers and subwords.

import { SPACE } from "../model/subwords.js";
import { SENTENCES } from "./corpus.js";

export const SENTENCE = SENTENCES[0]; // in the first picture of all

/** A subword as it is read: without the mark of the space before it. */
export const spelt = (piece) => piece.replace(SPACE, "").replace("</s>", "end") || "(space)";

/** A subword with what goes on with a word told from what begins one. */
export const continued = (piece) => (/^\p{L}/u.test(piece) ? `…${piece}` : spelt(piece));

/** Whether a subword goes on with the word before it. */
export const goesOn = (piece) => !/^(▁|<\/s>$|[.,;:!?…"]+$)/u.test(piece);

/** The words of subwords, and their signs: each the positions of its subwords. */
export function wordsIn(pieces) {
  const words = [];
  pieces.forEach((piece, t) => {
    if (t && goesOn(piece)) words[words.length - 1].push(t);
    else words.push([t]);
  });
  return words;
}

/** A number with a true minus, and no minus before zero. */
export const decimal = (number, digits = 2) =>
  number
    .toFixed(digits)
    .replace(/^-(?=[0.]*$)/, "")
    .replace("-", "−");

/** A share as a percentage with one digit. */
export const percent = (share) => `${decimal(100 * share, 1)} %`;

/** A whole number, its digits in threes. */
export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
