// What is on the page, as the fragment of its address. The browser never sends a fragment to a server.

import { fromBase64, toBase64 } from "./vectors.js";

/** The fragment of {text or vector, settings, compare}; settings that are defaults are left out. */
export function write({ text, vector, settings, compare }, defaults) {
  const fragment = new URLSearchParams();
  if (vector) fragment.set("vector", toBase64(vector));
  else fragment.set("text", text);
  for (const [name, value] of Object.entries(settings)) if (value !== defaults[name]) fragment.set(name, value);
  if (compare) fragment.set("compare", "1");
  return `#${fragment}`;
}

/** The state of a fragment, or null when it has none; what is not understood is left out. */
export function read(hash, defaults) {
  const fragment = new URLSearchParams(hash.replace(/^#/, ""));
  const vector = fragment.has("vector") ? fromBase64(fragment.get("vector")) : null;
  const text = fragment.get("text")?.slice(0, 2000);
  if (!vector && !text) return null;
  const settings = { ...defaults };
  for (const name of Object.keys(defaults)) {
    if (!fragment.has(name)) continue;
    const given = fragment.get(name);
    if (typeof defaults[name] === "boolean") settings[name] = given === "true";
    else if (typeof defaults[name] === "string") settings[name] = given;
    else if (given.trim() && Number.isFinite(Number(given))) settings[name] = Number(given);
  }
  return { text, vector, settings, compare: fragment.get("compare") === "1" };
}
