// The page: what a person does, and what follows from it.

import { Failure, get, post } from "./api.js";
import { shared } from "./align.js";
import { compare } from "./compare.js";
import { $, el } from "./dom.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";
import { read, write } from "./state.js";
import { Strip } from "./strip.js";
import { parseNpy, parseText, toText } from "./vectors.js";

const EXAMPLES = {
  "a diagnosis": "The patient was treated for a heart attack last year.",
  "a plan": "My flight to Lisbon leaves at nine tomorrow morning.",
  "a secret": "We will have to let forty people go in March.",
};
const STRATEGIES = {
  sequential: "From left to right, some tokens at each step.",
  euler: "A random part of the blanks at each step.",
  remask: "Like euler, but the least certain tokens are taken back after each step.",
  "two-stage": "A first text from left to right, then its weakest tokens anew.",
  confidence: "The surest tokens first, equally many at each step.",
  entropy: "As many tokens at each step as can safely be chosen together.",
};
const NUMBERS = ["steps", "guidance", "temperature", "seed"];
const LARGEST_FILE = 64 * 2 ** 20;

const strip = new Strip($("strip"));
const stage = new Stage();
let model; // of /models
let defaults; // settings by name
let embedded = null; // the last answer of /encode, with the text that was `asked`
let working = null; // AbortController of what runs now
let typing = 0;

// --- what to start from

const mode = () => document.querySelector("input[name=mode]:checked").value;

function setMode(name) {
  document.querySelector(`input[name=mode][value=${name}]`).checked = true;
  $("text-side").hidden = name !== "text";
  $("vector-side").hidden = name !== "vector";
  preview();
}

/** The vector of what stands in the form: {vector, text, tokens}; text and tokens are null for a raw vector. */
async function source(signal) {
  if (mode() === "vector") return { vector: parseText($("numbers").value, model.dim, model.encoder), text: null, tokens: null };
  const asked = $("input").value.trim();
  if (!asked) throw new Failure("Type a sentence first, or pick one.", { slug: "input" });
  if (embedded?.asked !== asked) embedded = { ...(await post("/encode", { text: asked }, signal)), asked };
  const { vector, text, tokens } = embedded;
  return { vector, text, tokens };
}

/** Draws the vector while a person types; a mistake is said beside it, not shouted. */
async function preview() {
  clearTimeout(typing);
  const empty = !(mode() === "text" ? $("input") : $("numbers")).value.trim();
  if (empty || !model) return drawVector(null, mode() === "text" ? "Its vector appears here." : "Your vector appears here.");
  const turn = (typing = setTimeout(async () => {
    try {
      const { vector } = await source();
      if (turn === typing) drawVector(vector);
    } catch (error) {
      if (turn === typing) drawVector(null, error.message, true);
    }
  }, 250));
}

function drawVector(vector, note, bad = false) {
  strip.draw(vector);
  $("copy-vector").hidden = !vector;
  $("vector-note").classList.toggle("bad", bad);
  if (bad) announce(note);
  if (!vector) return ($("vector-note").textContent = note);
  const head = Array.from(vector.slice(0, 3), (v) => (v < 0 ? "−" : "+") + Math.abs(v).toFixed(3)).join("  ");
  const cut = mode() === "text" && embedded?.truncated ? ` The text is longer than the ${model.max_tokens} tokens that can come back.` : "";
  $("vector-note").textContent = `${head} … ${vector.length} numbers from ${model.encoder}.${cut}`;
}

async function takeFile(file) {
  let more = "";
  setMode("vector");
  clearTimeout(typing); // what stood there is of no interest any more
  if (file.size > LARGEST_FILE) throw new Failure("That file is larger than 64 MB: save the one vector that you want to read.", { slug: "input" });
  $("numbers").value = "";
  if (!file.name.toLowerCase().endsWith(".npy")) $("numbers").value = await file.text();
  else {
    const { values, rows } = parseNpy(await file.arrayBuffer(), model.dim, model.encoder);
    $("numbers").value = toText(values);
    if (rows > 1) more = ` The first of ${rows} in the file.`;
  }
  drawVector(parseText($("numbers").value, model.dim, model.encoder));
  $("vector-note").textContent += more;
}

// --- settings

function settings() {
  const chosen = { strategy: $("strategy").value };
  for (const name of NUMBERS) {
    const field = $(name);
    const bad = !field.checkValidity() || field.value === "";
    field.setAttribute("aria-invalid", String(bad));
    if (bad) {
      $("settings").open = true;
      field.focus();
      throw new Failure(`${name[0].toUpperCase() + name.slice(1)} takes ${field.step === "1" ? "a whole number" : "a number"} from ${field.min} to ${field.max}.`);
    }
    chosen[name] = Number(field.value);
  }
  if (model.feedback) chosen.feedback = $("feedback").checked;
  return chosen;
}

function setSettings(chosen) {
  for (const name of NUMBERS) $(name).value = chosen[name];
  $("strategy").value = model.strategies.includes(chosen.strategy) ? chosen.strategy : defaults.strategy;
  $("feedback").checked = Boolean(chosen.feedback);
  explain();
}

const explain = () => ($("strategy-help").textContent = STRATEGIES[$("strategy").value] ?? "");

// --- recover and compare

async function work(all) {
  if (working) return working.abort(), stage.skip();
  clearError();
  const control = (working = new AbortController());
  busy(true);
  try {
    const chosen = settings();
    const from = await source(control.signal);
    drawVector(from.vector);
    const state = { text: $("input").value.trim(), vector: from.text === null ? from.vector : null, settings: chosen, compare: all };
    history.replaceState(null, "", write(state, defaults));
    const names = all ? model.strategies : [chosen.strategy];
    const runs = names.map((strategy) => new Run(from, { ...chosen, strategy }));
    const first = runs.find((run) => run.settings.strategy === chosen.strategy);
    announce(all ? `Comparing ${runs.length} strategies.` : "Recovering.");
    $("comparison").hidden = !all;
    for (const run of runs) run.start(control.signal);
    const shown = stage.show(first, setStatus);
    const best = all ? await compare(runs, first, (run) => stage.show(run, setStatus)) : null;
    await shown;
    if (first.failure && !control.signal.aborted) throw first.failure;
    if (first.done) announce(summary(first, best));
  } catch (error) {
    if (!control.signal.aborted) fail(error, () => work(all));
  } finally {
    if (working === control) busy(false), (working = null);
  }
}

function summary(run, best) {
  if (best) return `Done. ${best.settings.strategy} came closest, cosine ${best.done.cosine.toFixed(2)}: ${best.done.text}`;
  const words = run.source.text ? ` ${shared(run.source.text, run.done.text).join(" of ")} words came back.` : "";
  return `Done: ${run.done.text}.${words}`;
}

function busy(on) {
  $("recover").textContent = on ? "Stop" : "Recover";
  $("compare").disabled = on;
}

const setStatus = (text) => ($("status").textContent = text);

// The one live region speaks at the start, at the end and on errors.
const announce = (text) => ($("live").textContent = text);

function fail(error, again) {
  if (error.slug === "input") { // nothing to try again: the field is where to go
    drawVector(null, error.message, true);
    return (mode() === "text" ? $("input") : $("numbers")).focus();
  }
  const message = error instanceof Failure ? error.message : "Something went wrong on this page. Reload it and try again.";
  if (!(error instanceof Failure)) console.error(error);
  $("error-text").textContent = message[0].toUpperCase() + message.slice(1);
  $("error").hidden = false;
  $("retry").onclick = () => (clearError(), again());
  announce(message);
}

const clearError = () => ($("error").hidden = true);

async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow it here";
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = label), 2000);
}

/** Runs what a person asked for; what goes wrong becomes a sentence. */
const attempt = (job) => async (event) => {
  clearError();
  try {
    await job(event);
  } catch (error) {
    fail(error, attempt(() => job(event)));
  }
};

// --- start

function listen() {
  $("form").addEventListener("submit", (event) => (event.preventDefault(), work(false)));
  $("compare").addEventListener("click", () => work(true));
  $("input").addEventListener("input", preview);
  $("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!working) work(false);
  });
  $("numbers").addEventListener("input", preview);
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => setMode(radio.value));
  $("random").addEventListener("click", attempt(async () => use((await get("/random")).text)));
  for (const [name, text] of Object.entries(EXAMPLES)) {
    const chip = el("button", { type: "button", class: "chip" }, name);
    chip.addEventListener("click", () => use(text));
    $("examples").append(chip);
  }
  $("strategy").addEventListener("change", explain);
  $("defaults").addEventListener("click", () => setSettings(defaults));
  $("copy-vector").addEventListener("click", () => strip.values && copy($("copy-vector"), toText(strip.values)));
  $("share").addEventListener("click", () => copy($("share"), location.href));
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", attempt(async () => $("file").files[0] && takeFile($("file").files[0])));
  for (const name of ["dragover", "dragleave", "drop"])
    addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return; // text may be dragged as ever
      event.preventDefault();
      $("form").classList.toggle("dropping", name === "dragover");
      if (name === "drop") attempt(() => takeFile(event.dataTransfer.files[0]))();
    });
  addEventListener("hashchange", restore);
  document.querySelector('a[href="#about"]').addEventListener("click", (event) => {
    event.preventDefault(); // the fragment holds the state
    $("about").scrollIntoView();
    $("about").focus({ preventScroll: true });
  });
}

function use(text) {
  setMode("text");
  $("input").value = text;
  preview();
}

/** A shared address is shown at once: same vector, same settings, same text. */
function restore() {
  const state = read(location.hash, defaults);
  if (!state) return false;
  setSettings(state.settings);
  if (state.vector) $("numbers").value = toText(state.vector);
  else $("input").value = state.text;
  setMode(state.vector ? "vector" : "text");
  working?.abort();
  working = null;
  work(state.compare);
  return true;
}

/** Waits for the model when the server has just been started. */
async function ready() {
  for (;;) {
    const health = await get("/health");
    if (health.status === "ready") return health;
    setStatus("The model is loading…");
    await new Promise((next) => setTimeout(next, 500));
  }
}

async function start() {
  const health = await ready();
  model = (await get("/models")).models[0];
  defaults = { ...model.defaults, temperature: 0, ...(model.feedback ? { feedback: false } : {}) };
  $("strategy").replaceChildren(...model.strategies.map((name) => el("option", { value: name }, name)));
  $("feedback-row").hidden = !model.feedback;
  for (const place of document.querySelectorAll("[data-dim]")) place.textContent = model.dim;
  $("about-model").textContent = `Inverter ${model.name}: ${Math.round(model.parameters / 1e6)} million parameters, texts of at most ${model.max_tokens} tokens. unembed ${health.versions.unembed ?? ""}`;
  setSettings(defaults);
  setStatus("Press Recover.");
  if (health.encoder === null) {
    document.querySelector("input[name=mode][value=text]").disabled = true;
    setMode("vector");
    setStatus("This server has no encoder: give it a raw vector.");
  }
  if (!restore() && health.encoder !== null) use(Object.values(EXAMPLES)[0]);
}

listen();
attempt(start)();
