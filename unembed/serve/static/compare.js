// All strategies on one vector, side by side.

import { shared } from "./align.js";
import { $, el } from "./dom.js";
import { Player, TokenRow } from "./tokens.js";

/** One card for each run; `onPick(run)` when a person wants to see it. Resolves to the closest when all are over. */
export async function compare(runs, chosen, signal, onPick) {
  const mark = (run) => cards.forEach((card) => (card.button.ariaPressed = card.run === run));
  const cards = runs.map((run) => new Card(run, () => (mark(run), onPick(run))));
  $("cards").replaceChildren(...cards.map((card) => card.element));
  mark(chosen);
  await Promise.all(cards.map((card) => card.play(signal)));
  return signal.aborted ? null : crown(cards);
}

class Card {
  constructor(run, onPick) {
    this.run = run;
    const name = run.settings.strategy;
    this.button = el("button", { type: "button", class: "plain" }, "Show above", el("span", { class: "hush" }, `: ${name}`));
    this.button.addEventListener("click", onPick);
    this.title = el("h3", {}, name);
    this.tokens = el("div", { class: "tokens small", role: "img", "aria-label": "Blanks" });
    this.facts = el("p", { class: "card-facts" }, "Waiting");
    this.element = el("li", { class: "card" }, el("div", { class: "card-head" }, this.title, this.button), this.tokens, this.facts);
    this.row = new TokenRow(this.tokens);
    this.row.idle(10);
  }

  async play(signal) {
    const { run } = this;
    const player = new Player(run, (at) => {
      this.row.draw(run.frames[at]);
      this.facts.textContent = `Step ${at}`;
    });
    signal.addEventListener("abort", () => player.stop());
    await player.play();
    if (signal.aborted && run.frames.length) this.row.draw(run.frames.at(-1));
    if (!run.done) return void (this.facts.textContent = signal.aborted ? "Stopped." : run.failure.message);
    const { cosine, steps, passes, text } = run.done; // no time: the runs share their passes
    const facts = [cosine === null ? "" : `cosine ${cosine.toFixed(2)}`, `steps ${steps}`, passes !== steps && `passes ${passes}`];
    if (run.source.text) facts.unshift(`${shared(run.source.text, text).join(" of ")} words`);
    this.facts.textContent = facts.filter(Boolean).join(" · ");
  }
}

/** Says which text came closest to the vector. */
function crown(cards) {
  const rated = cards.filter((card) => typeof card.run.done?.cosine === "number");
  if (!rated.length) return null;
  const best = rated.reduce((a, b) => (b.run.done.cosine > a.run.done.cosine ? b : a));
  best.element.classList.add("best");
  best.title.append(" ", el("span", { class: "badge" }, "closest"));
  return best.run;
}
