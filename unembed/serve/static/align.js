// Which words of two texts belong together, for the tiles and side by side.

import { spell } from "./tokens.js";

/** For each token the mark of its word, as `pair` gives it; none without an original. */
export function marks(tokens, original) {
  const found = new Array(tokens.length).fill("");
  if (original) for (const [, word, mark] of pair(original, tokens)) for (const place of word?.places ?? []) found[place] = mark;
  return found;
}

/** Columns [word of the original or null, recovered word or null, mark]: "same", "moved" (in another column) or "". */
export function pair(original, recovered) {
  const [a, b] = [words(original), words(recovered)];
  const gap = (i, j) => differ(a[i].plain, b[j].plain);
  const cost = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length; i >= 0; i--)
    for (let j = b.length; j >= 0; j--) {
      if (i === a.length || j === b.length) cost[i][j] = a.length - i + b.length - j;
      else cost[i][j] = Math.min(cost[i + 1][j + 1] + gap(i, j), cost[i + 1][j] + 1, cost[i][j + 1] + 1);
    }
  const columns = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    const here = cost[i][j];
    if (i < a.length && j < b.length && here === cost[i + 1][j + 1] + gap(i, j)) columns.push([a[i++], b[j++]]);
    else if (i < a.length && here === cost[i + 1][j] + 1) columns.push([a[i++], null]);
    else columns.push([null, b[j++]]);
  }
  const same = ([x, y]) => x?.plain === y?.plain;
  const left = count(columns.filter((column) => !same(column)).map(([x]) => x?.plain));
  return columns.map(([x, y]) => [x, y, same([x, y]) ? "same" : y && take(left, y.plain) ? "moved" : ""]);
}

/** The words that tokens make, each with the places of its tokens. */
function words(tokens) {
  const found = [];
  for (const [place, { text, glued }] of spell(tokens).entries()) {
    if (!glued) found.push({ text: "", places: [] });
    found.at(-1).text += text;
    found.at(-1).places.push(place);
  }
  return found.map((word) => ({ ...word, plain: word.text.toLowerCase() }));
}

// Multiples of 1/4 add up exactly, so the way back through the table may compare for equality.
function differ(x, y) {
  if (x === y) return 0;
  const isWord = (w) => /[\p{L}\p{N}]/u.test(w);
  if (isWord(x) !== isWord(y)) return 2;
  return x.length > 3 && x.slice(0, 4) === y.slice(0, 4) ? 0.75 : 1.5; // "treated" stands over "treatment"
}

/** How many of the original's words came back, and how many there are; punctuation does not count. */
export function shared(original, recovered) {
  const only = (text) => text.toLowerCase().match(/[\p{L}\p{N}\p{M}]+(?:['’]\p{L}+)*/gu) ?? [];
  const [wanted, left] = [only(original), count(only(recovered))];
  return [wanted.filter((word) => take(left, word)).length, wanted.length];
}

function count(items) {
  const counts = new Map();
  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);
  return counts;
}

/** Whether there is one left; if so it is taken. */
function take(counts, item) {
  const n = counts.get(item) ?? 0;
  if (n) counts.set(item, n - 1);
  return n > 0;
}
