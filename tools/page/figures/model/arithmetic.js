// Vectors as arrays of floats: what the layers of a Transformer compute with.

/** A linear map; eight rows at a time, which share what they read of x. Past the end the last row is read again. */
export function linear(x, { weight, bias }) {
  const width = x.length;
  const out = new Float32Array(bias);
  const start = (row) => Math.min(row, out.length - 1) * width;
  for (let row = 0; row < out.length; row += 8) {
    const [a, b, c, d] = [start(row), start(row + 1), start(row + 2), start(row + 3)];
    const [e, f, g, h] = [start(row + 4), start(row + 5), start(row + 6), start(row + 7)];
    let [p, q, r, s, t, u, v, w] = [0, 0, 0, 0, 0, 0, 0, 0];
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
    const totals = [p, q, r, s, t, u, v, w].slice(0, out.length - row);
    totals.forEach((total, k) => (out[row + k] += total));
  }
  return out;
}

export const add = (x, y) => x.map((value, i) => value + y[i]);
export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

export function normalise(x, { weight, bias }) {
  const mean = sum(x) / x.length;
  const variance = sum(x.map((value) => (value - mean) ** 2)) / x.length;
  return x.map((value, i) => (weight[i] * (value - mean)) / Math.sqrt(variance + 1e-6) + bias[i]);
}

export function logSoftmax(scores) {
  let largest = -Infinity,
    total = 0;
  for (const score of scores) largest = Math.max(largest, score);
  for (const score of scores) total += Math.exp(score - largest);
  const logTotal = largest + Math.log(total);
  return scores.map((score) => score - logTotal);
}

export const softmax = (scores) => logSoftmax(scores).map(Math.exp);

/** The `count` largest entries: [{ id, logp }], the largest first. */
export function likeliest(logProbs, count) {
  const best = [];
  for (let id = 0; id < logProbs.length; id++) {
    if (best.length === count && logProbs[id] <= best[count - 1].logp) continue;
    const place = best.findIndex((other) => other.logp < logProbs[id]);
    best.splice(place < 0 ? best.length : place, 0, { id, logp: logProbs[id] });
    best.length = Math.min(best.length, count);
  }
  return best;
}
