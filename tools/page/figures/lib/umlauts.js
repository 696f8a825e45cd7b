// A text as it should be spelt: umlauts from plain letters, capitals for nouns, small letters for shouts.

export const UMLAUTS = ["ä", "ö", "ü", "ß"];
const PLAIN = { ae: "ä", oe: "ö", ue: "ü", Ae: "Ä", Oe: "Ö", Ue: "Ü", ss: "ß" };
const MEANT = /[aA]e(?!l$)|[oO]e|(?<![aeoäq])ue(?!ll$)|Ue|ss/gu; // not in neue, Mauer, quer, Duell, Michael
const MOST = 4; // places in a word
const SHOUT = /^\p{Lu}[\p{Lu}ß]+$/u;
const SMALL = // the model knows these with a capital, too: from where sentences begin
  /^(am|an|auf|aus|bei|das|der|die|drei|eine?|einige|fünf|gegen|hinter|im|in|jemand|mehrere|mit|nach|sie|um|unter|viele|vier|von|vor|zu|zwei|blau|rennen|rot|schwarz|sitzen|weiß)$/;

const count = (word, letter) => word.split(letter).length;

const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

/** All spellings of a word in which some of its pairs of letters are umlauts. */
function withPairs(word) {
  const places = [...word.matchAll(MEANT)].slice(0, MOST);
  const spelt = (chosen) =>
    places.reduceRight(
      (text, { 0: pair, index }, n) =>
        chosen & (1 << n) ? text.slice(0, index) + PLAIN[pair] + text.slice(index + 2) : text,
      word,
    );
  return [...Array(1 << places.length).keys()].slice(1).map(spelt);
}

/** All other spellings of a word, small and with a capital. */
function spellings(word) {
  const others = withPairs(word);
  return [...others, ...[word, ...others].map(capital).filter((other) => other !== word)];
}

/** What a word in capitals may be: itself, as BMW is, a noun, a small word. Of equals the first is meant. */
function calmed(word, isFirst) {
  const small = word.toLowerCase();
  const others = [small, ...withPairs(small)];
  const nouns = others.map(capital);
  return SMALL.test(small) && !isFirst ? [word, ...others, ...nouns] : [word, ...nouns, ...others];
}

/**
 * The text with the umlauts and capitals that are meant. A word is changed only if the model knows the
 * other spelling, and cuts the word into more subwords as it is typed: it has read Mädchen, not Maedchen,
 * but Wasser and neue. Of ß or a capital it must know the whole word: Klasse is no Klaße.
 */
export function respelt(text, encode) {
  const pieces = (word) => encode(word).length - 1; // without the end
  const isMeant = (word) => (other) =>
    pieces(other) <= (count(other, "ß") > count(word, "ß") || other[0] !== word[0] ? 1 : 3);
  return text.replace(/\p{L}+/gu, (word, at) => {
    const all = SHOUT.test(word) ? calmed(word, !at) : [word, ...spellings(word).filter(isMeant(word))];
    return all.reduce((one, other) => (pieces(other) < pieces(one) ? other : one));
  });
}
