// Looks picks up in a machine's file: `export --format compiled`, of which docs/exports.md says the layout.
// Sizes are NCCL's nBytes, times are us in float32 in NCCL's order of operations.

const HEAD_BYTES = 24;
const NAME_BYTES = 24;
const ROW_BYTES = 16;

const padded = (bytes) => bytes + ((8 - (bytes % 8)) % 8);

/** The content of a compressed file, whether or not the server told the browser to unpack it. */
export async function unpacked(buffer) {
  const bytes = new Uint8Array(buffer, 0, 2);
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return buffer;
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** {about, tables}: what the text of the file says, and its tables in order. */
export function parse(buffer) {
  const view = new DataView(buffer);
  const text = (at, bytes) => new TextDecoder().decode(new Uint8Array(buffer, at, bytes)).replace(/\0+$/, "");
  const u64 = (at) => Number(view.getBigUint64(at, true));
  if (text(0, 8) !== "NCCLPICK" || u64(8) !== 1) throw new Error("not a file of picks, version 1");
  const length = u64(16);
  const about = JSON.parse(text(HEAD_BYTES, length));
  let at = HEAD_BYTES + padded(length);
  const count = u64(at);
  at += 8;
  const tables = [];
  for (let number = 0; number < count; number += 1) {
    const rows = u64(at + NAME_BYTES);
    at += NAME_BYTES + 8;
    tables.push({ view, rows, starts: at, first: at + 8 * (rows + 1) });
    at += 8 * (rows + 1) + ROW_BYTES * rows;
  }
  return { about, tables };
}

export const startOf = (table, row) => Number(table.view.getBigUint64(table.starts + 8 * row, true));

/** One row; null where the table does not answer it. */
export function rowOf(table, row) {
  const { view } = table;
  const at = table.first + ROW_BYTES * row;
  const channels = view.getUint16(at + 8, true);
  if (channels === 0) return null;
  return {
    bytesPerUs: view.getFloat32(at, true),
    latencyUs: view.getFloat32(at + 4, true),
    channels,
    threads: view.getUint16(at + 10, true),
    algorithm: view.getInt8(at + 12),
    protocol: view.getInt8(at + 13),
  };
}

/** The number of the row that a size lies in, by bisection; -1 for a size below or beyond the table. */
export function find(table, bytes) {
  if (bytes < startOf(table, 0) || bytes >= startOf(table, table.rows)) return -1;
  let [low, high] = [0, table.rows];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (startOf(table, middle) <= bytes) low = middle;
    else high = middle;
  }
  return low;
}

export const timeUs = (row, bytes) =>
  Math.fround(Math.fround(Math.fround(bytes) / row.bytesPerUs) + row.latencyUs);

/** Algorithm, protocol, channels, threads (0: not in this table) and timeUs of a size; null where not answered. */
export function lookUp(table, bytes) {
  const at = find(table, bytes);
  const row = at < 0 ? null : rowOf(table, at);
  return row && { ...row, timeUs: timeUs(row, bytes) };
}

/** Neighbouring rows with the same algorithm and protocol as one: [{from, to, algorithm, protocol}], both ends in it. */
export function ranges(table) {
  const found = [];
  for (let number = 0; number < table.rows; number += 1) {
    const { algorithm = -1, protocol = -1 } = rowOf(table, number) ?? {};
    const last = found.at(-1);
    const to = startOf(table, number + 1) - 1;
    if (last && last.algorithm === algorithm && last.protocol === protocol) last.to = to;
    else found.push({ from: startOf(table, number), to, algorithm, protocol });
  }
  return found;
}

/** The tables of a question: {picks, candidates}; null where the file has no answer. */
export function answerOf({ about, tables }, question) {
  const at = ["tuners", "releases", "nodes", "collectives"].map((key) => about[key].indexOf(question[key]));
  if (at.some((each) => each < 0)) return null;
  const [picks, ...candidates] = about.answers[at.reduce((part, each) => part[each], about.questions)];
  return picks === undefined ? null : { picks: tables[picks], candidates: candidates.map((each) => tables[each]) };
}

/**
 * The measured runs of a number of nodes and a collective, each with `at`, its point nearest to a size: {bytes, us}, null
 * where the run has none within a factor of two.
 */
export function measuredAt(runs, nodes, collective, bytes) {
  const distance = ([size]) => Math.abs(Math.log2(size / bytes));
  return runs
    .filter((each) => each.nodes === nodes && each.collective === collective)
    .map((run) => {
      const near = run.points.reduce((one, other) => (distance(other) < distance(one) ? other : one));
      return { ...run, at: distance(near) <= 1 ? { bytes: near[0], us: near[1] } : null };
    });
}

const UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };
const DECIMAL = { kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 };
const MOST_BYTES = 2 ** 40;

/** "64K", "64KiB" (2**10) or "64KB" (10**3) as bytes, as the command line reads it; null for anything else. */
export function sizeBytes(text) {
  const match = /^\s*(\d+)(?:\.(\d+))?\s*([a-z]*)\s*$/i.exec(text);
  if (!match) return null;
  const unit = match[3].toLowerCase();
  const scale = DECIMAL[unit] ?? UNITS[unit === "b" ? "" : unit.replace(/ib$/, "")];
  if (scale === undefined) return null;
  const bytes = Number(match[1]) * scale + Math.floor((Number(match[2] ?? 0) * scale) / 10 ** (match[2] ?? "").length);
  return bytes >= 1 && bytes <= MOST_BYTES ? bytes : null;
}

/** Exact where a binary unit divides the size, else the bytes. */
export function human(bytes) {
  for (const [power, unit] of [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (bytes % 2 ** power === 0) return `${bytes / 2 ** power} ${unit}`;
  }
  return `${bytes} B`;
}
