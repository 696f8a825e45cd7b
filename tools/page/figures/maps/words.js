// What is said of a map.

import { decimal, spelt } from "../lib/text.js";
import { sum } from "../model/arithmetic.js";

const MOST = 3; // keys that are named

/** A head, or the mean of a layer, in words. */
export const headName = (layer, head, heads) =>
  `layer ${layer + 1}, ${head === heads ? "mean of its heads" : `head ${head + 1}`}`;

/** A weight, from hundredths, as a number. */
const weightOf = (hundredths) => decimal(hundredths / 100);

/** What a cell says: [query, key]. */
export function cellInWords({ kind, queries, keys, map }, [query, key]) {
  const weight = map[query][key];
  const [asks, looked] = [queries[query], keys[key]].map((piece) => `“${spelt(piece)}”`);
  if (weight === undefined) return `${asks} may not attend to ${looked}, which comes later.`;
  const who = kind === "cross" ? `To write ${asks}, the model gives ${looked}` : `${asks} gives ${looked}`;
  return `${who} ${weightOf(weight)} of its weight.`;
}

/** The mean weight of the keys at a distance from their query. */
const atDistance = (map, distance) => sum(map.map((row, query) => row[query + distance] ?? 0)) / map.length;

/** What a map does over all its rows: in self-attention where it looks from itself, in cross-attention at what. */
export function habitOf({ kind, keys, map }) {
  if (kind !== "cross") {
    const places = [
      ["previous", atDistance(map, -1)],
      ["itself", atDistance(map, 0)],
      ...(kind === "encoder" ? [["next", atDistance(map, 1)]] : []),
      ["first", sum(map.map((row) => row[0])) / map.length],
    ];
    return `Mean over the rows: ${places.map(([name, weight]) => `${name} ${weightOf(weight)}`).join(", ")}.`;
  }
  const means = keys.map((key, i) => ({ key, weight: sum(map.map((row) => row[i])) / map.length }));
  const most = means.sort((one, other) => other.weight - one.weight).slice(0, MOST);
  return `Mean over the rows: ${most.map(({ key, weight }) => `${spelt(key)} ${weightOf(weight)}`).join(", ")}.`;
}
