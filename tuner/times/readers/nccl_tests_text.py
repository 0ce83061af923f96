"""What nccl-tests prints, taken apart: rows and comments of a text of any version.

Columns: the printf calls of src/common.cu and src/util.cu, v1.0.0 to v2.19.6, of NVIDIA/nccl-tests. A row is printed in
pieces, and NCCL's log may stand between them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.base.names import Collective, DataType, Op
from tuner.base.sizes import ranks_on_nodes
from tuner.release import of_code
from tuner.times.readers.nccl_tests_names import NAME, OPS, PROGRAMS, TYPES, WITHOUT_OP, program
from tuner.times.records.header import Header

# Largest error that nccl-tests took for right, while it printed errors and not counts (deltaMaxValue, v2.10.0).
_RIGHT = {DataType.float16: 1e-2, DataType.bfloat16: 1e-2, DataType.float32: 1e-5, DataType.float64: 1e-12}

CPU_TIMES = "CPU times (-C 1), not those of the GPUs; valid: nccl-tests without -C"
# Of mpirun, torchrun, srun, MPICH's mpiexec and kubectl, and a time with what a container's log file adds, at a line.
_TAG = re.compile(
    r"^\s*(?:(?:\[\d+,\d+\](?:<\w+>)?:?|\[[\w.-]*\d+\]:|\d+:(?!\d)|\[\d+\](?= )|\[pod/\S+\]"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?)\s?)+"
)
_PREFIX = re.compile(r"([^\s:\[\]()]+):\d+:\d+ \[-?\d+\] (?:\S+ )?NCCL ")
_NUMBER = r"(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf)"
_OP = rf"(?:\s+(?:{'|'.join([*OPS, *WITHOUT_OP])})(?=\s|$))?"
_START = re.compile(rf"(\d{{1,19}})\s+(\d+)\s+({'|'.join(TYPES)})(?=\s|$)({_OP})(.*)")
_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_SETTINGS = re.compile(
    r"# ?nThread (\d{1,9}) nGpus (\d{1,9}) .*?warmup iters: (\d{1,9}) iters: (\d{1,9})(?:.*? graph: (\d{1,9}))?"
)
_VERSION = re.compile(r"nccl-library=(\d{1,9})")
_NCCL_SAYS = re.compile(r"NCCL version (\d+\.\d+\.\d+)")  # NCCL_DEBUG=VERSION prints it alone, INFO in its own lines
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Body:
    """Time, bandwidths in GB/s and errors of one row, in place or not; ``wrong`` is N/A where nothing was checked."""

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: str


def is_text(content: str) -> bool:
    """Whether it is what nccl-tests prints."""
    own = (_without_tag(line).strip() for line in content.splitlines())
    return any(_START.match(line) or _SETTINGS.match(line) for line in own)


@dataclass
class _Row:
    line: int
    bytes: int
    dtype: DataType
    op: Op
    graph: bool
    bodies: list[_Body]
    count: int  # of elements, a rank's part for AllGather and ReduceScatter
    reduces: bool  # names an operation
    root: int  # -1 where there is none


class Text:
    """The rows and comments of a text, without what others wrote into it.

    ``other`` is the program that was run where that is none of a collective that NCCL tunes. BadMeasurement where
    several collectives or several sets of GPUs are in one text, or times of CPUs.
    """

    def __init__(self, path: Path, content: str, otherwise: Collective | None = None) -> None:
        """Read a text; ``otherwise`` is the collective where it names none, None: the one that its columns show."""
        self._path = path
        self.rows: list[_Row] = []
        self.release: str | None = None
        self._graph = False
        self.collective: Collective | None = None
        self.other: str | None = None
        self._runs: list[dict[int, tuple[str, str]]] = []  # host and GPU of each rank, of each run in the file
        self._settings: tuple[str, ...] = ()
        self._out_of_bounds: int | None = None
        self._columns: list[str] = []  # of the last line that names them
        self._pending: _Row | None = None  # whose second half may follow
        for number, line in _own(content.splitlines()):
            self._read(number, line)
        self.release = self.release or _printed_release(path, content)
        if self.collective is None and self.other is None:
            ranks = len(self._runs[0]) if self._runs else None
            self.collective = _followed(self.rows, ranks) if otherwise is None else otherwise
        machines = list(dict.fromkeys(map(_machine, self._runs)))
        if len(machines) > 1:
            each = ", ".join(ranks_on_nodes(ranks, nodes) for ranks, nodes, _ in machines)
            raise BadMeasurement(f"{path}: runs on different GPUs in one file ({each}); valid: a file for each")

    @property
    def header(self) -> Header:
        """The head of the measurements: where they are from, and what ran them."""
        ranks, nodes, gpus = _machine(self._runs[0] if self._runs else {})
        return Header(
            NAME,
            source=str(self._path),
            ranks=ranks or None,
            nodes=nodes or None,
            gpus=gpus,
            warmup_calls=int(self._settings[2]) if self._settings else None,
            calls=int(self._settings[3]) if self._settings else None,
            out_of_bounds=self._out_of_bounds,
        )

    @property
    def prints_errors(self) -> bool:
        """Whether the last column is the largest error, as before 2.13, and not a number of wrong elements."""
        return bool({"error", "res"} & set(self._columns))

    @property
    def threads_and_gpus(self) -> tuple[int, int] | None:
        """Threads of a process and GPUs of a thread; None where the text does not say."""
        return (int(self._settings[0]), int(self._settings[1])) if self._settings else None

    def _read(self, number: int, line: str) -> None:
        stripped = line.strip()
        if match := _OUT_OF_BOUNDS.search(stripped):
            self._out_of_bounds = (self._out_of_bounds or 0) + int(match[1])
        elif stripped.startswith("#") or _RANK.match(stripped) or {"algbw", "busbw"} <= set(stripped.split()):
            self._comment(stripped)  # threads on the web lose the # of lines
        elif name := program(stripped):
            self._named(name)
        elif match := _START.match(stripped):
            self._start(number, match)
        elif self._pending is not None and (bodies := self._bodies(stripped.split())):
            self._pending.bodies += bodies

    def _start(self, number: int, match: re.Match[str]) -> None:
        size, count, dtype, op, rest = match.groups()
        words = rest.split()
        self._pending = None
        if op.strip() in WITHOUT_OP:
            return
        has_root = "root" in self._columns if self._columns else self._width(words) is None
        reduces = op.strip() not in ("", "none")
        root = int(words[0]) if has_root and words and re.fullmatch(r"-?\d{1,9}", words[0]) else -1
        nccl_op = OPS[op.strip() or "none"]
        self._pending = _Row(number, int(size), TYPES[dtype], nccl_op, self._graph, [], int(count), reduces, root)
        self.rows.append(self._pending)
        self._pending.bodies += self._bodies(words[has_root:])

    def _width(self, words: Sequence[str]) -> int | None:
        """Words of a row's half: time, two bandwidths, errors, and four of single calls where these are printed."""
        width = 8 if "i_min" in self._columns else 4
        return width if len(words) % width == 0 else None

    def _bodies(self, words: Sequence[str]) -> list[_Body]:
        """One or two halves of a row; none where the words are something else."""
        width = 8 if "i_min" in self._columns else 4
        bodies = []
        for start in range(0, len(words) - len(words) % width, width):
            time, *bandwidths, wrong = words[start : start + 4]
            numbers = [time, *bandwidths, *([] if wrong == "N/A" else [wrong])]
            if not all(re.fullmatch(_NUMBER, number) for number in numbers):
                break
            time_us = float(time) * (1000 if "bytes" in self._columns else 1)  # 1.x prints ms
            bodies.append(_Body(time_us, float(bandwidths[0]), float(bandwidths[1]), wrong))
        return bodies[:2]

    def _comment(self, line: str) -> None:
        if name := program(line):
            self._named(name)
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
                raise BadMeasurement(f"{self._path}: {CPU_TIMES}")
            self._columns = columns

    def _named(self, program: str) -> None:
        if program not in PROGRAMS:
            self.other = program
        elif self.collective not in (None, PROGRAMS[program]):
            raise BadMeasurement(f"{self._path}: several collectives in one file; valid: a file for each")
        else:
            self.collective = PROGRAMS[program]


def _printed_release(path: Path, content: str) -> str | None:
    """The release that NCCL itself printed. BadMeasurement where it printed several."""
    releases = list(dict.fromkeys(_NCCL_SAYS.findall(content)))
    if len(releases) > 1:
        raise BadMeasurement(f"{path}: several releases in one file ({', '.join(releases)}); valid: a file for each")
    return releases[0] if releases else None


def _followed(rows: Sequence[_Row], ranks: int | None) -> Collective | None:
    """Collective that no line names, by operation, root and factor of the bus bandwidth; None where others fit.

    The factors are those of nccl-tests (doc/PERFORMANCE.md): 2(n-1)/n of AllReduce, (n-1)/n of AllGather,
    ReduceScatter, AllToAll, Gather and Scatter, 1 of Broadcast, Reduce and SendRecv. AllToAll is not checked in place.
    """
    bodies = [(row, body) for row in rows for body in row.bodies if body.algbw_gbs > 0 and body.busbw_gbs > 0]
    if not bodies:
        whole = all(row.count * row.dtype.size_bytes == row.bytes for row in rows)
        return Collective.AllReduce if rows and whole and all(row.reduces and row.root < 0 for row in rows) else None
    row, body = max(bodies, key=lambda pair: pair[1].algbw_gbs)
    factor = body.busbw_gbs / body.algbw_gbs
    doubt = factor * (0.006 / body.algbw_gbs + 0.006 / body.busbw_gbs)  # two decimals are printed
    if ranks is not None:
        share = (ranks - 1) / ranks
        near = [name for name, value in (("2", 2 * share), ("part", share), ("1", 1.0)) if abs(factor - value) <= doubt]
    else:
        near = ["part"] if factor < 1 - 2 * doubt else ["2"] if factor > 1 + 2 * doubt else ["1", "2"]
    if row.root >= 0:
        return (Collective.Reduce if row.reduces else Collective.Broadcast) if "1" in near else None
    if row.reduces:
        fitting = [Collective.AllReduce] * ("2" in near) + [Collective.ReduceScatter] * ("part" in near)
        if len(fitting) > 1 and row.count * row.dtype.size_bytes == row.bytes:  # a rank's part would be less
            return Collective.AllReduce
        return fitting[0] if len(fitting) == 1 else None
    checked_in_place = any(len(each.bodies) > 1 and each.bodies[1].wrong != "N/A" for each in rows)
    return Collective.AllGather if near == ["part"] and checked_in_place else None


def _machine(devices: Mapping[int, tuple[str, str]]) -> tuple[int, int, tuple[str, ...]]:
    """Ranks, nodes and kinds of GPUs of a run."""
    hosts, gpus = {host for host, _ in devices.values()}, {gpu for _, gpu in devices.values()}
    return len(devices), len(hosts), tuple(sorted(gpus))


def _own(content: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines by number, without launchers' tags, cut where NCCL's log begins in them."""
    whole = list(map(_without_tag, content))
    hosts = {match[1] for line in whole if (match := _PREFIX.match(line))}
    for number, line in enumerate(whole, 1):
        match = _PREFIX.search(line)
        if match is None:
            yield number, line
            continue
        glued = match[1]  # a number may end where the host's name begins
        host = next((name for name in hosts if glued.endswith(name)), glued)
        if own := line[: match.end(1) - len(host)].strip():
            yield number, own


def _without_tag(line: str) -> str:
    return _TAG.sub("", line, count=1).rstrip("\r")


def wrong_count(text: str, dtype: DataType, is_error: bool) -> int:
    """How many results were wrong, by what is printed of it: a number of them, or the largest error."""
    if text == "N/A":
        return 0
    number = float(text)
    if is_error:
        return 0 if number <= _RIGHT.get(dtype, 0.0) else 1  # nan is wrong
    return int(number) if math.isfinite(number) else 1
