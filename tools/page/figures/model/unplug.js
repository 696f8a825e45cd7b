// The model with parts switched off. A *cut* names one:
//
//   "encoder attention 0"    what self-attention adds in the first layer of the encoder becomes zero
//   "decoder cross 2 head 1" the second head of that attention: its columns of the output projection become zero
//   "mask"                   in decoder self-attention, each position of a prefix sees the whole prefix
//   "positions"              no positional encoding is added, on either side

import { linear } from "./arithmetic.js";
import { Search } from "./search.js";

const ATTENTIONS = { attention: 0, cross: 1 };

/** A linear map that gives zero. */
const silent = ({ weight, bias }) => ({
  weight: new Float32Array(weight.length),
  bias: new Float32Array(bias.length),
});

/** An output projection whose columns for one head are zero; what the head finds is lost. */
function deafTo(head, depth, { weight, bias }) {
  const copy = weight.slice();
  const width = weight.length / bias.length;
  for (let from = head * depth; from < copy.length; from += width) copy.fill(0, from, from + depth);
  return { weight: copy, bias };
}

/** A layer without a part, or without a head of it. */
function layerWithout(layer, part, head, depth) {
  if (part === "feed-forward") return { ...layer, narrow: silent(layer.narrow) };
  const attentions = [...layer.attentions];
  const [query, key, value, out] = attentions[ATTENTIONS[part]];
  const less = head === undefined ? silent(out) : deafTo(head, depth, out);
  attentions[ATTENTIONS[part]] = [query, key, value, less];
  return { ...layer, attentions };
}

/** The vector of a symbol, wherever it stands. */
function embedAnywhere(id, _, side) {
  const { d_model } = this;
  return this.vectors[side]
    .slice(id * d_model, (id + 1) * d_model)
    .map((value) => value * Math.sqrt(d_model));
}

/** A step without the causal mask: the whole prefix is computed again, since all of it sees the new symbol. */
function stepUnmasked(memory, past, id) {
  const ids = [...(past ?? []), id];
  let states = ids.map((each, position) => this.embed(each, position, "decoder"));
  this.decoder.forEach((layer, n) => {
    const [self, source] = layer.attentions;
    const normed = states.map((state) => this.before(state, layer.norms[0]));
    const [queries, keys, values] = self.slice(0, 3).map((map) => normed.map((x) => linear(x, map)));
    states = states.map((state, i) => {
      const { mixed } = this.attend(queries[i], keys, values);
      const heard = this.after(state, linear(mixed, self[3]), layer.norms[0]);
      const asked = linear(this.before(heard, layer.norms[1]), source[0]);
      const found = this.attend(asked, memory[n].keys, memory[n].values);
      const told = this.after(heard, linear(found.mixed, source[3]), layer.norms[1]);
      return this.fed(told, layer);
    });
  });
  const last = this.final(states[states.length - 1], "decoder");
  return { past: ids, logProbs: this.next(last), cross: [] };
}

/** A model with parts switched off; the model itself stays as it is. */
export function unplugged(model, cuts) {
  const less = Object.assign(Object.create(Object.getPrototypeOf(model)), model);
  less.encoder = [...model.encoder];
  less.decoder = [...model.decoder];
  for (const cut of cuts) {
    if (cut === "mask") less.step = stepUnmasked;
    else if (cut === "positions") less.embed = embedAnywhere;
    else {
      const [side, part, layer, , head] = cut.split(" ");
      const number = head === undefined ? head : Number(head);
      less[side][layer] = layerWithout(less[side][layer], part, number, model.depth);
    }
  }
  return less;
}

/** Greedy decoding with parts switched off, of at most `most` symbols, as work that yields: the path. */
export function* greedyWithout(model, text, cuts, most) {
  const search = yield* Search.opening(unplugged(model, cuts), text);
  let path = search.start;
  for (path of search.greedy()) {
    yield;
    if (path.written.length >= most) break;
  }
  return path;
}
