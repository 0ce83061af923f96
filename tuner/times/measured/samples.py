"""Measurements and their file of JSON lines: a header that describes the run, then one line per sample block.

Lines are only ever appended, so what was measured survives if the run is killed; the reader leaves out a last line that
was cut off. docs/measuring.md describes the fields.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from statistics import median
from typing import Any, Self

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, one_of
from tuner.base.files import GZIPPED, read_bytes
from tuner.base.names import AlgoProto, Algorithm, Collective, DataType, Op, P2pOperation, Protocol
from tuner.base.records import json_form, to_json
from tuner.base.sizes import LARGEST_BYTES
from tuner.base.spelling import option
from tuner.emulator.request import Request
from tuner.times.measured.header import SIMULATED, Header, MeasuredHealth, from_record, to_record

FORMAT = "nccl-tuner-measurements"
VERSION = 1
LONGEST_SHOWN = 100  # most characters that are shown of a value that differs; a topology has thousands
MOST_LATE = 16  # most late ranks of a sample block that are kept, so that a file does not grow with the communicator
NEAR = 1.25  # times up to this multiple of the host's own time are host-bound
_NOTED = "noted"  # the part of a header that may differ in a second run


@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """A combination that was requested or executed; if ``channels`` is 0, NCCL chose their number."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int = 0

    @property
    def algo_proto(self) -> AlgoProto:
        """Algorithm and protocol."""
        return self.algorithm, self.protocol

    @property
    def plain(self) -> "Combination":
        """The combination with the number of channels left to NCCL."""
        return Combination(self.algorithm, self.protocol)

    @property
    def forced(self) -> "Forced":
        """What is forced in order to run this combination."""
        return Forced(self.algorithm.name, self.protocol.name, self.channels)

    def __str__(self) -> str:
        channels = f" channels={self.channels}" if self.channels else ""
        return f"{self.algorithm.name}/{self.protocol.name}{channels}"


DEFAULT = "default"
ALGO, PROTO, LEAST, MOST = "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"


@dataclass(frozen=True, slots=True)
class Forced:
    """What is forced; if all fields are empty, NCCL chose. Texts are as in NCCL's variables."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0

    @property
    def label(self) -> str:
        """Name of what is forced, such as ``Ring/LL channels=8``; default if nothing is forced."""
        names = "/".join(filter(None, (self.algorithm, self.protocol)))
        channels = f"channels={self.channels}" if self.channels else ""
        return " ".join(filter(None, (names, channels))) or DEFAULT

    @property
    def parts(self) -> tuple[str, str, int]:
        """Algorithm, protocol, channels."""
        return self.algorithm, self.protocol, self.channels

    @property
    def combination(self) -> Combination | None:
        """The combination; None if algorithm or protocol is open. KeyError if a text names no algorithm or protocol."""
        if not (self.algorithm and self.protocol):
            return None
        return Combination(Algorithm[self.algorithm], Protocol[self.protocol], self.channels)

    @property
    def variables(self) -> dict[str, str]:
        """NCCL's variables that force this choice."""
        channels = str(self.channels) if self.channels else ""
        texts = {ALGO: self.algorithm, PROTO: self.protocol, LEAST: channels, MOST: channels}
        return {name: text for name, text in texts.items() if text}


ALGORITHMS, PROTOCOLS = ({each.name.lower(): each.name for each in kind} for kind in (Algorithm, Protocol))


def forced_by_variables(environment: Mapping[str, str]) -> Forced:
    """The choice that NCCL's variables force; several algorithms, and unknown words, stay as they are."""
    algorithm, protocol = environment.get(ALGO, ""), environment.get(PROTO, "")
    channels = environment.get(MOST) or environment.get(LEAST) or ""
    return Forced(
        ALGORITHMS.get(algorithm.lower(), algorithm),
        PROTOCOLS.get(protocol.lower(), protocol),
        int(channels) if channels.isdigit() else 0,
    )


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One call: ``bytes`` is NCCL's nBytes. ``in_place`` is None if not known."""

    operation: Collective | P2pOperation = field(metadata=json_form("collective"))
    bytes: int
    dtype: DataType = DataType.float32
    op: Op = Op.sum
    in_place: bool | None = False
    graph: bool = False  # inside a CUDA graph

    @property
    def name(self) -> str:
        """Name of the operation in lower case, as tables have it."""
        return self.operation.name.lower()

    @property
    def is_point_to_point(self) -> bool:
        """Whether NCCL makes the call from sends and receives, without picking an algorithm."""
        return isinstance(self.operation, P2pOperation)

    @property
    def collective(self) -> Collective:
        """The collective, for which NCCL picks an algorithm. BadMeasurement for a call made from sends and receives."""
        if isinstance(self.operation, P2pOperation):
            raise BadMeasurement(f"{self.operation.name} is made of sends and receives: NCCL picks nothing for it")
        return self.operation

    @property
    def request(self) -> Request:
        """The kind of call."""
        return Request(self.collective, self.dtype, self.op)

    def unit_bytes(self, ranks: int) -> int:
        """The unit of these calls' sizes in bytes: one element for each rank whose data a call holds."""
        return self.request.unit_bytes(ranks)


def _combination_record(combination: Combination | None) -> dict[str, Any] | None:
    if combination is None:
        return None
    record: dict[str, Any] = {"algorithm": combination.algorithm.name, "protocol": combination.protocol.name}
    return {**record, "channels": combination.channels} if combination.channels else record


def lateness(whole_us: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """The ranks that took longest, at most MOST_LATE of them, each with the time in us that it took longer than the
    median rank. ``whole_us`` has one value per rank.
    """
    if len(whole_us) < 2:
        return ()
    middle_us = median(whole_us)
    ranks = sorted(range(len(whole_us)), key=lambda rank: -whole_us[rank])[:MOST_LATE]
    return tuple((rank, round(whole_us[rank] - middle_us, 3)) for rank in ranks)


def _rounded(at_s: float) -> float:
    return round(at_s, 6)


@dataclass(frozen=True, slots=True)
class Task:
    """One call to time; ``requested`` is None for NCCL's own choice."""

    point: Point
    requested: Combination | None


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Consecutive runs of one point, from a file of any format.

    ``requested`` is None if NCCL chose by itself, guided by a decision table called ``table`` if there was one;
    ``executed`` is what NCCL says it ran, None if NCCL's log does not show it; ``wrong`` counts wrong results.
    ``host_us`` is the least time that the host took to start one such call on all ranks, None if not measured.
    ``process`` numbers the successive processes of a run. ``late_us`` are the ranks that ended last, at most MOST_LATE,
    and by how much later than the median rank, us. ``time`` is the wall clock (UTC) at the block's end, None if time is
    simulated or was not written.

    ``line`` is the block's line in the file. ``shape`` has the numbers of nodes and of GPUs per node if they are not
    the same in the whole file. ``run`` is a key of the runs in the file's header, or empty.
    """

    point: Point = field(metadata=json_form(merged=True))
    requested: Combination | Forced | None = field(metadata=json_form("asked", convert=_combination_record))
    executed: Combination | None = field(metadata=json_form("ran", convert=_combination_record))
    times_us: tuple[float, ...]
    round: int = 0
    at_s: float = field(default=0.0, metadata=json_form(convert=_rounded))  # seconds since the run began
    wrong: int = 0
    table: str | None = field(default=None, metadata=json_form(optional=True))
    host_us: float | None = field(default=None, metadata=json_form(optional=True))
    process: int = 0
    late_us: tuple[tuple[int, float], ...] = field(default=(), metadata=json_form(optional=True))
    time: str | None = field(default=None, compare=False, metadata=json_form(optional=True))
    line: int = field(default=0, compare=False, metadata=json_form(omitted=True))
    shape: tuple[int, int] | None = field(default=None, metadata=json_form(omitted=True))
    run: str = field(default="", metadata=json_form(omitted=True))

    @property
    def nodes(self) -> int:
        """Number of nodes, of a block that has a shape."""
        assert self.shape is not None
        return self.shape[0]

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs per node, of a block that has a shape."""
        assert self.shape is not None
        return self.shape[1]

    @property
    def ranks(self) -> int:
        """Number of GPUs of a block that has a shape."""
        assert self.shape is not None
        return self.shape[0] * self.shape[1]

    @property
    def combination(self) -> Combination | None:
        """Combination that was requested, None for NCCL's own choice. BadMeasurement if a part was left open."""
        if isinstance(self.requested, Forced):
            raise BadMeasurement(
                f"only {self.requested.label} was forced, and NCCL chose the rest, so it is not known which "
                "combination ran"
            )
        return self.requested

    @property
    def took(self) -> Forced:
        """The choice that was timed: the requested one, else the executed one; empty if neither is known."""
        took = self.executed if self.requested is None else self.requested
        return Forced() if took is None else took if isinstance(took, Forced) else took.forced

    def of_bytes(self, nbytes: int) -> "SampleBlock":
        """The block with this size and without times, so that blocks of the same kind of call are equal."""
        return replace(self, point=replace(self.point, bytes=nbytes), times_us=())

    @property
    def median_us(self) -> float:
        """The typical time of its runs; NaN without runs."""
        if len(self.times_us) == 1:
            return self.times_us[0]
        return median(self.times_us) if self.times_us else float("nan")

    @property
    def host_bound(self) -> bool:
        """Whether the times are near the host's time to start such calls, which hides the GPUs' time."""
        return self.host_us is not None and bool(self.times_us) and self.median_us <= NEAR * self.host_us

    @property
    def replaced(self) -> bool:
        """Whether something else was executed than was requested; such times do not count."""
        if self.requested is None or isinstance(self.requested, Forced) or self.executed is None:
            return False
        return self.requested.algo_proto != self.executed.algo_proto or (
            self.requested.channels > 0 and self.executed.channels > self.requested.channels
        )

    @property
    def counts(self) -> bool:
        """Whether the block counts: it ran what was requested, and its results are right."""
        return bool(self.times_us) and not self.replaced and self.wrong == 0


@dataclass(frozen=True, slots=True)
class Measurements:
    """A file: ``header`` says where, when and how; ``blocks`` are in the order of the run, or of the file.

    ``name`` is the name of a table: its file's name without the ending. ``truncated``: whether the last line was cut
    off and is left out. ``ends_early``: whether the line that was cut off is a row, and the header names larger sizes.
    ``other_hosts``: a message about runs on different hosts in one file, empty without such runs.
    """

    header: Header
    blocks: tuple[SampleBlock, ...]
    truncated: bool = False
    ends_early: bool = False
    other_hosts: str = ""
    name: str = ""

    def environment_of(self, block: SampleBlock) -> dict[str, str]:
        """The variables that were set in the block's run."""
        run = self.header.runs.get(block.run)
        both = {**self.header.variables, **(run.environment if run else {})}
        return {name: value for name, value in both.items() if value}

    def network_of(self, block: SampleBlock) -> str:
        """The network that the block's run used between nodes; empty if it is not known, or on one node."""
        run = self.header.runs.get(block.run)
        return (run.network if run else "") or self.header.network

    def health_of(self, block: SampleBlock) -> MeasuredHealth:
        """Health of the hardware in the block's run."""
        run = self.header.runs.get(block.run)
        return (run.health if run else None) or self.header.health

    def devices_of(self, block: SampleBlock) -> tuple[int, ...]:
        """The numbers of the GPUs of each node that took part; the first GPUs if the file says nothing else."""
        run = self.header.runs.get(block.run)
        return (run.devices if run else ()) or tuple(range(block.gpus_per_node))


@dataclass()
class Writer:
    """Appends to a file; each block is on disk before the next is measured.

    BadMeasurement if writing fails; the file keeps its content.
    """

    path: Path
    header: Header
    _file: FileIO | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        import fcntl  # does not exist on Windows or in a browser, where runs are only read

        try:
            # Unbuffered, so that closing the file has nothing left to write
            file = self._file = self.path.open("ab", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise BadMeasurement(f"{self.path}: another run is writing to it") from None
        except OSError as error:
            raise BadMeasurement(f"{self.path}: {error.strerror}") from error
        if self.path.stat().st_size == 0:
            self._line({FORMAT: VERSION, **to_record(self.header)})
        else:
            _drop_cut_line(self.path)
        return self

    def add(self, block: SampleBlock) -> None:
        """Writes one block at once, with the wall clock unless the block already has it or times are simulated.

        BadMeasurement if the file cannot be written.
        """
        if self.header.backend != SIMULATED and block.time is None:
            block = replace(block, time=datetime.now(UTC).isoformat(timespec="milliseconds"))
        self._line(to_json(block))

    def _line(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            left = (json.dumps(record, separators=(",", ":")) + "\n").encode()
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise BadMeasurement(f"{self.path}: {error.strerror}; what was measured before is in it") from error

    def __exit__(self, *raised: object) -> None:
        if self._file is not None:
            self._file.close()


def read(path: Path) -> Measurements:
    """Reads a file; a last line without a newline is left out (``truncated``). BadMeasurement names file and line."""
    return from_content(path, read_bytes(path, BadMeasurement))


def from_content(path: Path, content: bytes) -> Measurements:
    """Measurements from the content of ``path``, already read. BadMeasurement if the content is invalid."""
    if not content.strip():
        raise BadMeasurement(f"{path} is empty: give a file that 'nccl-tuner measure' wrote")
    *lines, cut = content.split(b"\n")
    records = list(_records(path, lines))
    if not records or records[0].get(FORMAT) != VERSION:
        raise BadMeasurement(f"{path}:1: not a file of measurements: its first line lacks '{FORMAT}': {VERSION}")
    head, *rest = records
    try:
        header = from_record({key: value for key, value in head.items() if key != FORMAT})
    except BadMeasurement as error:
        raise BadMeasurement(f"{path}:1: {error}") from None
    blocks = []
    for number, record in enumerate(rest, start=2):
        try:
            blocks.append(_block(number, record))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise BadMeasurement(f"{path}:{number}: not a sample block: {error!r}") from None
    return Measurements(header, tuple(blocks), truncated=bool(cut))


def sha256s(paths: Sequence[Path]) -> tuple[str, ...]:
    """Digests of the files. BadMeasurement if two files are equal, because their times would count twice."""
    by_sha256: dict[str, Path] = {}
    for path in paths:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if sha256 in by_sha256:
            raise BadMeasurement(f"{path} has the same measurements as {by_sha256[sha256]}: give each file once")
        by_sha256[sha256] = path
    return tuple(by_sha256)


def _records(path: Path, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadMeasurement(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise BadMeasurement(f"{path}:{number}: not a JSON object")
        yield record


def _block(line: int, record: Mapping[str, Any]) -> SampleBlock:
    point = Point(
        _named(Collective, record["collective"]),
        _size(record["bytes"]),
        _named(DataType, record["dtype"]),
        _named(Op, record["op"]),
        bool(record["in_place"]),
        bool(record["graph"]),
    )
    return SampleBlock(
        point,
        _combination(record["asked"]),
        _combination(record["ran"]),
        tuple(map(float, record["times_us"])),
        int(record["round"]),
        float(record["at_s"]),
        int(record["wrong"]),
        record.get("table"),
        None if record.get("host_us") is None else float(record["host_us"]),
        int(record.get("process", 0)),
        tuple((int(rank), float(late_us)) for rank, late_us in record.get("late_us", ())),
        record.get("time"),
        line,
    )


def _size(given: Any) -> int:
    size = int(given)
    if not 1 <= size <= LARGEST_BYTES:
        raise ValueError(f"{size} bytes; valid: 1 to 2**62")
    return size


def _named(members: Any, name: str) -> Any:
    try:
        return members[name]
    except KeyError:
        raise ValueError(f"{name!r}; {one_of(members.__members__)}") from None


def _combination(record: Mapping[str, Any] | None) -> Combination | None:
    if record is None:
        return None
    algorithm, protocol = _named(Algorithm, record["algorithm"]), _named(Protocol, record["protocol"])
    return Combination(algorithm, protocol, int(record.get("channels", 0)))


def existing(path: Path) -> Measurements | None:
    """The measurements in ``path`` that a new run continues; None for a new file.

    BadMeasurement if nothing can be appended: not a regular file, or gzipped.
    """
    if path.exists() and not path.is_file():
        raise BadMeasurement(f"{path}: not a regular file")
    if not path.exists() or not path.stat().st_size:
        return None
    there = read(path)
    with path.open("rb") as file:
        if file.read(len(GZIPPED)) == GZIPPED:
            raise BadMeasurement(
                f"{path} is gzipped, so that nothing can be added to it: gunzip it first, or use another "
                f"{option('out')}"
            )
    return there


def check_same(path: Path, there: Measurements, header: Header) -> None:
    """Raises BadMeasurement, with the differences, if the file ``there`` was measured in another way than ``header``
    says.
    """
    then, now = to_record(there.header), to_record(header)
    if then.get("backend") != now.get("backend"):  # everything else then differs, too
        then, now = ({"backend": each.get("backend")} for each in (then, now))
    elif then.get("topology_xml") and now.get("topology_xml"):  # compared by its text, wherever the file is now
        now = {**now, "case": {**now["case"], "topology": then["case"]["topology"]}}
    if differing := list(_differing(then, now)):
        raise BadMeasurement(
            f"{path} was measured otherwise: {'; '.join(differing)}: measure in the same way, or use another "
            f"{option('out')}"
        )


def _differing(then: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    for key in sorted((then.keys() | now.keys()) - {_NOTED}):
        old, new = then.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differing(old, new, f"{inside}{key}.")
        elif old != new:
            yield f"{inside}{key} {_short(old)} there, {_short(new)} now"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


def _drop_cut_line(path: Path) -> None:
    content = path.read_bytes()
    if b"\n" not in content:
        raise BadMeasurement(f"{path}: not a file of measurements: it has no complete line")
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
