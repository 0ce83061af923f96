"""Reads measured times from any file, as a table or as sample blocks. The content decides which format's reader is
used.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tuner.base import extras
from tuner.base.bounds import ReaderBounds, check_json, factor, of_log, over
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement, one_of
from tuner.base.expressions import expression
from tuner.base.files import is_plain_file, read_bytes
from tuner.base.names import Collective, DataType, Op, P2pOperation, by_name
from tuner.base.sizes import plural
from tuner.base.spelling import option
from tuner.times.measured import nccl_tests, reader, records, samples
from tuner.times.measured.header import Header, MeasuredLaunch, MeasuredRun
from tuner.times.measured.nccl_tests import PROGRAMS
from tuner.times.measured.reader import check_row
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.statistics import LEAST_PROCESSES

WRONG = "results that were wrong"
BY_MEASURE = "nccl-tuner measure"  # beginning of the text that says how the times of such files were measured
SIMULATED_TRAP = "The times are simulated: no machine took them."
_NONE = "no measurements; valid: a file of `nccl-tuner measure`, what nccl-tests prints or writes with -J, a NCCL log"
_REPLACED = "NCCL ran something else than was requested"


@dataclass(frozen=True, slots=True)
class Given:
    """Facts given in addition to a file, which must not contradict it.

    ``nodes`` and ``gpus_per_node`` are for files that do not list their ranks, ``collective`` is for text of nccl-tests
    that does not name its program. ``machine_gpus``: the GPUs per node to assume for a file without ranks, if nothing
    else gives their number. ``by_round``: whether a call that `measure` timed gives one row per round (one per process
    with three processes or more) instead of a single row.
    """

    nccl: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    collective: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    by_round: bool = False
    machine_gpus: int | None = None


class FileFormat(StrEnum):
    """Formats of files with measured times, or with only NCCL's choices."""

    parquet = "aiconfigurator's parquet"
    measure = "runs of 'nccl-tuner measure'"
    nccl_tests_json = "what nccl-tests writes with -J"
    nccl_tests_text = "what nccl-tests prints"
    columns = "columns"
    nccl_log = "a NCCL log"


_PARQUET_BEGINS = b"PAR1"
DOCUMENT = ReaderBounds("measured times as one JSON document")
ROWS = ReaderBounds("measured times in Parquet", lines=1_000_000)
NCCL_TESTS = (FileFormat.nccl_tests_json, FileFormat.nccl_tests_text)


class MeasurementFile:
    """A file in any :class:`FileFormat`, which is recognised by the content; the file is read only once.

    BadMeasurement if it cannot be read. ``format`` is None if the format is not recognised.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        """Reads the file; ``content`` is the relevant part of a file that is too large to be read as a whole."""
        self.path, self.content = path, _content(path) if content is None else content
        self._record: Any = None
        self._read: dict[tuple[str, Collective | P2pOperation | None], Measurements] = {}
        self.format = self._recognized()

    @cached_property
    def text(self) -> str:
        """The content as text, without what log collectors add to lines; invalid bytes are replaced."""
        return nccl_tests.unwrapped(self.content.decode(errors="replace"))

    def _recognized(self) -> FileFormat | None:
        if self.content.startswith(_PARQUET_BEGINS):
            return FileFormat.parquet
        if samples.FORMAT.encode() in self.content.split(b"\n", 1)[0]:
            return FileFormat.measure
        if self.content.lstrip()[:1] == b"{":
            check_json(self.content, str(self.path), BadMeasurement, DOCUMENT)
        with suppress(ValueError, RecursionError):
            self._record = json.loads(self.content)
        if nccl_tests.is_json(self._record):
            return FileFormat.nccl_tests_json
        if nccl_tests.is_text(self.text):
            return FileFormat.nccl_tests_text
        lines = (line for line in self.text.splitlines() if line.strip() and not line.startswith("#"))
        if "collective" in next(lines, "").split(","):
            return FileFormat.columns
        return FileFormat.nccl_log if " NCCL INFO " in self.text or " NCCL WARN " in self.text else None

    def read(self, given: Given) -> Measurements:
        """Reads everything in the file, unchanged; the collective is the ``given`` one if the file names none.

        BadMeasurement if the format is unknown or the file is incomplete.
        """
        otherwise = records.operation(given.collective) if given.collective else None
        key = given.nccl, otherwise
        if key not in self._read:
            self._read[key] = self._measurements(given.nccl, otherwise)
        return self._read[key]

    def _measurements(self, nccl: str, otherwise: Collective | P2pOperation | None) -> Measurements:
        match self.format:
            case FileFormat.parquet:
                return _of_parquet(self.path, nccl)
            case FileFormat.columns:
                return reader.read(self.path)
            case FileFormat.measure:
                return samples.from_content(self.path, self.content)
            case FileFormat.nccl_tests_json:
                return nccl_tests.of_json(self.path, self._record, otherwise)
            case FileFormat.nccl_tests_text:
                return nccl_tests.of_text(self.path, self.text, otherwise)
            case FileFormat.nccl_log:
                return nccl_tests.from_log(self.path)
        raise BadMeasurement(f"{self.path}: {_NONE}")

    def measurements(self, collective: Collective | None = None) -> Measurements:
        """Reads the file's single times of a collective that NCCL tunes; ``collective`` is used if the file names none.

        BadMeasurement as :meth:`read` raises it. BadMeasurement also for a file of columns, for output of nccl-tests
        with several collectives, and for calls whose algorithm NCCL does not tune. If the file is only NCCL's log,
        there are choices but no times.
        """
        if self.format in (FileFormat.parquet, FileFormat.columns):
            raise BadMeasurement(f"{self.path}: {_NONE}")
        found = self.read(Given(collective="" if collective is None else collective.name))
        operations = list(dict.fromkeys(block.point.operation for block in found.blocks))
        if self.format in NCCL_TESTS and len(operations) > 1:
            raise BadMeasurement(f"{self.path} has several collectives: give a file for each")
        if operations and isinstance(operations[0], P2pOperation):
            name = f"{operations[0].name.lower()}_perf"
            raise BadMeasurement(f"{self.path}: NCCL does not tune {name}; {one_of(PROGRAMS)}")
        return found

    def table(self, given: Given) -> Measurements:
        """The file as a table; raises what :func:`read` raises."""
        found = self.read(given)
        if self.format not in (FileFormat.parquet, FileFormat.columns):
            found = _rows(self.path, found, given)
        return _agreed(self.path, found, given)

    @property
    def forces(self) -> bool:
        """Whether the file may show what its rows forced: it has columns, or is nccl-tests' output that shows NCCL's
        variables.
        """
        if self.format is FileFormat.nccl_tests_text:
            return bool(nccl_tests.choosing_variables(self.text))
        if self.format is FileFormat.nccl_tests_json:
            variables = nccl_tests.json_header(self.path, self._record).variables.items()
            return bool(nccl_tests.choosing_variables("\n".join(f"{name}={value}" for name, value in variables)))
        return self.format in (FileFormat.parquet, FileFormat.columns)

    @property
    def release(self) -> str | None:
        """The release that nccl-tests' output names; None if it names none, or for another format."""
        if self.format is FileFormat.nccl_tests_text:
            text = nccl_tests.runs_apart(self.text)[0]
            return nccl_tests.Text(self.path, text.rpartition("\n")[0]).release
        if self.format is FileFormat.nccl_tests_json:
            return nccl_tests.json_header(self.path, self._record).nccl or None
        return None


RESULTS = ReaderBounds("results of nccl-tests, as text", lines=3_000_000)


def _content(path: Path) -> bytes:
    """The content of a file, in which only those lines of NCCL's log are kept that this module reads; a log may be
    long.

    BadMeasurement if it cannot be read.
    """
    if not is_plain_file(path):
        return read_bytes(path, BadMeasurement)
    try:
        with path.open("rb") as file:
            if file.peek(len(_PARQUET_BEGINS)).startswith(_PARQUET_BEGINS):
                return file.read()
            return b"".join(nccl_tests.without_log(of_log(file, str(path), BadMeasurement, RESULTS)))
    except OSError as error:
        raise BadMeasurement(f"{path}: {error.strerror}") from error


def read(path: Path, given: Given | None = None) -> Measurements:
    """Reads the table of a file; a row's line is its line in the file, or the number of the result in a record, from 1.

    Times of single calls become their mean (nccl-tests) or median (`measure`). BadMeasurement if the file has an error
    or contradicts ``given``; the message names the file, and the line if there is one. BadInput if the package that
    reads the file is missing.
    """
    return MeasurementFile(path).table(given or Given())


def read_any(path: Path, collective: Collective | None = None) -> Measurements:
    """The sample blocks of a file of any format; raises what :meth:`MeasurementFile.measurements` raises."""
    return MeasurementFile(path).measurements(collective)


def _rows(path: Path, measured: Measurements, given: Given) -> Measurements:
    """The table with one time per block: for nccl-tests the mean of a line's calls, else the median of each point and
    request (of each round if ``given`` asks for it). Blocks that do not count are left out, and their number is kept.
    """
    said = measured.header
    scenario, of_lines = said.scenario, said.backend == nccl_tests.NAME
    shape = _communicator(path, replace(said, nodes=scenario.nodes) if scenario else said, given)
    together: dict[_Unit, list[SampleBlock]] = {}
    by_process = len({block.process for block in measured.blocks}) >= LEAST_PROCESSES
    for block in measured.blocks:
        if block.counts and block.table is None:
            unit = (block.process, 0 if by_process else block.round) if given.by_round else (0, 0)
            unit = (block.line, 0) if of_lines else unit
            together.setdefault((block.point, block.combination, unit), []).append(block)
    rows = []
    # Makes the order independent of the random order of measuring
    units = together.items() if of_lines else sorted(together.items(), key=_by_call)
    for (point, requested, _), blocks in units:
        times_us = [time_us for block in blocks for time_us in block.times_us]
        operation = records.operation(given.collective) if given.collective and of_lines else point.operation
        rows.append(
            SampleBlock(
                Point(operation, point.bytes, point.dtype, Op.sum, point.in_place),
                requested,
                blocks[-1].executed if requested is None else None,
                (fmean(times_us) if of_lines else median(times_us),),
                line=blocks[0].line,
                shape=shape,
                run=path.stem if requested is None else f"{path.stem}-forced",
            )
        )
        try:
            check_row(rows[-1])
        except BadInput as error:
            raise BadMeasurement(f"{path}:{rows[-1].line}: {error}") from None
    left = {
        WRONG: sum(block.wrong > 0 for block in measured.blocks),
        _REPLACED: sum(block.wrong == 0 and block.replaced for block in measured.blocks),
        **said.left_out,
    }
    what = {path.stem: path.name, f"{path.stem}-forced": f"{path.name}, combinations forced call by call"}
    variables = dict(said.variables or (scenario.environment if scenario else None) or {})
    header = replace(
        said if of_lines else _of_runs(said),
        variables={},
        left_out={reason: count for reason, count in left.items() if count},
        runs={run: MeasuredRun(what[run], variables) for run in dict.fromkeys(row.run for row in rows)},
        cuda_graph=said.cuda_graph or any(point.graph for point, *_ in together),
    )
    return replace(measured, header=header, blocks=tuple(rows), name=path.stem)


_Unit = tuple[Point, Combination | None, tuple[int, int]]


def _of_runs(said: Header) -> Header:
    """The header of a run, with the facts that a table's header has in addition."""
    return replace(
        said,
        machine=(said.scenario.machine or "") if said.scenario else "",
        nccl=said.release or "",
        nccl_note="As the file says.",
        how_measured=f"{BY_MEASURE}, {said.how} times: medians of all times of a combination.",
        traps=(SIMULATED_TRAP,) if said.is_simulated else (),
    )


def _by_call(measured: tuple[_Unit, object]) -> tuple[object, ...]:
    (point, requested, _), _ = measured
    return point, requested is not None, requested or ()


def _communicator(path: Path, said: Header, given: Given) -> tuple[int, int]:
    """The number of nodes, and the number of GPUs on each node."""
    ranks, nodes = said.ranks, given.nodes or said.nodes
    if given.nodes and said.nodes is not None and said.nodes != given.nodes:
        raise BadMeasurement(
            f"{path} was measured on {plural(said.nodes, 'node')}, but {option('nodes')} says {given.nodes}"
        )
    gpus = given.gpus_per_node or (ranks // nodes if ranks and nodes else given.machine_gpus)
    if not nodes or not gpus:
        each = f" ({gpus} GPUs each)" if gpus else f" {option('gpus_per_node')} N"
        raise BadMeasurement(f"{path} does not say how many ranks there were: add {option('nodes')} N{each}")
    if ranks not in (None, nodes * gpus):
        raise BadMeasurement(
            f"{path}: {ranks} ranks cannot be spread evenly on {nodes} nodes: each node has to have the same number of "
            "GPUs"
        )
    return nodes, gpus


def _agreed(path: Path, table: Measurements, given: Given) -> Measurements:
    """The table, completed with the ``given`` facts. BadMeasurement if the file contradicts them."""
    head = table.header
    if given.nccl and head.nccl and given.nccl != head.nccl:
        raise BadMeasurement(f"{path} says NCCL {head.nccl}, but {option('nccl')} says {given.nccl}")
    variables = {**head.variables, **given.environment}
    return replace(table, header=replace(head, nccl=head.nccl or given.nccl, variables=variables))


_PARQUET = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
_IN_NEWER_ONES = ("version", "device")  # columns that tables collected with NCCL 2.23 lack
_FOLDER = expression(r"\d+\.\d+(?:\.\d+)?")


def _of_parquet(path: Path, nccl: str = "") -> Measurements:
    """Reads rows of aiconfigurator's ``nccl_perf.parquet`` that have the release ``nccl``, or the release that all rows
    share.

    The columns, as collector/network/collect_nccl.py of that project writes them, are ``op_name``, ``nccl_dtype``,
    ``num_gpus`` of one node, ``message_size`` in elements, ``latency`` in ms, and, except for the oldest tables,
    ``version``, the release, and ``device``, the GPU, of each row. The times are from one process with a thread per
    GPU, out of place. Rows of other releases are counted as left out. If rows and folder name different releases, the
    rows' release counts and the header names both. BadMeasurement names the wrong row, counted from 1. MissingExtra if
    polars is not installed.
    """
    extras.require("polars", f"{path}: parquet")
    import polars

    try:
        scanned = polars.scan_parquet(path)
        if (count := scanned.select(polars.len()).collect().item()) > (most := ROWS.lines * factor()):
            raise BadMeasurement(f"{path}: {over(f'its rows ({count:,})', most, 'rows')}")
        there = scanned.collect().to_dicts()
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadMeasurement(f"{path}: {str(error).splitlines()[0]}") from None
    if missing := [column for column in _PARQUET if there and column not in there[0]]:
        raise BadMeasurement(f"{path} has no column {missing[0]!r}: it needs {', '.join(_PARQUET)}")
    if there and (lacking := [column for column in _IN_NEWER_ONES if column not in there[0]]):
        if not nccl:
            raise BadMeasurement(
                f"{path} has no column {lacking[0]!r}: add {option('nccl')}, the release that it was run with"
            )
        there = [{"version": nccl, "device": "", **record} for record in there]
    else:
        lacking = []
    wanted = [(line, record) for line, record in enumerate(there, 1) if not nccl or record["version"] == nccl]
    if not wanted:
        releases = ", ".join(sorted({str(record["version"]) for record in there})) or "none"
        raise BadMeasurement(f"{path} has no row of NCCL {nccl}: it has {releases}")
    for column, what in (("version", "releases"), ("device", "GPUs")):
        if len(values := sorted({str(record[column]) for _, record in wanted})) > 1:
            raise BadMeasurement(f"{path} has several {what} ({', '.join(values)}): give a file for each")
    rows = tuple(_parquet_row(f"{path}:{line}", line, record) for line, record in wanted)
    left_out = len(there) - len(rows)
    header = Header(
        gpu=str(wanted[0][1]["device"]).removeprefix("NVIDIA "),
        nccl=str(wanted[0][1]["version"]),
        nccl_note=_release_note(path, str(wanted[0][1]["version"]), "version" not in lacking),
        how_measured="nccl-tests, 40 warm-up calls, 100 calls (60 above 16 MiB), results not checked, out of place.",
        launch=MeasuredLaunch.thread_per_gpu,
        left_out={f"rows of another release than {nccl}": left_out} if left_out else {},
    )
    return Measurements(header, rows, name=path.stem)


def _release_note(path: Path, nccl: str, is_column: bool) -> str:
    """A note on where the release is from, and on the folder's name if it differs: some data are in another release's
    folder.
    """
    said = "As the column 'version' says." if is_column else "As given: the file has no column 'version'."
    folder = path.parent.name
    if _FOLDER.fullmatch(folder) and not nccl.startswith(folder):
        said += f" Its folder says {folder}."
    return said


def _parquet_row(where: str, line: int, record: Mapping[str, Any]) -> SampleBlock:
    try:
        dtype = by_name(DataType, str(record["nccl_dtype"]), "type")
        shape = (1, int(record["num_gpus"]))
        operation = records.operation(str(record["op_name"]))
        point = Point(operation, int(record["message_size"]) * dtype.size_bytes, dtype)
        time_us = round(float(record["latency"]) * 1000, 9)
        row = SampleBlock(point, None, None, (time_us,), line=line, shape=shape)
        check_row(row)
    except (BadInput, TypeError, ValueError) as error:
        raise BadMeasurement(f"{where}: {error}") from None
    return row
