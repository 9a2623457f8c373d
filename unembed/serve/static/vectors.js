// Vectors as people have them: JSON, CSV, base64 float32, .npy.

import { wrong } from "./api.js";

/** Numbers out of pasted text. */
export function parseText(text, model) {
  const trimmed = text.trim();
  if (!trimmed) throw wrong("Paste a vector first: JSON, CSV or base64 float32.");
  const found = fromJson(trimmed) ?? fromList(trimmed) ?? fromBase64(trimmed);
  if (!found) throw wrong("That is not a vector: paste a JSON list, numbers with commas or spaces, or base64 float32.");
  return check(found, model);
}

/** The first vector of a .npy file, and how many the file has. */
export function parseNpy(buffer, model) {
  const view = new DataView(buffer);
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (buffer.byteLength < 12 || magic.some((byte, i) => view.getUint8(i) !== byte))
    throw wrong("That file is no .npy: save the vector with numpy.save.");
  const long = view.getUint8(6) >= 2;
  const start = long ? 12 : 10;
  const data = start + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder("latin1").decode(buffer.slice(start, data));
  const type = /'descr':\s*'([<>=|]?)f([248])'/.exec(header);
  if (!type) throw wrong("That .npy does not hold float16, float32 or float64 numbers: convert it with .astype('float32').");
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(header)?.[1].match(/\d+/g) ?? []).map(Number);
  if (shape.length < 1 || shape.length > 2) throw wrong(`That .npy has ${shape.length} dimensions: save one vector, or rows of them.`);
  const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape;
  const size = Number(type[2]);
  if (!rows || data + rows * columns * size > buffer.byteLength) throw wrong("That .npy is empty or cut short: save it again.");
  const stride = shape.length === 2 && /'fortran_order':\s*True/.test(header) ? rows : 1;
  const read = { 2: half, 4: (v, at, le) => v.getFloat32(at, le), 8: (v, at, le) => v.getFloat64(at, le) }[size];
  const values = Array.from({ length: columns }, (_, i) => read(view, data + i * stride * size, type[1] !== ">"));
  return { values: check(values, model), rows };
}

/** Shortest text that a float32 survives. */
export const toText = (values) => JSON.stringify(Array.from(values, (v) => Number(v.toPrecision(9))));

/** For the address: base64 that needs no escapes. */
export function toBase64(values) {
  const bytes = new Uint8Array(Float32Array.from(values).buffer);
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function fromBase64(text) {
  const plain = text.replace(/\s/g, "").replaceAll("-", "+").replaceAll("_", "/");
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(plain)) return null;
  let bytes;
  try {
    bytes = Uint8Array.from(atob(plain), (c) => c.charCodeAt(0));
  } catch {
    return null;
  }
  if (!bytes.length || bytes.length % 4) return null;
  const view = new DataView(bytes.buffer); // little-endian whatever the machine
  return Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(i * 4, true));
}

function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  // What APIs answer: {"data": [{"embedding": [...]}]}, {"vector": [...]}, [[...]].
  for (let depth = 0; depth < 5; depth++) {
    if (typeof value === "string") return fromBase64(value);
    if (Array.isArray(value)) {
      if (value.every((v) => typeof v === "number")) return value;
      if (value.length !== 1) return null;
      value = value[0];
    } else if (value && typeof value === "object") value = value.embedding ?? value.vector ?? value.embeddings ?? value.data;
    else return null;
  }
  return null;
}

function fromList(text) {
  const parts = text.replace(/[[\]()]/g, " ").trim().split(/[\s,;]+/).filter(Boolean);
  const values = parts.map(Number);
  return parts.length > 1 && values.every((v) => !Number.isNaN(v)) ? values : null;
}

function check(values, { dim, encoder }) {
  if (values.length !== dim)
    throw wrong(`This vector has ${values.length} numbers, but the inverter reads ${dim} (${encoder}). Use a vector of that encoder.`);
  if (!values.every(Number.isFinite)) throw wrong("This vector holds NaN or infinity. Use one of finite numbers.");
  if (values.every((v) => v === 0)) throw wrong("This vector is all zeros and says nothing. Use another one.");
  return values;
}

function half(view, at, little) {
  const bits = view.getUint16(at, little);
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
}
