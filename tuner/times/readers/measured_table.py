"""Measured times of any file as a table: columns, aiconfigurator's parquet, nccl-tests, runs of `measure`."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.files import read_bytes
from tuner.base.names import Collective
from tuner.times.measured import (
    MeasuredHeader,
    MeasuredLaunch,
    MeasuredRow,
    MeasuredRun,
    MeasuredTable,
    parquet,
    reader,
    records,
)
from tuner.times.measured.reader import check_row
from tuner.times.readers import nccl_tests
from tuner.times.readers.nccl_tests import PROGRAMS, Text, executed_by_size, imported_log, is_text, wrong_count
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.statistics import LEAST_PROCESSES

WRONG = "results that were wrong"
BY_MEASURE = "nccl-tuner measure"  # how the times of such files were measured, to begin with
SIMULATED_TRAP = "The times are simulated: no machine took them."
_CHOOSING = re.compile(
    r"\b(NCCL_(?:ALGO|PROTO|(?:MIN|MAX)_NCHANNELS|NVLS_ENABLE|COLLNET_ENABLE))"
    r"(?:=| set by environment to )[\"']?([\w,;:^]+)"
)
_REPLACED = "NCCL ran something else than was requested"


@dataclass(frozen=True, slots=True)
class Given:
    """What is said of a file beside it; what the file itself says has to agree.

    ``nodes`` and ``gpus_per_node`` are for files that do not name their ranks, ``collective`` for an nccl-tests text
    that does not name its program. ``by_round``: runs of `measure` have a row for each round, not one for all; from
    three processes on, for each process.
    """

    nccl: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    collective: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    by_round: bool = False


def read(path: Path, given: Given | None = None) -> MeasuredTable:
    """The table of a file; rows have the file's lines, or the place of a result in a record, counted from 1.

    Times of single calls come as their mean (nccl-tests) or median (`measure`). BadMeasurement names the file, and
    where there is one the line, of what is wrong, or of what the file says otherwise than ``given``. BadInput where a
    package is missing that reads the file.
    """
    given = given or Given()
    content = read_bytes(path, BadMeasurement)
    if content.startswith(parquet.MAGIC):
        table = parquet.read(path, given.nccl)
    elif nccl_tests.is_json(record := nccl_tests.load_json(content)):
        table = _of_json(path, record, given)
    elif is_text(text := content.decode(errors="replace")):
        table = _of_text(path, text, given)
    elif _has_columns(text):
        table = reader.read(path)
    else:
        table = _of_measurements(path, nccl_tests.read_any(path), given)
    return _agreed(path, table, given)


def is_of_nccl_tests(path: Path) -> bool:
    """Whether nccl-tests printed or wrote it. BadMeasurement as of ``read_bytes``."""
    content = read_bytes(path, BadMeasurement)
    return nccl_tests.is_json(nccl_tests.load_json(content)) or is_text(content.decode(errors="replace"))


def forces(path: Path) -> bool:
    """Whether a file may say of its rows what was forced: columns, or nccl-tests' with NCCL's variables in them.

    BadMeasurement where it cannot be read.
    """
    content = read_bytes(path, BadMeasurement)
    if content.startswith(parquet.MAGIC) or _has_columns(content.decode(errors="replace")):
        return True
    if nccl_tests.is_json(record := nccl_tests.load_json(content)):
        return any(_CHOOSING.match(f"{name}={value}") for name, value in nccl_tests.json_variables(record).items())
    text = content.decode(errors="replace")
    return is_text(text) and bool(_said(text))


def release_of(path: Path) -> str | None:
    """The release that a file of nccl-tests names; None where it names none, or is of another kind."""
    content = read_bytes(path, BadMeasurement)
    if nccl_tests.is_json(record := nccl_tests.load_json(content)):
        return nccl_tests.json_header(path, record).nccl
    text = content.decode(errors="replace")
    return Text(path, text.rpartition("\n")[0]).release if is_text(text) else None


def _has_columns(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return "collective" in next(lines, "").split(",")


def _of_text(path: Path, content: str, given: Given) -> MeasuredTable:
    text = Text(path, content.rpartition("\n")[0], _tuned(given.collective))
    if text.collective is not None and text.other is not None:
        raise BadMeasurement(f"{path}: several programs in one file; valid: a file for each")
    if not text.rows:
        raise BadMeasurement(f"{path}: no row of nccl-tests in it is whole")
    collective = _collective(path, text.other if text.collective is None else text.collective.name, given)
    log = imported_log(path, Collective.AllReduce if text.collective is None else text.collective, text.release)
    executed = {} if text.collective is None else executed_by_size(log)
    nodes, gpus = _communicator(path, text.header, given)
    rows, left = [], 0
    for each in text.rows:
        ran = None if text.collective is None else executed.get((text.collective, each.bytes))
        for body, in_place in zip(each.bodies, (False, True), strict=False):
            if wrong_count(body.wrong, each.dtype, text.prints_errors):
                left += 1
                continue
            row = MeasuredRow(each.line, collective, each.dtype, nodes, gpus, each.bytes, body.time_us, in_place)
            rows.append(_executed(row, ran))
    header = _header(text.header, text.release or "", left)
    if broken := [each.line for each in text.rows if not each.bodies]:
        why = f"whose numbers cannot be times (lines {', '.join(map(str, broken[:6]))})"
        header = replace(header, left_out={**header.left_out, why: len(broken)})
    launch = _launch(*text.threads_and_gpus) if text.threads_and_gpus else MeasuredLaunch.unknown
    variables = {**_said(content), **(log.environment if log else {})}
    graph = any(each.graph for each in text.rows)
    return _one_run(path, replace(header, launch=launch, cuda_graph=graph), rows, variables)


def _of_json(path: Path, record: Mapping[str, Any], given: Given) -> MeasuredTable:
    said = nccl_tests.json_header(path, record)
    collective = _collective(path, nccl_tests.program_of(record), given)
    nodes, gpus = _communicator(path, said, given)
    rows, left = [], 0
    for each in nccl_tests.json_rows(path, record):
        if each.wrong:
            left += 1
            continue
        line, time_us = each.index + 1, fmean(each.times_us)
        rows.append(MeasuredRow(line, collective, each.dtype, nodes, gpus, each.bytes, time_us, each.in_place))
    graph = bool(record.get("config", {}).get("graph", 0))
    header = replace(_header(said, said.nccl or "", left), launch=_launch_of(record["args"]), cuda_graph=graph)
    return _one_run(path, header, rows, nccl_tests.json_variables(record))


def _of_measurements(path: Path, measurements: Measurements, given: Given) -> MeasuredTable:
    """Runs of `measure`: a row for each point and what was requested, the median of its times."""
    said = measurements.header
    scenario = said.scenario
    nodes, gpus = _communicator(path, replace(said, nodes=scenario.nodes) if scenario else said, given)
    blocks: dict[tuple[Point, Combination | None, tuple[int, int]], list[tuple[int, SampleBlock]]] = {}
    by_process = len({block.process for block in measurements.blocks}) >= LEAST_PROCESSES
    left = {WRONG: 0, _REPLACED: 0}
    for line, block in enumerate(measurements.blocks, 2):  # after the header
        if block.counts and block.table is None:
            unit = (block.process, 0 if by_process else block.round) if given.by_round else (0, 0)
            blocks.setdefault((block.point, block.requested, unit), []).append((line, block))
        left[WRONG] += block.wrong > 0
        left[_REPLACED] += block.wrong == 0 and block.replaced
    rows = []
    for (point, requested, _), those in sorted(blocks.items(), key=_by_call):  # not in the random order of measuring
        time_us = median(time_us for _, block in those for time_us in block.times_us)
        name = point.collective.name.lower()
        row = MeasuredRow(those[0][0], name, point.dtype, nodes, gpus, point.bytes, time_us, point.in_place)
        run = path.stem if requested is None else f"{path.stem}-forced"
        rows.append(replace(_executed(row, requested or those[-1][1].executed), run=run))
    header = MeasuredHeader(
        machine=(scenario.machine or "") if scenario else "",
        gpu=said.gpu or "",
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


def _header(said: Header, nccl: str, wrong: int) -> MeasuredHeader:
    """The head of what nccl-tests printed."""
    calls = f", {said.warmup_calls} warm-up calls, {said.calls} calls" if said.calls else ""
    return MeasuredHeader(
        gpu=", ".join(said.gpus).replace("NVIDIA ", ""),
        nccl=nccl,
        nccl_note="As nccl-tests prints." if nccl else "",
        how_measured=f"nccl-tests{calls}.",
        left_out={WRONG: wrong} if wrong else {},
    )


def _one_run(
    path: Path, header: MeasuredHeader, rows: list[MeasuredRow], variables: Mapping[str, str]
) -> MeasuredTable:
    for row in rows:
        try:
            check_row(row)
        except BadInput as error:
            raise BadMeasurement(f"{path}:{row.line}: {error}") from None
    named = tuple(replace(row, run=row.run or path.stem) for row in rows)
    what = {path.stem: path.name, f"{path.stem}-forced": f"{path.name}, combinations forced call by call"}
    used = dict.fromkeys(row.run for row in named)
    runs = {run: MeasuredRun(what[run], dict(variables)) for run in used}
    return MeasuredTable(path.stem, replace(header, runs=runs), named)


def _executed(row: MeasuredRow, ran: Combination | None) -> MeasuredRow:
    if ran is None:
        return row
    return replace(row, algorithm=ran.algorithm, protocol=ran.protocol, channels=ran.channels or None)


def _tuned(name: str) -> Collective | None:
    """The collective of a name in any of its spellings; None for one that NCCL does not tune, and for no name."""
    try:
        return Collective[records.collective(name)] if name else None
    except (BadInput, KeyError):
        return None


def _collective(path: Path, program: str | None, given: Given) -> str:
    named = given.collective or program
    if named is None:
        raise BadMeasurement(
            f"{path}: does not say which collective was run; valid: a name of {', '.join(PROGRAMS)} in it, "
            "or `collective`"
        )
    try:
        return records.collective(named)
    except BadInput as error:
        raise BadMeasurement(f"{path}: {error}") from None


def _said(content: str) -> dict[str, str]:
    """The variables that choose algorithms, as a launcher's command line or NCCL's log in the text says them."""
    return {name: value for name, value in _CHOOSING.findall(content) if value}


def _communicator(path: Path, said: Header, given: Given) -> tuple[int, int]:
    """Nodes and GPUs of each."""
    ranks, nodes = said.ranks, given.nodes or said.nodes
    if given.nodes and said.nodes not in (None, given.nodes):
        raise BadMeasurement(f"{path}: {said.nodes} nodes; `nodes` says {given.nodes}")
    gpus = given.gpus_per_node or (ranks // nodes if ranks and nodes else None)
    if not nodes or not gpus:
        raise BadMeasurement(f"{path}: does not name its ranks; valid: `nodes` N `gpus_per_node` N")
    if ranks not in (None, nodes * gpus):
        raise BadMeasurement(f"{path}: {ranks} ranks on {nodes} nodes; valid: as many GPUs on each node")
    return nodes, gpus


def _agreed(path: Path, table: MeasuredTable, given: Given) -> MeasuredTable:
    """With what was given beside the file, which has to agree with what the file says."""
    head = table.header
    if given.nccl and head.nccl and given.nccl != head.nccl:
        raise BadMeasurement(f"{path}: says NCCL {head.nccl}; `nccl` says {given.nccl}")
    environment = {**head.environment, **given.environment}
    return replace(table, header=replace(head, nccl=head.nccl or given.nccl, environment=environment))


def _launch(threads: int, gpus: int) -> MeasuredLaunch:
    """By nccl-tests' -t and -g."""
    if gpus > 1:
        return MeasuredLaunch.one_thread if threads == 1 else MeasuredLaunch.unknown
    return MeasuredLaunch.thread_per_gpu if threads > 1 else MeasuredLaunch.process_per_gpu


def _launch_of(arguments: list[str]) -> MeasuredLaunch:
    values = {"-t": "1", "--nthreads": "1", "-g": "1", "--ngpus": "1"}
    for name, value in pairwise(arguments):
        if name in values and value.isdigit():
            values[name] = value
    threads, gpus = (max(int(values[a]), int(values[b])) for a, b in (("-t", "--nthreads"), ("-g", "--ngpus")))
    return _launch(threads, gpus)
