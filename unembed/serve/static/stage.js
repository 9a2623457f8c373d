// The stage: one run, live or replayed, and what came out of it.

import { pair, shared } from "./align.js";
import { $, el, on } from "./dom.js";
import { Player, TokenRow } from "./tokens.js";

export class Stage {
  constructor() {
    this.row = new TokenRow($("canvas"));
    this.row.idle(14);
    on("slider", "input", () => {
      this.player?.stop();
      this.frame(Number($("slider").value));
    });
    on("play", "click", () => this.player?.play(false));
  }

  /** Shows a run from its beginning while it goes on; resolves when its last frame is on the page. */
  async show(run, onStatus) {
    this.player?.stop();
    this.run = run;
    this.live = true;
    this.onStatus = onStatus;
    this.row.idle(this.row.element.children.length || 14);
    $("stage").classList.add("running");
    $("stage").ariaBusy = true;
    $("result").hidden = true;
    $("legend").hidden = $("replay").hidden = false;
    $("slider").disabled = $("play").disabled = true;
    $("stage").scrollIntoView({ block: "nearest" });
    for (const item of document.querySelectorAll(".with-original")) item.hidden = !run.source.tokens;
    this.wait();
    this.player = new Player(run, (at) => this.frame(at));
    await this.player.play();
    if (this.run !== run) return;
    this.live = false;
    $("stage").classList.remove("running");
    $("stage").ariaBusy = null;
    $("slider").disabled = $("play").disabled = !run.frames.length;
    if (run.frames.length) this.frame(run.frames.length - 1);
    if (run.done) this.finish(run);
    else this.onStatus("Stopped.");
  }

  /** Goes to the last frame that there is. */
  skip() {
    this.player?.stop();
  }

  /** Where in the queue it stands, until there is a frame to show. */
  wait() {
    const { run } = this;
    if (run.frames.length || run.over) return;
    this.onStatus(waiting(run));
    setTimeout(() => this.run === run && this.wait(), 100);
  }

  frame(at) {
    const { run } = this;
    const frame = run.frames[at];
    this.row.draw(frame);
    const blanks = frame.masked.size;
    const left = `${blanks || "no"} ${blanks === 1 ? "blank" : "blanks"} left`;
    const steps = this.live ? Math.max(run.steps, at) : run.frames.length - 1;
    this.onStatus(`Step ${frame.step} of ${steps} · ${left} · ${Math.round(frame.ms)} ms`);
    $("slider").max = steps;
    $("slider").value = at;
    $("slider").ariaValueText = `step ${frame.step} of ${steps}, ${left}`;
    $("slider-out").textContent = `${at} / ${steps}`;
  }

  finish(run) {
    const { done, source } = run;
    $("result").hidden = false;
    $("aligned").hidden = !source.text;
    const facts = [];
    if (source.text) {
      this.align(run);
      facts.push(["Words back", shared(source.text, done.text).join(" of ")]);
    }
    if (done.cosine !== null) facts.push(["Cosine", done.cosine.toFixed(2)]);
    facts.push(["Steps", done.passes === done.steps ? done.steps : `${done.steps} (${done.passes} passes)`]);
    facts.push([run.together ? "Time, all together" : "Time", `${Math.round(done.ms)} ms`], ["Encoder asked", times(done.encoder_queries)]);
    $("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const check = done.check_queries ? `, and ${done.check_queries === 1 ? "once" : times(done.check_queries)} afterwards, to check the cosine` : "";
    $("honest").textContent = `The encoder was asked ${times(done.encoder_queries)} to recover the text${check}.`;
  }

  align({ source, done, frames }) {
    $("original-text").textContent = source.text;
    $("recovered-text").textContent = done.text;
    $("spelling").hidden = source.asked === source.text;
    const columns = pair(source.tokens, frames.at(-1).tokens).map(([a, b, mark]) =>
      el("span", { class: mark === "same" ? "pair hit" : "pair" }, cell(a), cell(b, mark === "moved" ? mark : "")),
    );
    $("pairs").replaceChildren(el("span", { class: "pair names" }, el("span", {}, "original"), el("span", {}, "recovered")), ...columns);
  }
}

const cell = (word, mark = "") => (word ? el("span", { class: mark }, word.text) : el("span", { class: "gap" }));

const times = (n) => `${n} ${n === 1 ? "time" : "times"}`;

function waiting({ again, queue }) {
  const seconds = Math.ceil((again - performance.now()) / 1000);
  if (seconds > 0) return `The server is full, trying again in ${seconds} s`;
  if (!queue?.position) return "Starting…";
  const wait = Math.max(1, Math.round(queue.expected_wait_ms / 1000));
  return `Number ${queue.position} in the queue, about ${wait} s to wait`;
}
