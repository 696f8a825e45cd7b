// A model in plain JavaScript: the layers of Parts 1 and 2, in pre-norm, with the cache of Part 7.

import { add, linear, logSoftmax, normalise, softmax } from "./arithmetic.js";
import { Subwords } from "./subwords.js";

export class Transformer {
  constructor({ config, words, merges }, tensors) {
    Object.assign(this, config, { depth: config.d_model / config.h });
    this.closed = new Set(); // positions of the source that nobody may look at
    this.subwords = new Subwords(words, merges, config.max_len);
    const { d_model, d_ff, tgt_vocab } = config;
    const parameters = (name, rows = d_model) => ({
      weight: tensors[`${name}.weight`],
      bias: tensors[`${name}.bias`] ?? new Float32Array(rows), // some models have none
    });
    const heads = (name) => [0, 1, 2, 3].map((number) => parameters(`${name}.linears.${number}`));
    const stack = (name, kinds) =>
      Array.from({ length: config.N }, (_, n) => ({
        attentions: kinds.map((kind) => heads(`${name}.layers.${n}.${kind}`)),
        norms: [...kinds, "feed_forward"].map((_, i) => parameters(`${name}.layers.${n}.sublayer.${i}.norm`)),
        widen: parameters(`${name}.layers.${n}.feed_forward.widen`, d_ff),
        narrow: parameters(`${name}.layers.${n}.feed_forward.narrow`),
      }));
    this.encoder = stack("encoder", ["self_attn"]);
    this.decoder = stack("decoder", ["self_attn", "src_attn"]);
    this.norms = { encoder: parameters("encoder.norm"), decoder: parameters("decoder.norm") };
    const shared = tensors["src_embed.0.lut.weight"]; // one matrix for both sides and the output, unless there are more
    this.vectors = { encoder: shared, decoder: tensors["tgt_embed.0.lut.weight"] ?? shared };
    const output = parameters("generator.proj", tgt_vocab);
    this.output = { ...output, weight: output.weight ?? shared };
  }

  /** The vector of a symbol at a position, on a side (Part 2). */
  embed(id, position, side) {
    const D = this.d_model;
    return Float32Array.from({ length: D }, (_, i) => {
      const angle = position / 10000 ** ((i - (i % 2)) / D);
      return this.vectors[side][id * D + i] * Math.sqrt(D) + (i % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  /** Attention of one query over keys and values, but the closed ones: { mixed, weights }, weights by head (Part 1). */
  attend(query, keys, values, closed = null) {
    const mixed = new Float32Array(query.length),
      weights = [];
    for (let head = 0; head < this.h; head++) {
      const [from, to] = [head * this.depth, (head + 1) * this.depth];
      const scores = keys.map((key, s) => {
        if (closed?.has(s)) return -Infinity;
        let product = 0;
        for (let i = from; i < to; i++) product += query[i] * key[i];
        return product / Math.sqrt(this.depth);
      });
      weights.push(softmax(scores));
      values.forEach((value, s) => {
        for (let i = from; i < to; i++) mixed[i] += weights[head][s] * value[i];
      });
    }
    return { mixed, weights };
  }

  /** The stream after the feed-forward network, the last part of a layer. */
  fed(state, layer) {
    const norm = layer.norms[layer.norms.length - 1];
    return add(state, this.feedForward(normalise(state, norm), layer));
  }

  feedForward(x, layer) {
    return linear(
      linear(x, layer.widen).map((value) => Math.max(0, value)),
      layer.narrow,
    );
  }

  get words() {
    return this.subwords.words;
  }

  encode(text) {
    return this.subwords.encode(text);
  }

  decode(ids) {
    return this.subwords.decode(ids);
  }

  /**
   * The encoder, as work that yields after each layer: what the decoder asks in each of its own,
   * [{ keys, values }]. `see` is shown the vectors of all positions, at first and after each part, and
   * after attention its weights by position and head.
   */
  *reading(ids, see = () => {}) {
    let states = ids.map((id, position) => this.embed(id, position, "encoder"));
    see(states);
    for (const layer of this.encoder) {
      const [query, key, value, out] = layer.attentions[0];
      const normed = states.map((state) => normalise(state, layer.norms[0]));
      const [queries, keys, values] = [query, key, value].map((map) => normed.map((x) => linear(x, map)));
      yield;
      const heard = queries.map((asked) => this.attend(asked, keys, values, this.closed));
      states = states.map((state, i) => add(state, linear(heard[i].mixed, out)));
      see(
        states,
        heard.map(({ weights }) => weights),
      );
      yield;
      states = states.map((state) => this.fed(state, layer));
      see(states);
      yield;
    }
    const memory = states.map((state) => normalise(state, this.norms.encoder));
    return this.decoder.map(({ attentions: [, [, key, value]] }) => ({
      keys: memory.map((state) => linear(state, key)),
      values: memory.map((state) => linear(state, value)),
    }));
  }

  /**
   * One step of the decoder: `past` holds keys and values of the symbols before `id`, layer by
   * layer, or is null. Returns the past with this symbol, the log-probabilities of the next symbol, and the
   * weights of the cross-attention by layer and head. `see` is shown the vector, at first and after each
   * part, and after attention its weights by head.
   */
  step(memory, past, id, see = () => {}) {
    past ??= this.decoder.map(() => ({ keys: [], values: [] }));
    let state = this.embed(id, past[0].keys.length, "decoder");
    see(state);
    const cross = [];
    past = this.decoder.map((layer, n) => {
      const [self, source] = layer.attentions;
      const normed = normalise(state, layer.norms[0]);
      const keys = [...past[n].keys, linear(normed, self[1])];
      const values = [...past[n].values, linear(normed, self[2])];
      const heard = this.attend(linear(normed, self[0]), keys, values);
      state = add(state, linear(heard.mixed, self[3]));
      see(state, heard.weights);
      const asked = linear(normalise(state, layer.norms[1]), source[0]);
      const found = this.attend(asked, memory[n].keys, memory[n].values, this.closed);
      state = add(state, linear(found.mixed, source[3]));
      cross.push(found.weights);
      see(state, found.weights);
      state = this.fed(state, layer);
      see(state);
      return { keys, values };
    });
    return { past, logProbs: this.next(normalise(state, this.norms.decoder)), cross };
  }

  /** The generator: log-probabilities of all symbols (Part 2). */
  next(state) {
    return logSoftmax(linear(state, this.output));
  }
}
