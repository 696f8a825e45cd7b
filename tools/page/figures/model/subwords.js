// The subwords of Part 7: text -> ids -> text, as the tokenizer of the script has it.

export const START = 0;
export const END = 1;
export const UNKNOWN = 3;
export const SPACE = "▁"; // stands for the space before a word
const NOT_TEXT = /[‿▁\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\ud800-\udfff]/gu; // controls, halves of a character
const INVISIBLE = /[\xad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g; // in words
const SIGN = "!-/:-@[-`{-~\\p{P}"; // punctuation stands alone
const WORD = new RegExp(`[${SIGN}]|${SPACE}[^${SPACE}${SIGN}]*|[^${SPACE}${SIGN}]+`, "gu");

/** The words of a text, as `clean` of the script brings them to one form; signs are still part of them. */
const cleaned = (text) =>
  text.replace(INVISIBLE, "").normalize("NFC").replace(NOT_TEXT, " ").split(/\s/).filter(Boolean);

export class Subwords {
  constructor(words, merges, maxLength) {
    this.words = words;
    this.maxLength = maxLength;
    this.ids = new Map(words.map((word, id) => [word, id]));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  }

  /** The subwords of each word and sign of a text, as they are spelt. */
  cut(text) {
    const line = cleaned(text)
      .map((word) => SPACE + word)
      .join("");
    return (line.match(WORD) ?? []).map((word) => this.mergePieces([...word]));
  }

  idOf(piece) {
    return this.ids.get(piece) ?? UNKNOWN;
  }

  /** Ids of a text and the end symbol. */
  encode(text) {
    const ids = this.cut(text)
      .flat()
      .map((piece) => this.idOf(piece));
    return [...ids.slice(0, this.maxLength - 1), END];
  }

  /** Join neighbours; the pair that was merged first in training goes first. */
  mergePieces(pieces) {
    const ranks = pieces.slice(1).map((piece, i) => this.ranks.get(`${pieces[i]} ${piece}`) ?? Infinity);
    const first = Math.min(...ranks),
      at = ranks.indexOf(first);
    if (first === Infinity) return pieces;
    return this.mergePieces([...pieces.slice(0, at), pieces[at] + pieces[at + 1], ...pieces.slice(at + 2)]);
  }

  decode(ids) {
    const until = ids.indexOf(END);
    return (until < 0 ? ids : ids.slice(0, until))
      .map((id) => this.words[id])
      .join("")
      .replaceAll(SPACE, " ")
      .trim();
  }
}
