// Why a translation may be poor, as far as the sentence tells: the same words in every figure.

import { sum } from "../model/arithmetic.js";
import { SPACE } from "../model/subwords.js";
import { READS } from "./corpus.js";
import { spelt } from "./text.js";

const CRUMBS = 4; // a word of so many pieces was hardly ever seen
const FRAGMENTS = 2; // pieces to a word in the mean: hardly a German caption
const NOUNS = 0.25; // of the words of a caption at least so many have a capital letter
const SAYS_NO = /(?<!\p{L})(kein\p{L}*|nicht|nie|niemals|niemand)(?!\p{L})/iu;

// Words of English captions that no German sentence has, and of German ones that no English has.
const among = (list) => new RegExp(`^(${list.replaceAll(" ", "|")})$`, "i");
const ENGLISH = among(
  "the a and is are of with on by at to his her their he she it they some i you dogs? girls? boys? " +
    "wom[ae]n people children playing running sitting standing walking",
);
const GERMAN = among(
  "der das den dem ein eine einen einem einer und ist mit auf im am zwei drei ich er sie es",
);

/** Is it English? Words of both languages, as "in", tell nothing. */
function isEnglish(words) {
  const known = (kind) => words.filter((word) => kind.test(word)).length;
  return known(ENGLISH) > known(GERMAN);
}

/** The pieces of each word, without punctuation. */
function wordsOf(pieces) {
  const words = [];
  for (const piece of pieces.filter((each) => each !== "</s>")) {
    if (piece.startsWith(SPACE) || !words.length) words.push([]);
    if (/\p{L}|\p{N}/u.test(piece)) words[words.length - 1].push(piece);
  }
  return words.filter((word) => word.length);
}

/** What the letters tell, before the model has cut them. */
function hintOfLetters(text) {
  const letters = text.replace(/\P{L}/gu, "");
  if (!/\p{L}|\p{N}/u.test(text)) return "There is no word in it yet. Type a caption in German.";
  const words = text.match(/\p{L}+/gu) ?? [];
  if (isEnglish(words)) return "This looks like English. The model reads German only.";
  const capitals = words.filter((word) => /^\p{Lu}/u.test(word)).length;
  if (letters.toLowerCase() !== letters.toUpperCase() && capitals < NOUNS * words.length)
    return "German nouns have a capital letter. Without it, the model hardly knows them.";
  if (SAYS_NO.test(text)) return "Captions say what is there. It has hardly ever read what is not.";
  return "";
}

/** What is to be said of a text, and of its pieces once they are known. */
export function hintFor(text, pieces = []) {
  if (text.trim() === "") return `Type a sentence in ${READS.name}. Below stands the one before.`;
  if (pieces.includes("<unk>")) return "It holds a letter that the model has never seen.";
  const told = hintOfLetters(text);
  if (told) return told;
  const words = wordsOf(pieces);
  const crumbled = words.find((word) => word.length >= CRUMBS);
  if (crumbled)
    return `“${spelt(crumbled.join(""))}” falls into ${crumbled.length} pieces: a word that it has hardly ever seen.`;
  const strange = words.length > 2 && sum(words.map((word) => word.length)) >= FRAGMENTS * words.length;
  return strange ? "Its words fall into pieces: in German captions they hardly occur." : "";
}
