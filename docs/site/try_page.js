// The page to try it on: a form, the answer in words, and the drawings of it.
import * as lookup from "./try_lookup.js";

const FOLDER = new URL("../try/", import.meta.url);
const KEYS = ["machine", "nodes", "nccl", "tuner", "collective", "bytes"];
const DEFAULTS = { machine: "dgx-h100", nodes: "2", nccl: "", tuner: "", collective: "AllReduce", bytes: "1M" };
const CURVES = 5; // besides the pick, the nearest at the size
const LEAST_POWER = 3; // of the drawings: 8 B to 8 GiB
const MOST_POWER = 33;

const form = document.getElementById("question");
const field = (key) => form.elements.namedItem(key);
const files = new Map();
let index;

const make = (tag, attributes = {}, ...children) => {
  const svg = ["svg", "g", "rect", "circle", "path", "line", "text", "title", "defs", "pattern"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const nameOf = ({ algorithm, protocol }) =>
  algorithm < 0 ? "not in this file" : `${index.algorithms[algorithm]}/${index.protocols[protocol]}`;
const colourOf = ({ algorithm }) => (algorithm < 0 ? "#8C8C8C" : index.colours[algorithm]);
const inkOf = ({ algorithm }) => (algorithm < 0 ? "#FFFFFF" : index.inks[algorithm]);
const microseconds = (us) => `${us.toFixed(2)} us`;

async function fileOf(machine) {
  if (!files.has(machine)) {
    const fetched = async (name) => {
      const response = await fetch(new URL(name, FOLDER));
      if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
      return response;
    };
    const picks = async () => lookup.parse(await lookup.unpacked(await (await fetched(`${machine}.picks.gz`)).arrayBuffer()));
    const runs = async () => (index.measured.includes(machine) ? (await fetched(`${machine}.measured.json`)).json() : []);
    const loaded = Promise.all([picks(), runs()]).then(([file, measured]) => ({ ...file, measured }));
    loaded.catch(() => files.delete(machine));
    files.set(machine, loaded);
  }
  return files.get(machine);
}

function offer(key, values, wanted) {
  const select = field(key);
  const options = values.map((value) => (Array.isArray(value) ? value : [value, value]));
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, String(text))));
  const valid = options.some(([value]) => String(value) === wanted);
  select.value = valid ? wanted : String(options.at(key === "nccl" || key === "tuner" ? -1 : 0)[0]);
}

/** What an address asks for that is not here, in words: for nothing else is answered instead. */
function unknown(named) {
  const missing = Object.entries(named)
    .filter(([key]) => key !== "bytes" && field(key).value !== named[key])
    .map(([key, value]) => `${key} ${JSON.stringify(value)}: not on this page; valid: ${[...field(key).options].map((each) => each.value).join(", ")}`);
  return missing.some((each) => each.startsWith("machine ")) ? missing.slice(0, 1) : missing; // the rest depends on it
}

const asked = () => Object.fromEntries(KEYS.map((key) => [key, field(key).value.trim()]));

async function choose(wanted) {
  offer("machine", index.machines.map(([name, title]) => [name, `${name}: ${title}`]), wanted.machine);
  const { about } = await fileOf(field("machine").value);
  const one = about.gpus === 1 ? "GPU" : "GPUs";
  offer("nodes", about.nodes.map((nodes) => [nodes, `${nodes} (${nodes * about.gpus} ${one})`]), wanted.nodes);
  offer("nccl", about.releases, wanted.nccl);
  offer("tuner", about.tuners, wanted.tuner);
  offer("collective", about.collectives, wanted.collective);
  field("bytes").value = wanted.bytes;
}

async function show() {
  const [answer, details] = [document.getElementById("answer"), document.getElementById("details")];
  try {
    const question = asked();
    const file = await fileOf(question.machine);
    const bytes = lookup.sizeBytes(question.bytes);
    field("bytes").setAttribute("aria-invalid", String(bytes === null));
    if (bytes === null) {
      answer.replaceChildren(make("p", {}, `Size "${question.bytes}": expected bytes such as 8, 64K, 1.5M or 1G, up to 1T`));
      details.replaceChildren(); // what is drawn is of another size
      return;
    }
    history.replaceState(null, "", `?${new URLSearchParams(question)}`);
    WIDTH = Math.min(Math.max(details.clientWidth, 300), MOST_WIDTH);
    const cells = new Cells(file, question, bytes);
    answer.replaceChildren(...verdict(cells));
    details.replaceChildren(...why(cells), ...measured(cells), ...map(cells), ...otherReleases(cells));
    document.body.dataset.answered = JSON.stringify({ question, bytes, pick: cells.pick });
  } catch (error) {
    refuse([`No answer: ${error.message}`]);
  }
}

/** What a question comes to: its tables, its pick, and the candidates at its size, fastest first. */
class Cells {
  constructor(file, question, bytes) {
    Object.assign(this, { file, question, bytes });
    this.tables = this.of({});
    this.pick = this.tables && lookup.lookUp(this.tables.picks, bytes);
    this.candidates = (this.tables?.candidates ?? [])
      .map((table) => ({ table, ...lookup.lookUp(table, bytes) }))
      .filter((each) => each.timeUs > 0)
      .sort((one, other) => one.timeUs - other.timeUs);
    this.ranges = this.tables ? lookup.ranges(this.tables.picks) : [];
    this.at = this.ranges.findIndex((each) => each.from <= bytes && bytes <= each.to);
    this.measured = lookup.measuredAt(file.measured, Number(question.nodes), question.collective, bytes);
  }

  of(other) {
    const { nccl, nodes, tuner, collective } = { ...this.question, ...other };
    return lookup.answerOf(this.file, {
      tuners: tuner,
      releases: nccl,
      nodes: Number(nodes),
      collectives: collective,
    });
  }

  /** GB/s in each direction of each link of a ring that would take as long, as nccl-tests counts it. */
  busbw(bytes, us) {
    const ranks = Number(this.question.nodes) * this.file.about.gpus;
    return (bytes / us / 1000) * (BUS[this.question.collective] ?? (() => 1))(ranks);
  }

  get command() {
    const { machine, nodes, nccl, tuner, collective } = this.question;
    const of = [`--machine ${machine}`, `--nodes ${nodes}`, `--nccl ${nccl}`, `--tuner ${tuner}`];
    return `nccl-tuner explain ${collective.toLowerCase()} ${of.join(" ")} --bytes ${this.bytes}`;
  }
}

const BUS = {
  AllReduce: (ranks) => (2 * (ranks - 1)) / ranks,
  AllGather: (ranks) => (ranks - 1) / ranks,
  ReduceScatter: (ranks) => (ranks - 1) / ranks,
};

function verdict(cells) {
  const { pick, bytes } = cells;
  if (!pick) {
    return [
      make("p", { class: "pick" }, "Not answered here: these picks take another form."),
      make("p", {}, make("code", {}, cells.command)),
    ];
  }
  const algbw = bytes / pick.timeUs / 1000;
  const launch = pick.threads ? `, ${pick.channels} ${pick.channels === 1 ? "channel" : "channels"}, ${pick.threads} threads` : "";
  const rest = cells.candidates.filter((each) => nameOf(each) !== nameOf(pick));
  const faster = rest.length && rest[0].timeUs < pick.timeUs;
  return [
    make("p", { class: "pick" }, swatch(pick), ` ${nameOf(pick)}${launch}`),
    make(
      "p",
      {},
      `${microseconds(pick.timeUs)} by NCCL's model: ${algbw.toFixed(2)} GB/s, busbw ${cells.busbw(bytes, pick.timeUs).toFixed(2)} GB/s. `,
      !rest.length
        ? "Nothing else can run this call."
        : faster
          ? `The tuner plugin chose it; NCCL's model has ${nameOf(rest[0])} ${(100 - (100 * rest[0].timeUs) / pick.timeUs).toFixed(1)} % faster.`
          : `Next is ${nameOf(rest[0])}, ${((100 * rest[0].timeUs) / pick.timeUs - 100).toFixed(1)} % slower.`,
    ),
    ...measuredInWords(cells),
    make("p", { class: "quiet" }, "More, from the command line: ", make("code", {}, cells.command)),
  ];
}

const swatch = (cell) => make("span", { class: "swatch", style: `background: ${colourOf(cell)}` });

const SIDE = 34;
const RIGHT = 14;
const MOST_WIDTH = 760;
let WIDTH = MOST_WIDTH; // as wide as the column, so that letters have one size
const across = (bytes) =>
  SIDE + ((Math.log2(Math.max(bytes, 1)) - LEAST_POWER) / (MOST_POWER - LEAST_POWER)) * (WIDTH - SIDE - RIGHT);
const within = (x) => Math.min(Math.max(x, SIDE), WIDTH - RIGHT);

function sizeAxis(y, top) {
  const powers = WIDTH < 500 ? [3, 10, 20, 30] : [3, 10, 15, 20, 25, 30, 33];
  return powers.flatMap((power) => [
    make("line", { x1: across(2 ** power), x2: across(2 ** power), y1: top, y2: y, class: "grid" }),
    make("text", { x: across(2 ** power), y: y + 16, "text-anchor": "middle" }, lookup.human(2 ** power).replace("iB", "")),
  ]);
}

function why(cells) {
  if (!cells.pick) return [];
  const { pick, candidates, bytes } = cells;
  const picked = candidates.find((each) => nameOf(each) === nameOf(pick));
  const nearest = candidates.filter((each) => each !== picked).slice(0, CURVES);
  const drawn = [...nearest.toReversed(), ...(picked ? [picked] : [])];
  const rows = candidates.map((each) =>
    make(
      "tr",
      each === picked ? { class: "chosen" } : {},
      make("td", {}, swatch(each), ` ${nameOf(each)}`),
      make("td", { class: "number" }, each.timeUs.toFixed(2)),
      make("td", { class: "number" }, each === picked ? "the pick" : `${((100 * each.timeUs) / pick.timeUs - 100).toFixed(1)} %`),
    ),
  );
  const head = ["candidate", "us", "slower by"].map((text, at) => make("th", at ? { class: "number" } : {}, text));
  return [
    make("h2", {}, `Why: ${candidates.length} candidates at ${lookup.human(bytes)}`),
    make("p", { class: "quiet" }, "Time by NCCL's model, as a multiple of the fastest candidate's at each size."),
    make("p", { class: "legend" }, ...drawn.toReversed().map((each) => make("span", {}, dash(each), ` ${nameOf(each)}`))),
    curves(drawn, cells),
    make("div", { class: "wide" }, make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))),
    borders(cells),
  ];
}

const dash = (cell) =>
  make(
    "svg",
    { width: 26, height: 12, "aria-hidden": "true" },
    make("path", { d: "M0 6H26", stroke: colourOf(cell), "stroke-dasharray": DASHES[cell.protocol], "stroke-width": 3 }),
  );

const DASHES = ["1 4", "7 4", ""]; // LL, LL128, Simple, as in the plots

const MOST_TIMES = 4; // the fastest candidate's time; what takes longer is not drawn

function curves(drawn, cells) {
  const [top, bottom] = [10, 190];
  const sizes = [];
  for (let power = LEAST_POWER; power <= MOST_POWER; power += 0.125) sizes.push(Math.round(2 ** power));
  const tables = cells.candidates.map(({ table }) => table);
  const times = sizes.map((bytes) => tables.map((table) => lookup.lookUp(table, bytes)?.timeUs ?? Infinity));
  const up = (slower) => bottom - ((slower - 1) / (MOST_TIMES - 1)) * (bottom - top);
  const x = within(across(cells.bytes));
  const path = (table) => {
    const at = tables.indexOf(table);
    let pen = "M";
    return sizes.map((bytes, number) => {
      const slower = times[number][at] / Math.min(...times[number]);
      if (!(slower <= MOST_TIMES)) {
        pen = "M";
        return "";
      }
      const step = `${pen}${across(bytes).toFixed(1)} ${up(slower).toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  };
  return picture(
    `Time over that of the fastest candidate, by size: ${drawn.map(nameOf).join(", ")}`,
    bottom + 24,
    ...sizeAxis(bottom, top),
    ...[1, 2, 3, MOST_TIMES].flatMap((slower) => [
      make("line", { x1: SIDE, x2: WIDTH - RIGHT, y1: up(slower), y2: up(slower), class: "grid" }),
      make("text", { x: SIDE - 6, y: up(slower) + 4, "text-anchor": "end" }, `${slower} x`),
    ]),
    ...drawn.map((cell) =>
      make(
        "path",
        {
          d: path(cell.table),
          stroke: colourOf(cell),
          "stroke-dasharray": DASHES[cell.protocol],
          class: nameOf(cell) === nameOf(cells.pick) ? "curve chosen" : "curve",
        },
        make("title", {}, nameOf(cell)),
      ),
    ),
    make("line", { x1: x, x2: x, y1: top, y2: bottom, class: "here" }),
  );
}

/** What healthy public runs took at just this size, where NCCL chose. */
function measuredInWords({ measured, bytes }) {
  const times = measured.filter(isTypical).flatMap(({ at }) => (at?.bytes === bytes ? [at.us] : []));
  if (!times.length) return [];
  const [least, most] = [Math.min(...times), Math.max(...times)].map(microseconds);
  const of = times.length === 1 ? "one public run" : `${times.length} public runs`;
  return [make("p", {}, `Measured on ${of}: ${least === most ? least : `${least} to ${most}`}.`)];
}

const isTypical = (run) => !run.forced && !run.settings.length && run.health !== "degraded";
const shortName = (run) => {
  const more = run.settings.length > 1 ? ` and ${run.settings.length - 1} more` : "";
  const settings = run.settings.length ? `${run.settings[0]}${more}` : "";
  return [run.table.split("__").at(-1), run.forced, settings, run.health === "degraded" ? "degraded" : ""].filter(Boolean).join(", ");
};
const atSize = (run, bytes) =>
  [shortName(run), run.nccl ? `NCCL ${run.nccl}` : "", run.at.bytes === bytes ? "" : `at ${lookup.human(run.at.bytes)}`].filter(Boolean).join(", ");

/** Public runs on as many nodes of this machine, beside what NCCL's model has for its pick. */
function measured(cells) {
  const { measured: runs, question, file, bytes } = cells;
  const named = `${question.nodes} ${question.nodes === "1" ? "node" : "nodes"}`;
  if (!runs.length) {
    const others = file.measured.filter((each) => each.collective === question.collective).map((each) => each.nodes);
    const where = [...new Set(others)].sort((one, other) => one - other).join(", ");
    return [
      make("h2", {}, "Measured"),
      make("p", {}, `No public run of ${question.collective} on ${named} of this machine is known here`, where ? `; there are some on ${where}.` : "."),
    ];
  }
  const modelled = (size) => (cells.tables ? lookup.lookUp(cells.tables.picks, size)?.timeUs : undefined);
  const rows = runs
    .filter(({ at }) => at)
    .sort((one, other) => cells.busbw(other.at.bytes, other.at.us) - cells.busbw(one.at.bytes, one.at.us))
    .map((run) => {
      const us = modelled(run.at.bytes);
      const cell = (text) => make("td", { class: "number" }, text);
      return make(
        "tr",
        isTypical(run) ? {} : { class: "quiet" },
        make("td", { class: "name", title: [`${run.table}: ${run.title}`, ...run.settings].join("\n") }, atSize(run, bytes)),
        cell(run.at.us.toFixed(2)),
        cell(cells.busbw(run.at.bytes, run.at.us).toFixed(2)),
        cell(us ? us.toFixed(2) : ""),
        cell(us ? `${(run.at.us / us).toFixed(2)} x` : ""),
      );
    });
  const head = ["run", "us", "busbw", "model us", "ratio"];
  const heads = head.map((text, at) => make("th", at ? { class: "number" } : {}, text));
  return [
    make("h2", {}, `Measured: ${runs.length} public ${runs.length === 1 ? "run" : "runs"} on ${named}`),
    make("p", { class: "quiet" }, "Bus bandwidth by size, GB/s. Thick: NCCL's model for its pick, with the release above. Thin: measured, each with its own release; in colour where an algorithm was forced, dotted where the cluster was not healthy."),
    bandwidths(runs, cells, modelled),
    rows.length
      ? make("div", { class: "wide" }, make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)))
      : make("p", {}, `None of them measured a size near ${lookup.human(bytes)}.`),
    make("p", { class: "quiet" }, "Where each is from: ", make("code", {}, `nccl-tuner measured --machine ${question.machine}`)),
  ];
}

/** Busbw of measured runs and of the model, over sizes. */
function bandwidths(runs, cells, modelled) {
  const [top, bottom] = [10, 190];
  const model = [];
  for (let power = LEAST_POWER; power <= MOST_POWER; power += 0.125) {
    const us = modelled(Math.round(2 ** power));
    if (us) model.push([Math.round(2 ** power), us]);
  }
  const drawn = runs.map((run) => ({ run, points: run.points.filter(([size]) => size >= 2 ** LEAST_POWER && size <= 2 ** MOST_POWER) }));
  const speeds = [model, ...drawn.map(({ points }) => points)].flat().map(([size, us]) => cells.busbw(size, us));
  const step = niceStep(Math.max(...speeds));
  const most = Math.ceil(Math.max(...speeds) / step) * step;
  const up = (gbs) => bottom - (gbs / most) * (bottom - top);
  const line = (points) => points.map(([size, us], at) => `${at ? "L" : "M"}${across(size).toFixed(1)} ${up(cells.busbw(size, us)).toFixed(1)}`).join("");
  const x = within(across(cells.bytes));
  return picture(
    `Bus bandwidth by size: NCCL's model, and ${runs.map(shortName).join("; ")}`,
    bottom + 24,
    ...sizeAxis(bottom, top),
    ...Array.from({ length: Math.round(most / step) + 1 }, (_, number) => number * step).flatMap((gbs) => [
      make("line", { x1: SIDE, x2: WIDTH - RIGHT, y1: up(gbs), y2: up(gbs), class: "grid" }),
      make("text", { x: SIDE - 6, y: up(gbs) + 4, "text-anchor": "end" }, String(gbs)),
    ]),
    ...drawn.flatMap(({ run, points }) => {
      const look = { class: "measured", stroke: colourOf({ algorithm: index.algorithms.indexOf(run.forced.split("/")[0]) }) };
      if (run.health === "degraded") look["stroke-dasharray"] = "2 3";
      const title = () => make("title", {}, shortName(run));
      return [
        make("path", { ...look, d: line(points) }, title()),
        ...points.map(([size, us]) => make("circle", { cx: across(size).toFixed(1), cy: up(cells.busbw(size, us)).toFixed(1), r: 1.8, fill: look.stroke }, title())),
      ];
    }),
    make("path", { d: line(model), class: "model" }),
    make("line", { x1: x, x2: x, y1: top, y2: bottom, class: "here" }),
  );
}

/** A round distance between lines of a grid, four to eight of them up to a number. */
function niceStep(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [0.1, 0.2, 0.25, 0.5, 1, 2].map((each) => each * power).find((each) => most / each <= 6) ?? power;
}

function borders(cells) {
  const here = cells.ranges[cells.at];
  if (!here) return "";
  const [before, after] = [cells.ranges[cells.at - 1], cells.ranges[cells.at + 1]];
  const parts = [`${nameOf(here)} is the pick from ${lookup.human(here.from)} to ${lookup.human(here.to)}`];
  if (before) parts.push(`below that ${nameOf(before)}`);
  if (after) parts.push(`above it ${nameOf(after)}`);
  return make("p", {}, `${parts.join("; ")}.`);
}

function map(cells) {
  const { about } = cells.file;
  const height = 18; // of a row
  const seen = new Map();
  const rows = about.nodes.map((nodes, at) => {
    const tables = cells.of({ nodes });
    const parts = (tables ? lookup.ranges(tables.picks) : []).filter((each) => across(each.to + 1) > SIDE && across(each.from) < WIDTH - RIGHT);
    for (const part of parts) seen.set(nameOf(part), part);
    const y = 6 + at * height;
    return make(
      "g",
      {},
      make("text", { x: SIDE - 6, y: y + 13, "text-anchor": "end", class: String(nodes) === cells.question.nodes ? "chosen" : "" }, String(nodes)),
      ...parts.flatMap((part) => {
        const [left, right] = [within(across(part.from)), within(across(part.to + 1))];
        const place = { x: left, y, width: Math.max(right - left, 0.2), height: height - 2 };
        const title = `${nodes} nodes, ${lookup.human(part.from)} to ${lookup.human(part.to)}: ${nameOf(part)}`;
        return [
          make("rect", { ...place, fill: colourOf(part) }),
          make("rect", { ...place, fill: `url(#hatch-${part.protocol}-${inkOf(part).slice(1)})` }, make("title", {}, title)),
        ];
      }),
    );
  });
  const bottom = 6 + about.nodes.length * height;
  const x = within(across(cells.bytes));
  const here = about.nodes.indexOf(Number(cells.question.nodes));
  const drawing = picture(
    "What NCCL picks by number of nodes and size; the ranges of each number of nodes are what the form above answers",
    bottom + 24,
    make("defs", {}, ...hatches()),
    ...rows,
    ...sizeAxis(bottom, bottom - 3),
    make("line", { x1: x, x2: x, y1: 4, y2: bottom, class: "here" }),
    make("rect", { x: SIDE, y: 5 + here * height, width: WIDTH - SIDE - RIGHT, height, class: "row" }),
  );
  drawing.classList.add("map");
  drawing.addEventListener("click", (event) => {
    const { left, top, width, height: high } = drawing.getBoundingClientRect();
    const at = Math.floor((((event.clientY - top) / high) * (bottom + 24) - 6) / height);
    if (about.nodes[at] !== undefined) {
      const place = (((event.clientX - left) / width) * WIDTH - SIDE) / (WIDTH - SIDE - RIGHT);
      field("nodes").value = String(about.nodes[at]);
      field("bytes").value = String(Math.round(2 ** (LEAST_POWER + Math.min(Math.max(place, 0), 1) * (MOST_POWER - LEAST_POWER))));
      show();
    }
  });
  const legend = [...seen.entries()].sort().map(([name, part]) => make("span", {}, key(part), ` ${name}`));
  return [
    make("h2", {}, `Over nodes: ${cells.question.collective} with NCCL ${cells.question.nccl}`),
    make("p", { class: "legend" }, ...legend),
    drawing,
    make("p", { class: "quiet" }, "Nodes downwards, sizes to the right. Click to ask."),
  ];
}

const key = (part) =>
  make(
    "svg",
    { width: 18, height: 12, "aria-hidden": "true" },
    make("rect", { width: 18, height: 12, fill: colourOf(part) }),
    make("rect", { width: 18, height: 12, fill: `url(#hatch-${part.protocol}-${inkOf(part).slice(1)})` }),
  );

/** Hatches of LL (one way) and LL128 (both ways), in each ink. */
function* hatches() {
  for (const ink of ["000000", "FFFFFF"]) {
    for (const [protocol, path] of [[0, "M0 6L6 0"], [1, "M0 6L6 0M0 0L6 6"], [2, ""]]) {
      const attributes = { id: `hatch-${protocol}-${ink}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" };
      yield make("pattern", attributes, make("path", { d: path, stroke: `#${ink}`, "stroke-width": 0.7, "stroke-opacity": 0.6 }));
    }
  }
}

function otherReleases(cells) {
  const rows = cells.file.about.releases.toReversed().map((nccl) => {
    const tables = cells.of({ nccl });
    const pick = tables && lookup.lookUp(tables.picks, cells.bytes);
    const other = pick && cells.pick && nameOf(pick) !== nameOf(cells.pick);
    return make(
      "tr",
      nccl === cells.question.nccl ? { class: "chosen" } : {},
      make("td", {}, nccl),
      make("td", {}, ...(pick ? [swatch(pick), ` ${nameOf(pick)}${other ? ", another pick" : ""}`] : ["not answered here"])),
      make("td", { class: "number" }, pick ? (pick.threads ? String(pick.channels) : "*") : ""),
      make("td", { class: "number" }, pick ? pick.timeUs.toFixed(2) : ""),
    );
  });
  const head = ["NCCL", "pick", "channels", "us"].map((text, at) => make("th", at > 1 ? { class: "number" } : {}, text));
  const left = cells.file.about.releases.some((nccl) => {
    const tables = cells.of({ nccl });
    return tables && lookup.lookUp(tables.picks, cells.bytes)?.threads === 0;
  });
  return [
    make("h2", {}, `Other releases at ${lookup.human(cells.bytes)}`),
    make("div", { class: "wide" }, make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))),
    ...(left ? [make("p", { class: "quiet" }, "* The channels of these picks change at too many sizes for this page; the command line says them.")] : []),
  ];
}

const picture = (label, height, ...children) =>
  make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, style: `width: ${WIDTH}px`, role: "img", "aria-label": label }, ...children);

function refuse(reasons) {
  document.getElementById("answer").replaceChildren(...reasons.map((each) => make("p", {}, each)));
  document.getElementById("details").replaceChildren();
  document.body.dataset.answered = JSON.stringify({ error: reasons.join("\n") });
}

async function ask(wanted) {
  await choose(wanted);
  await show();
}

async function start() {
  index = await (await fetch(new URL("index.json", FOLDER))).json();
  const parameters = new URLSearchParams(location.search);
  const named = Object.fromEntries(KEYS.filter((each) => parameters.get(each)).map((each) => [each, parameters.get(each)]));
  await choose({ ...DEFAULTS, ...named });
  const missing = unknown(named);
  if (missing.length) {
    refuse(missing);
  } else {
    await show();
  }
  addEventListener("resize", () => {
    if (Math.min(document.getElementById("details").clientWidth, MOST_WIDTH) !== WIDTH) show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => (event.target.name === "machine" ? ask({ ...asked(), tuner: "" }) : show()));
}

start().catch((error) => refuse([`The page cannot answer: ${error.message}`]));
