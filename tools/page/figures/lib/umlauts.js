// Umlauts from plain letters, for keyboards that lack them.

export const UMLAUTS = ["ä", "ö", "ü", "ß"];
const PLAIN = { ae: "ä", oe: "ö", ue: "ü", Ae: "Ä", Oe: "Ö", Ue: "Ü", ss: "ß" };
const MEANT = /[aA]e(?!l$)|[oO]e|(?<![aeoäq])ue(?!ll$)|Ue|ss/gu; // not in neue, Mauer, quer, Duell, Michael
const MOST = 4; // places in a word

const count = (word, letter) => word.split(letter).length;

/** All spellings of a word in which some of its pairs of letters are umlauts. */
function spellings(word) {
  const places = [...word.matchAll(MEANT)].slice(0, MOST);
  const spelt = (chosen) =>
    places.reduceRight(
      (text, { 0: pair, index }, n) =>
        chosen & (1 << n) ? text.slice(0, index) + PLAIN[pair] + text.slice(index + 2) : text,
      word,
    );
  return [...Array(1 << places.length).keys()].slice(1).map(spelt);
}

/**
 * The text with the umlauts that its plain letters stand for. A word is changed only if the model
 * knows the other spelling, and cuts the word into more subwords as it is typed: it has read Mädchen,
 * not Maedchen, but Wasser and neue. Of ß it must know the whole word: Klasse is no Klaße.
 */
export function withUmlauts(text, encode) {
  const pieces = (word) => encode(word).length - 1; // without the end
  const best = (word) =>
    spellings(word)
      .filter((other) => pieces(other) <= (count(other, "ß") > count(word, "ß") ? 1 : 3))
      .reduce((one, other) => (pieces(other) < pieces(one) ? other : one), word);
  return text.replace(/\p{L}+/gu, best);
}
