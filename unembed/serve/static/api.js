// Everything that goes over the wire: JSON calls, and the event stream of one decoding.

/** An error whose message is a sentence for a person. */
export class Failure extends Error {
  constructor(message, { slug = "", retryAfter = NaN } = {}) {
    super(message);
    this.slug = slug;
    this.retryAfter = retryAfter; // seconds, if the server says so
  }
}

/** What a person gave cannot be used. */
export const wrong = (message) => new Failure(message, { slug: "input" });

const UNREACHABLE = "The server does not answer. Check that unembed serve is running, then try again.";

export const get = (path, signal) => json(path, { signal });

export const post = (path, body, signal) => json(path, { ...asJson(body), signal });

/** Yields [event, data] of one decoding, the last being `done`; throws a Failure on `error`. */
export async function* decode(body, signal) {
  const response = await call("/decode", { ...asJson(body), signal });
  let ended = false;
  for await (const [event, data] of events(response.body, signal)) {
    if (event === "error") throw new Failure(data.message, { slug: data.error });
    ended = event === "done";
    yield [event, data];
    if (ended) return;
  }
  throw new Failure("The stream ended before the text was finished. Try again.");
}

function asJson(body) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

async function json(path, options) {
  const response = await call(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure(UNREACHABLE);
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure(UNREACHABLE);
  }
  if (response.ok) return response;
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const problem = await response.json().catch(() => ({}));
  const message = typeof problem.message === "string" ? problem.message : `The server answered ${response.status}. Try again.`;
  throw new Failure(message, { slug: problem.error, retryAfter: wait });
}

/** Server-sent events out of a byte stream. EventSource cannot send a body, hence by hand. */
async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (signal?.aborted || error instanceof Failure) throw error;
    throw new Failure(UNREACHABLE);
  } finally {
    reader.cancel().catch(() => {}); // tells the server that nobody listens any more
  }
}

function parse(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null; // a comment keeps the line open
}
