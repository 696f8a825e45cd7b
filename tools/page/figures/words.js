// Words for a reader who knows no German: a bank that makes captions, and a die.

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
