// What is on the page, as the fragment of its address. The browser never sends a fragment to a server.

import { wrong } from "./api.js";
import { fromBase64, toBase64 } from "./vectors.js";

/** The fragment of a run, alone or in a comparison; settings that are defaults are left out. */
export function write({ source, settings, together }, defaults) {
  const fragment = new URLSearchParams();
  if (source.asked === null) fragment.set("vector", toBase64(source.vector));
  else fragment.set("text", source.asked);
  for (const [name, value] of Object.entries(settings)) if (value !== defaults[name]) fragment.set(name, value);
  if (together) fragment.set("compare", "1");
  return `#${fragment}`;
}

/** The state of a fragment, or null; settings that are not understood are left out. */
export function read(hash, defaults) {
  const fragment = new URLSearchParams(hash.slice(1));
  const vector = fragment.has("vector") ? fromBase64(fragment.get("vector")) : null;
  const text = fragment.get("text")?.slice(0, 2000);
  if (fragment.has("vector") && !vector) throw wrong("This link is broken: its vector is not whole. Copy it again, or start anew.");
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
