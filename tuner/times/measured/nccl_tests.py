"""Converts the text and the JSON of nccl-tests to the same record, with the choices that NCCL's log shows.

What was executed is taken from NCCL's log, if the log is in the same file.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.expressions import expression
from tuner.base.names import Collective, DataType, Op, P2pOperation
from tuner.base.sizes import ranks_on_nodes
from tuner.base.spelling import option
from tuner.release import of_code
from tuner.scenario.logs import choice
from tuner.scenario.logs.lines import ANSI, in_record, read_lines
from tuner.times.measured import records
from tuner.times.measured.header import Header, MeasuredLaunch
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock

if TYPE_CHECKING:
    from tuner.scenario.logs.imported import Imported, LoggedChoice


def from_log(path: Path) -> Measurements:
    """Reads what NCCL executed by its own choice from a file that has only NCCL's log, and so no times.

    BadMeasurement for a log that cannot be read.
    """
    from tuner.scenario.logs import importer
    from tuner.scenario.logs.imported import LogAdditions

    try:
        imported = importer.read(path, LogAdditions())
    except BadInput as error:
        raise BadMeasurement(str(error)) from None
    executed = executed_by_size(imported)
    header = Header(
        "nccl-log", file=str(path), ranks=imported.ranks, nodes=imported.node_count, nccl=imported.release or ""
    )
    blocks = (SampleBlock(Point(collective, size), None, took, ()) for (collective, size), took in executed.items())
    return Measurements(header, tuple(blocks))


def imported_log(path: Path, collective: Collective, name: str | None) -> "Imported | None":
    """NCCL's log in the same file; None if there is no log or it cannot be read."""
    from tuner.scenario.logs import importer, reader
    from tuner.scenario.logs.imported import LogAdditions

    try:
        return importer.of(reader.parse(read_lines(path)), LogAdditions(collective=collective, release=name))
    except BadInput:
        return None


def executed_by_size(imported: "Imported | None") -> dict[tuple[Collective, int], Combination]:
    """The choices that NCCL printed, for each collective and size with exactly one choice."""
    printed: dict[tuple[Collective, int], set[Combination]] = {}
    for each in imported.choices if imported else ():
        executed = combination(each)
        if each.collective is not None and each.bytes is not None and executed is not None:
            printed.setdefault((each.collective, each.bytes), set()).add(executed)
    return {key: one for key, (one, *others) in printed.items() if not others}


def combination(said: "choice.PrintedChoice | LoggedChoice") -> Combination | None:
    """The combination that a line of NCCL's log names; None if it is unknown."""
    algorithm, protocol = choice.algorithm(said.algorithm), choice.protocol(said.protocol)
    if algorithm is None or protocol is None:
        return None
    low, high = said.channel_lo, said.channel_hi
    return Combination(algorithm, protocol, 0 if low is None or high is None else high - low + 1)


@dataclass()
class Log:
    """Reads a process's NCCL_DEBUG_FILE (NCCL_DEBUG=INFO, subsystem TUNING), from its current end on.

    The log is the process's, not the communicator's, so what earlier communicators wrote is left out.
    """

    path: Path
    _read_bytes: int = 0
    _first_bytes: int = 0  # bytes that were there before this communicator

    def __post_init__(self) -> None:
        self.skip()
        self._first_bytes = self._read_bytes

    def skip(self) -> None:
        """Skips what the log holds so far, so that :meth:`since` does not read it."""
        self._read_bytes = self.path.stat().st_size if self.path.is_file() else 0

    def since(self, collective: Collective, requested: Combination | None) -> Combination | None:
        """The combination with which a collective ran since the last call; None if NCCL does not say. If the collective
        ran with several combinations, the result is one whose algorithm or protocol was not requested.
        """
        executed = list(dict.fromkeys(self._combinations(collective)))
        others = [each for each in executed if requested is not None and each.algo_proto != requested.algo_proto]
        return next(iter(others or executed), None)

    def _combinations(self, collective: Collective) -> list[Combination]:
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        self._read_bytes += len(text)
        printed = [line for each in text.decode(errors="replace").splitlines() if (line := choice.printed(each))]
        planned = [line for line in printed if line.planned]
        combinations = []
        for line in planned or printed:
            own = line.collective is None or choice.collective(line.collective) is collective
            if own and (executed := combination(line)) is not None:
                combinations.append(executed)
        return combinations

    def last_warning(self) -> str | None:
        """NCCL's last warning, for an error message; None if it has not warned."""
        if not self.path.is_file():
            return None
        with self.path.open("rb") as file:
            file.seek(self._first_bytes)
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.partition(" NCCL WARN ")[2] for line in reversed(lines) if " NCCL WARN " in line), None)


NAME = "nccl-tests"

PROGRAMS = {
    "all_reduce_perf": Collective.AllReduce,
    "all_gather_perf": Collective.AllGather,
    "reduce_scatter_perf": Collective.ReduceScatter,
    "broadcast_perf": Collective.Broadcast,
    "reduce_perf": Collective.Reduce,
}
TYPES = {
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
OPS = {op.name: op for op in Op} | {"none": Op.sum}  # for collectives that do not reduce
WITHOUT_OP = ("mulsum",)  # a scaling for which NCCL has no predefined operation
_PROGRAM = expression(r"\b([a-z_]+_perf)\b")


def _not_named() -> str:
    return (
        f"does not say which collective was run; valid: {option('collective')} NAME where the command has it, or one "
        f"name of {', '.join(PROGRAMS)} in the file"
    )


def program(text: str) -> str | None:
    """The name of a program of nccl-tests in a text; None if there is no such name."""
    match = _PROGRAM.search(text)
    return match[1] if match else None


# The largest error that nccl-tests accepted as right, in versions that printed errors and not counts (deltaMaxValue,
# v2.10.0).
_RIGHT = {DataType.float16: 1e-2, DataType.bfloat16: 1e-2, DataType.float32: 1e-5, DataType.float64: 1e-12}

CPU_TIMES = "CPU times (-C 1), not those of the GPUs; valid: nccl-tests without -C"
# Tags of mpirun, torchrun, srun, MPICH's mpiexec and kubectl, and a time with what a container's log adds, at the
# beginning of a line.
_TAG = expression(
    r"^\s*(?:(?:\[\d+,\d+\](?:<\w+>)?:?|\[[\w.-]*\d+\]:|\d+:(?!\d)|\[\d+\](?= )|\[pod/\S+\]"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?)\s?)+"
)
# Nothing of a host's name precedes it, so a search looks at each name once; otherwise a long line would take time that
# grows with the square of its length.
_PREFIX = expression(r"(?<![^\s:\[\]()])([^\s:\[\]()]+):\d+:\d+ \[-?\d+\] (?:\S+ )?NCCL ")
_NUMBER = r"(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf)"
_OP = rf"(?:\s+(?:{'|'.join([*OPS, *WITHOUT_OP])})(?=\s|$))?"
_START = expression(rf"(\d{{1,19}})\s+(\d+)\s+({'|'.join(TYPES)})(?=\s|$)({_OP})(.*)")
_RANK = expression(
    r"#?\s*Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?(?:Pid\s+(\d{1,18})\s+)?on\s+(\S+)\s+device\s+(\d{1,9})"
    r"\s+\[[^\]]*\]\s*(.*)"
)
_SETTINGS = expression(
    r"# ?nThread (\d{1,9}) nGpus (\d{1,9}) .*?warmup iters: (\d{1,9}) iters: (\d{1,9})(?:.*? graph: (\d{1,9}))?"
)
_OF_UNITS = expression(r"#?\s*\(B\)\s+\(elements\)")
_OTHER_UNITS = expression(r"\((ms|ns|s|sec|[KMG]?bps|[KMG]bit/s|[KMG]?b/s|[KMT]B/s|[KMG]iB/s)\)")
_MOST_BYTES = expression(r"# ?nThread .* maxBytes (\d{1,19}) ")
_SIZE = expression(r"\s*(\d{1,19})\b")
_VERSION = expression(r"nccl-library=(\d{1,9})")
_NCCL_SAYS = expression(r"NCCL version (\d+\.\d+\.\d+)")  # NCCL_DEBUG=VERSION prints it alone, INFO in its own lines
_OUT_OF_BOUNDS = expression(r"Out of bounds values\s*:\s*(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Body:
    """One half of a row of nccl-tests, out of place or in place: the time, the bandwidths in GB/s and the number of
    errors. ``wrong`` is N/A if unchecked.
    """

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: str


@dataclass(frozen=True, slots=True)
class _Device:
    """A rank's GPU: its host, its CUDA number there, its name, and the number of its process, empty if not printed."""

    host: str
    number: int
    gpu: str
    process: str = ""


_EXACT_GBS = 0.2  # from this bandwidth on, two printed decimals are exact enough
_ROWS_OF_A_SLIP = 4
_ALIKE = 1.1
_SLIPS = {  # what times and sizes give, over what is printed
    1e3: "times in milliseconds, or bandwidths in TB/s",
    1e-3: "times in nanoseconds, or bandwidths in MB/s",
    1e6: "times in seconds",
}
_COMMENT = expression(r"# ?(?:nThread \d|nccl-tests version|Using devices)")
_LONGEST_RECORD = 1 << 16  # longest line in JSON


def out_of_bounds(text: str) -> int | None:
    """Number of wrong values that nccl-tests prints at its end, summed over all tables of a text; None if it is not
    printed.
    """
    counts = [int(each) for each in _OUT_OF_BOUNDS.findall(text)]
    return sum(counts) if counts else None


def unwrapped(content: str) -> str:
    """The text without terminal colours, and without what a log collector adds around or before each line.

    Collectors wrap lines into JSON records, or add a prefix, which is what precedes nccl-tests' first comment. Words in
    the prefix may differ by line.
    """
    if "\x1b" in content:
        content = ANSI.sub("", content)
    if content.startswith("{"):
        lines = content.splitlines()
        content = "\n".join(
            in_record(line) if line.startswith("{") and len(line) < _LONGEST_RECORD else line for line in lines
        )
    comment = _COMMENT.search(content)
    before = "" if comment is None else content[content.rfind("\n", 0, comment.start()) + 1 : comment.start()]
    if not before.strip() or _TAG.fullmatch(before):
        return content
    words = (r"\w+" if place % 2 else re.escape(part) for place, part in enumerate(re.split(r"(\w+)", before)))
    return re.sub(f"^{''.join(words)}", "", content, flags=re.MULTILINE)


def is_text(content: str) -> bool:
    """Whether the text is what nccl-tests prints."""
    own = (_without_tag(line).strip() for line in content.splitlines())
    return any(_START.match(line) or _SETTINGS.match(line) for line in own)


@dataclass()
class _Row:
    line: int
    bytes: int
    dtype: DataType
    op: Op
    graph: bool
    bodies: list[_Body]
    count: int  # number of elements, of a rank's part for AllGather and ReduceScatter
    reduces: bool  # whether the row names an operation
    root: int  # -1 if there is none


class Text:
    """The rows and comments of nccl-tests in a text, without what other programs wrote into it.

    ``other`` is the program that was run, if it does not run a collective that NCCL tunes. BadMeasurement if one text
    has several collectives, several sets of GPUs, or times of CPUs.
    """

    def __init__(self, path: Path, content: str, otherwise: Collective | P2pOperation | None = None) -> None:
        """Reads a text. ``otherwise`` is the operation if the text names none; if it is None, the columns decide."""
        self._path, self._otherwise = path, otherwise
        self.rows: list[_Row] = []
        self.release: str | None = None
        self._graph = False
        self.collective: Collective | None = None
        self.other: str | None = None
        self._runs: list[dict[int, _Device]] = []  # for each run in the file, each rank that is named
        self._listed: list[int] = []  # the first line of each of these lists
        self._begun: list[int] = []  # the line with each run's settings
        self._settings: tuple[str, ...] = ()
        self._out_of_bounds: int | None = None
        self._columns: list[str] = []  # from the last line that names them
        self._pending: _Row | None = None  # a row whose second half may follow
        for number, line in _own(content.splitlines()):
            self._read(number, line)
        self.release = self.release or _printed_release(path, content)
        if self.collective is None and self.other is None:
            ranks = _machine(self._runs[0])[0] if self._runs else 0
            self.collective = _followed(self.rows, ranks or None) if otherwise is None else None
        self._check_one_job()

    def _check_one_job(self) -> None:
        """Raises BadMeasurement, with the line, if jobs wrote the rows at the same time or on different GPUs, or if
        hosts have different numbers of ranks.
        """
        lists = list(zip(self._listed, self._runs, strict=True))
        if len(lists) > 1 and all(devices.keys() == {0} for _, devices in lists):
            raise BadMeasurement(
                f"{self._path}:{self._listed[1]}: {len(lists)} processes all call themselves rank 0, so none talks to "
                "another: build nccl-tests with MPI=1"
            )
        rows = sorted(row.line for row in self.rows)
        for (line, _), (again, _) in pairwise(lists):
            if bisect_right(rows, line) == bisect_left(rows, again):  # no row is between them
                raise BadMeasurement(f"{self._path}:{again}: {_AT_ONCE}")
        machines = dict[tuple[int, int, tuple[str, ...]], int]()
        for line, devices in lists:
            machines.setdefault(_machine(devices), line)
        if len(machines) > 1:
            each = ", ".join(ranks_on_nodes(ranks, nodes) for ranks, nodes, _ in machines)
            raise BadMeasurement(self._several("runs on different GPUs in one file", each, machines.values()))
        if (at := _interleaved(self.rows, self._begun)) is not None:
            raise BadMeasurement(f"{self._path}:{at}: {_AT_ONCE}")
        for line, devices in lists[:1]:
            ranks = Counter(device.host for device in devices.values())
            whole = len(devices) == _machine(devices)[0]
            if whole and len(set(ranks.values())) > 1:
                each = ", ".join(f"{count} on {host}" for host, count in ranks.most_common())
                raise BadMeasurement(
                    f"{self._path}:{line}: ranks: {each}: each node has to have the same number of GPUs"
                )
            of_process = math.prod(self.threads_and_gpus or (0, 0))
            one_process = len({(device.host, device.process) for device in devices.values()}) == 1
            if whole and one_process and len(devices) < of_process and len(self._begun) == 1:
                raise BadMeasurement(
                    f"{self._path}:{line}: a process lists {len(devices)} ranks, but line {self._begun[0]} says "
                    f"{of_process} (nThread times nGpus): lines are missing; give the whole output"
                )
        self._check_units()

    def _check_units(self) -> None:
        """Raises BadMeasurement, with the line, if all rows' bandwidths contradict their times by one slip of units."""
        known = [
            (row, body, row.bytes / (body.time_us * 1000 * body.algbw_gbs))
            for row in self.rows
            for body in row.bodies
            if body.time_us > 0 and body.algbw_gbs >= _EXACT_GBS
        ]
        if len(known) < _ROWS_OF_A_SLIP or "bytes" in self._columns:
            return
        for slip, words in _SLIPS.items():
            if all(1 / _ALIKE < factor / slip < _ALIKE for _, _, factor in known):
                row, body, _ = known[-1]
                raise BadMeasurement(
                    f"{self._path}:{row.line}: {row.bytes} bytes in {body.time_us:g} us are "
                    f"{row.bytes / body.time_us / 1000:.4g} GB/s, but the row says {body.algbw_gbs:g}: {words}? "
                    "Nothing of the file is judged: give what nccl-tests prints, us and GB/s"
                )

    @property
    def other_hosts(self) -> str:
        """A message, with a command to extract one run, if the text's runs were on different hosts; else empty."""
        hosts = dict[tuple[str, ...], int]()
        for line, devices in zip(self._listed, self._runs, strict=True):
            hosts.setdefault(tuple(sorted({device.host for device in devices.values()})), line)
        if len(hosts) < 2:
            return ""
        each = "; ".join(", ".join(names[:2]) + (", ..." if len(names) > 2 else "") for names in list(hosts)[:3])
        return self._several("runs on different hosts in one file", each, hosts.values())

    def _several(self, what: str, each: str, listed: Iterable[int]) -> str:
        """A message about several runs in one file, with a command to extract the last run."""
        first, *_, last = sorted(listed)
        begins = max((row.line for row in self.rows if row.line < last), default=0) + 1
        return (
            f"{self._path}:{last}: {what} ({each}), from line {first} on and from here; valid: a file for each, as by: "
            f"tail -n +{begins} {self._path} > last.log"
        )

    @property
    def operation(self) -> Collective | P2pOperation:
        """The operation that was run. BadMeasurement if it is not named or not known."""
        if self.collective is not None:
            return self.collective
        try:
            return records.operation(self.other or "")
        except BadInput as error:
            if self._otherwise is not None:
                return self._otherwise
            raise BadMeasurement(f"{self._path}: {error if self.other else _not_named()}") from None

    @property
    def header(self) -> Header:
        """The header of the measurements: where they come from, and what ran them."""
        ranks, nodes, gpus = _machine(self._runs[0] if self._runs else {})
        return Header(
            NAME,
            file=str(self._path),
            ranks=ranks or None,
            nodes=nodes or None,
            gpus=gpus,
            warmup_calls=int(self._settings[2]) if self._settings else None,
            calls=int(self._settings[3]) if self._settings else None,
            out_of_bounds=self._out_of_bounds,
        )

    @property
    def prints_errors(self) -> bool:
        """Whether the last column is the largest error, as in nccl-tests before 2.13, and not a number of wrong
        elements.
        """
        return bool({"error", "res"} & set(self._columns))

    @property
    def threads_and_gpus(self) -> tuple[int, int] | None:
        """Threads of a process and GPUs of a thread; None if the text does not say."""
        return (int(self._settings[0]), int(self._settings[1])) if self._settings else None

    def _read(self, number: int, line: str) -> None:
        stripped = line.strip()
        if (wrong := out_of_bounds(stripped)) is not None:
            self._out_of_bounds = (self._out_of_bounds or 0) + wrong
        elif stripped.startswith("#") or _RANK.match(stripped) or {"algbw", "busbw"} <= set(stripped.split()):
            self._comment(number, stripped)  # copies on the web often lack the # of lines
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
        # Calls without data, because a rank's part is less than an element
        if op.strip() in WITHOUT_OP or int(size) == 0:
            return
        has_root = "root" in self._columns if self._columns else len(words) % self._width != 0
        reduces = op.strip() not in ("", "none")
        root = int(words[0]) if has_root and words and re.fullmatch(r"-?\d{1,9}", words[0]) else -1
        nccl_op = OPS[op.strip() or "none"]
        self._pending = _Row(number, int(size), TYPES[dtype], nccl_op, self._graph, [], int(count), reduces, root)
        self.rows.append(self._pending)
        self._pending.bodies += self._bodies(words[self._before_times(has_root) :])

    def _before_times(self, has_root: bool) -> int:
        """Number of a row's columns between its operation and its times: the root, and what forks of nccl-tests add."""
        named = [name for name in ("redop", "op", "type") if name in self._columns]
        if not named or "time" not in self._columns:
            return int(has_root)
        return max(self._columns.index("time") - self._columns.index(named[0]) - 1, int(has_root))

    @property
    def _width(self) -> int:
        """Number of columns of one half of a row: time, two bandwidths, errors and, if printed, four about single
        calls.
        """
        return 8 if "i_min" in self._columns else 4

    def _bodies(self, words: Sequence[str]) -> list[_Body]:
        """One or two halves of a row; empty if the words are not a row."""
        bodies = []
        for start in range(0, len(words) - len(words) % self._width, self._width):
            time, *bandwidths, wrong = words[start : start + 4]
            numbers = [time, *bandwidths, *([] if wrong == "N/A" else [wrong])]
            if not all(re.fullmatch(_NUMBER, number) for number in numbers):
                break
            time_us = float(time) * (1000 if "bytes" in self._columns else 1)  # versions 1.x print ms
            bodies.append(_Body(time_us, float(bandwidths[0]), float(bandwidths[1]), wrong))
        return bodies[:2]

    def _comment(self, number: int, line: str) -> None:
        if name := program(line):
            self._named(name)
        if match := _RANK.match(line):
            if not self._runs or int(match[1]) in self._runs[-1]:
                self._runs.append({})
                self._listed.append(number)
            self._runs[-1][int(match[1])] = _Device(match[3], int(match[4]), match[5].strip(), match[2] or "")
        elif match := _SETTINGS.match(line):
            self._settings = match.groups()
            self._begun.append(number)
            self._graph = int(match[5] or 0) > 0
        elif match := _VERSION.search(line):
            self.release = of_code(int(match[1]))
        elif {"algbw", "busbw"} <= set(columns := line.lstrip("# ").split()):
            if "cputime" in columns:
                raise BadMeasurement(f"{self._path}: {CPU_TIMES}")
            self._columns = columns
        elif _OF_UNITS.match(line) and (others := _OTHER_UNITS.findall(line)):
            raise BadMeasurement(
                f"{self._path}:{number}: columns are in {', '.join(dict.fromkeys(others))}, so nothing of the file is "
                "judged: give what nccl-tests prints, times in us and bandwidths in GB/s"
            )

    def _named(self, program: str) -> None:
        if program not in PROGRAMS:
            self.other = program
        elif self.collective not in (None, PROGRAMS[program]):
            raise BadMeasurement(f"{self._path} has several collectives: give a file for each")
        else:
            self.collective = PROGRAMS[program]


def _printed_release(path: Path, content: str) -> str | None:
    """The release that NCCL itself printed. BadMeasurement if it printed several."""
    releases = list(dict.fromkeys(_NCCL_SAYS.findall(content)))
    if len(releases) > 1:
        raise BadMeasurement(f"{path} has several releases of NCCL ({', '.join(releases)}): give a file for each")
    return releases[0] if releases else None


def _followed(rows: Sequence[_Row], ranks: int | None) -> Collective | None:
    """Infers the collective, if no line names it, from operation, root and bus factor; None if these are ambiguous.

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
        if len(fitting) > 1 and row.count * row.dtype.size_bytes == row.bytes:  # a rank's part would be smaller
            return Collective.AllReduce
        return fitting[0] if len(fitting) == 1 else None
    checked_in_place = any(len(each.bodies) > 1 and each.bodies[1].wrong != "N/A" for each in rows)
    return Collective.AllGather if near == ["part"] and checked_in_place else None


def _machine(devices: Mapping[int, _Device]) -> tuple[int, int, tuple[str, ...]]:
    """Ranks, nodes and kinds of GPUs of a run; 0 ranks and 0 nodes if the listed ranks do not tell the numbers.

    Ranks that a shortened list omits are assumed on the host of the ranks around them, if the device numbers fit.
    """
    gpus, named, ranks = {device.gpu for device in devices.values()}, sorted(devices), 0
    for rank in named:
        last = devices.get(ranks - 1)
        apart = 0 if last is None or last.host != devices[rank].host else devices[rank].number - last.number
        if rank != ranks and rank - ranks + 1 != apart:
            return 0, 0, tuple(sorted(gpus))
        ranks = rank + 1
    return ranks, len({device.host for device in devices.values()}), tuple(sorted(gpus))


_AT_ONCE = "rows of a second run, before the first came to its end: two jobs wrote at once; valid: a file for each"


def _interleaved(rows: Sequence[_Row], begun: Sequence[int]) -> int | None:
    """The line of the first row that another job must have written, because a size repeats before a run's end; else
    None.

    A run has each size once, or runs through all of them from the smallest several times.
    """
    lines = [row.line for row in rows]
    for first, end in pairwise([0, *begun, lines[-1] + 1] if rows else []):
        of_calls: dict[object, list[_Row]] = {}
        for row in rows[bisect_left(lines, first) : bisect_left(lines, end)]:
            of_calls.setdefault((row.dtype, row.op, row.root), []).append(row)
        for own in of_calls.values():
            smallest, seen = min(row.bytes for row in own), set[int]()
            for row in own:
                if row.bytes == smallest:
                    seen.clear()
                elif row.bytes in seen:
                    return row.line
                seen.add(row.bytes)
    return None


def _own(content: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line, without launchers' tags, and cut where NCCL's log begins within the line."""
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


_TELLING = (b"NCCL version ", b"NCCL_", b"_perf", b"#")  # lines of NCCL's log that are also read


def without_log(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file. Lines of NCCL's log that this module does not read, most of a long log, become empty.

    The first line of each host stays, because it shows the host's name. Where the log begins inside another line, that
    line is cut at this name.
    """
    hosts = set[str]()
    for line in lines:
        if b" NCCL " not in line or any(each in line for each in _TELLING) or not line.endswith(b"\n"):
            yield line
            continue
        text = line.decode(errors="replace")
        match = _PREFIX.match(_without_tag(text[:-1]))
        if match is None or match[1] not in hosts or len(text.splitlines()) > 1:
            hosts.update([match[1]] if match else ())
            yield line
        else:
            yield b"\n"


def _without_tag(line: str) -> str:
    """The line without its leading tag, and without the same tag inside the line: mpirun writes a tag before each
    piece.
    """
    tag = _TAG.match(line)
    if tag is None:
        return line.rstrip("\r")
    word, rest = tag[0].strip(), line[tag.end() :]
    return (rest.replace(word, " ") if word.startswith("[") and word in rest else rest).rstrip("\r")


def wrong_count(text: str, dtype: DataType, is_error: bool) -> int:
    """The number of wrong results according to a printed value, which is a count or the largest error.

    For a largest error the result is 1 if the error is too large, else 0.
    """
    if text == "N/A":
        return 0
    number = float(text)
    if is_error:
        return 0 if number <= _RIGHT.get(dtype, 0.0) else 1  # nan counts as wrong
    return int(number) if math.isfinite(number) else 1


def is_json(record: Any) -> bool:
    """Whether the record is what nccl-tests writes with ``-J``."""
    return isinstance(record, dict) and "results" in record and "args" in record


_CHOOSING = expression(
    r"\b(NCCL_(?:ALGO|PROTO|(?:MIN|MAX)_NCHANNELS|NVLS_ENABLE|COLLNET_ENABLE))"
    r"(?:=| set by environment to )[\"']?([\w,;:^]+)"
)


def choosing_variables(text: str) -> dict[str, str]:
    """The variables that choose algorithms and occur in the text, on a launcher's command line or in NCCL's log."""
    return {name: value for name, value in _CHOOSING.findall(text) if value}


_END, _CONCLUDED = expression(r"# Avg bus bandwidth"), expression(r"# Collective test concluded")


def runs_apart(content: str) -> list[str]:
    """Splits a text that holds runs of several programs in turn into one text per run; lines keep their numbers.

    Returns only the text itself if it names at most one program.
    """
    lines = content.splitlines(keepends=True)
    concluded = [at for at, line in enumerate(lines) if _CONCLUDED.search(line)]
    ends = concluded or [at for at, line in enumerate(lines) if _END.search(line)]
    bounds = [0, *(end + 1 for end in ends)]
    own = ["".join(lines[start:end]) for start, end in pairwise([*bounds, len(lines)])]
    if len({program(text) for text in own} - {None}) < 2:
        return [content]
    return ["\n" * start + text for start, text in zip(bounds, own, strict=True) if is_text(text)]


def of_text(path: Path, content: str, otherwise: Collective | P2pOperation | None = None) -> Measurements:
    """Reads measurements that nccl-tests printed; ``otherwise`` is the operation if the text names no program.

    If the text names several programs, rows of unknown ones are left out and counted. A last line without a newline is
    left out, as it may be cut off. BadMeasurement if the text mixes several runs, or has no row.
    """
    texts = runs_apart(content)
    logged = "NCCL" in content  # without NCCL's name, no line belongs to its log
    if len(texts) == 1:
        return _of_program(path, content, _parsed(path, content, otherwise), logged=logged)
    made, left = [], Counter[str]()
    parsed = [_parsed(path, each) for each in texts]
    for part, text in zip(texts, parsed, strict=True):
        try:
            made.append(_of_program(path, part, text, logged=logged))
        except BadMeasurement:
            left[f"of {text.other}: no collective that is known"] += sum(len(row.bodies) for row in text.rows)
    if not made:
        raise BadMeasurement(
            f"{path} has no collective that is known here: {', '.join(str(text.other) for text in parsed)}"
        )
    for each in made:
        left.update(each.header.left_out)
    header = replace(made[0].header, left_out=dict(left))
    blocks = tuple(block for each in made for block in each.blocks)
    other_hosts = next((each.other_hosts for each in made if each.other_hosts), "")
    return Measurements(header, blocks, made[-1].truncated, made[-1].ends_early, other_hosts=other_hosts)


def _parsed(path: Path, content: str, otherwise: Collective | P2pOperation | None = None) -> Text:
    text = Text(path, content.rpartition("\n")[0], otherwise)
    if text.collective is not None and text.other is not None:
        raise BadMeasurement(f"{path} has the output of several programs: give a file for each")
    if not text.rows:
        raise BadMeasurement(f"{path} has no complete row of nccl-tests")
    return text


def _of_program(path: Path, content: str, text: Text, *, logged: bool) -> Measurements:
    operation = text.operation
    tuned = operation if isinstance(operation, Collective) else Collective.AllReduce
    log = imported_log(path, tuned, text.release) if logged else None
    executed: Mapping[Any, Combination] = executed_by_size(log)
    blocks = tuple(
        SampleBlock(
            Point(operation, row.bytes, row.dtype, row.op, in_place, row.graph),
            None,
            executed.get((operation, row.bytes)),
            (body.time_us,),
            wrong=wrong_count(body.wrong, row.dtype, text.prints_errors),
            line=row.line,
        )
        for row in text.rows
        for body, in_place in zip(row.bodies, (False, True), strict=False)
    )
    header = replace(
        text.header,
        nccl=text.release or (log.release if log else None) or "",
        variables={**choosing_variables(content), **(log.environment if log else {})},
        launch=_launch(*text.threads_and_gpus) if text.threads_and_gpus else MeasuredLaunch.unknown,
    )
    broken = [row.line for row in text.rows if not row.bodies]
    if broken:
        lines = ", ".join(map(str, broken[:6]))
        header = replace(header, left_out={f"whose numbers cannot be times (lines {lines})": len(broken)})
    last = content.rpartition("\n")[2]
    early = _ends_early(last, content)
    return Measurements(_of_table(header, blocks), blocks, bool(last), early, other_hosts=text.other_hosts)


def _ends_early(last: str, content: str) -> bool:
    cut, most = _SIZE.match(last), _MOST_BYTES.search(content)
    return cut is not None and most is not None and int(cut[1]) < int(most[1])


def _of_table(header: Header, blocks: Sequence[SampleBlock]) -> Header:
    """The header, completed with the facts that a table's header has in addition."""
    calls = f", {header.warmup_calls} warm-up calls, {header.calls} calls" if header.calls else ""
    return replace(
        header,
        gpu=", ".join(header.gpus).replace("NVIDIA ", ""),
        nccl_note="As nccl-tests prints." if header.nccl else "",
        how_measured=f"nccl-tests{calls}.",
        cuda_graph=any(block.point.graph for block in blocks),
    )


def _launch(threads: int, gpus: int) -> MeasuredLaunch:
    """How the ranks were launched, as nccl-tests' options -t and -g tell."""
    if gpus > 1:
        return MeasuredLaunch.one_thread if threads == 1 else MeasuredLaunch.unknown
    return MeasuredLaunch.thread_per_gpu if threads > 1 else MeasuredLaunch.process_per_gpu


def of_json(path: Path, record: Mapping[str, Any], otherwise: Collective | P2pOperation | None = None) -> Measurements:
    """Reads measurements that ``-J`` writes; a list of times per iteration is kept whole.

    BadMeasurement if the record is not what nccl-tests writes.
    """
    ran = next((name for name in map(program, record["args"]) if name), None)
    try:
        operation = otherwise if ran is None else records.operation(ran)
    except BadInput as error:
        if otherwise is None:
            raise BadMeasurement(f"{path}: {error}") from None
        operation = otherwise
    if operation is None:
        raise BadMeasurement(f"{path}: {_not_named()}")
    blocks = tuple(_json_blocks(path, record, operation))
    header = replace(json_header(path, record), launch=_launch(*_threads_and_gpus(record["args"])))
    return Measurements(_of_table(header, blocks), blocks)


def _json_blocks(path: Path, record: Mapping[str, Any], operation: Collective | P2pOperation) -> Iterator[SampleBlock]:
    graph, index = bool(record.get("config", {}).get("graph", 0)), 0
    try:
        for index, row in enumerate(record["results"]):
            if row["redop"] in WITHOUT_OP or int(row["size"]) == 0:
                continue
            dtype, op = TYPES[row["type"]], OPS[row["redop"]]
            for key, in_place in (("out_of_place", False), ("in_place", True)):
                if (body := row.get(key)) is None:
                    continue
                if "time" not in body:
                    raise BadMeasurement(f"{path}: {CPU_TIMES}")
                per_call = row.get(f"{key}_per_iter") or {}
                times = tuple(map(float, per_call.get("times_us") or [body["time"]]))
                wrong = int(float(body["nwrong"] or 0))
                point = Point(operation, int(row["size"]), dtype, op, in_place, graph)
                yield SampleBlock(point, None, None, times, wrong=wrong, line=index + 1)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadMeasurement(f"{path}: results[{index}] is not what nccl-tests writes: {error!r}") from None


def _threads_and_gpus(arguments: Sequence[str]) -> tuple[int, int]:
    values = {"-t": "1", "--nthreads": "1", "-g": "1", "--ngpus": "1"}
    for name, value in pairwise(arguments):
        if name in values and value.isdigit():
            values[name] = value
    return max(int(values["-t"]), int(values["--nthreads"])), max(int(values["-g"]), int(values["--ngpus"]))


def json_header(path: Path, record: Mapping[str, Any]) -> Header:
    """The header of what ``-J`` writes."""
    config = record.get("config", {})
    devices = config.get("devices") or []
    code = record.get("nccl_version")
    given = (str(each).partition("=") for each in record.get("env") or ())
    return Header(
        NAME,
        file=str(path),
        ranks=len(devices) or None,
        nodes=len({each["hostname"] for each in devices}) or None,
        gpus=tuple(sorted({each["device_info"] for each in devices})),
        nccl=of_code(code) if code else "",
        date=record.get("start_time"),
        warmup_calls=config.get("warmup_iters"),
        calls=config.get("iterations"),
        variables={name: value for name, _, value in given if name.startswith("NCCL_")},
    )
