// A file of the reader's own on the page to try: read in a worker of the browser, shown as the command line shows it.
const MOST_BYTES = 50 * 2 ** 20;
const PASTED = "pasted.log";
const form = document.getElementById("paste");
const field = (name) => form.elements.namedItem(name);
const shown = document.getElementById("pasted");
const bar = form.querySelector("progress");
const state = form.querySelector("output");
let worker;
let asked = 0;
let given = []; // files that were dropped

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const say = (text) => {
  state.textContent = text;
};
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

/** A name that is a file in a folder of its own, and no option. */
const plain = (name) => name.replace(/^.*[/\\]/, "").replace(/^[-.]+/, "").slice(-100) || PASTED;

async function files() {
  const chosen = given.length ? given : [...field("files").files];
  const text = field("text").value;
  const all = chosen.map((file) => [plain(file.name), file]);
  if (text.trim()) all.push([PASTED, new Blob([text])]);
  const bytes = all.reduce((sum, [, file]) => sum + file.size, 0);
  if (!all.length) throw new Error("Nothing is pasted, dropped or chosen.");
  if (bytes > MOST_BYTES) throw new Error(`${megabytes(bytes)}: this page reads up to ${megabytes(MOST_BYTES)}, the command line any size.`);
  return Promise.all(all.map(async ([name, file]) => [name, await file.arrayBuffer()]));
}

function columns() {
  const letter = make("pre", { class: "probe" }, "0".repeat(100));
  shown.append(letter);
  const wide = shown.clientWidth / (letter.scrollWidth / 100);
  letter.remove();
  return Math.max(Math.min(Math.floor(wide) - 3, 100), 40);
}

function show(answer) {
  const state = { answered: "good", no: "bad", "cannot be judged": "open" }[answer.verdict] ?? "open";
  const code = make("button", { type: "button" }, "as JSON");
  code.addEventListener("click", () => {
    code.disabled = true;
    worker.postMessage({ id: asked, words: answer.words });
    waiting = code;
  });
  const part = make(
    "section",
    { class: state, "data-exit": String(answer.exit_code) },
    make("h3", {}, answer.title),
    make("pre", {}, `${answer.output}${answer.errors}`.trimEnd()),
    make("p", { class: "quiet" }, "The same on the command line: ", make("code", {}, answer.command), " ", code),
  );
  shown.append(part);
}

let waiting;

function heard({ data }) {
  if (data.total) {
    bar.hidden = data.done >= data.total;
    bar.value = data.done / data.total;
    say(bar.hidden ? "Reading ..." : `Loading Python and nccl-tuner, once: ${megabytes(data.done)} of ${megabytes(data.total)}`);
  }
  if (data.id !== asked) return;
  if (data.answer) show(data.answer);
  if (data.json !== undefined) {
    waiting.closest("section").append(make("pre", { class: "json" }, data.json));
    waiting.remove();
  }
  if (data.error) finish(`No answer: ${data.error}`);
  if (data.end) finish("");
}

function finish(text) {
  say(text);
  bar.hidden = true;
  field("stop").hidden = true;
  field("ask").disabled = false;
  shown.dataset.done = String(asked);
}

function stop() {
  worker?.terminate();
  worker = undefined;
  finish("Stopped.");
}

async function ask() {
  if (field("ask").disabled) stop();
  asked += 1;
  shown.replaceChildren();
  delete shown.dataset.done;
  let content;
  try {
    await prepare();
    content = await files();
  } catch (error) {
    finish(error.message);
    return;
  }
  if (!worker) {
    worker = new Worker(new URL("try_worker.js", import.meta.url), { type: "module" });
    worker.addEventListener("message", heard);
    worker.addEventListener("error", (event) => finish(`This browser cannot run it: ${event.message ?? "no module workers"}`));
  }
  field("ask").disabled = true;
  field("stop").hidden = false;
  say("Reading ...");
  const wide = columns();
  shown.dataset.columns = String(wide);
  worker.postMessage({ id: asked, files: content, machine: field("machine").value, nodes: field("nodes").value, columns: wide });
}

/** What the form offers, asked when somebody comes to it: the page before it needs none of that. */
function prepare() {
  prepared ??= (async () => {
    const response = await fetch(new URL("../python/index.json", import.meta.url));
    if (!response.ok) throw new Error("this copy of the site was built without Python for the browser; on the command line: nccl-tuner diagnose FILE");
    const { machines, files: loads } = await response.json();
    field("machine").append(...machines.map((name) => make("option", {}, name)));
    say(`The first answer loads ${megabytes(Object.values(loads).reduce((sum, each) => sum + each, 0))} from this site.`);
  })();
  prepared.catch((error) => finish(`No file can be read: ${error.message}`));
  return prepared;
}

let prepared;

for (const kind of ["focusin", "pointerenter", "dragenter"]) form.addEventListener(kind, prepare, { once: true });
form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
field("stop").addEventListener("click", stop);
field("files").addEventListener("change", () => {
  given = [];
  if (field("files").files.length) ask();
});
field("text").addEventListener("input", () => {
  given = [];
});
form.addEventListener("dragover", (event) => {
  event.preventDefault();
  form.classList.add("over");
});
form.addEventListener("dragleave", () => form.classList.remove("over"));
form.addEventListener("drop", (event) => {
  event.preventDefault();
  form.classList.remove("over");
  if (event.dataTransfer.files.length) {
    given = [...event.dataTransfer.files];
    field("text").value = "";
    ask();
  }
});
