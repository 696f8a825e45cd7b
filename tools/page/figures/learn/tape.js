// Reverse-mode differentiation. Every operation computes its result and notes on a tape how a
// gradient goes back through it; read backwards, the tape gives the gradient of every parameter.

/** Rows of numbers, and the gradient of the loss with respect to each, which begins at zero. */
export class Matrix {
  constructor(rows, columns) {
    this.rows = rows;
    this.columns = columns;
    this.data = new Float64Array(rows * columns);
  }

  get grad() {
    this.gradient ??= new Float64Array(this.data.length); // inference never asks for it
    return this.gradient;
  }
}

export class Tape {
  constructor() {
    this.notes = [];
  }

  note(goBack) {
    this.notes.push(goBack);
  }

  /** From the loss, where the gradient begins, back to the parameters. */
  backward() {
    while (this.notes.length) this.notes.pop()();
  }
}

/** A tape that keeps nothing, for inference. */
export const NO_TAPE = { note() {} };

// Sums of products -----------------------------------------------------------------------------------

/**
 * out (n, k) += a (n, m) b (m, k). Nearly all time goes here, so two rows of `out` take four rows
 * of `b` at once: most numbers are then read once where a plain loop would read them several times.
 */
function addProduct(out, a, b, n, m, k) {
  const pairs = n - (n % 2);
  const fours = m - (m % 4);
  for (let i = 0; i < pairs; i += 2)
    for (let j = 0; j < fours; j += 4) {
      const upper = i * m + j;
      const lower = upper + m;
      const a0 = a[upper];
      const a1 = a[upper + 1];
      const a2 = a[upper + 2];
      const a3 = a[upper + 3];
      const b0 = a[lower];
      const b1 = a[lower + 1];
      const b2 = a[lower + 2];
      const b3 = a[lower + 3];
      const row = i * k;
      const first = j * k;
      for (let c = 0; c < k; c++) {
        const at = first + c;
        const w = b[at];
        const x = b[at + k];
        const y = b[at + 2 * k];
        const z = b[at + 3 * k];
        out[row + c] += a0 * w + a1 * x + a2 * y + a3 * z;
        out[row + k + c] += b0 * w + b1 * x + b2 * y + b3 * z;
      }
    }
  // What is left over: the last row of an odd number, the last columns of `a`.
  for (let i = 0; i < n; i++)
    for (let j = i < pairs ? fours : 0; j < m; j++) addRow(out, i * k, a[i * m + j], b, j * k, k);
}

function transposed(a, rows, columns) {
  const out = new Float64Array(a.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j * rows + i] = a[i * columns + j];
  return out;
}

/** The inner product of two rows, from a place in each on. */
function inner(a, at, b, from, width) {
  let total = 0;
  for (let c = 0; c < width; c++) total += a[at + c] * b[from + c];
  return total;
}

/** out, from a place on, += factor * a, from a place on. */
function addRow(out, at, factor, a, from, width) {
  for (let c = 0; c < width; c++) out[at + c] += factor * a[from + c];
}

// Operations -----------------------------------------------------------------------------------------

/** x W^T + b. The weight has a row for each output, as PyTorch keeps it. */
export function linear(tape, x, { weight, bias }) {
  const { rows, columns: inputs } = x;
  const outputs = weight.rows;
  const out = new Matrix(rows, outputs);
  for (let i = 0; i < rows; i++) out.data.set(bias.data, i * outputs);
  addProduct(out.data, x.data, transposed(weight.data, outputs, inputs), rows, inputs, outputs);
  tape.note(() => {
    addProduct(x.grad, out.grad, weight.data, rows, outputs, inputs);
    addProduct(weight.grad, transposed(out.grad, rows, outputs), x.data, outputs, rows, inputs);
    for (let i = 0; i < rows; i++) addRow(bias.grad, 0, 1, out.grad, i * outputs, outputs);
  });
  return out;
}

/** Rows of a table, each times `scale`. */
export function lookUp(tape, table, ids, scale) {
  const width = table.columns;
  const out = new Matrix(ids.length, width);
  ids.forEach((id, i) => {
    for (let c = 0; c < width; c++) out.data[i * width + c] = scale * table.data[id * width + c];
  });
  tape.note(() =>
    ids.forEach((id, i) => {
      for (let c = 0; c < width; c++) table.grad[id * width + c] += scale * out.grad[i * width + c];
    }),
  );
  return out;
}

export function add(tape, x, y) {
  const out = new Matrix(x.rows, x.columns);
  for (let i = 0; i < out.data.length; i++) out.data[i] = x.data[i] + y.data[i];
  tape.note(() => {
    for (let i = 0; i < out.data.length; i++) {
      x.grad[i] += out.grad[i];
      y.grad[i] += out.grad[i];
    }
  });
  return out;
}

export function relu(tape, x) {
  const out = new Matrix(x.rows, x.columns);
  for (let i = 0; i < out.data.length; i++) out.data[i] = Math.max(0, x.data[i]);
  tape.note(() => {
    for (let i = 0; i < out.data.length; i++) if (x.data[i] > 0) x.grad[i] += out.grad[i];
  });
  return out;
}

/** Layer normalisation: every row with mean zero and variance one, then a learnt scale and shift. */
export function layerNorm(tape, x, { weight, bias }) {
  const { rows, columns } = x;
  const out = new Matrix(rows, columns);
  const normed = new Float64Array(x.data.length);
  const inverse = new Float64Array(rows); // one over the deviation
  for (let i = 0; i < rows; i++) {
    const row = i * columns;
    let mean = 0;
    let variance = 0;
    for (let c = 0; c < columns; c++) mean += x.data[row + c] / columns;
    for (let c = 0; c < columns; c++) variance += (x.data[row + c] - mean) ** 2 / columns;
    inverse[i] = 1 / Math.sqrt(variance + 1e-6);
    for (let c = 0; c < columns; c++) {
      normed[row + c] = (x.data[row + c] - mean) * inverse[i];
      out.data[row + c] = weight.data[c] * normed[row + c] + bias.data[c];
    }
  }
  tape.note(() => {
    for (let i = 0; i < rows; i++) {
      const row = i * columns;
      let mean = 0; // A shift of the row changes nothing, nor does a stretch:
      let along = 0; // these parts of the gradient end here.
      for (let c = 0; c < columns; c++) {
        const back = out.grad[row + c];
        weight.grad[c] += back * normed[row + c];
        bias.grad[c] += back;
        mean += (back * weight.data[c]) / columns;
        along += (back * weight.data[c] * normed[row + c]) / columns;
      }
      for (let c = 0; c < columns; c++) {
        const back = out.grad[row + c] * weight.data[c];
        x.grad[row + c] += inverse[i] * (back - mean - along * normed[row + c]);
      }
    }
  });
  return out;
}

/** Scores become weights, in their place. */
function softmax(scores) {
  const largest = Math.max(...scores);
  let total = 0;
  for (let s = 0; s < scores.length; s++) total += scores[s] = Math.exp(scores[s] - largest);
  for (let s = 0; s < scores.length; s++) scores[s] /= total;
}

/**
 * Attention in every head of every sequence. The rows of q (B T, D), k and v (B S, D) are the
 * positions of one sequence after the other, and head h has its own slice of the columns. Returns
 * the heads side by side (B T, D), and the weights (B H T, S).
 */
export function attention(tape, [q, k, v], batch, heads, isCausal) {
  const [T, S] = [q.rows / batch, k.rows / batch];
  const width = q.columns / heads;
  const scale = 1 / Math.sqrt(width);
  const out = new Matrix(q.rows, q.columns);
  const weights = new Float64Array(batch * heads * T * S);

  /** Calls `visit` for each query of each head with: its row of weights, and where q, k and v begin. */
  function everyQuery(visit) {
    for (let b = 0; b < batch; b++)
      for (let h = 0; h < heads; h++)
        for (let t = 0; t < T; t++) {
          const row = ((b * heads + h) * T + t) * S;
          const open = isCausal ? t + 1 : S; // so many keys; the weights of the others stay zero
          const key = (s) => (b * S + s) * k.columns + h * width;
          visit(weights.subarray(row, row + open), (b * T + t) * q.columns + h * width, key);
        }
  }

  everyQuery((row, query, key) => {
    for (let s = 0; s < row.length; s++) row[s] = scale * inner(q.data, query, k.data, key(s), width);
    softmax(row);
    for (let s = 0; s < row.length; s++) addRow(out.data, query, row[s], v.data, key(s), width);
  });
  tape.note(() =>
    everyQuery((row, query, key) => {
      const back = row.map((_, s) => inner(out.grad, query, v.data, key(s), width));
      const mean = inner(back, 0, row, 0, row.length);
      for (let s = 0; s < row.length; s++) {
        const score = scale * row[s] * (back[s] - mean); // the derivative of the softmax
        addRow(v.grad, key(s), row[s], out.grad, query, width);
        addRow(q.grad, query, score, k.data, key(s), width);
        addRow(k.grad, key(s), score, q.data, query, width);
      }
    }),
  );
  return { out, weights };
}

/** Log-probabilities: the logarithm of each row's softmax. */
export function logSoftmax(tape, x) {
  const { rows, columns } = x;
  const out = new Matrix(rows, columns);
  for (let i = 0; i < rows; i++) {
    const row = x.data.subarray(i * columns, (i + 1) * columns);
    const largest = Math.max(...row);
    let total = 0;
    for (const score of row) total += Math.exp(score - largest);
    const logTotal = largest + Math.log(total);
    for (let c = 0; c < columns; c++) out.data[i * columns + c] = row[c] - logTotal;
  }
  tape.note(() => {
    for (let i = 0; i < rows; i++) {
      let total = 0;
      for (let c = 0; c < columns; c++) total += out.grad[i * columns + c];
      for (let c = 0; c < columns; c++) {
        const at = i * columns + c;
        x.grad[at] += out.grad[at] - Math.exp(out.data[at]) * total;
      }
    }
  });
  return out;
}

/** The loss: the mean of -log p of the right tokens. A number, since the tape begins here. */
export function meanLoss(tape, logProbs, targets) {
  const { columns } = logProbs;
  let loss = 0;
  targets.forEach((id, i) => (loss -= logProbs.data[i * columns + id] / targets.length));
  tape.note(() => targets.forEach((id, i) => (logProbs.grad[i * columns + id] -= 1 / targets.length)));
  return loss;
}
