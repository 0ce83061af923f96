/* Fills the sources of figures.py with what is shown. */

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
  models.borders.data = borders();
  models.labels.data = labels();
}

/* Lines between cells of different picks. */
function borders() {
  const { left, right } = models.cells.data, found = { x0: [], y0: [], x1: [], y1: [] };
  const draw = (...ends) => ["x0", "y0", "x1", "y1"].forEach((name, which) => found[name].push(ends[which]));
  const picks = index.nodes.map((_, node) => lineOf(node).pick);
  picks.forEach((row, node) => row.forEach((pick, size) => {
    if (size && pick !== row[size - 1]) draw(left[size], node - 0.5, left[size], node + 0.5);
    if (node && pick !== picks[node - 1][size]) draw(left[size], node - 0.5, right[size], node - 0.5);
  }));
  return found;
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
  for (const figure of models.figures) figure.visible = line.times.size > 0;
  if (!line.times.size) return;
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
