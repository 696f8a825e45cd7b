// The shipped model in plain JavaScript: the pieces of Part 7, the layers of Parts 1 and 2, the
// cache and the beam of Part 7. No browser is needed: the build draws its pictures with this file.

const [START, END, UNKNOWN] = [0, 1, 3];
const SPACE = "▁"; // stands for the space before a word
const NOT_TEXT = /[‿▁\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]/gu; // control characters, halves of a character
const BLANK = /[^\S\ufeff]|\x85/; // what Python's split() takes for a space
const SIGN = "!-/:-@[-`{-~\\p{P}"; // punctuation stands alone
const WORD = new RegExp(`[${SIGN}]|${SPACE}[^${SPACE}${SIGN}]*|[^${SPACE}${SIGN}]+`, "gu");

// The side file -----------------------------------------------------------------------------------

/** Adler-32 of ASCII text, as zlib computes it. */
function checksum(text) {
  let [a, b] = [1, 0];
  for (let i = 0; i < text.length; i++) {
    a = (a + text.charCodeAt(i)) % 65521;
    b = (b + a) % 65521;
  }
  return b * 65536 + a;
}

/** The bytes that base64 stands for. */
function decodeBase64(text) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Uint8Array(128);
  for (let i = 0; i < 64; i++) value[digits.charCodeAt(i)] = i;
  const bytes = new Uint8Array((text.length / 4) * 3);
  for (let i = 0, at = 0; i < text.length; i += 4, at += 3) {
    let group = 0;
    for (let k = 0; k < 4; k++) group = (group << 6) | value[text.charCodeAt(i + k)];
    bytes[at] = group >> 16;
    bytes[at + 1] = group >> 8;
    bytes[at + 2] = group;
  }
  return bytes;
}

/** Tensors of a safetensors file by name; a matrix of bytes is multiplied by the steps of its rows. */
function readTensors(bytes) {
  const headerEnd = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { __metadata__, ...header } = JSON.parse(String.fromCharCode(...bytes.subarray(8, headerEnd)));
  const tensors = {};
  for (const [name, { dtype, data_offsets }] of Object.entries(header)) {
    const [from, to] = data_offsets.map((offset) => headerEnd + offset);
    const copy = bytes.slice(from, to).buffer; // aligned, as an array of floats has to be
    tensors[name] = dtype === "I8" ? new Int8Array(copy) : new Float32Array(copy);
  }
  for (const name of Object.keys(tensors).filter((name) => `${name}.steps` in tensors)) {
    const numbers = tensors[name], steps = tensors[`${name}.steps`], width = numbers.length / steps.length;
    tensors[name] = new Float32Array(numbers.length);
    for (let i = 0; i < numbers.length; i++) tensors[name][i] = numbers[i] * steps[Math.floor(i / width)];
  }
  return tensors;
}

/** The model of a side file: its checksum, its settings and pieces as JSON, its weights in base64. */
function readModel([expected, settings, weights]) {
  if (checksum(settings + weights) !== expected) throw new Error("the model's file is damaged");
  return new Transformer(JSON.parse(settings), readTensors(decodeBase64(weights)));
}

// Arithmetic --------------------------------------------------------------------------------------

/** A linear map; eight rows at a time, which share what they read of x. */
function linear(x, { weight, bias }) {
  const width = x.length, out = new Float32Array(bias);
  for (let row = 0; row < out.length; row += 8) {
    const a = row * width, b = a + width, c = b + width, d = c + width;
    const e = d + width, f = e + width, g = f + width, h = g + width;
    let p = 0, q = 0, r = 0, s = 0, t = 0, u = 0, v = 0, w = 0;
    for (let i = 0; i < width; i++) {
      const value = x[i];
      p += weight[a + i] * value;
      q += weight[b + i] * value;
      r += weight[c + i] * value;
      s += weight[d + i] * value;
      t += weight[e + i] * value;
      u += weight[f + i] * value;
      v += weight[g + i] * value;
      w += weight[h + i] * value;
    }
    [p, q, r, s, t, u, v, w].forEach((total, k) => (out[row + k] += total));
  }
  return out;
}

const add = (x, y) => x.map((value, i) => value + y[i]);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

function normalise(x, { scale, shift }) {
  const mean = sum(x) / x.length;
  const variance = sum(x.map((value) => (value - mean) ** 2)) / x.length;
  return x.map((value, i) => (scale[i] * (value - mean)) / Math.sqrt(variance + 1e-6) + shift[i]);
}

function logSoftmax(scores) {
  let largest = -Infinity, total = 0;
  for (const score of scores) largest = Math.max(largest, score);
  for (const score of scores) total += Math.exp(score - largest);
  const logTotal = largest + Math.log(total);
  return scores.map((score) => score - logTotal);
}

const softmax = (scores) => logSoftmax(scores).map(Math.exp);

/** The `count` largest entries: [{ id, logp }], the largest first. */
function likeliest(logProbs, count) {
  const best = [];
  for (let id = 0; id < logProbs.length; id++) {
    if (best.length === count && logProbs[id] <= best[count - 1].logp) continue;
    const place = best.findIndex((other) => other.logp < logProbs[id]);
    best.splice(place < 0 ? best.length : place, 0, { id, logp: logProbs[id] });
    best.length = Math.min(best.length, count);
  }
  return best;
}

// The model ---------------------------------------------------------------------------------------

class Transformer {
  constructor({ config, words, merges }, tensors) {
    Object.assign(this, config, { words, depth: config.d_model / config.h });
    this.ids = new Map(words.map((word, id) => [word, id]));
    this.ranks = new Map(merges.map((pair, rank) => [pair, rank]));
    const map = (name) => ({ weight: tensors[`${name}.weight`], bias: tensors[`${name}.bias`] });
    const norm = (name) => ({ scale: tensors[`${name}.scale`], shift: tensors[`${name}.shift`] });
    const heads = (name) => [0, 1, 2, 3].map((number) => map(`${name}.linears.${number}`));
    const stack = (name, kinds) => Array.from({ length: config.N }, (_, n) => ({
      attentions: kinds.map((kind) => heads(`${name}.layers.${n}.${kind}`)),
      norms: [...kinds, "feed_forward"].map((_, i) => norm(`${name}.layers.${n}.sublayer.${i}.norm`)),
      widen: map(`${name}.layers.${n}.feed_forward.widen`),
      narrow: map(`${name}.layers.${n}.feed_forward.narrow`),
    }));
    this.encoder = stack("encoder", ["self_attn"]);
    this.decoder = stack("decoder", ["self_attn", "src_attn"]);
    this.norms = { encoder: norm("encoder.norm"), decoder: norm("decoder.norm") };
    this.vectors = tensors["src_embed.0.lut.weight"]; // one matrix for both sides and the output
    this.output = { weight: this.vectors, bias: tensors["generator.proj.bias"] };
  }

  /** The vector of a symbol at a position (Part 2). */
  embed(id, position) {
    const D = this.d_model;
    return Float32Array.from({ length: D }, (_, i) => {
      const angle = position / 10000 ** ((i - (i % 2)) / D);
      return this.vectors[id * D + i] * Math.sqrt(D) + (i % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  /** Attention of one query over keys and values: { mixed, weights }, weights by head (Part 1). */
  attend(query, keys, values) {
    const mixed = new Float32Array(query.length), weights = [];
    for (let head = 0; head < this.h; head++) {
      const [from, to] = [head * this.depth, (head + 1) * this.depth];
      const scores = keys.map((key) => {
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

  feedForward(x, layer) {
    return linear(linear(x, layer.widen).map((value) => Math.max(0, value)), layer.narrow);
  }

  /**
   * The encoder: what the decoder asks in each layer, [{ keys, values }]. `see` is
   * shown the vectors of all positions, at first and after each part.
   */
  read(ids, see = () => {}) {
    let states = ids.map((id, position) => this.embed(id, position));
    see(states);
    this.encoder.forEach((layer, n) => {
      const [query, key, value, out] = layer.attentions[0];
      const normed = states.map((state) => normalise(state, layer.norms[0]));
      const [queries, keys, values] = [query, key, value].map((map) => normed.map((x) => linear(x, map)));
      const heard = queries.map((asked) => linear(this.attend(asked, keys, values).mixed, out));
      states = states.map((state, i) => add(state, heard[i]));
      see(states);
      states = states.map((state) => add(state, this.feedForward(normalise(state, layer.norms[1]), layer)));
      see(states);
    });
    const memory = states.map((state) => normalise(state, this.norms.encoder));
    return this.decoder.map(({ attentions: [, [, key, value]] }) => ({
      keys: memory.map((state) => linear(state, key)),
      values: memory.map((state) => linear(state, value)),
    }));
  }

  /**
   * One step of the decoder: `past` holds keys and values of the symbols before `id`, layer by
   * layer, or is null. Returns the past with this symbol, the log-probabilities of the next symbol, and the
   * weights of the cross-attention by layer and head.
   */
  step(memory, past, id, see = () => {}) {
    past ??= this.decoder.map(() => ({ keys: [], values: [] }));
    let state = this.embed(id, past[0].keys.length);
    see(state);
    const cross = [];
    past = this.decoder.map((layer, n) => {
      const [self, source] = layer.attentions;
      const normed = normalise(state, layer.norms[0]);
      const keys = [...past[n].keys, linear(normed, self[1])];
      const values = [...past[n].values, linear(normed, self[2])];
      const heard = this.attend(linear(normed, self[0]), keys, values);
      state = add(state, linear(heard.mixed, self[3]));
      see(state);
      const asked = linear(normalise(state, layer.norms[1]), source[0]);
      const found = this.attend(asked, memory[n].keys, memory[n].values);
      state = add(state, linear(found.mixed, source[3]));
      cross.push(found.weights);
      see(state);
      state = add(state, this.feedForward(normalise(state, layer.norms[2]), layer));
      see(state);
      return { keys, values };
    });
    return { past, logProbs: this.next(normalise(state, this.norms.decoder)), cross };
  }

  /** The generator: log-probabilities of all symbols (Part 2). */
  next(state) {
    return logSoftmax(linear(state, this.output));
  }

  // Pieces (Part 7) -------------------------------------------------------------------------------

  /** Ids of a text and the end symbol. */
  encode(text) {
    const clean = text.replace(NOT_TEXT, " ").split(BLANK).filter(Boolean).join(SPACE).normalize("NFC");
    const line = clean && !clean.startsWith(SPACE) ? SPACE + clean : clean;
    const pieces = (line.match(WORD) ?? []).flatMap((word) => this.mergePieces([...word]));
    const ids = pieces.map((piece) => this.ids.get(piece) ?? UNKNOWN);
    return [...ids.slice(0, this.max_len - 1), END];
  }

  /** Join neighbours; the pair that was merged first in training goes first. */
  mergePieces(pieces) {
    const ranks = pieces.slice(1).map((piece, i) => this.ranks.get(`${pieces[i]} ${piece}`) ?? Infinity);
    const first = Math.min(...ranks), at = ranks.indexOf(first);
    if (first === Infinity) return pieces;
    return this.mergePieces([...pieces.slice(0, at), pieces[at] + pieces[at + 1], ...pieces.slice(at + 2)]);
  }

  decode(ids) {
    const until = ids.indexOf(END);
    return (until < 0 ? ids : ids.slice(0, until)).map((id) => this.words[id]).join("").replaceAll(SPACE, " ").trim();
  }
}

// Searching ---------------------------------------------------------------------------------------

/** What a log-probability is divided by; `length` counts the end, not the start. */
const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/**
 * One sentence being translated. A path is a beginning of the translation: { written, logp, ended,
 * from, next }, where `next` is what `Transformer.step` says after the last symbol of `written`.
 */
class Search {
  constructor(model, ids) {
    Object.assign(this, { model, ids, memory: model.read(ids) });
    this.longest = Math.min(ids.length + 50, model.max_len) - 1;
    const next = model.step(this.memory, null, START);
    this.start = { written: [], logp: 0, ended: false, from: null, next };
  }

  /** The path that goes on with one symbol. */
  extend(path, id) {
    const written = [...path.written, id], ended = id === END;
    const longer = { written, logp: path.logp + path.next.logProbs[id], ended, from: path, next: null };
    if (!ended && written.length < this.longest) longer.next = this.model.step(this.memory, path.next.past, id);
    return longer;
  }

  /** The likeliest symbol, again and again: the paths from `path` on, one symbol longer each time. */
  *greedy(path = this.start) {
    while (path.next) yield (path = this.extend(path, likeliest(path.next.logProbs, 1)[0].id));
  }

  /** Beam search from `path` on, step by step: the paths in the beam. An ended path keeps its place. */
  *beam(width, alpha, path = this.start) {
    let paths = [path];
    while (!this.decided(paths, alpha)) {
      const choices = paths.filter((path) => path.next).flatMap((path) =>
        likeliest(path.next.logProbs, width).map(({ id, logp }) => ({ path, id, total: path.logp + logp })));
      const ended = paths.filter((path) => path.ended);
      choices.sort((one, other) => other.total - one.total);
      const grown = choices.slice(0, width - ended.length).map(({ path, id }) => this.extend(path, id));
      yield (paths = [...ended, ...grown]);
    }
  }

  /** The best path that a beam ends with. */
  translate(width, alpha, path = this.start) {
    let paths;
    for (paths of this.beam(width, alpha, path));
    return this.best(paths, alpha);
  }

  score(path, alpha) {
    return path.logp / lengthPenalty(path.written.length, alpha);
  }

  best(paths, alpha) {
    return paths.reduce((one, other) => (this.score(other, alpha) > this.score(one, alpha) ? other : one));
  }

  /** Can no path that goes on still beat the best that has ended? */
  decided(paths, alpha) {
    const scores = paths.filter((path) => path.ended).map((path) => this.score(path, alpha));
    const bounds = paths.filter((path) => path.next).map((path) => path.logp / lengthPenalty(this.longest, alpha));
    return Math.max(...scores) >= Math.max(...bounds);
  }
}
