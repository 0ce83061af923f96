/* What Python has computed: pack.py says what is where. `shown` are places in the lists of the index. */

const NONE = 0xffff;
const at = (id) => document.getElementById(id);
let index, floats, shorts, lines, models, shown;

async function inflated(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function unpacked(numbers) {
  const sizes = index.sizes.length;
  const count = index.floats * sizes;
  const planes = new Uint8Array(numbers, 0, count * 4), bytes = new Uint8Array(count * 4);
  for (let i = 0; i < count; i++)
    for (let plane = 0; plane < 4; plane++) bytes[4 * i + plane] = planes[plane * count + i];
  const rows = (values) => (place) => values.subarray(place * sizes, (place + 1) * sizes);
  floats = rows(new Float32Array(bytes.buffer));
  shorts = rows(new Uint16Array(numbers.slice(count * 4)));
  const values = index.numbers.map(([candidates, pickTimes, pick, channels, threads]) => ({
    times: new Map(candidates.map(([cell, place]) => [cell, floats(place)])), pickTimes: floats(pickTimes),
    pick: shorts(pick), channels: shorts(channels), threads: shorts(threads),
  }));
  return index.lines.map(([place, excluded, leastBytes, nothing, traces]) => (
    { ...values[place], place, excluded: index.excluded[excluded], leastBytes, nothing: index.texts[nothing],
      traces: new Map(traces) }
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

/* The steps that change something at a size, in the order NCCL computes them. */
function stepsOf(line, cell, size) {
  const value = (one) => (Array.isArray(one) ? floats(one[0])[size] : one);
  return index.traces[line.traces.get(cell)].map(([step, before, after]) => [step, value(before), value(after)])
    .filter(([, before, after]) => before !== after);
}

/* The calibrated time of a pick: bounds of 90 %, and which calibration it is by, or why there is none. */
function calibratedOf(node, size) {
  if (!index.calibrated) return null;
  const place = index.calibrated.places[shown.release][shown.collective][node];
  const [times, lows, highs, measured, said] = index.calibrated.rows[place];
  return { timeUs: floats(times)[size], lowUs: floats(lows)[size], highUs: floats(highs)[size],
    measured: shorts(measured)[size] === 1, said: index.texts[said] };
}

function nothing(line, size) {
  if (index.sizes[size] >= line.leastBytes) return line.nothing || "NCCL finds nothing to run";
  return `no such call: with an element of each rank it has ${bytesText(line.leastBytes)} or more`;
}

/* Sizes side by side of the same pick. */
function runs(line) {
  const found = [];
  line.pick.forEach((pick, size) => {
    const run = found.at(-1);
    if (run && run.pick === pick) run.last = size;
    else found.push({ pick, first: size, last: size });
  });
  return found;
}

/* ---- words ---- */

function bytesText(bytes) {
  const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, scale]) => bytes >= scale);
  return unit ? `${+(bytes / unit[1]).toFixed(2)} ${unit[0]}` : `${bytes} B`;
}
const sizeText = (size) => bytesText(index.sizes[size]);
const percent = (part) => `${(100 * part).toFixed(1)} %`;
const timeText = (timeUs) => `${timeUs.toFixed(2)} µs`;
/* The shortest decimal that reads back to the same float32. */
function numberText(value) {
  const digits = [6, 7, 8, 9].find((count) => Math.fround(value.toPrecision(count)) === Math.fround(value));
  return `${+value.toPrecision(digits)}`;
}
const nodesText = (node) => `${index.nodes[node]} node${index.nodes[node] > 1 ? "s" : ""}`;
const ranksText = (node) => `${index.nodes[node] * index.gpus_per_node} GPUs`;
const span = (low, high) => (low === high ? `${low}` : `${low} – ${high}`);
