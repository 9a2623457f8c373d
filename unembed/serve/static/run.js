// One decoding: asks the server, keeps every frame of it.

import { marks } from "./align.js";
import { decode } from "./api.js";
import { MASK } from "./tokens.js";

const RETRIES = 3; // of a full server
const LONGEST_WAIT = 5; // seconds; beyond that the person decides

export class Run {
  /** `source` as in main.js, `settings` of /decode; runs `together` share passes. */
  constructor(source, settings, together) {
    Object.assign(this, { source, settings, together });
    this.frames = []; // the first one is all blanks
    this.queue = null;
    this.again = 0; // when a full server is asked again, by performance.now()
    this.done = null;
    this.failure = null;
  }

  /** How many steps it will take: of a writer, one for each word that is expected. */
  get steps() {
    return this.settings.steps ?? this.frames.at(-1)?.tokens.length ?? this.source.tokens?.length ?? 20;
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
        if (signal.aborted || !(wait <= LONGEST_WAIT) || attempt > RETRIES) this.failure = error;
        else {
          this.again = performance.now() + wait * 1000;
          await pause(wait * 1000, signal);
        }
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
  for (const place of masked) if (place < before.tokens.length && !before.masked.has(place)) back.set(place, before.tokens[place]);
  return { ...data, masked, back, marks: marks(data.tokens, original) };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
