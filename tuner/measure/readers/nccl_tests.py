"""What nccl-tests prints, as text of any version or as its JSON, as measurements: NCCL's own choices and their times.

Columns: the printf calls of src/common.cu and src/util.cu, v1.0.0 to v2.19.6, of NVIDIA/nccl-tests. A row is printed in
pieces, and NCCL's log may stand between them; what was executed is taken from such lines where they are in the file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput, BadMeasurement, one_of
from tuner.base.names import Collective, DataType, Op
from tuner.logs import importer, lines, reader
from tuner.logs.imported import Given, Imported
from tuner.measure.gpu.executed import combination
from tuner.measure.records.samples import Combination, Measurements, Point, SampleBlock
from tuner.release import of_code

NAME = "nccl-tests"

_PROGRAMS = {
    "all_reduce_perf": Collective.AllReduce,
    "all_gather_perf": Collective.AllGather,
    "reduce_scatter_perf": Collective.ReduceScatter,
    "broadcast_perf": Collective.Broadcast,
    "reduce_perf": Collective.Reduce,
}
_TYPES = {
    "int8": DataType.int8,
    "char": DataType.int8,
    "uint8": DataType.uint8,
    "int32": DataType.int32,
    "int": DataType.int32,
    "uint32": DataType.uint32,
    "int64": DataType.int64,
    "uint64": DataType.uint64,
    "half": DataType.float16,
    "float": DataType.float32,
    "double": DataType.float64,
    "bfloat16": DataType.bfloat16,
    "f8e4m3": DataType.float8e4m3,
    "fp8_e4m3": DataType.float8e4m3,
    "f8e5m2": DataType.float8e5m2,
    "fp8_e5m2": DataType.float8e5m2,
}
_OPS = {op.name: op for op in Op} | {"none": Op.sum}  # of collectives that do not reduce
_NO_OP = ("mulsum",)  # a scaling that NCCL has no fixed operation for

# Largest error that nccl-tests took for right, while it printed errors and not counts (deltaMaxValue, v2.10.0).
_RIGHT = {DataType.float16: 1e-2, DataType.bfloat16: 1e-2, DataType.float32: 1e-5, DataType.float64: 1e-12}

_CPU_TIMES = "CPU times (-C 1), not those of the GPUs; valid: nccl-tests without -C"
# Of mpirun, torchrun, srun, MPICH's mpiexec and kubectl, and a time with what a container's log file adds, at a line.
_TAG = re.compile(
    r"^\s*(?:(?:\[\d+,\d+\](?:<\w+>)?:?|\[[\w.-]*\d+\]:|\d+:(?!\d)|\[\d+\](?= )|\[pod/\S+\]"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?)\s?)+"
)
_PREFIX = re.compile(r"([^\s:\[\]()]+):\d+:\d+ \[-?\d+\] (?:\S+ )?NCCL ")
_NUMBER = r"(?:[0-9.]+(?:e[+-]?\d+)?|nan|inf)"
_OP = rf"(?:\s+(?:{'|'.join([*_OPS, *_NO_OP])})(?=\s|$))?"
_START = re.compile(rf"(\d+)\s+(\d+)\s+({'|'.join(_TYPES)})(?=\s|$)({_OP})(.*)")
_PROGRAM = re.compile(r"\b([a-z_]+_perf)\b")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_SETTINGS = re.compile(r"# ?nThread (\d+) nGpus (\d+) .*?warmup iters: (\d+) iters: (\d+)(?:.*? graph: (\d+))?")
_VERSION = re.compile(r"nccl-library=(\d+)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class _Body:
    """Time, bandwidths and errors of one row, in place or not."""

    time_us: float
    wrong: str


def is_text(content: str) -> bool:
    """Whether it is what nccl-tests prints."""
    own = (_without_tag(line).strip() for line in content.splitlines())
    return any(_START.match(line) or _SETTINGS.match(line) for line in own)


def is_json(record: Any) -> bool:
    """Whether it is what nccl-tests writes with ``-J``."""
    return isinstance(record, dict) and "results" in record and "args" in record


def from_text(path: Path, content: str, collective: Collective | None = None) -> Measurements:
    """BadMeasurement where the file has no row, or neither it nor ``collective`` says what was run.

    A last line without its end is left out, as it may be cut.
    """
    whole, _, cut = content.rpartition("\n")
    text = _Text(path, whole)
    collective = collective if text.collective is None else text.collective
    if not text.rows:
        raise BadMeasurement(f"{path}: no row of nccl-tests in it is whole")
    if collective is None:
        raise BadMeasurement(
            f"{path}: does not say which collective was run; valid: one name of {', '.join(_PROGRAMS)} in it"
        )
    imported = _imported(path, collective, text.release)
    executed = _ran(imported)
    blocks = []
    for row in text.rows:
        for body, in_place in zip(row.bodies, (False, True), strict=False):
            point = Point(collective, row.bytes, row.dtype, row.op, in_place, row.graph)
            wrong = _wrong(body.wrong, row.dtype, text.prints_errors)
            blocks.append(SampleBlock(point, None, executed.get((collective, row.bytes)), (body.time_us,), wrong=wrong))
    header = {**text.header, "nccl": text.release or (imported.release if imported else None)}
    return Measurements(header, tuple(blocks), truncated=bool(cut))


def from_json(path: Path, record: Mapping[str, Any]) -> Measurements:
    """The same of what ``-J`` writes; its list of times per iteration, where there is one, is taken whole.

    BadMeasurement for the record of another program.
    """
    program = next((name for name in map(_program, record["args"]) if name), None)
    if program not in _PROGRAMS:
        raise BadMeasurement(f"{path}: {program or 'no program'} in its args; {one_of(_PROGRAMS)}")
    config = record.get("config", {})
    graph = bool(config.get("graph", 0))
    blocks = []
    try:
        for row in record["results"]:
            if row["redop"] in _NO_OP:
                continue
            dtype, op = _TYPES[row["type"]], _OPS[row["redop"]]
            for key, in_place in (("out_of_place", False), ("in_place", True)):
                if (body := row.get(key)) is None:
                    continue
                if "time" not in body:
                    raise BadMeasurement(f"{path}: {_CPU_TIMES}")
                per_call = row.get(f"{key}_per_iter") or {}
                times = per_call.get("times_us") or [body["time"]]
                point = Point(_PROGRAMS[program], int(row["size"]), dtype, op, in_place, graph)
                wrong = int(float(body["nwrong"] or 0))
                blocks.append(SampleBlock(point, None, None, tuple(map(float, times)), wrong=wrong))
    except (KeyError, TypeError, ValueError) as error:
        raise BadMeasurement(f"{path}: results[{len(blocks)}]: not what nccl-tests writes: {error!r}") from None
    devices = config.get("devices") or []
    code = record.get("nccl_version")
    header = {
        "backend": NAME,
        "from": str(path),
        "ranks": len(devices) or None,
        "nodes": len({each["hostname"] for each in devices}) or None,
        "gpus": sorted({each["device_info"] for each in devices}),
        "nccl": of_code(code) if code else None,
        "date": record.get("start_time"),
        "warmup": config.get("warmup_iters"),
        "calls": config.get("iterations"),
    }
    return Measurements(header, tuple(blocks))


@dataclass
class _Row:
    bytes: int
    dtype: DataType
    op: Op
    graph: bool
    bodies: list[_Body]


class _Text:
    """The rows and comments of a text, without what others wrote into it."""

    def __init__(self, path: Path, content: str) -> None:
        self._path = path
        self.rows: list[_Row] = []
        self.release: str | None = None
        self._graph = False
        self.collective: Collective | None = None
        self._other: str | None = None
        self._runs: list[dict[int, tuple[str, str]]] = []  # host and GPU of each rank, of each run in the file
        self._settings: tuple[str, ...] = ()
        self._out_of_bounds: int | None = None
        self._columns: list[str] = []  # of the last line that names them
        self._pending: _Row | None = None  # whose second half may follow
        for line in _own(content.splitlines()):
            self._read(line)
        if self.collective is None and self._other is not None:
            raise BadMeasurement(f"{path}: {self._other} is no collective that NCCL tunes; {one_of(_PROGRAMS)}")
        machines = list(dict.fromkeys(map(_machine, self._runs)))
        if len(machines) > 1:
            each = ", ".join(f"{ranks} ranks on {nodes} nodes" for ranks, nodes, _ in machines)
            raise BadMeasurement(f"{path}: runs on different GPUs in one file ({each}); valid: a file for each")

    @property
    def header(self) -> dict[str, Any]:
        ranks, nodes, gpus = _machine(self._runs[0] if self._runs else {})
        return {
            "backend": NAME,
            "from": str(self._path),
            "ranks": ranks or None,
            "nodes": nodes or None,
            "gpus": list(gpus),
            "warmup": int(self._settings[2]) if self._settings else None,
            "calls": int(self._settings[3]) if self._settings else None,
            "out_of_bounds": self._out_of_bounds,
        }

    @property
    def prints_errors(self) -> bool:
        """Whether the last column is the largest error, as before 2.13, and not a number of wrong elements."""
        return bool({"error", "res"} & set(self._columns))

    def _read(self, line: str) -> None:
        stripped = line.strip()
        if match := _OUT_OF_BOUNDS.search(stripped):
            self._out_of_bounds = (self._out_of_bounds or 0) + int(match[1])
        elif stripped.startswith("#"):
            self._comment(stripped)
        elif program := _program(stripped):
            self._named(program)
        elif match := _START.match(stripped):
            self._start(match)
        elif self._pending is not None and (bodies := self._bodies(stripped.split())):
            self._pending.bodies += bodies

    def _start(self, match: re.Match[str]) -> None:
        size, _, dtype, op, rest = match.groups()
        words = rest.split()
        self._pending = None
        if op.strip() in _NO_OP:
            return
        has_root = "root" in self._columns if self._columns else self._width(words) is None
        self._pending = _Row(int(size), _TYPES[dtype], _OPS[op.strip() or "none"], self._graph, [])
        self.rows.append(self._pending)
        self._pending.bodies += self._bodies(words[has_root:])

    def _width(self, words: Sequence[str]) -> int | None:
        """Words of a row's half: time, two bandwidths, errors, and four of single calls where these are printed."""
        width = 8 if "i_min" in self._columns else 4
        return width if len(words) % width == 0 else None

    def _bodies(self, words: Sequence[str]) -> list[_Body]:
        """One or two halves of a row; none where the words are something else."""
        width = 8 if "i_min" in self._columns else 4
        found = []
        for start in range(0, len(words) - len(words) % width, width):
            time, *bandwidths, wrong = words[start : start + 4]
            numbers = [time, *bandwidths, *([] if wrong == "N/A" else [wrong])]
            if not all(re.fullmatch(_NUMBER, number) for number in numbers):
                break
            found.append(_Body(float(time) * (1000 if "bytes" in self._columns else 1), wrong))  # 1.x prints ms
        return found[:2]

    def _comment(self, line: str) -> None:
        if program := _program(line):
            self._named(program)
        if match := _RANK.match(line):
            if not self._runs or int(match[1]) in self._runs[-1]:
                self._runs.append({})
            self._runs[-1][int(match[1])] = (match[2], match[3].strip())
        elif match := _SETTINGS.match(line):
            self._settings = match.groups()
            self._graph = int(match[5] or 0) > 0
        elif match := _VERSION.search(line):
            self.release = of_code(int(match[1]))
        elif {"algbw", "busbw"} <= set(columns := line.lstrip("# ").split()):
            if "cputime" in columns:
                raise BadMeasurement(f"{self._path}: {_CPU_TIMES}")
            self._columns = columns

    def _named(self, program: str) -> None:
        if program not in _PROGRAMS:
            self._other = program
        elif self.collective not in (None, _PROGRAMS[program]):
            raise BadMeasurement(f"{self._path}: several collectives in one file; valid: a file for each")
        else:
            self.collective = _PROGRAMS[program]


def _machine(devices: Mapping[int, tuple[str, str]]) -> tuple[int, int, tuple[str, ...]]:
    """Ranks, nodes and kinds of GPUs of a run."""
    hosts, gpus = {host for host, _ in devices.values()}, {gpu for _, gpu in devices.values()}
    return len(devices), len(hosts), tuple(sorted(gpus))


def _own(content: Iterable[str]) -> Iterator[str]:
    """Lines without launchers' tags, cut where NCCL's log begins in them."""
    whole = list(map(_without_tag, content))
    hosts = {match[1] for line in whole if (match := _PREFIX.match(line))}
    for line in whole:
        match = _PREFIX.search(line)
        if match is None:
            yield line
            continue
        glued = match[1]  # a number may end where the host's name begins
        host = next((name for name in hosts if glued.endswith(name)), glued)
        if own := line[: match.end(1) - len(host)].strip():
            yield own


def _without_tag(line: str) -> str:
    return _TAG.sub("", line, count=1).rstrip("\r")


def _program(text: str) -> str | None:
    match = _PROGRAM.search(text)
    return match[1] if match else None


def _wrong(text: str, dtype: DataType, is_error: bool) -> int:
    if text == "N/A":
        return 0
    number = float(text)
    if is_error:
        return 0 if number <= _RIGHT.get(dtype, 0.0) else 1  # nan is wrong
    return int(number)


def _imported(path: Path, collective: Collective, name: str | None) -> Imported | None:
    """NCCL's log in the same file; None where there is none that can be read."""
    try:
        return importer.of(reader.parse(lines.read(path)[0]), Given(collective=collective, release=name))
    except BadInput:
        return None


def _ran(imported: Imported | None) -> dict[tuple[Collective, int], Combination]:
    """Where NCCL printed one choice for a collective and size, and not several."""
    found: dict[tuple[Collective, int], set[Combination]] = {}
    for each in imported.choices if imported else ():
        executed = combination(each)
        if each.collective is not None and each.bytes is not None and executed is not None:
            found.setdefault((each.collective, each.bytes), set()).add(executed)
    return {key: one for key, (one, *others) in found.items() if not others}


def from_log(path: Path) -> Measurements:
    """The choices of a NCCL log alone, which has no times: what was executed where NCCL chose by itself.

    BadMeasurement for a log that cannot be read.
    """
    try:
        imported = importer.read(path, Given())
    except BadInput as error:
        raise BadMeasurement(str(error)) from None
    executed = _ran(imported)
    header = {
        "backend": "nccl-log",
        "from": str(path),
        "ranks": imported.ranks,
        "nodes": imported.node_count,
        "nccl": imported.release,
    }
    blocks = (SampleBlock(Point(collective, size), None, took, ()) for (collective, size), took in executed.items())
    return Measurements(header, tuple(blocks))


def load_json(content: bytes) -> Any:
    """None where it is none."""
    try:
        return json.loads(content)
    except ValueError:
        return None
