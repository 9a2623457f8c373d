// One decoding: asks the server, keeps every frame of it.

import { MASK, marks } from "./align.js";
import { decode } from "./api.js";

const RETRIES = 3; // when the server is full and says when to come back
const LONGEST_WAIT = 5; // seconds; beyond that the person decides

export class Run {
  /** `source` is {vector, tokens: of the original or null}, `settings` what /decode takes. */
  constructor(source, settings) {
    this.source = source;
    this.settings = settings;
    this.frames = []; // the first one is all blanks
    this.queue = null;
    this.done = null;
    this.failure = null;
  }

  get over() {
    return Boolean(this.done || this.failure);
  }

  /** Never rejects: how it went stands in `done` or `failure`. */
  async start(signal) {
    for (let attempt = 1; !this.over; attempt++) {
      try {
        for await (const [event, data] of decode({ vector: this.source.vector, ...this.settings }, signal)) this.take(event, data);
      } catch (error) {
        const wait = error.retryAfter;
        if (signal.aborted || wait === null || wait === undefined || wait > LONGEST_WAIT || attempt > RETRIES) this.failure = error;
        else await pause(wait * 1000, signal);
      }
    }
    return this;
  }

  take(event, data) {
    if (event === "queued") this.queue = data;
    else if (event === "step") {
      if (!this.frames.length) this.frames.push(blank(data.tokens.length));
      this.frames.push(frame(data, this.frames.at(-1), this.source.tokens));
    } else if (event === "done") this.done = data;
  }
}

function blank(length) {
  const masked = new Set(Array.from({ length }, (_, i) => i));
  return { step: 0, ms: 0, passes: 0, masked, back: new Map(), tokens: new Array(length).fill(MASK), confidence: [], marks: [] };
}

function frame(data, before, original) {
  const masked = new Set(data.masked);
  const back = new Map(); // place -> the token that stood there before it was masked again
  for (const place of masked) if (!before.masked.has(place)) back.set(place, before.tokens[place]);
  const visible = data.tokens.map((token, place) => (masked.has(place) ? null : token));
  return { ...data, masked, back, marks: marks(visible, original) };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
