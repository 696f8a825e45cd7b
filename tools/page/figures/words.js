// Words for a reader who knows no German: a bank that makes captions, a die, umlauts from plain letters.

// The bank: one word of each kind makes a caption, and a word takes the place of another of its kind.
const HOW = { klein: "little", groß: "big", jung: "young" };
const WHO = {
  Hund: { means: "dog", article: "Ein", ending: "er" },
  Frau: { means: "woman", article: "Eine", ending: "e" },
  Mädchen: { means: "girl", article: "Ein", ending: "es" },
};
const DOES = {
  läuft: { means: "runs", moves: true },
  springt: { means: "jumps", moves: true },
  schläft: { means: "sleeps", moves: false },
};
const WHERE = {
  Schnee: { means: "snow", there: "im Schnee", through: "durch den Schnee" },
  Strand: { means: "beach", there: "am Strand", through: "über den Strand" },
  Straße: { means: "street", there: "auf der Straße", through: "über die Straße" },
};
const BUILT = /^(Eine?)( (\p{L}+?)(er|es|e))? (\p{L}+) (\p{L}+) (\p{L}+ (?:\p{L}+ )?(\p{L}+))\.$/u;

const KINDS = { how: HOW, who: WHO, does: DOES, where: WHERE };

/** The words of the bank, by kind: { kind, word, means }. */
export const BANK = Object.entries(KINDS).flatMap(([kind, words]) =>
  Object.entries(words).map(([word, about]) => ({ kind, word, means: about.means ?? about })),
);

/** The caption that the bank makes of a word of each kind; `how` may be missing. */
export function captionOf({ how, who, does, where }) {
  const { article, ending } = WHO[who];
  const place = WHERE[where][DOES[does].moves ? "through" : "there"];
  return [article, ...(how ? [how + ending] : []), who, does, place].join(" ").concat(".");
}

/** Of which words the bank has made this caption; null if it has not. */
export function wordsOf(text) {
  const found = BUILT.exec(text.trim());
  if (!found) return null;
  const chosen = { how: found[3], who: found[5], does: found[6], where: found[8] };
  const known = [WHO[chosen.who], DOES[chosen.does], WHERE[chosen.where], !chosen.how || HOW[chosen.how]];
  return known.every(Boolean) && captionOf(chosen) === text.trim() ? chosen : null;
}

/** The text with a word of the bank in it; an adjective that was there already is taken out. */
export function withWord(text, { kind, word }) {
  const chosen = wordsOf(text) ?? { who: "Hund", does: "läuft", where: "Schnee" };
  const again = kind === "how" && chosen.how === word;
  return captionOf({ ...chosen, [kind]: again ? undefined : word });
}

// The die --------------------------------------------------------------------------------------------

const ONE = ["Ein Hund", "Eine Frau", "Ein alter Mann", "Ein kleines Mädchen", "Ein Junge mit rotem Hut"];
const TWO = ["Zwei Hunde", "Drei Kinder", "Zwei junge Frauen", "Vier Männer", "Viele Menschen"];
const ACTS = [
  // what one does, what several do, and where
  ["läuft", "laufen", ["durch den Schnee", "über eine Wiese", "die Straße entlang"]],
  ["spielt", "spielen", ["im Sand", "mit einem Ball", "in einem Brunnen"]],
  ["springt", "springen", ["ins Wasser", "über einen Zaun", "von einem Felsen"]],
  ["schläft", "schlafen", ["auf einem Sofa", "am Strand", "unter einem Baum"]],
  ["wartet", "warten", ["auf den Bus", "vor einem Laden", "an einer Straßenecke"]],
];

/** A caption that makes sense, and is another than `last`; `random` gives numbers from 0 to 1. */
export function thrown(last, random = Math.random) {
  const any = (list) => list[Math.floor(random() * list.length)];
  const one = random() < 0.5;
  const [does, together, places] = any(ACTS);
  const text = `${any(one ? ONE : TWO)} ${one ? does : together} ${any(places)}.`;
  return text === last ? thrown(last, random) : text;
}

// Umlauts --------------------------------------------------------------------------------------------

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
