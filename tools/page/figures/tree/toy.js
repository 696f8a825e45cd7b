// A language of seven words, for which a search can be followed with a pencil: that of images/beam.svg.

import { Search } from "../model/search.js";

const WORDS = ["<s>", "</s>", "A", "The", "dog", "cat", "man", "runs", "sits"];
const NEXT = {
  // after each beginning: words and their probabilities
  "": { A: 0.6, The: 0.4 },
  A: { dog: 0.4, cat: 0.35, man: 0.25 },
  The: { dog: 0.9, cat: 0.1 },
  "A dog": { runs: 0.6, sits: 0.4 },
  "The dog": { runs: 0.8, sits: 0.2 },
};
const ELSE = { runs: 0.5, sits: 0.5 };

const decode = (ids) => ids.map((id) => WORDS[id]).join(" ");

/** What stands in the place of a model; its past is what has been written. */
const language = {
  words: WORDS.map((word) => `▁${word}`),
  max_len: 4, // with the start
  decode,
  step(_, past, id) {
    const written = past ? [...past, id] : [];
    const next = NEXT[decode(written)] ?? ELSE;
    return { past: written, logProbs: WORDS.map((word) => Math.log(next[word] ?? 0)) };
  },
};

export const toySearch = () => new Search(language, [], null);
