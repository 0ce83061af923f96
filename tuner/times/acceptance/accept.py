"""Results of a cluster accepted or not: every file judged, and what a loss points to."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tuner import release
from tuner.base.errors import BadMeasurement, TunerError
from tuner.base.records import json_form
from tuner.scenario import Scenario
from tuner.times.acceptance import curves, diagnosis, judge, results, slips
from tuner.times.acceptance.curves import Curve, Exchange
from tuner.times.acceptance.diagnosis import Diagnosis
from tuner.times.acceptance.expected import Expectation, ReferenceRun, Whose
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import Judged, Verdict
from tuner.times.acceptance.results import ResultFile
from tuner.times.calibration import plausible
from tuner.times.measured import MeasuredRow, Problem
from tuner.times.readers.measured_table import WRONG, Given
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel.features import Array


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """What is said of the results: the machine and its settings, and what the files have to agree with.

    ``given`` has release, nodes and GPUs where they were said. ``calibration``: a name or file, None for the machine's.
    ``like``: a run of the same cluster on a healthy day, whose times are expected instead.
    """

    scenario: Scenario
    given: Given = field(default_factory=Given)
    calibration: str | None = None
    like: Path | None = None


@dataclass(frozen=True, slots=True)
class JudgedSize:
    """A size of a curve: times in us with the band that passes, bandwidths in GB/s, what NCCL picks, the verdict."""

    file: str
    nccl: str
    collective: str
    dtype: str
    nodes: int
    gpus_per_node: int
    in_place: bool
    settings: Mapping[str, str]
    bytes: int
    lines: tuple[int, ...]
    pick: str
    executed: str | None
    time_us: float
    expected_us: float
    low_us: float
    high_us: float
    busbw_gbs: float
    floor_gbs: float
    time: Whose
    measured: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with rows of a file, whether a size fails by it or not."""

    file: str
    kind: str
    refused: bool
    lines: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class StartExtra:
    """How much later than expected calls of a communicator start, us; None where no call is small enough to show it."""

    nodes: int
    gpus_per_node: int
    extra_us: float | None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whether results are those of a healthy machine, and why.

    ``judged``: whether that can be said; where not, ``missing`` says what would make it so. ``sizes`` has every size
    that was judged, ``skipped`` counts the rows that were not. ``expected_by`` says whose times were expected.
    ``diagnosis``: the faults that explain a loss, the best first. ``passes_as``: releases that all sizes would pass
    with, where some fail and the files do not name theirs.
    """

    passes: bool = field(metadata=json_form(key="pass"))
    judged: bool
    missing: tuple[str, ...]
    machine: str
    expected_by: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    wrong_results: int
    diagnosis: tuple[Diagnosis, ...]
    passes_as: tuple[str, ...]
    start_extra: tuple[StartExtra, ...]
    skipped: Mapping[str, int]
    sizes: tuple[JudgedSize, ...]


def accept(files: Sequence[Path], asked: AcceptOptions) -> Acceptance:
    """Judges the results of ``files``. Sizes that are too slow or too fast fail, and so do rows that cannot be true.

    Errors: BadMeasurement for a file that cannot be read, says otherwise than ``asked``, or has nothing to judge;
    BadInput for a scenario or calibration that is none.
    """
    read = [results.read(path, asked.given, asked.scenario) for path in files]
    like = None if asked.like is None else results.read(asked.like, asked.given, asked.scenario)
    skipped = Counter[str]()
    judged: list[tuple[ResultFile, str, Judged]] = []
    extras: list[StartExtra] = []
    diagnoses: list[Diagnosis] = []
    expected_by: dict[str, None] = {}
    for nccl, those in _by_release(read, asked).items():
        scenario = replace(asked.scenario, nccl=nccl)
        expectation = Expectation(scenario, asked.calibration or _of_site(those))
        if like is not None:
            reference = curves.of_table(like.table, str(like.path), scenario)[0]
            expectation = ReferenceRun(scenario, asked.calibration, reference)
        own = _judged(those, expectation, asked.given, skipped)
        judged += [(file, nccl, each) for file, each in own]
        extras += _extras([each for _, each in own])
        diagnoses += _diagnosed([each for _, each in own], expectation)
        expected_by |= expectation.reasons
    for file in read:
        skipped.update({why: count for why, count in file.table.header.left_out.items() if why != WRONG})
    problems = [_problem(str(file.path), each) for file in read for each in file.problems]
    slipped = [_problem(each.curve.file, slip) for each, slip in slips.problems([each for _, _, each in judged])]
    refused = bool(slipped) or any(file.is_refused for file in read)
    passes = all(each.passes for _, _, each in judged)
    # AllToAll between nodes has no frozen split, and is not what collectives beside it are judged by.
    counted = [each for _, _, each in judged if not isinstance(each.curve.kind.request, Exchange)]
    known = all(each.judged for each in counted or [each for _, _, each in judged])
    if not judged and not refused:
        reasons = "; ".join(f"{count} rows: {why}" for why, count in skipped.items())
        raise BadMeasurement(f"{', '.join(map(str, files))}: nothing to judge: {reasons}")
    return Acceptance(
        passes=passes and known and not refused,
        judged=known or not passes or refused,
        missing=() if known else MISSING,
        machine=asked.scenario.name,
        expected_by=tuple(expected_by),
        problems=(*problems, *slipped),
        wrong_results=sum(file.wrong_results for file in read),
        diagnosis=() if slipped else tuple(diagnoses),
        passes_as=() if refused or passes else _passes_as(read, asked),
        start_extra=tuple(extras),
        skipped=dict(skipped),
        sizes=tuple(size for file, nccl, each in judged for size in _sizes(file, nccl, each)),
    )


MISSING = (
    "four rows of this cluster on a healthy day, spread over sizes, as a calibration of its own",
    "a run of this cluster that is known to be healthy, as a reference",
)


def _of_site(files: Sequence[ResultFile]) -> str | None:
    """The shipped calibration of the site that the files name, where they name one."""
    sites = {file.table.header.site for file in files}
    return calibrations.of_site(sites.pop()) if len(sites) == 1 else None


def _by_release(files: Sequence[ResultFile], asked: AcceptOptions) -> dict[str, list[ResultFile]]:
    """The files by what was run in them: the release that is given, else that of the file, else the scenario's."""
    files_of: dict[str, list[ResultFile]] = {}
    for file in files:
        own = file.table.header.nccl
        nccl = own if own in release.names() and not asked.given.nccl else asked.scenario.nccl
        files_of.setdefault(nccl, []).append(file)
    return files_of


def _judged(
    files: Sequence[ResultFile], expectation: Expectation, given: Given, skipped: Counter[str]
) -> list[tuple[ResultFile, Judged]]:
    of_files: list[tuple[ResultFile, Curve]] = []
    for file in files:
        table = replace(file.table, rows=tuple(_wanted(file.table.rows, given, skipped)))
        own, why = curves.of_table(table, str(file.path), expectation.scenario)
        skipped.update(why)
        of_files += [(file, each) for each in own]
    judged = []
    for file, curve in of_files:
        try:
            expected = expectation.times(curve.kind, curve.bytes)
        except TunerError as error:  # what was forced cannot run by NCCL's rules, or a setting is not emulated
            skipped[str(error)] += sum(map(len, curve.lines))
            continue
        judged.append((file, judge.judge(curve, expected, _least_us(file, curve, expectation))))
    return judged


def _passes_as(files: Sequence[ResultFile], asked: AcceptOptions) -> tuple[str, ...]:
    """The releases whose times the files have, where they do not say of which they are."""
    if any(file.names_release for file in files):
        return ()
    accepted = []
    for nccl in asked.scenario.releases:
        expectation = Expectation(replace(asked.scenario, nccl=nccl), asked.calibration)
        judged = _judged(files, expectation, asked.given, Counter())
        if judged and all(each.passes for _, each in judged):
            accepted.append(nccl)
    return tuple(accepted)


def _wanted(rows: Sequence[MeasuredRow], given: Given, skipped: Counter[str]) -> Iterator[MeasuredRow]:
    """Rows of the nodes and GPUs that were asked about."""
    for row in rows:
        if given.nodes not in (None, row.nodes) or given.gpus_per_node not in (None, row.gpus_per_node):
            skipped[f"of {row.nodes} x {row.gpus_per_node} GPUs"] += 1
        else:
            yield row


def _least_us(file: ResultFile, curve: Curve, expectation: Expectation) -> Array:
    """What the links alone take, and no more than a call can take at all, [size]."""
    own = expectation.scenario.resolve().own
    rows = {row.line: row for row in file.table.rows}
    return np.array([plausible.fastest_us(rows[lines[0]], own.topology, own.trays) for lines in curve.lines])


def _diagnosed(judged: Sequence[Judged], expectation: Expectation) -> tuple[Diagnosis, ...]:
    """What explains the times of all curves, where any is too slow; nothing where times cannot be true."""
    verdicts = {verdict for each in judged for verdict in each.verdicts}
    if Verdict.slow not in verdicts or Verdict.fast in verdicts:
        return ()
    topology = expectation.scenario.resolve().own.topology
    curves_of = [each.curve for each in judged]
    # The form of AllToAll says less of the links than those of collectives do.
    of_collectives = [each for each in curves_of if not isinstance(each.kind.request, Exchange)]
    explained = diagnosis.diagnose(of_collectives or curves_of, expectation, topology)
    return explained or tuple(_small_messages(judged))


def _small_messages(judged: Sequence[Judged]) -> Iterator[Diagnosis]:
    """Where only small sizes are too slow, and no fault of the fabric explains it."""
    slow = [np.array([verdict is Verdict.slow for verdict in each.verdicts]) for each in judged]
    sizes = np.concatenate([each.curve.bytes[which] for each, which in zip(judged, slow, strict=True)])
    if sizes.max() >= judge.HOST_BYTES:
        return
    extra = [each.curve.time_us - each.expected.time_us for each in judged]
    extra_us = float(np.median(np.concatenate([us[which] for us, which in zip(extra, slow, strict=True)])))
    off = [np.log(each.curve.time_us / each.expected.time_us)[which] for each, which in zip(judged, slow, strict=True)]
    what = f"small calls take {extra_us:.3g} us longer, more than ways of launching differ by: the host, not the links"
    yield Diagnosis(Resource.small_messages, what, 0.0, float(np.median(np.concatenate(off))))


def _extras(judged: Sequence[Judged]) -> Iterator[StartExtra]:
    starts: dict[tuple[int, int], list[float]] = {}
    for each in judged:
        shape = each.curve.kind.shape
        starts.setdefault((shape.nodes, shape.gpus_per_node), []).extend(
            [] if each.start_us is None else [each.start_us]
        )
    for (nodes, gpus_per_node), those in starts.items():
        yield StartExtra(nodes, gpus_per_node, round(float(np.median(those)), 2) if those else None)


def _problem(file: str, problem: Problem) -> FileProblem:
    return FileProblem(file, problem.kind, problem.refused, problem.lines, problem.text)


def _sizes(file: ResultFile, nccl: str, judged: Judged) -> Iterator[JudgedSize]:
    curve, expected, kind = judged.curve, judged.expected, judged.curve.kind
    names = expected.pick_names()
    for at, lines in enumerate(curve.lines):
        yield JudgedSize(
            file=curve.file,
            nccl=nccl,
            collective=kind.request.collective.name,
            dtype=kind.request.dtype.name,
            nodes=kind.shape.nodes,
            gpus_per_node=kind.shape.gpus_per_node,
            in_place=kind.in_place,
            settings=dict(kind.shape.settings),
            bytes=int(curve.bytes[at]),
            lines=lines,
            pick=names[at],
            executed=file.executed.get(lines[0]),
            time_us=float(curve.time_us[at]),
            expected_us=float(expected.time_us[at]),
            low_us=float(judged.low_us[at]),
            high_us=float(judged.high_us[at]),
            busbw_gbs=float(judged.busbw_gbs[at]),
            floor_gbs=float(judged.floor_gbs[at]),
            time=judged.expected.whose,
            measured=bool(expected.measured[at]),
            verdict=judged.verdicts[at],
        )
