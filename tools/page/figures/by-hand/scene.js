// From a wish to a scene: eight words in a plane, whose three roles can be turned apart by three matrices.
//
// A *wish* is what the reader has chosen: who asks, three angles, what was dragged, how scores are made.
// A *scene* is all that follows from it, plain data; it needs no model.

import { softmax, sum } from "../model/arithmetic.js";

export const LIMIT = 2.6; // of both axes; nothing is dragged farther from the middle

/** What a word's vector becomes, by which matrix. */
export const ROLES = [
  { role: "query", letter: "Q" },
  { role: "key", letter: "K" },
  { role: "value", letter: "V" },
];

export const FIRST = {
  asks: "hebt",
  angles: { query: 0, key: 0, value: 0 },
  query: null, // a vector that takes the place of the asking word's, before its matrix
  keys: {}, // the same for keys, by number
  width: 2,
  divide: true,
  mask: false,
};

/** Experiments: what the reader's wish becomes, and what is to be seen then. */
export const EXPERIMENTS = [
  {
    name: "Rotate Q and K alike",
    wish: { ...FIRST, angles: { query: 60, key: 60, value: 0 } },
    see: "No weight changes: a score depends on the lengths of query and key and the angle between them. Now rotate only one.",
  },
  {
    name: "Let the softmax collapse",
    wish: { ...FIRST, asks: "Mädchen", width: 64, divide: false },
    see: "Products of 64 numbers are large. Undivided, they leave nearly all weight to one word. Switch the division on again.",
  },
  {
    name: "Close the future",
    wish: { ...FIRST, mask: true },
    see: "“hebt” can no longer attend to “auf”, its other half. What “auf” had goes to the words that are left.",
  },
];

/** The words of the notebook's rows, in their order. */
function wordsOf(rows) {
  const own = rows.filter(({ asks }) => asks === rows[0].asks);
  return own.map(({ word, english, x, y }) => ({ word, english, place: [x, y] }));
}

/** A turn, anticlockwise and in degrees, as a matrix for rows: x W, as in the text. */
export function matrixOf(angle) {
  const radians = (angle * Math.PI) / 180;
  const [cos, sin] = [Math.cos(radians), Math.sin(radians)];
  return [
    [cos, sin],
    [-sin, cos],
  ];
}

export const dot = (one, other) => one[0] * other[0] + one[1] * other[1];
/** A row times a matrix. */
export const apply = ([first, second], [x, y]) => first.map((value, i) => x * value + y * second[i]);
export const distance = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);

/** Scores of a query: before and after the division, and which of them are open. */
function scoresOf(query, keys, asking, { width, divide, mask }) {
  return keys.map((key, number) => {
    const product = dot(query, key) * Math.sqrt(width / 2);
    const score = divide ? product / Math.sqrt(width) : product;
    return { product, score, open: !mask || number <= asking };
  });
}

const weightsOf = (scores) => softmax(scores.map(({ score, open }) => (open ? score : -Infinity)));

/** All that is shown of a wish. */
export function sceneOf(words, wish) {
  const [toQuery, toKey, toValue] = ROLES.map(({ role }) => matrixOf(wish.angles[role]));
  const asking = words.findIndex(({ word }) => word === wish.asks);
  const queries = words.map(({ place }, number) =>
    apply(toQuery, (number === asking && wish.query) || place),
  );
  const keys = words.map(({ place }, number) => apply(toKey, wish.keys[number] ?? place));
  const scores = queries.map((query, number) => scoresOf(query, keys, number, wish));
  const weights = scores.map(weightsOf);
  const rows = words.map(({ word, english, place }, number) => {
    const value = apply(toValue, place);
    const weight = weights[asking][number];
    const moved = distance(wish.keys[number] ?? place, place) > 0.005;
    const share = value.map((part) => weight * part);
    return {
      word,
      english,
      place,
      key: keys[number],
      value,
      ...scores[asking][number],
      weight,
      share,
      moved,
    };
  });
  return {
    ...wish,
    asking,
    rows,
    asked: queries[asking],
    answer: [0, 1].map((axis) => sum(rows.map(({ share }) => share[axis]))),
    moved: distance(wish.query ?? words[asking].place, words[asking].place) > 0.005,
    weights: weights.map((row) => row.map((weight) => Math.round(1e4 * weight) / 1e4)),
  };
}

/** What the page shows before anybody has touched it. */
export const firstScene = (_, data) => sceneOf(wordsOf(data), FIRST);
