// Which tokens and words of two texts belong together.

export const MASK = "[MASK]";

/** For each token: "same" (in the original, in that order), "moved" (in it, elsewhere) or "". */
export function marks(tokens, original) {
  const found = new Array(tokens.length).fill("");
  if (!original) return found;
  const left = count(original);
  for (const place of common(tokens, original)) if (take(left, tokens[place])) found[place] = "same";
  return found.map((mark, place) => mark || (take(left, tokens[place]) ? "moved" : ""));
}

/** Places in `a` of a longest common subsequence of both. */
function common(a, b) {
  const best = table(a.length + 1, b.length + 1);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const places = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) places.push(i++), j++;
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return places;
}

/** Words and marks of punctuation, as they stand. */
export const words = (text) => text.match(/[\p{L}\p{N}\p{M}]+(?:['’][\p{L}]+)*|[^\s]/gu) ?? [];

/**
 * Columns [original word or null, recovered word or null, same?, moved?], with as few differences as possible.
 * A recovered word is `moved` when the original has it in another column.
 */
export function pair(original, recovered) {
  const [a, b] = [words(original), words(recovered)];
  const cost = table(a.length + 1, b.length + 1);
  for (let i = a.length; i >= 0; i--)
    for (let j = b.length; j >= 0; j--) {
      if (i === a.length || j === b.length) cost[i][j] = a.length - i + b.length - j;
      else cost[i][j] = Math.min(cost[i + 1][j + 1] + differ(a[i], b[j]), cost[i + 1][j] + 1, cost[i][j + 1] + 1);
    }
  const columns = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    const here = cost[i][j];
    if (i < a.length && j < b.length && here === cost[i + 1][j + 1] + differ(a[i], b[j])) columns.push([a[i++], b[j++]]);
    else if (i < a.length && here === cost[i + 1][j] + 1) columns.push([a[i++], null]);
    else columns.push([null, b[j++]]);
  }
  const plain = columns.map((column) => column.map((word) => word?.toLowerCase()));
  const left = count(plain.filter(([x, y]) => x !== y).map(([x]) => x));
  return columns.map(([x, y], i) => {
    const same = plain[i][0] === plain[i][1];
    return [x, y, same, !same && y !== null && take(left, plain[i][1])];
  });
}

// Multiples of 1/4 add up exactly, so the way back through the table may compare for equality.
function differ(a, b) {
  const [x, y] = [a.toLowerCase(), b.toLowerCase()];
  if (x === y) return 0;
  const isWord = (w) => /[\p{L}\p{N}]/u.test(w);
  if (isWord(x) !== isWord(y)) return 2;
  return x.length > 3 && x.slice(0, 4) === y.slice(0, 4) ? 0.75 : 1.5; // "treated" stands over "treatment"
}

/** How many of the original's words came back, and how many there are; punctuation does not count. */
export function shared(original, recovered) {
  const only = (text) => words(text.toLowerCase()).filter((w) => /[\p{L}\p{N}]/u.test(w));
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

const table = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));
