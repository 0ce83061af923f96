"use strict";
/* Draws what Python has computed. `shown` are places in the lists of the index: release, collective, node, size. */

const report = (() => {
  const NONE = 0xffff;
  const at = (id) => document.getElementById(id);
  let index, lines, models, shown;

  /* ---- unpacking: pack.py says what is where ---- */

  async function inflated(id) {
    const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }

  function unpacked(numbers) {
    const sizes = index.sizes.length;
    const count = index.candidates.reduce((sum, cells) => sum + cells.length + 1, 0) * sizes;
    const planes = new Uint8Array(numbers, 0, count * 4), bytes = new Uint8Array(count * 4);
    for (let i = 0; i < count; i++)
      for (let plane = 0; plane < 4; plane++) bytes[4 * i + plane] = planes[plane * count + i];
    const times = new Float32Array(bytes.buffer), rest = new Uint16Array(numbers.slice(count * 4));
    let row = 0;
    const values = index.candidates.map((cells, line) => {
      const part = () => times.subarray(row * sizes, ++row * sizes);
      const short = (which) => rest.subarray((3 * line + which) * sizes, (3 * line + which + 1) * sizes);
      const byCell = new Map(cells.map((cell) => [cell, part()]));
      return { times: byCell, pickTimes: part(), pick: short(0), channels: short(1), threads: short(2) };
    });
    return index.lines.map(([place, excluded, leastBytes, nothing, traces]) => (
      { ...values[place], place, excluded: index.excluded[excluded], leastBytes, nothing: index.texts[nothing], traces }
    ));
  }

  /* ---- what is asked of the lines ---- */

  const lineOf = (node, release = shown.release) => lines[index.places[release][shown.collective][node]];
  const busGbs = (node, size, timeUs) =>
    (index.sizes[size] / timeUs) * 1e-3 * index.bus_factors[shown.collective][node];

  function others(line, size) {
    const found = [...line.times].filter(([cell, times]) => cell !== line.pick[size] && !Number.isNaN(times[size]));
    return found.map(([cell, times]) => [cell, times[size]]).sort((one, other) => one[1] - other[1]);
  }

  function nothing(line, size) {
    if (index.sizes[size] >= line.leastBytes) return line.nothing || "NCCL finds nothing to run";
    return `no such call: with an element of each rank it has ${bytesText(line.leastBytes)} or more`;
  }

  /* ---- words ---- */

  function bytesText(bytes) {
    const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, scale]) => bytes >= scale);
    return unit ? `${+(bytes / unit[1]).toFixed(2)} ${unit[0]}` : `${bytes} B`;
  }
  const sizeText = (size) => bytesText(index.sizes[size]);
  const percent = (part) => `${(100 * part).toFixed(1)} %`;
  const timeText = (timeUs) => `${timeUs.toFixed(2)} µs`;
  const numberText = (value) => (Number.isInteger(value) ? `${value}` : `${+value.toPrecision(9)}`);
  const nodesText = (node) => `${index.nodes[node]} node${index.nodes[node] > 1 ? "s" : ""}`;
  const ranksText = (node) => `${index.nodes[node] * index.gpus_per_node} GPUs`;
  const span = (low, high) => (low === high ? `${low}` : `${low} – ${high}`);

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

  /* A drawing of a combination: its colour and hatch as on the map, and its line as in the curves. */
  function key(cell, line) {
    const { colour, ink, hatch, dash } = index.cells[cell];
    const marks = {
      "/": `<path d="M-2 14 L12 -2 M4 14 L18 -2" stroke="${ink}"/>`,
      ".": [2.5, 7.5, 12.5].map((x) => [3, 9].map((y) => `<circle cx="${x}" cy="${y}" r="1.2" fill="${ink}"/>`)).join(""),
    };
    const dashes = { dotted: "2 3", dashed: "7 3", solid: "" }[dash];
    const chip = `<rect width="15" height="12" fill="${colour}"/>${(marks[hatch] || "").replaceAll(",", "")}`;
    const stroke = [["#1b1f24", 3.5], [colour, 2.2]].map(([paint, width]) =>
      `<path d="M20 6 H52" stroke="${paint}" stroke-width="${width}" stroke-dasharray="${dashes}"/>`).join("");
    const holder = document.createElement("template");
    holder.innerHTML = `<svg class="${line ? "key" : "chip"}" viewBox="0 0 ${line ? 52 : 15} 12" aria-hidden="true">`
      + `${chip}${line ? stroke : ""}</svg>`;
    return holder.content.firstChild;
  }

  const named = (cell) => element("span", {}, key(cell, false), index.cells[cell].name);

  /* ---- drawing ---- */

  function drawMap() {
    const columns = { name: [], size: [], nodes: [], numbers: [], next: [] };
    const painted = { left: [], right: [], bottom: [], top: [], fill: [], ink: [], hatch: [] };
    const { left, right } = models.cells.data;
    index.nodes.forEach((_, node) => {
      const line = lineOf(node);
      index.sizes.forEach((_, size) => {
        const pick = line.pick[size], none = pick === NONE;
        const [next] = none ? [] : others(line, size), timeUs = line.pickTimes[size];
        columns.name.push(none ? "nothing" : index.cells[pick].name);
        columns.size.push(sizeText(size));
        columns.nodes.push(`${nodesText(node)}, ${ranksText(node)}`);
        columns.numbers.push(
          none ? nothing(line, size)
            : `${line.channels[size]} channels, ${line.threads[size]} threads, ${timeText(timeUs)}, `
              + `${busGbs(node, size, timeUs).toFixed(1)} GB/s bus`);
        columns.next.push(next ? `${index.cells[next[0]].name} ${percent(next[1] / timeUs - 1)} slower` : "");
      });
      for (const { pick, first, last } of runs(line)) {
        const look = pick === NONE ? index.nothing : index.cells[pick];
        painted.left.push(left[first]);
        painted.right.push(right[last]);
        painted.bottom.push(node - 0.5);
        painted.top.push(node + 0.5);
        painted.fill.push(look.colour);
        painted.ink.push(look.ink);
        painted.hatch.push(look.hatch || " ");
      }
    });
    models.cells.data = { ...models.cells.data, ...columns };
    models.runs.data = painted;
    models.labels.data = labels();
  }

  /* A name in the middle of each large area of one combination, so that the map reads without its colours. */
  function labels() {
    const width = index.sizes.length, picks = index.nodes.map((_, node) => lineOf(node).pick);
    const done = new Set(), found = { x: [], y: [], text: [] };
    for (let start = 0; start < picks.length * width; start++) {
      const pick = picks[Math.floor(start / width)][start % width];
      if (done.has(start) || pick === NONE) continue;
      const area = [], open = [start];
      done.add(start);
      while (open.length) {
        const place = open.pop(), row = Math.floor(place / width), column = place % width;
        area.push(place);
        for (const [y, x] of [[row, column + 1], [row, column - 1], [row + 1, column], [row - 1, column]]) {
          const next = y * width + x;
          if (y < 0 || y >= picks.length || x < 0 || x >= width || picks[y][x] !== pick || done.has(next)) continue;
          done.add(next);
          open.push(next);
        }
      }
      const middle = area.reduce((sum, place) => sum + Math.floor(place / width), 0) / area.length;
      const name = index.cells[pick].name, wanted = 0.75 * name.length;
      let best = null;
      for (const row of new Set(area.map((place) => Math.floor(place / width)))) {
        const inside = area.filter((place) => Math.floor(place / width) === row).map((place) => place % width);
        const ends = [Math.min(...inside), Math.max(...inside)];
        if (ends[1] - ends[0] + 1 !== inside.length) continue;
        const far = Math.abs(row - middle);
        if (inside.length >= wanted && (!best || far < best.far)) best = { far, row, ends };
      }
      if (!best) continue;
      found.x.push((models.cells.data.left[best.ends[0]] + models.cells.data.right[best.ends[1]]) / 2);
      found.y.push(best.row);
      found.text.push(name);
    }
    return found;
  }

  function drawCurves() {
    const line = lineOf(shown.node), logs = index.sizes.map(Math.log2);
    const curves = { name: [], xs: [], times: [], rates: [], colour: [], dash: [] };
    for (const [cell, times] of line.times) {
      const { name, colour, dash } = index.cells[cell], list = Array.from(times);
      curves.name.push(name);
      curves.colour.push(colour);
      curves.dash.push({ dotted: [2, 4], dashed: [7, 4], solid: [] }[dash]);
      curves.xs.push(logs);
      curves.times.push(list);
      curves.rates.push(list.map((timeUs, size) => busGbs(shown.node, size, timeUs)));
    }
    models.curves.data = curves;
    const pickTimes = Array.from(line.pickTimes);
    models.envelope.data = {
      x: logs, time: pickTimes, rate: pickTimes.map((timeUs, size) => busGbs(shown.node, size, timeUs)),
      size: logs.map((_, size) => sizeText(size)),
      name: Array.from(line.pick, (pick) => (pick === NONE ? "nothing" : index.cells[pick].name)),
      all: logs.map((_, size) =>
        others(line, size).map(([cell, timeUs]) => `${index.cells[cell].name} ${timeText(timeUs)}`).join(", ")),
    };
    const where = `${index.collectives[shown.collective]} on ${nodesText(shown.node)}, ${ranksText(shown.node)}`;
    models.timeTitle.text = `Predicted time, ${where}; grey: NCCL's pick`;
    models.rateTitle.text = `Bus bandwidth, ${where}; grey: NCCL's pick`;
  }

  function drawLegend() {
    const used = new Set(index.nodes.flatMap((_, node) => [...lineOf(node).pick, ...lineOf(shown.node).times.keys()]));
    used.delete(NONE);
    at("legend").replaceChildren(
      ...[...used].sort((one, other) => one - other)
        .map((cell) => element("span", {}, key(cell, true), index.cells[cell].name)));
  }

  function runs(line) {
    const found = [];
    line.pick.forEach((pick, size) => {
      const run = found.at(-1);
      if (run && run.pick === pick) run.last = size;
      else found.push({ pick, first: size, last: size });
    });
    return found;
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
        element("p", {}, `${line.channels[size]} channels, ${line.threads[size]} threads, ${timeText(timeUs)}, `
          + `${busGbs(node, size, timeUs).toFixed(2)} GB/s bus bandwidth`));
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

  function trace(line, size, pick) {
    const run = line.traces.find(([first, last]) => first <= size && size <= last);
    if (!run) return [];
    const steps = index.traces[run[3]], sources = new Set(), name = index.cells[pick].name;
    let group = "";
    const rows = steps.flatMap(([step, before, after]) => {
      const [quantity, rule, unit, says, source] = index.steps[step].map((text) => index.texts[text]);
      if (source) sources.add(source);
      const head = quantity === group ? [] : [[element("strong", {}, quantity)]];
      group = quantity;
      const told = element("span", { title: `rule ${rule}` }, says || rule);
      return [...head, [told, `${numberText(before)} → ${numberText(after)} ${unit.replace("us", "µs")}`]];
    });
    const where = run[0] === run[1] ? "" : `, the middle of ${sizeText(run[0])} – ${sizeText(run[1])} where it is the pick`;
    return [
      element("h2", {}, `How ${name} comes to its numbers`),
      element("p", { className: "quiet" }, `At ${sizeText(run[2])}${where}, in the order NCCL computes them.`),
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

  /* Called by the map's CustomJS with the cell that was clicked. */
  function clicked(cell) {
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
      cells: find("cells"), runs: find("runs"), labels: find("labels"), curves: find("curves"), envelope: find("envelope"), place: find("place"),
      markers: ["map marker", "time marker", "rate marker"].map(find).filter(Boolean),
      timeTitle: find("time title"), rateTitle: find("rate title"),
    };
    at("collective").append(...index.collectives.map(option));
    at("nodes").append(...index.nodes.map(option));
    at("release").max = index.releases.length - 1;
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
  return { clicked, show };
})();
