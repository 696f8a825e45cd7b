// The model with parts switched off. A *cut* names one:
//
//   "encoder attention"      what self-attention adds becomes zero, in all layers of the encoder
//   "mask"                   in decoder self-attention, each position of a prefix sees the whole prefix
//   "positions"              no positional encoding is added, on either side
//   "source 3"               nobody may look at this position of the source: encoder and cross-attention close its key

import { add, linear, normalise } from "./arithmetic.js";

const ATTENTIONS = { attention: 0, cross: 1 };

/** A linear map that gives zero. */
const silent = ({ weight, bias }) => ({
  weight: new Float32Array(weight.length),
  bias: new Float32Array(bias.length),
});

/** A layer without a part. */
function layerWithout(layer, part) {
  if (part === "feed-forward") return { ...layer, narrow: silent(layer.narrow) };
  const attentions = [...layer.attentions];
  const [query, key, value, out] = attentions[ATTENTIONS[part]];
  attentions[ATTENTIONS[part]] = [query, key, value, silent(out)];
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
function stepUnmasked(memory, past, id, see = () => {}) {
  const ids = [...(past ?? []), id];
  let states = ids.map((each, position) => this.embed(each, position, "decoder"));
  see(states[ids.length - 1]);
  this.decoder.forEach((layer, n) => {
    const [self, source] = layer.attentions;
    const normed = states.map((state) => normalise(state, layer.norms[0]));
    const [queries, keys, values] = self.slice(0, 3).map((map) => normed.map((x) => linear(x, map)));
    states = states.map((state, i) => {
      const show = i === ids.length - 1 ? see : () => {};
      const { mixed, weights } = this.attend(queries[i], keys, values);
      const heard = add(state, linear(mixed, self[3]));
      show(heard, weights);
      const asked = linear(normalise(heard, layer.norms[1]), source[0]);
      const found = this.attend(asked, memory[n].keys, memory[n].values, this.closed);
      const informed = add(heard, linear(found.mixed, source[3]));
      show(informed, found.weights);
      const fed = this.fed(informed, layer);
      show(fed);
      return fed;
    });
  });
  const last = normalise(states[states.length - 1], this.norms.decoder);
  return { past: ids, logProbs: this.next(last), cross: [] };
}

/** A model with parts switched off; the model itself stays as it is. */
export function unplugged(model, cuts) {
  const less = Object.assign(Object.create(Object.getPrototypeOf(model)), model);
  less.closed = new Set(model.closed);
  for (const cut of cuts) {
    if (cut === "mask") less.step = stepUnmasked;
    else if (cut === "positions") less.embed = embedAnywhere;
    else {
      const [side, part] = cut.split(" ");
      if (side === "source") less.closed.add(Number(part));
      else less[side] = less[side].map((layer) => layerWithout(layer, part));
    }
  }
  return less;
}
