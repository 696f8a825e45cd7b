// What is said of a map.

import { decimal, spelt } from "../lib/text.js";

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
