// From a choice to a scene: eight words in a plane, one of which asks all of them.
//
// A *choice* is the reader's: who asks, and where the query was dragged. A *scene* is all that follows from it, plain
// data; it needs no model.

import { softmax, sum } from "../model/arithmetic.js";

export const LIMIT = 2.6; // of both axes; nothing is dragged farther from the middle
export const ROOT = Math.SQRT2; // of the width of the vectors

export const FIRST = { asks: "hebt", query: null }; // a query takes the place of the asking word's vector

/** The words of the notebook's rows, in their order. */
function wordsOf(rows) {
  const own = rows.filter(({ asks }) => asks === rows[0].asks);
  return own.map(({ word, english, x, y }) => ({ word, english, key: [x, y] }));
}

export const dot = (one, other) => one[0] * other[0] + one[1] * other[1];

/** All that is shown of a choice. A word's vector is its query, until that is dragged, its key and its value. */
export function sceneOf(words, choice) {
  const { query } = choice;
  const asked = query ?? words.find(({ word }) => word === choice.asks).key;
  const scored = words.map(({ word, english, key }) => {
    const product = dot(asked, key);
    return { word, english, key, product, score: product / ROOT };
  });
  const weights = softmax(scored.map(({ score }) => score));
  const rows = scored.map((row, number) => {
    const weight = weights[number];
    return { ...row, weight, share: row.key.map((part) => weight * part) };
  });
  return {
    ...choice,
    rows,
    asked,
    answer: [0, 1].map((axis) => sum(rows.map(({ share }) => share[axis]))),
    moved: query !== null,
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (_, data) => sceneOf(wordsOf(data), FIRST);
