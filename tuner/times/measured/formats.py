"""Measured times of any file, as a table or as sample blocks: one reader for each format, chosen by the content."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tuner.base import extras
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, Op, P2pOperation, by_name
from tuner.base.sizes import plural
from tuner.times.measured import nccl_tests, reader, records, samples
from tuner.times.measured.header import Header, MeasuredLaunch, MeasuredRun
from tuner.times.measured.nccl_tests import PROGRAMS, NcclTestsRun
from tuner.times.measured.reader import check_row
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.statistics import LEAST_PROCESSES

WRONG = "results that were wrong"
BY_MEASURE = "nccl-tuner measure"  # how the times of such files were measured, to begin with
SIMULATED_TRAP = "The times are simulated: no machine took them."
_REPLACED = "NCCL ran something else than was requested"


@dataclass(frozen=True, slots=True)
class Given:
    """Facts given beside a file; what the file itself says has to agree.

    ``nodes`` and ``gpus_per_node`` are for files that do not name their ranks, ``collective`` for an nccl-tests text
    that does not name its program. ``machine_gpus``: what such a file took of each node, where nothing says it.
    ``by_round``: runs of `measure` have a row for each round, not one for all; from three processes on, for each.
    """

    nccl: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    collective: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    by_round: bool = False
    machine_gpus: int | None = None


class FileFormat(StrEnum):
    """Formats of files that measured times, or NCCL's choices alone, come in."""

    parquet = "aiconfigurator's parquet"
    measure = "runs of `measure`"
    nccl_tests_json = "what nccl-tests writes with -J"
    nccl_tests_text = "what nccl-tests prints"
    columns = "columns"
    nccl_log = "a NCCL log"


NCCL_TESTS = (FileFormat.nccl_tests_json, FileFormat.nccl_tests_text)


class MeasurementFile:
    """A file of any of these formats, recognized by its content and read once.

    BadMeasurement where it cannot be read. ``format`` is None for a file of none of them.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.content = path, read_bytes(path, BadMeasurement)
        self._record: Any = None
        self._runs: dict[tuple[str, Collective | None], NcclTestsRun] = {}
        self.format = self._recognized()

    @cached_property
    def text(self) -> str:
        """The content as text; what is none in it is replaced."""
        return self.content.decode(errors="replace")

    def _recognized(self) -> FileFormat | None:
        if self.content.startswith(b"PAR1"):
            return FileFormat.parquet
        if samples.FORMAT.encode() in self.content.split(b"\n", 1)[0]:
            return FileFormat.measure
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

    def run(self, otherwise: Collective | None = None) -> NcclTestsRun:
        """The run of a file of nccl-tests; ``otherwise`` as in :func:`nccl_tests.of_text`. Errors: BadMeasurement."""
        if self.format is FileFormat.nccl_tests_json:
            return nccl_tests.of_json(self.path, self._record)
        return self._of_text(self.text, otherwise)

    def _of_text(self, text: str, otherwise: Collective | None = None) -> NcclTestsRun:
        """The run of a program, of the text or a part of it."""
        if (text, otherwise) not in self._runs:
            self._runs[text, otherwise] = nccl_tests.of_text(self.path, text, otherwise)
        return self._runs[text, otherwise]

    def measurements(self, collective: Collective | None = None) -> Measurements:
        """The file as sample blocks; ``collective`` is that of a text of nccl-tests which does not name its own.

        BadMeasurement where it is of no format that has them, or not whole; NCCL's log alone has no times.
        """
        if self.format is FileFormat.measure:
            return samples.from_content(self.path, self.content)
        if self.format in NCCL_TESTS:
            return nccl_tests.measurements_of(self.path, self.run(collective))
        if self.format is FileFormat.nccl_log:
            return nccl_tests.from_log(self.path)
        raise BadMeasurement(
            f"{self.path}: no measurements; "
            f"valid: a file of `nccl-tuner measure`, what nccl-tests prints or writes with -J, a NCCL log"
        )

    def table(self, given: Given) -> Measurements:
        """The file as a table, as :func:`read` says. Errors: as of :func:`read`."""
        if self.format is FileFormat.parquet:
            table = _of_parquet(self.path, given.nccl)
        elif self.format is FileFormat.columns:
            table = reader.read(self.path)
        elif self.format is FileFormat.nccl_tests_text and len(texts := nccl_tests.runs_apart(self.text)) > 1:
            table = _of_programs(self.path, [self._of_text(text) for text in texts], given)
        elif self.format in NCCL_TESTS:
            table = _of_run(self.path, self.run(_tuned(given.collective)), given)
        else:
            table = _of_measurements(self.path, self.measurements(), given)
        return _agreed(self.path, table, given)

    @property
    def forces(self) -> bool:
        """Whether it may say of its rows what was forced: columns, or nccl-tests' with NCCL's variables in them."""
        if self.format is FileFormat.nccl_tests_text:
            return bool(nccl_tests.choosing_variables(self.text))
        if self.format is FileFormat.nccl_tests_json:
            variables = self.run().variables.items()
            return bool(nccl_tests.choosing_variables("\n".join(f"{name}={value}" for name, value in variables)))
        return self.format in (FileFormat.parquet, FileFormat.columns)

    @property
    def release(self) -> str | None:
        """The release that a file of nccl-tests names; None where it names none, or is of another format."""
        if self.format is FileFormat.nccl_tests_text:
            return self._of_text(nccl_tests.runs_apart(self.text)[0]).header.nccl
        return self.run().header.nccl if self.format in NCCL_TESTS else None


def read(path: Path, given: Given | None = None) -> Measurements:
    """The table of a file; rows have the file's lines, or the place of a result in a record, counted from 1.

    Times of single calls come as their mean (nccl-tests) or median (`measure`). BadMeasurement names the file, and
    where there is one the line, of what is wrong, or of what the file says otherwise than ``given``. BadInput where a
    package is missing that reads the file.
    """
    return MeasurementFile(path).table(given or Given())


def read_any(path: Path, collective: Collective | None = None) -> Measurements:
    """The sample blocks of a file of any format. Errors: as of :meth:`MeasurementFile.measurements`."""
    return MeasurementFile(path).measurements(collective)


def _of_run(path: Path, run: NcclTestsRun, given: Given) -> Measurements:
    operation = _operation(path, run.program, given)
    shape = _communicator(path, run.header, given)
    executed = run.executed
    rows = []
    for each in run.times:
        if not each.wrong:
            time_us = fmean(each.times_us)
            point = Point(operation, each.bytes, each.dtype, Op.sum, each.in_place)
            ran = None if run.collective is None else executed.get((run.collective, each.bytes))
            rows.append(SampleBlock(point, None, ran, (time_us,), line=each.line, shape=shape))
    calls = f", {run.header.warmup_calls} warm-up calls, {run.header.calls} calls" if run.header.calls else ""
    left = {WRONG: sum(bool(each.wrong) for each in run.times)}
    if run.broken:
        left[f"whose numbers cannot be times (lines {', '.join(map(str, run.broken[:6]))})"] = len(run.broken)
    header = Header(
        gpu=", ".join(run.header.gpus).replace("NVIDIA ", ""),
        nccl=run.header.nccl,
        nccl_note="As nccl-tests prints." if run.header.nccl else "",
        how_measured=f"nccl-tests{calls}.",
        launch=_launch(*run.threads_and_gpus) if run.threads_and_gpus else MeasuredLaunch.unknown,
        cuda_graph=any(each.graph for each in run.times),
        left_out={why: count for why, count in left.items() if count},
    )
    return _one_run(path, header, rows, run.variables)


def _of_programs(path: Path, runs: Sequence[NcclTestsRun], given: Given) -> Measurements:
    """The rows of several programs in one text; of what is no known collective, how many were left out."""
    tables, left = [], Counter[str]()
    for run in runs:
        try:
            records.operation(run.program or "")
        except BadInput:
            left[f"of {run.program}: no collective that is known"] += len(run.times)
        else:
            tables.append(_of_run(path, run, given))
    if not tables:
        raise BadMeasurement(f"{path}: no collective that is known: {', '.join(str(run.program) for run in runs)}")
    for table in tables:
        left.update(table.header.left_out)
    rows = tuple(row for table in tables for row in table.blocks)
    return replace(tables[0], header=replace(tables[0].header, left_out=dict(left)), blocks=rows)


def _of_measurements(path: Path, measurements: Measurements, given: Given) -> Measurements:
    """Runs of `measure`: a row for each point and what was requested, the median of its times."""
    said = measurements.header
    scenario = said.scenario
    shape = _communicator(path, replace(said, nodes=scenario.nodes) if scenario else said, given)
    blocks: dict[tuple[Point, Combination | None, tuple[int, int]], list[tuple[int, SampleBlock]]] = {}
    by_process = len({block.process for block in measurements.blocks}) >= LEAST_PROCESSES
    left = {WRONG: 0, _REPLACED: 0}
    for line, block in enumerate(measurements.blocks, 2):  # after the header
        if block.counts and block.table is None:
            unit = (block.process, 0 if by_process else block.round) if given.by_round else (0, 0)
            blocks.setdefault((block.point, block.combination, unit), []).append((line, block))
        left[WRONG] += block.wrong > 0
        left[_REPLACED] += block.wrong == 0 and block.replaced
    rows = []
    for (point, requested, _), those in sorted(blocks.items(), key=_by_call):  # not in the random order of measuring
        time_us = median(time_us for _, block in those for time_us in block.times_us)
        point = replace(point, op=Op.sum, graph=False)
        executed = those[-1][1].executed if requested is None else None
        run = path.stem if requested is None else f"{path.stem}-forced"
        rows.append(SampleBlock(point, requested, executed, (time_us,), line=those[0][0], shape=shape, run=run))
    header = Header(
        machine=(scenario.machine or "") if scenario else "",
        gpu=said.gpu,
        nccl=said.release or "",
        nccl_note="As the file says.",
        how_measured=f"{BY_MEASURE}, {said.how} times: medians of all times of a combination.",
        traps=(SIMULATED_TRAP,) if said.is_simulated else (),
        cuda_graph=any(point.graph for point, *_ in blocks),
        left_out={reason: count for reason, count in left.items() if count},
    )
    variables = said.variables or (scenario.environment if scenario else None) or {}
    return _one_run(path, header, rows, variables)


def _by_call(measured: tuple[tuple[Point, Combination | None, object], object]) -> tuple[object, ...]:
    (point, requested, _), _ = measured
    return point, requested is not None, requested or ()


def _one_run(path: Path, header: Header, rows: list[SampleBlock], variables: Mapping[str, str]) -> Measurements:
    for row in rows:
        try:
            check_row(row)
        except BadInput as error:
            raise BadMeasurement(f"{path}:{row.line}: {error}") from None
    named = tuple(replace(row, run=row.run or path.stem) for row in rows)
    what = {path.stem: path.name, f"{path.stem}-forced": f"{path.name}, combinations forced call by call"}
    used = dict.fromkeys(row.run for row in named)
    runs = {run: MeasuredRun(what[run], dict(variables)) for run in used}
    return Measurements(replace(header, runs=runs), named, name=path.stem)


def _tuned(name: str) -> Collective | None:
    """The collective of a name in any of its spellings; None for one that NCCL does not tune, and for no name."""
    try:
        operation = records.operation(name) if name else None
    except BadInput:
        return None
    return operation if isinstance(operation, Collective) else None


def _operation(path: Path, program: str | None, given: Given) -> Collective | P2pOperation:
    named = given.collective or program
    if named is None:
        raise BadMeasurement(
            f"{path}: does not say which collective was run; valid: a name of {', '.join(PROGRAMS)} in it, "
            "or `collective`"
        )
    try:
        return records.operation(named)
    except BadInput as error:
        raise BadMeasurement(f"{path}: {error}") from None


def _communicator(path: Path, said: Header, given: Given) -> tuple[int, int]:
    """Nodes and GPUs of each."""
    ranks, nodes = said.ranks, given.nodes or said.nodes
    if given.nodes and said.nodes is not None and said.nodes != given.nodes:
        raise BadMeasurement(f"{path}: {plural(said.nodes, 'node')}; `nodes` says {given.nodes}")
    gpus = given.gpus_per_node or (ranks // nodes if ranks and nodes else given.machine_gpus)
    if not nodes or not gpus:
        raise BadMeasurement(f"{path}: does not name its ranks; valid: `nodes` N `gpus_per_node` N")
    if ranks not in (None, nodes * gpus):
        raise BadMeasurement(f"{path}: {ranks} ranks on {nodes} nodes; valid: as many GPUs on each node")
    return nodes, gpus


def _agreed(path: Path, table: Measurements, given: Given) -> Measurements:
    """With what was given beside the file, which has to agree with what the file says."""
    head = table.header
    if given.nccl and head.nccl and given.nccl != head.nccl:
        raise BadMeasurement(f"{path}: says NCCL {head.nccl}; `nccl` says {given.nccl}")
    variables = {**head.variables, **given.environment}
    return replace(table, header=replace(head, nccl=head.nccl or given.nccl, variables=variables))


def _launch(threads: int, gpus: int) -> MeasuredLaunch:
    """Launch by nccl-tests' -t and -g."""
    if gpus > 1:
        return MeasuredLaunch.one_thread if threads == 1 else MeasuredLaunch.unknown
    return MeasuredLaunch.thread_per_gpu if threads > 1 else MeasuredLaunch.process_per_gpu


_PARQUET = ("version", "device", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")


def _of_parquet(path: Path, nccl: str = "") -> Measurements:
    """Rows of aiconfigurator's ``nccl_perf.parquet`` of the release ``nccl``, or of the one that all have.

    Columns, by collector/network/collect_nccl.py there: ``op_name``, ``nccl_dtype``, ``num_gpus`` of one node,
    ``message_size`` in elements, ``latency`` in ms, and ``version``, the release, and ``device``, the GPU, of each row.
    One process with a thread a GPU, out of place. The rows of other releases are counted as left out.
    BadMeasurement names the row, counted from 1, of what is wrong; MissingExtra where polars is not installed.
    """
    extras.require("polars", f"{path}: parquet")
    import polars

    try:
        there = polars.read_parquet(path).to_dicts()
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadMeasurement(f"{path}: {str(error).splitlines()[0]}") from None
    if missing := [column for column in _PARQUET if there and column not in there[0]]:
        raise BadMeasurement(f"{path}: no column {missing[0]!r}; needed: {', '.join(_PARQUET)}")
    wanted = [(line, record) for line, record in enumerate(there, 1) if not nccl or record["version"] == nccl]
    if not wanted:
        releases = ", ".join(sorted({str(record["version"]) for record in there})) or "none"
        raise BadMeasurement(f"{path}: no row of NCCL {nccl}; releases in it: {releases}")
    for column, what in (("version", "releases"), ("device", "GPUs")):
        if len(values := sorted({str(record[column]) for _, record in wanted})) > 1:
            raise BadMeasurement(f"{path}: several {what} in one file ({', '.join(values)}); valid: a file for each")
    rows = tuple(_parquet_row(f"{path}:{line}", line, record) for line, record in wanted)
    left_out = len(there) - len(rows)
    header = Header(
        gpu=str(wanted[0][1]["device"]).removeprefix("NVIDIA "),
        nccl=str(wanted[0][1]["version"]),
        nccl_note="As the column 'version' says.",
        how_measured="nccl-tests, 40 warm-up calls, 100 calls (60 above 16 MiB), results not checked, out of place.",
        launch=MeasuredLaunch.thread_per_gpu,
        left_out={f"rows of another release than {nccl}": left_out} if left_out else {},
    )
    return Measurements(header, rows, name=path.stem)


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
