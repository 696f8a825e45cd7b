// The script's Transformer, as `make_model` builds it, on matrices that a tape differentiates.

import { add, attention, layerNorm, linear, logSoftmax, lookUp, Matrix, NO_TAPE, relu } from "./tape.js";

/** The sinusoids of §3.5: a row for each position, pairs of sine and cosine. */
function sinusoids(positions, width) {
  const waves = new Float64Array(positions * width);
  for (let p = 0; p < positions; p++)
    for (let c = 0; c < width; c += 2) {
      const angle = p / 10_000 ** (c / width);
      waves[p * width + c] = Math.sin(angle);
      waves[p * width + c + 1] = Math.cos(angle);
    }
  return waves;
}

/**
 * A Transformer whose parameters have the names and shapes of the script's `state_dict`. Of its
 * `parts`, `mask`, `positions` and `residuals` can be switched off.
 *
 * A batch is `size` sequences of one length, one after the other in one list of ids.
 */
export class Transformer {
  constructor({ vocabulary, layers, width, inner, heads, longest }, parts, random) {
    Object.assign(this, { layers, width, heads, parts });
    this.waves = sinusoids(longest, width);
    this.parameters = {};
    for (const side of ["src", "tgt"]) this.embedding(`${side}_embed.0.lut`, vocabulary, random);
    for (let n = 0; n < layers; n++) {
      this.layer(`encoder.layers.${n}`, ["self_attn"], inner, random);
      this.layer(`decoder.layers.${n}`, ["self_attn", "src_attn"], inner, random);
    }
    for (const side of ["encoder", "decoder"]) this.norm(`${side}.norm`);
    this.linear("generator.proj", width, vocabulary, random);
  }

  // Fresh parameters, drawn as in the script.

  fill(name, rows, columns, value) {
    const matrix = new Matrix(rows, columns);
    this.parameters[name] = matrix;
    matrix.data.forEach((_, i) => (matrix.data[i] = value()));
  }

  embedding(name, vocabulary, random) {
    this.fill(`${name}.weight`, vocabulary, this.width, () => random.normal() / Math.sqrt(this.width));
  }

  linear(name, inputs, outputs, random) {
    const limit = Math.sqrt(6 / (inputs + outputs));
    this.fill(`${name}.weight`, outputs, inputs, () => limit * (2 * random.uniform() - 1));
    this.fill(`${name}.bias`, 1, outputs, () => 0);
  }

  norm(name) {
    this.fill(`${name}.weight`, 1, this.width, () => 1);
    this.fill(`${name}.bias`, 1, this.width, () => 0);
  }

  layer(name, attentions, inner, random) {
    for (const kind of attentions)
      for (let i = 0; i < 4; i++) this.linear(`${name}.${kind}.linears.${i}`, this.width, this.width, random);
    this.linear(`${name}.feed_forward.widen`, this.width, inner, random);
    this.linear(`${name}.feed_forward.narrow`, inner, this.width, random);
    for (let i = 0; i <= attentions.length; i++) this.norm(`${name}.sublayer.${i}.norm`);
  }

  // The forward pass.

  /** A module's weight and bias. */
  of(name) {
    return { weight: this.parameters[`${name}.weight`], bias: this.parameters[`${name}.bias`] };
  }

  embed(tape, side, ids, size) {
    const table = this.of(`${side}_embed.0.lut`).weight;
    const x = lookUp(tape, table, ids, Math.sqrt(this.width));
    const entries = x.data.length / size; // of one sequence
    if (this.parts.positions) x.data.forEach((_, i) => (x.data[i] += this.waves[i % entries]));
    return x;
  }

  /** Multi-head attention: what it gives, and its weights. */
  attend(tape, name, from, to, size, isCausal) {
    const inputs = [from, to, to].map((x, i) => linear(tape, x, this.of(`${name}.linears.${i}`)));
    const { out, weights } = attention(tape, inputs, size, this.heads, isCausal);
    return [linear(tape, out, this.of(`${name}.linears.3`)), weights];
  }

  /** The feed-forward network of a layer, as a function. */
  feedForward(tape, layer) {
    const name = `${layer}.feed_forward`;
    return (x) => {
      const wide = relu(tape, linear(tape, x, this.of(`${name}.widen`)));
      return linear(tape, wide, this.of(`${name}.narrow`));
    };
  }

  /** The norm, a sub-layer, and the sum with what went in. */
  connect(tape, name, x, sublayer) {
    const y = sublayer(layerNorm(tape, x, this.of(`${name}.norm`)));
    return this.parts.residuals ? add(tape, x, y) : y;
  }

  encode(tape, src, size) {
    let x = this.embed(tape, "src", src, size);
    for (let n = 0; n < this.layers; n++) {
      const name = `encoder.layers.${n}`;
      const self = (y) => this.attend(tape, `${name}.self_attn`, y, y, size)[0];
      x = this.connect(tape, `${name}.sublayer.0`, x, self);
      x = this.connect(tape, `${name}.sublayer.1`, x, this.feedForward(tape, name));
    }
    return layerNorm(tape, x, this.of("encoder.norm"));
  }

  /** Log-probabilities of the next token at each position, and the last layer's cross-attention. */
  decode(tape, memory, tgt, size, isCausal = true) {
    let x = this.embed(tape, "tgt", tgt, size);
    let weights;
    for (let n = 0; n < this.layers; n++) {
      const name = `decoder.layers.${n}`;
      const self = (y) => this.attend(tape, `${name}.self_attn`, y, y, size, isCausal)[0];
      const cross = (y) => {
        const [out, own] = this.attend(tape, `${name}.src_attn`, y, memory, size);
        weights = own;
        return out;
      };
      x = this.connect(tape, `${name}.sublayer.0`, x, self);
      x = this.connect(tape, `${name}.sublayer.1`, x, cross);
      x = this.connect(tape, `${name}.sublayer.2`, x, this.feedForward(tape, name));
    }
    const states = layerNorm(tape, x, this.of("decoder.norm"));
    return [logSoftmax(tape, linear(tape, states, this.of("generator.proj"))), weights];
  }

  /** The likeliest next token, again and again. As in the script, the end token ends nothing here. */
  greedy(src, size, start, steps) {
    const memory = this.encode(NO_TAPE, src, size);
    let written = Array(size).fill([start]);
    let weights;
    for (let step = 0; step < steps; step++) {
      let logProbs;
      [logProbs, weights] = this.decode(NO_TAPE, memory, written.flat(), size);
      const last = (b) => (b * (step + 1) + step) * logProbs.columns;
      written = written.map((ids, b) => [...ids, likeliest(logProbs, last(b))]);
    }
    return { written: written.map((ids) => ids.slice(1)), weights };
  }
}

/** The largest entry of a row, by its number. */
function likeliest({ data, columns }, row) {
  let best = 0;
  for (let id = 1; id < columns; id++) if (data[row + id] > data[row + best]) best = id;
  return best;
}
