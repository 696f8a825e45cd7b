// The model as it lies beside the page: a checksum, its settings and subwords as JSON, its weights
// (a safetensors file) in base64. All of this is work that yields, see slices.js.

import { Transformer } from "./transformer.js";

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SLICE = 1 << 17; // letters or numbers at a time

/** Adler-32 of ASCII texts, as zlib computes it. */
function* checksum(texts) {
  let a = 1;
  let b = 0;
  for (const text of texts) {
    for (let i = 0; i < text.length; i++) {
      a = (a + text.charCodeAt(i)) % 65521;
      b = (b + a) % 65521;
      if (i % SLICE === 0) yield;
    }
  }
  return b * 65536 + a;
}

/** The bytes that base64 stands for. */
function* decodeBase64(text) {
  const value = new Uint8Array(128);
  for (let i = 0; i < 64; i++) value[DIGITS.charCodeAt(i)] = i;
  const bytes = new Uint8Array((text.length / 4) * 3);
  for (let i = 0, at = 0; i < text.length; i += 4, at += 3) {
    let group = 0;
    for (let k = 0; k < 4; k++) group = (group << 6) | value[text.charCodeAt(i + k)];
    bytes[at] = group >> 16;
    bytes[at + 1] = group >> 8;
    bytes[at + 2] = group;
    if (i % SLICE === 0) yield;
  }
  return bytes;
}

/** Numbers of a byte each, in rows, times the step of their row. */
function* multiply(numbers, steps) {
  const width = numbers.length / steps.length;
  const product = new Float32Array(numbers.length);
  for (let i = 0; i < numbers.length; i++) {
    product[i] = numbers[i] * steps[Math.floor(i / width)];
    if (i % SLICE === 0) yield;
  }
  return product;
}

/** Tensors of a safetensors file by name; a matrix of bytes is multiplied by the steps of its rows. */
function* readTensors(bytes) {
  const headerEnd = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const letters = Array.from(bytes.subarray(8, headerEnd), (byte) => String.fromCharCode(byte));
  const { __metadata__, ...header } = JSON.parse(letters.join(""));
  const tensors = {};
  for (const [name, { dtype, data_offsets }] of Object.entries(header)) {
    const [from, to] = data_offsets.map((offset) => headerEnd + offset);
    const copy = bytes.slice(from, to).buffer; // aligned, as an array of floats has to be
    tensors[name] = dtype === "I8" ? new Int8Array(copy) : new Float32Array(copy);
  }
  for (const [name, steps] of Object.entries(tensors)) {
    const matrix = name.replace(/\.steps$/, "");
    if (matrix !== name) tensors[matrix] = yield* multiply(tensors[matrix], steps);
  }
  return tensors;
}

/** The model of a side file; an error where it is damaged. */
export function* readingModel([expected, settings, weights]) {
  const sum = yield* checksum([settings, weights]);
  if (sum !== expected) throw new Error("model.js is damaged");
  const bytes = yield* decodeBase64(weights);
  return new Transformer(JSON.parse(settings), yield* readTensors(bytes));
}
