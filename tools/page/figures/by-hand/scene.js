// From a choice to a scene: eight words in a plane, one of which asks all of them.
//
// A *choice* is the reader's: who asks, what was dragged, how scores are made. A *scene* is all that follows from
// it, plain data; it needs no model.

import { softmax, sum } from "../model/arithmetic.js";

export const LIMIT = 2.6; // of both axes; nothing is dragged farther from the middle

export const FIRST = {
  asks: "hebt",
  query: null, // a vector that takes the place of the asking word's
  keys: {}, // the same for keys, by number
  width: 2,
  divide: true,
  mask: false,
};

/** Experiments: what they choose, and what is to be seen then. */
export const EXPERIMENTS = [
  {
    name: "Let the softmax collapse",
    choice: { ...FIRST, asks: "Mädchen", width: 64, divide: false },
    see: "Products of 64 numbers are large. Undivided, they leave nearly all weight to one word. Switch the division on again.",
  },
  {
    name: "Close the future",
    choice: { ...FIRST, mask: true },
    see: "“hebt” can no longer attend to “auf”, its other half. What “auf” had goes to the words that are left.",
  },
];

/** The words of the notebook's rows, in their order. */
function wordsOf(rows) {
  const own = rows.filter(({ asks }) => asks === rows[0].asks);
  return own.map(({ word, english, x, y }) => ({ word, english, value: [x, y] }));
}

export const dot = (one, other) => one[0] * other[0] + one[1] * other[1];

/** All that is shown of a choice. A word's vector is its query, key and value, until the first two are dragged. */
export function sceneOf(words, choice) {
  const { query, keys, width, divide, mask } = choice;
  const asking = words.findIndex(({ word }) => word === choice.asks);
  const asked = query ?? words[asking].value;
  const scored = words.map(({ word, english, value }, number) => {
    const key = keys[number] ?? value;
    const product = dot(asked, key) * Math.sqrt(width / 2);
    const score = divide ? product / Math.sqrt(width) : product;
    const open = !mask || number <= asking;
    return { word, english, key, value, product, score, open, moved: number in keys };
  });
  const weights = softmax(scored.map(({ score, open }) => (open ? score : -Infinity)));
  const rows = scored.map((row, number) => {
    const weight = weights[number];
    return { ...row, weight, share: row.value.map((part) => weight * part) };
  });
  return {
    ...choice,
    asking,
    rows,
    asked,
    answer: [0, 1].map((axis) => sum(rows.map(({ share }) => share[axis]))),
    moved: query !== null,
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (_, data) => sceneOf(wordsOf(data), FIRST);
