/* What stands beside the figures, and what a change leads to. */

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function table(columns, rows) {
  const cells = (tag, values) => values.map((value, column) => {
    const colSpan = column === values.length - 1 ? columns.length - column : 1;  // of a short row the last is wide
    return element(tag, { className: colSpan > 1 ? "" : columns[column][1], colSpan }, value);
  });
  const head = element("thead", {}, element("tr", {}, ...cells("th", columns.map(([name]) => name))));
  return [head, element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row))))];
}

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/* A drawing of a combination: its colour and hatch as on the map, and its line as in the curves. */
function key(cell, line) {
  const { colour, ink, hatch, dash } = index.cells[cell];
  const rising = "M-1 7L7 -1M3 13L16 0M11 13L16 8", falling = "M-1 5L7 13M1 -1L15 13M9 -1L16 6";
  const strokes = { "": "", "/": rising, x: rising + falling };
  if (!(hatch in strokes)) throw new Error(`no drawing of the hatch ${hatch}`);
  const dashes = { dotted: "2 3", dashed: "7 3", solid: "" }[dash];
  const strips = [["#1b1f24", 3.5], [colour, 2.2]].map(([stroke, width]) =>
    drawing("path", { d: "M20 6 H52", stroke, "stroke-width": width, "stroke-dasharray": dashes }));
  return drawing(
    "svg", { class: line ? "key" : "chip", viewBox: `0 0 ${line ? 52 : 15} 12`, "aria-hidden": "true" },
    drawing("rect", { width: 15, height: 12, fill: colour }), drawing("path", { d: strokes[hatch], stroke: ink }),
    ...(line ? strips : []));
}

const named = (cell) => element("span", {}, key(cell, false), index.cells[cell].name);

function drawLegend() {
  const used = new Set(index.nodes.flatMap((_, node) => [...lineOf(node).pick, ...lineOf(shown.node).times.keys()]));
  used.delete(NONE);
  at("legend").replaceChildren(
    ...[...used].sort((one, other) => one - other)
      .map((cell) => element("span", {}, key(cell, true), index.cells[cell].name)));
}

function drawRanges() {
  const line = lineOf(shown.node);
  const range = (values, first, last) => {
    const part = values.subarray(first, last + 1);
    return span(Math.min(...part), Math.max(...part));
  };
  const rows = runs(line).map(({ pick, first, last }) => {
    const sizes = `${sizeText(first)} – ${sizeText(last)}`;
    if (pick === NONE) return [sizes, nothing(line, first)];
    const times = [first, last].map((size) => line.pickTimes[size]);
    return [
      sizes, named(pick), range(line.channels, first, last), range(line.threads, first, last),
      span(...times.map((timeUs) => timeUs.toFixed(2))),
      span(...[first, last].map((size, end) => busGbs(shown.node, size, times[end]).toFixed(2))),
    ];
  });
  at("ranges-title").textContent =
    `Picks by size: ${index.collectives[shown.collective]} on ${nodesText(shown.node)}, NCCL ${index.releases[shown.release]}`;
  const number = "number";
  at("ranges").replaceChildren(...table(
    [["sizes of the map", "name"], ["pick", "name"], ["channels", number], ["threads", number], ["time µs", number],
      ["bus GB/s", number]], rows));
}

function drawExplanation() {
  const { node, size } = shown, line = lineOf(node), pick = line.pick[size], collective = index.collectives[shown.collective];
  const release = index.releases[shown.release];
  const parts = [element("h2", {}, `${collective} of ${sizeText(size)} on ${nodesText(node)} (${ranksText(node)}), NCCL ${release}`)];
  if (pick === NONE) {
    parts.push(element("p", { className: "pick" }, "Nothing"), element("p", {}, nothing(line, size)));
  } else {
    const timeUs = line.pickTimes[size], rest = others(line, size);
    parts.push(
      element("p", { className: "pick" }, named(pick)),
      element("p", {}, `${line.channels[size]} channels, ${line.threads[size]} threads, ${timeText(timeUs)} by NCCL's own `
        + `prediction, ${busGbs(node, size, timeUs).toFixed(2)} GB/s bus bandwidth`));
    parts.push(...calibrated(node, size));
    parts.push(element("p", {}, rest.length
      ? `Runner-up: ${index.cells[rest[0][0]].name}, ${(rest[0][1] - timeUs).toFixed(2)} µs or ${percent(rest[0][1] / timeUs - 1)} slower`
      : "NCCL has nothing else to choose from here"));
    if (rest.length) {
      parts.push(element("h2", {}, "What else it may use"), element("table", {}, ...table(
        [["combination", "name"], ["time µs", "number"], ["slower by µs", "number"], ["slower by", "number"]],
        rest.map(([cell, otherUs]) =>
          [named(cell), otherUs.toFixed(2), (otherUs - timeUs).toFixed(2), percent(otherUs / timeUs - 1)]))));
    }
    parts.push(...trace(line, size, pick));
  }
  parts.push(...unavailable(line));
  if (pick !== NONE) {
    parts.push(
      element("h2", {}, "The same on the command line"),
      element("code", {}, `nccl-tuner explain ${collective.toLowerCase()} ${index.options} --nodes ${index.nodes[node]} `
        + `--nccl ${release} --bytes ${index.sizes[size]}`));
  }
  at("explanation").replaceChildren(...parts);
}

function calibrated(node, size) {
  const found = calibratedOf(node, size);
  if (!found) return [];
  if (Number.isNaN(found.timeUs)) return [element("p", { className: "quiet" }, `By measurements: none; ${found.said}`)];
  const extrapolated = found.measured ? "" : ", extrapolated, as it was never measured for this collective";
  return [
    element("p", {}, `By measurements: ${timeText(found.timeUs)} (90 %: ${found.lowUs.toFixed(2)} to `
      + `${timeText(found.highUs)})${extrapolated}`),
    element("p", { className: "quiet" }, `By the calibration ${found.said}`),
  ];
}

function trace(line, size, pick) {
  const title = element("h2", {}, `How ${index.cells[pick].name} comes to its numbers`);
  const timeUs = line.times.get(pick)?.[size];  // not a number where Ring stands in for what is not available
  if (!line.traces.has(pick) || (timeUs !== line.pickTimes[size] && !Number.isNaN(timeUs)))
    return [title, element("p", {}, "NCCL moves this pick here from another, whatever its time (NCCL_CTA_POLICY).")];
  const sources = new Set();
  let group = "";
  const rows = stepsOf(line, pick, size).flatMap(([step, before, after]) => {
    const [quantity, rule, unit, says, source] = index.steps[step].map((text) => index.texts[text]);
    if (source) sources.add(source);
    const head = quantity === group ? [] : [[element("strong", {}, quantity)]];
    group = quantity;
    const name = element("span", { title: `rule ${rule}` }, says || rule);
    return [...head, [name, `${numberText(before)} → ${numberText(after)} ${unit.replace("us", "µs")}`]];
  });
  return [
    title,
    element("p", { className: "quiet" }, "In the order NCCL computes them, at this size."),
    element("table", {}, ...table([["step", ""], ["before → after", "number"]], rows)),
    element("p", { className: "quiet" }, ...[...sources].map((source) => element("small", {}, `Source: ${source}. `))),
  ];
}

function unavailable(line) {
  const byReason = new Map();
  for (const [cell, reason] of line.excluded)
    byReason.set(reason, [...(byReason.get(reason) || []), index.cells[cell].name]);
  if (!byReason.size) return [];
  const rows = [...byReason].map(([reason, names]) => [index.texts[reason], names.join(", ")]);
  return [
    element("h2", {}, "What it may not use"),
    element("table", {}, ...table([["because", ""], ["combinations", ""]], rows)),
  ];
}

/* Runs of releases of one key, as [first, last]. */
function alike(keys) {
  const starts = keys.flatMap((key, release) => (release && key === keys[release - 1] ? [] : [release]));
  return starts.map((start, which) => [start, (starts[which + 1] ?? keys.length) - 1]);
}

function drawReleases() {
  const name = index.releases[shown.release];
  at("release-name").textContent = name;
  if (index.releases.length === 1) return;
  const keys = (of) => index.releases.map((_, release) => index.nodes.map((_, node) => of(lineOf(node, release))).join(";"));
  const picks = alike(keys((line) => line.pick.join())), numbers = alike(keys((line) => line.place));
  at("strip").replaceChildren(...picks.flatMap(([first, last], which) =>
    index.releases.slice(first, last + 1).map((release, place) => element("span", {
      className: `${which % 2 ? "other" : ""} ${first + place === shown.release ? "shown" : ""}`,
      title: `NCCL ${release}`, onclick: () => show({ release: first + place }),
    }))));
  const said = (groups) => {
    const [first, last] = groups.find(([, end]) => end >= shown.release);
    return first === last ? `in ${name} alone` : `from ${index.releases[first]} to ${index.releases[last]}`;
  };
  at("same").textContent = `${index.collectives[shown.collective]}: the same picks ${said(picks)}; `
    + `the same times and channels ${said(numbers)}. The strip changes its shade where picks do.`;
}

/* Shows what `change` says, and draws what depends on it. */
function show(change) {
  Object.assign(shown, change);
  at("release").value = shown.release;
  at("collective").value = shown.collective;
  at("nodes").value = shown.node;
  if ("release" in change || "collective" in change) {
    drawMap();
    drawReleases();
  }
  drawLegend();
  drawCurves();
  drawRanges();
  drawExplanation();
  for (const marker of models.markers) marker.location = Math.log2(index.sizes[shown.size]);
  models.place.data = {
    left: [models.cells.data.left[shown.size]], right: [models.cells.data.right[shown.size]],
    bottom: [shown.node - 0.5], top: [shown.node + 0.5],
  };
}

/* A CustomJS of Bokeh's would be compiled from text, which the page's policy forbids. Nothing stays selected, so that
   the same cell can be clicked again. */
function showClicked() {
  const { selected } = models.cells, [cell] = selected.indices;
  if (cell === undefined) return;
  selected.indices = [];
  show({ node: Math.floor(cell / index.sizes.length), size: cell % index.sizes.length });
}

function option(text, value) {
  return element("option", { value, textContent: text });
}

async function start() {
  const [text, numbers] = await Promise.all([inflated("index"), inflated("numbers")]);
  index = JSON.parse(new TextDecoder().decode(text));
  lines = unpacked(numbers);
  await Bokeh.embed.embed_item(JSON.parse(at("figures-of-bokeh").textContent));
  const find = (name) => Bokeh.documents.at(-1).get_model_by_name(name);
  models = {
    cells: find("cells"), runs: find("runs"), borders: find("borders"), labels: find("labels"), curves: find("curves"), envelope: find("envelope"), place: find("place"),
    markers: ["map marker", "time marker", "rate marker"].map(find).filter(Boolean),
    timeTitle: find("time title"), rateTitle: find("rate title"), figures: [find("rate"), find("time")],
  };
  at("collective").append(...index.collectives.map(option));
  at("nodes").append(...index.nodes.map(option));
  at("release").max = index.releases.length - 1;
  at("release").parentElement.hidden = index.releases.length === 1;
  models.cells.selected.properties.indices.change.connect(showClicked);
  at("controls").onsubmit = () => false;
  at("collective").onchange = (event) => show({ collective: +event.target.value });
  at("nodes").onchange = (event) => show({ node: +event.target.value });
  at("release").oninput = (event) => show({ release: +event.target.value });
  shown = {};
  show(index.first);
  document.body.dataset.ready = "yes";
}

start().catch((error) => {
  at("explanation").textContent = `This page cannot be shown: ${error}. It needs a browser of 2023 or later.`;
  throw error;
});
