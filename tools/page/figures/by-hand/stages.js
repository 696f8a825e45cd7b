// The stages of the function `attention`, numbered from 1; at stage 0 their results are seen all at once.

import { html } from "../lib/ui.js";

/** Each stage: name, formula, and what computes them in the function `attention`. */
export const STAGES = [
  {
    name: "compare",
    formula: () => html`<i class="query">q</i> · <i class="key">k</i>`,
    code: "query @ key.transpose(-2, -1)",
  },
  {
    name: "divide",
    formula: () => "÷ √2",
    code: "/ math.sqrt(query.size(-1))",
  },
  { name: "softmax", formula: () => "weight w", code: "scores.softmax(dim=-1)" },
  { name: "mix", formula: () => html`w · <i class="value">value</i>`, code: "weights @ value" },
];
export const COMPARE = 1;
export const DIVIDE = 2;
export const SOFTMAX = 3;
export const MIX = 4;
