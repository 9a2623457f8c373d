// Tokens on the page, and the pace at which they come.

export const MASK = "[MASK]";

const EASE = { duration: 240, easing: "ease-out" };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** A row of tiles, one for each token. The tiles stay, what is on them changes. */
export class TokenRow {
  constructor(element) {
    this.element = element;
  }

  /** Blanks that stand for a text which is not there yet. */
  idle(count) {
    this.fit(count);
    for (const tile of this.element.children) dress(tile, "tile mask", "", 0);
  }

  draw(frame) {
    const before = calm.matches ? null : this.places();
    this.fit(frame.tokens.length);
    const spelled = spell(frame.tokens);
    const changed = [...this.element.children].filter((tile, i) => {
      const was = tile.className + tile.textContent;
      if (frame.back.has(i)) dress(tile, "tile mask back", spell([frame.back.get(i)])[0].text, 0);
      else if (frame.masked.has(i)) dress(tile, "tile mask", "", 0);
      else dress(tile, `tile ${frame.marks[i]}${spelled[i].glued ? " glued" : ""}`, spelled[i].text, frame.confidence[i]);
      return was !== tile.className + tile.textContent;
    });
    this.element.ariaLabel = aloud(frame, spelled);
    if (before) this.glide(before, new Set(changed));
  }

  fit(count) {
    while (this.element.children.length > count) this.element.lastChild.remove();
    while (this.element.children.length < count) this.element.append(document.createElement("span"));
  }

  places() {
    return new Map([...this.element.children].map((tile) => [tile, tile.getBoundingClientRect()]));
  }

  /** Tiles move to their new places; a new word comes into focus. */
  glide(before, changed) {
    for (const tile of this.element.children) {
      const [from, to] = [before.get(tile), tile.getBoundingClientRect()];
      const sameLine = from && from.top === to.top;
      if (sameLine && from.left !== to.left)
        tile.animate([{ transform: `translateX(${from.left - to.left}px)` }, { transform: "none" }], EASE);
      if (changed.has(tile)) tile.animate([{ opacity: 0.2, filter: "blur(4px)" }, { opacity: 1, filter: "none" }], EASE);
      else if (!sameLine) tile.animate([{ opacity: 0 }, { opacity: 1 }], EASE);
    }
  }
}

function dress(tile, className, text, confidence) {
  tile.className = className.trim();
  tile.textContent = text;
  tile.style.setProperty("--sure", confidence.toFixed(3));
}

/** Shows the frames of a run as they come, never faster than the eye follows. */
export class Player {
  constructor(run, onFrame) {
    this.run = run;
    this.onFrame = onFrame;
    this.pace = Math.max(40, Math.min(230, 2600 / run.steps)); // ms
  }

  /** Resolves at the last frame, or when something else took over. `jump` shows only the newest. */
  async play(jump = calm.matches) {
    const turn = (this.turn = {});
    for (let at = 0; this.turn === turn; ) {
      const last = this.run.frames.length - 1;
      const shown = at <= last;
      if (jump) at = Math.max(at, last);
      if (shown) this.onFrame(at++);
      if (at > last && this.run.over) return;
      await new Promise((next) => setTimeout(next, shown && !jump ? this.pace : 25));
    }
  }

  stop() {
    this.turn = null;
  }
}

/** Tokens as they look in a text; `glued` ones go on with the word before. */
export function spell(tokens) {
  const spaced = tokens.some((token) => /^[▁Ġ]/.test(token)); // as SentencePiece and BPE mark beginnings
  return tokens.map((token, i) => {
    if (token.startsWith("##")) return { text: token.slice(2), glued: i > 0 };
    if (spaced) return { text: token.replace(/^[▁Ġ]/, ""), glued: i > 0 && token !== MASK && !/^[▁Ġ]/.test(token) };
    return { text: token, glued: false };
  });
}

function aloud(frame, spelled) {
  const said = spelled.map(({ text, glued }, i) => (frame.masked.has(i) ? " blank" : (glued ? "" : " ") + text)).join("");
  return `Step ${frame.step}:${said}`;
}
