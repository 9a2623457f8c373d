import { Failure, get, post, wrong } from "./api.js";
import { shared } from "./align.js";
import { compare } from "./compare.js";
import { $, el, on } from "./dom.js";
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
  writer: "Word by word from left to right, several texts side by side; steps, guidance and temperature are for the others.",
  sequential: "From left to right, some tokens at each step.",
  euler: "A random part of the blanks at each step.",
  remask: "Like euler, but the least certain tokens are taken back.",
  "two-stage": "A first text from left to right, then its weakest tokens anew.",
  confidence: "The surest tokens first, equally many at each step.",
  entropy: "As many tokens at each step as can safely be chosen together.",
};
const NUMBERS = ["steps", "guidance", "temperature", "seed"];

const strip = new Strip($("strip"));
const stage = new Stage();
let model; // of /models
let defaults; // settings by name
let embedded = null; // the last answer of /encode, with the text that was `asked`
let working = null; // AbortController of what runs now
let typing = 0; // timer of the preview; 0 when none is wanted

// --- what to start from

const mode = () => $("form").elements.mode.value;
const field = () => $(mode() === "text" ? "input" : "numbers");

function setMode(name) {
  $("form").elements.mode.value = name;
  $("text-side").hidden = name !== "text";
  $("vector-side").hidden = name !== "vector";
  preview();
}

/** What stands in the form: {vector, asked: as typed, text, tokens: as the model has it}, of a raw vector no more. */
async function source(signal) {
  if (mode() === "vector")
    return { vector: parseText($("numbers").value, model), asked: null, text: null, tokens: null };
  const asked = $("input").value.trim();
  if (!asked) throw wrong("Type a sentence first, or pick one.");
  if (embedded?.asked === asked) return embedded;
  return (embedded = { ...(await post("/encode", { text: asked }, signal)), asked });
}

/** Draws the vector while a person types, but not over that of a run; `aloud` also says what is wrong. */
function preview(aloud = false) {
  settle();
  if (working) return;
  if (!field().value.trim() || !model) return drawVector(null, "The vector appears here.");
  const turn = (typing = setTimeout(async () => {
    try {
      const from = await source();
      if (turn === typing) drawVector(from);
    } catch (error) {
      if (turn !== typing) return;
      drawVector(null, error.message, true);
      if (aloud) announce(error.message);
    }
  }, aloud ? 0 : 250));
}

function settle() {
  clearTimeout(typing);
  typing = 0;
}

function drawVector(from, note, bad = false) {
  if (from || !working?.drawn) strip.draw(from && from.vector); // that of a run stays
  $("copy-vector").hidden = !strip.values;
  $("vector-note").classList.toggle("bad", bad);
  field().ariaInvalid = bad;
  if (!from) return ($("vector-note").textContent = note);
  const head = Array.from(from.vector.slice(0, 3), (v) => (v < 0 ? "−" : "+") + Math.abs(v).toFixed(3)).join("  ");
  const more = from.truncated ? ` The text is longer than the ${model.max_tokens} tokens that can come back.` : (from.more ?? "");
  $("vector-note").textContent = `${head} … ${from.vector.length} numbers from ${model.encoder}.${more}`;
}

async function takeFile(file) {
  if (!model) throw new Failure("The model is still loading. Try again in a moment.");
  setMode("vector");
  settle(); // what stood there is of no interest any more
  if (!file) throw wrong("That was no file: drop a .npy, or paste the numbers.");
  const npy = file.name.toLowerCase().endsWith(".npy");
  const most = npy ? 64 : 1;
  if (file.size > most * 2 ** 20) throw wrong(`That file is larger than ${most} MB: save the one vector that you want to read.`);
  const bytes = await file.arrayBuffer().catch(() => {
    throw wrong("That is a folder, or a file that cannot be read: drop one file.");
  });
  $("numbers").value = "";
  const { values, rows } = npy ? parseNpy(bytes, model) : {};
  $("numbers").value = npy ? toText(values) : new TextDecoder().decode(bytes);
  const vector = parseText($("numbers").value, model);
  if (!working) drawVector({ vector, more: rows > 1 ? ` The first of ${rows} in the file.` : "" });
}

// --- settings

function settings() {
  const chosen = { strategy: $("strategy").value };
  for (const name of numbersOf(chosen.strategy)) {
    const field = $(name);
    const bad = !field.checkValidity() || field.value === "";
    field.ariaInvalid = bad;
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
  for (const name of NUMBERS) $(name).value = chosen[name] ?? defaults[name];
  $("strategy").value = model.strategies.includes(chosen.strategy) ? chosen.strategy : defaults.strategy;
  $("feedback").checked = Boolean(chosen.feedback);
  explain();
}

// A writer takes no numbers but the seed.
const numbersOf = (strategy) => (strategy === "writer" ? ["seed"] : NUMBERS);
const without = (names, settings) => Object.fromEntries(Object.entries(settings).filter(([name]) => !names.includes(name)));
const forStrategy = (strategy, chosen) => ({
  ...without(NUMBERS.filter((name) => !numbersOf(strategy).includes(name)), chosen),
  strategy,
});

function explain() {
  $("strategy-help").textContent = STRATEGIES[$("strategy").value] ?? "";
  for (const name of NUMBERS) $(name).disabled = !numbersOf($("strategy").value).includes(name);
}

// --- recover and compare

async function work(all) {
  if (working) return working.abort(), stage.skip();
  clearError();
  settle();
  const control = (working = new AbortController());
  const { signal } = control;
  busy(true);
  try {
    const chosen = settings();
    chosen.feedback &&= !all;
    const from = await source(signal);
    drawVector(from);
    control.drawn = true;
    const names = all ? model.strategies : [chosen.strategy];
    const runs = names.map((strategy) => new Run(from, forStrategy(strategy, chosen), all));
    const first = runs.find((run) => run.settings.strategy === chosen.strategy);
    announce(all ? `Comparing ${runs.length} strategies.` : "Recovering.");
    $("comparison").hidden = !all;
    for (const run of runs) run.start(signal);
    const shown = show(first);
    const best = all ? await compare(runs, first, signal, show) : null;
    await shown;
    if (first.failure && !signal.aborted) throw first.failure;
    if (working === control) announce(first.done ? summary(first, best) : "Stopped.");
  } catch (error) {
    if (!signal.aborted) fail(error, () => work(all));
  } finally {
    if (working === control) busy(false), (working = null);
  }
}

function show(run) {
  history.replaceState(null, "", write(run, defaults));
  return stage.show(run, setStatus);
}

function summary(run, best) {
  if (best) return `Done. ${best.settings.strategy} came closest, cosine ${best.done.cosine.toFixed(2)}: ${best.done.text}`;
  const words = run.source.text ? ` ${shared(run.source.text, run.done.text).join(" of ")} words came back.` : "";
  return `Done: ${run.done.text}${/[.!?]$/.test(run.done.text) ? "" : "."}${words}`;
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
    announce(error.message);
    return field().focus();
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
    button.textContent = "The browser forbids it here";
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
  on("form", "submit", (event) => (event.preventDefault(), work(false)));
  on("recover", "click", (event) => event.detail > 1 && event.preventDefault()); // a double click is one
  on("compare", "click", () => work(true));
  on("input", "input", () => preview());
  on("input", "keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (model && !working) work(false);
  });
  on("numbers", "input", () => preview());
  on("numbers", "change", () => preview(true)); // it is left
  for (const radio of $("form").elements.mode) radio.addEventListener("change", () => setMode(radio.value));
  on("random", "click", attempt(async () => use((await get("/random")).text)));
  for (const [name, text] of Object.entries(EXAMPLES)) {
    const chip = el("button", { type: "button", class: "chip" }, name);
    chip.addEventListener("click", () => use(text));
    $("examples").append(chip);
  }
  on("strategy", "change", explain);
  on("defaults", "click", () => setSettings(defaults));
  on("copy-vector", "click", () => strip.values && copy($("copy-vector"), toText(strip.values)));
  on("share", "click", () => copy($("share"), location.href.replace(/#.*/, "") + write(stage.run, defaults)));
  on("choose", "click", () => $("file").click());
  on("file", "change", () => {
    const [file] = $("file").files;
    $("file").value = ""; // so that the same file can be chosen again
    if (file) attempt(() => takeFile(file))();
  });
  for (const name of ["dragover", "dragleave", "drop"])
    addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return; // text may be dragged as ever
      event.preventDefault();
      $("form").classList.toggle("dropping", name === "dragover");
      const [file] = event.dataTransfer.files; // gone when the event is over
      if (name === "drop") attempt(() => takeFile(file))();
    });
  addEventListener("hashchange", attempt(restore));
  for (const link of document.querySelectorAll("nav [href^='#']"))
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the fragment holds the state
      $(link.hash.slice(1)).focus(); // which also scrolls
    });
}

function use(text) {
  setMode("text");
  $("input").value = text;
  preview();
}

/** A shared address is shown at once: same vector, same settings, same text. */
function restore() {
  let state;
  try {
    state = read(location.hash, defaults);
  } catch (error) {
    $("numbers").value = "";
    setMode("vector");
    throw error;
  }
  if (!state) return false;
  setSettings(state.settings);
  if (state.vector) $("numbers").value = toText(state.vector);
  else $("input").value = state.text;
  working?.abort();
  working = null;
  setMode(state.vector ? "vector" : "text");
  work(state.compare);
  return true;
}

async function ready() {
  for (;;) {
    const health = await get("/health");
    if (health.status === "ready") return health;
    if (health.status === "failed") throw new Failure("The server has failed. Start it again.");
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
    $("form").elements.mode[0].disabled = true;
    setMode("vector");
    setStatus("This server has no encoder: give it a raw vector.");
  }
  for (const id of ["recover", "compare", "random", "choose"]) $(id).disabled = false;
  if (!restore() && health.encoder !== null) use($("input").value || Object.values(EXAMPLES)[0]);
}

listen();
attempt(start)();
