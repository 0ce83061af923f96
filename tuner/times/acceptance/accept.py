"""Results of a cluster accepted or not: every file judged, and what a loss points to."""

import math
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, CannotBeJudged, TunerError, UnknownRelease
from tuner.base.files import write_text
from tuner.base.findings import Finding
from tuner.base.names import Collective
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes, plural
from tuner.base.spelling import option
from tuner.machine import gpus
from tuner.scenario import Scenario
from tuner.times import measured
from tuner.times.acceptance import curves, diagnosis, judge
from tuner.times.acceptance.curves import Curve, Exchange
from tuner.times.acceptance.diagnosis import Diagnosis
from tuner.times.acceptance.evidence import NOTHING_LOGGED, LogFacts
from tuner.times.acceptance.expected import Expectation, ReferenceRun, Whose
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.judge import JudgedCurve, Verdict
from tuner.times.calibration import plausible
from tuner.times.measured import Kind, Problem
from tuner.times.measured.checks import named, nearest_release
from tuner.times.measured.formats import WRONG, FileFormat, Given, MeasurementFile
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel.features import Array

_LONG = 6  # times of a point that show where they go
_SLOWER = 1.1  # the last third against the first, the median over points
_MOST = 2 / 3  # of the points go the same way


def drifts(file: MeasurementFile, table: Measurements, given: Given) -> Iterator[Problem]:
    """Said where most points that were measured over and over take longer at the end, or shorter, by over 10 %.

    Single times are those of calls in nccl-tests' JSON, of samples in our own runs, or of rows that repeat a point.
    """
    series = [(line, name, times) for line, name, times in _series(file, table, given) if len(times) >= _LONG]
    if not series:
        return
    ratios = [(_last_to_first(times), line, name) for line, name, times in series]
    middle = median(ratio for ratio, _, _ in ratios)
    slower = [each for each in ratios if each[0] > 1]
    if middle > _SLOWER and len(slower) >= _MOST * len(ratios):
        ratio, line, name = max(ratios)
        text = (
            f"the last calls of {len(slower)} of {len(ratios)} points take longer than the first, by a factor of "
            f"{middle:.3g} in the middle ({name}, line {line}: {ratio:.3g}); a clock that is throttled, or a network "
            "that others use?"
        )
        yield Problem(Kind.drifting, tuple(sorted(line for _, line, _ in slower)), text)


def _last_to_first(times: Sequence[float]) -> float:
    third = len(times) // 3
    return median(times[-third:]) / median(times[:third])


def _series(file: MeasurementFile, table: Measurements, given: Given) -> Iterator[tuple[int, str, Sequence[float]]]:
    """Line, name and times of each point, in their order."""
    if file.format is FileFormat.nccl_tests_json:
        for each in file.read(given).blocks:
            yield each.line, f"{each.point.bytes} bytes", each.times_us
    elif file.format is FileFormat.measure:
        runs: dict[object, list[float]] = defaultdict(list)
        lines: dict[object, int] = {}
        for block in file.measurements().blocks:
            key = block.point, block.requested
            lines.setdefault(key, block.line)
            runs[key] += block.times_us if block.counts else ()
        yield from ((lines[key], str(key), times) for key, times in runs.items())
    else:
        repeated: dict[object, list[float]] = defaultdict(list)
        first: dict[object, SampleBlock] = {}
        for row in table.blocks:
            point = row.of_bytes(row.point.bytes)
            first.setdefault(point, row)
            repeated[point].append(row.median_us)
        yield from ((first[point].line, named(first[point]), times) for point, times in repeated.items())


# With these a row is judged all the same, and fails.
_JUDGED = (Kind.above_links, Kind.too_short)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file's rows that can be judged, and what is wrong with them and the others.

    ``names_release``: whether it says itself of which release it is; ``stand_in`` says which one stands for a release
    that is not known. ``wrong_results``: how many calls had wrong values. ``executed``: what NCCL's log says ran, by
    line.
    """

    path: Path
    table: Measurements
    problems: tuple[Problem, ...]
    names_release: bool
    wrong_results: int
    executed: dict[int, str]
    stand_in: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether rows are missing because something is wrong with them, or the results are wrong."""
        return bool(self.wrong_results) or any(problem.refused for problem in self.problems)


def read_results(path: Path | MeasurementFile, given: Given, scenario: Scenario) -> ResultFile:
    """The rows of a file, read before or not, or of a shipped table by its name, on the machine of ``scenario``.

    BadMeasurement where it cannot be read, or says otherwise than ``given``.
    """
    file = path if isinstance(path, MeasurementFile) else MeasurementFile(measured.file_of(path))
    path = file.path if isinstance(path, MeasurementFile) else path
    own = scenario.resolve().own
    given = replace(given, machine_gpus=len(own.topology.gpus))
    table = file.table(given)
    executed: dict[int, str] = {}
    if file.format is FileFormat.nccl_tests_text:
        executed = {
            row.line: f"{row.executed.algorithm.name}/{row.executed.protocol.name}"
            for row in table.blocks
            if row.executed is not None
        }
        rows = (replace(row, executed=None) for row in table.blocks)
        table = replace(table, blocks=tuple(rows))
    names_release = _names_release(file, table, given)
    stand_in = ""
    with suppress(UnknownRelease):  # of no minor release that is known: refused below
        name, stand_in = nearest_release(table.header.nccl or scenario.nccl)
        table = replace(table, header=replace(table.header, nccl=name)) if stand_in else table
    judged = plausible.judge(table, own.topology, own.trays)
    for each in judged.problems:
        if each.kind is Kind.too_many_gpus:
            raise BadMeasurement(
                f"{path}:{each.lines[0]}: {each.text}; valid: {option('machine')} of the machine that was measured"
            )
    problems = (*judged.problems, *_other_machine(table, scenario), *drifts(file, table, given))
    out = {line for each in problems if each.refused and each.kind not in _JUDGED for line in each.lines}
    if any(each.kind in (Kind.mixed_machines, Kind.mixed_releases) for each in problems):
        out = {row.line for row in table.blocks}
    return ResultFile(
        path,
        replace(table, blocks=tuple(row for row in table.blocks if row.line not in out)),
        problems,
        names_release=names_release,
        wrong_results=table.header.left_out.get(WRONG, 0),
        executed=executed,
        stand_in=stand_in,
    )


def _names_release(file: MeasurementFile, table: Measurements, given: Given) -> bool:
    if not given.nccl or file.format is FileFormat.parquet:
        return bool(table.header.nccl)
    return bool(file.table(replace(given, nccl="")).header.nccl)


UNNAMED_GPU = "Graphics Device"  # as a driver calls a GPU that is newer than it


def _other_machine(table: Measurements, scenario: Scenario) -> Iterator[Problem]:
    """A problem if the file names GPUs that the machine does not have."""
    kinds = [kind for kind in table.header.gpu.split(", ") if kind not in ("", UNNAMED_GPU)]
    own = scenario.gpu_models
    if not own or all(any(gpus.is_product(kind, model) for model in own) for kind in kinds):
        return
    has = ", ".join(own)
    text = f"the file says {', '.join(kinds)}, and {scenario.name} has {has}; valid: {option('machine')} of these GPUs"
    yield Problem(Kind.mixed_machines, tuple(row.line for row in table.blocks), text)


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """Options of a judgement: the machine and its settings, and what the files have to agree with.

    ``given`` has release, nodes and GPUs where they were said. ``calibration``: a name or file, None for the machine's.
    ``like``: a run of the same cluster on a healthy day, whose times are expected instead. ``log``: what a log beside
    the results shows of the run; what the results' own lines show is read as well.
    """

    scenario: Scenario
    given: Given = field(default_factory=Given)
    calibration: str | None = None
    like: Path | None = None
    log: LogFacts = NOTHING_LOGGED


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
    """Fault in rows of a file, whether a size fails by it or not."""

    file: str
    kind: str
    refused: bool
    lines: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class StartExtra:
    """Delay with which calls of a communicator start, us; None where no call is small enough to show it."""

    nodes: int
    gpus_per_node: int
    extra_us: float | None


@dataclass(frozen=True, slots=True)
class AdapterShare:
    """The part of what a node's adapters carry that the largest call of a curve between nodes reaches.

    ``usual``: the least and the most that public clusters reach, those aside that are known to be slow.
    """

    collective: str
    nodes: int
    bytes: int
    share: float
    usual: tuple[float, float]

    @property
    def looks_slow(self) -> bool:
        """Whether it is less than any such public cluster reaches: no verdict, for other sites may be so."""
        return self.share < self.usual[0]

    @property
    def in_words(self) -> str:
        """The share beside the usual ones."""
        low, high = self.usual
        return (
            f"{self.collective}, {plural(self.nodes, 'node')}, {human_bytes(self.bytes)}: {100 * self.share:.0f} % "
            f"of what a node's adapters carry; healthy public clusters: {100 * low:.0f} to {100 * high:.0f} %"
        )


SHARE_BYTES = 1 << 30  # smaller calls wait as well
# By whether it is an AllReduce: most nodes, and the least and most that calls from 1 GiB on all GPUs of as many reach
# in 26 tables of tables/measured. One cluster of H100 of an unknown release is left out as well, at 26 % on two nodes.
USUAL_SHARES = {
    True: ((2, 0.40, 0.96), (8, 0.30, 0.50), (math.inf, 0.18, 0.50)),
    False: ((2, 0.40, 0.84), (8, 0.62, 0.85), (math.inf, 0.35, 0.94)),
}


class RunVerdict(StrEnum):
    """Verdict on results; never a better one where a row is slower or a result is wrong."""

    passes = "pass"
    not_judged = "cannot be judged"
    fails = "FAIL"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whether results are those of a healthy machine, and why.

    ``judged``: whether that can be said; where not, ``missing`` says what would make it so. ``sizes`` has every size
    that was judged, ``skipped`` counts the rows that were not. ``expected_by`` says whose times were expected.
    ``diagnosis``: the faults that explain a loss, the best first. ``passes_as``: releases that all sizes would pass
    with, where some fail and the files do not name theirs. ``findings``: all of this as codes with facts, the gravest
    first; the first one is the verdict.
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
    adapter_shares: tuple[AdapterShare, ...]
    skipped: Mapping[str, int]
    sizes: tuple[JudgedSize, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> RunVerdict:
        """The verdict on all files together."""
        if self.passes:
            return RunVerdict.passes
        return RunVerdict.fails if self.judged else RunVerdict.not_judged


def accept(files: Sequence[Path | MeasurementFile], asked: AcceptOptions) -> Acceptance:
    """Judges the results of ``files``, read before or not.

    Sizes that are too slow or too fast fail, and so do rows that cannot be true.

    Errors: BadMeasurement for a file that cannot be read, says otherwise than ``asked``, or has no times;
    CannotBeJudged where every row is left out or of a release that is not known; BadInput for a scenario or calibration
    that is none.
    """
    read = [read_results(path, asked.given, asked.scenario) for path in files]
    like = None if asked.like is None else read_results(asked.like, asked.given, asked.scenario)
    skipped = Counter[str]()
    judged: list[tuple[ResultFile, str, JudgedCurve]] = []
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
        expected_by |= {file.stand_in: None for file in those if file.stand_in} | expectation.reasons
    for file in read:
        skipped.update({why: count for why, count in file.table.header.left_out.items() if why != WRONG})
    problems = [_problem(str(file.path), each) for file in read for each in file.problems]
    slipped = [_problem(each.curve.file, slip) for each, slip in judge.problems([each for _, _, each in judged])]
    refused = bool(slipped) or any(file.is_refused for file in read)
    passes = all(each.passes for _, _, each in judged)
    # AllToAll between nodes has no frozen split, and is not what collectives beside it are judged by.
    counted = [each for _, _, each in judged if not isinstance(each.curve.kind.request, Exchange)]
    ends_early = tuple(f"{REST} {file.path}, which ends within a row" for file in read if file.table.ends_early)
    known = not ends_early and all(each.judged for each in counted or [each for _, _, each in judged])
    faults = {each.kind: f"{each.file}: {each.text}" for each in problems if each.refused}
    is_wrong = slipped or any(file.wrong_results for file in read)
    if passes and faults.keys() == {Kind.unknown_release} and not is_wrong:
        raise CannotBeJudged(faults[Kind.unknown_release])
    if not judged and not refused:
        names = ", ".join(str(file.path) for file in read)
        if not skipped:
            raise BadMeasurement(f"{names}: no times in it; valid: what nccl-tests printed")
        reasons = "; ".join(f"{plural(count, 'row')}: {why}" for why, count in skipped.items())
        raise CannotBeJudged(f"{names}: {reasons}")
    return Acceptance(
        passes=passes and known and not refused,
        judged=known or not passes or refused,
        missing=ends_early or (() if known else (*_no_release(read, asked.given), *MISSING)),
        machine=asked.scenario.name,
        expected_by=tuple(expected_by),
        problems=(*problems, *slipped),
        wrong_results=sum(file.wrong_results for file in read),
        diagnosis=() if slipped else tuple(diagnoses),
        passes_as=() if refused or passes else _passes_as(read, asked),
        start_extra=tuple(extras),
        adapter_shares=tuple(share for file, _, each in judged for share in _adapter_share(file, each, asked.scenario)),
        skipped=dict(skipped),
        sizes=tuple(size for file, nccl, each in judged for size in _sizes(file, nccl, each)),
    )


REST = "the rest of"
MISSING = (
    "four rows of this cluster on a healthy day, spread over sizes, as a calibration of its own",
    "a run of this cluster that is known to be healthy, as a reference",
)


def _no_release(files: Sequence[ResultFile], given: Given) -> tuple[str, ...]:
    named = bool(given.nccl) or all(file.names_release for file in files)
    return () if named else ("the release that was measured: another one picks otherwise at sizes that are left open",)


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
    files: Sequence[ResultFile],
    expectation: Expectation,
    given: Given,
    skipped: Counter[str],
    *,
    a_release: bool = False,
) -> list[tuple[ResultFile, JudgedCurve]]:
    """Curves with their verdicts. A file that names no release says nothing of sizes that another one picks otherwise
    for, unless it is taken for one of ``a_release``."""
    of_files: list[tuple[ResultFile, Curve]] = []
    for file in files:
        table = replace(file.table, blocks=tuple(_wanted(file.table.blocks, given, skipped)))
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
        found = judge.judge(curve, expected, _least_us(file, curve, expectation))
        if not file.names_release and not given.nccl and not a_release:
            found = found.left_open(expectation.picked_otherwise(curve.kind, curve.bytes))
        if expectation.has_other_links(curve.kind.shape):
            found = found.left_open(np.ones(len(curve.bytes), np.bool_))
        judged.append((file, found))
    return judged


def _passes_as(files: Sequence[ResultFile], asked: AcceptOptions) -> tuple[str, ...]:
    """The releases whose times the files have, where they do not say of which they are."""
    if any(file.names_release for file in files):
        return ()
    accepted = []
    for nccl in asked.scenario.releases:
        expectation = Expectation(replace(asked.scenario, nccl=nccl), asked.calibration)
        judged = _judged(files, expectation, asked.given, Counter(), a_release=True)
        if judged and all(each.passes for _, each in judged):
            accepted.append(nccl)
    return tuple(accepted)


def _wanted(rows: Sequence[SampleBlock], given: Given, skipped: Counter[str]) -> Iterator[SampleBlock]:
    """Rows of the nodes and GPUs that were asked about."""
    for row in rows:
        if given.nodes not in (None, row.nodes) or given.gpus_per_node not in (None, row.gpus_per_node):
            skipped[f"of {row.nodes} x {row.gpus_per_node} GPUs"] += 1
        else:
            yield row


def _least_us(file: ResultFile, curve: Curve, expectation: Expectation) -> Array:
    """Times that the links alone take, us, and no more than a call can take at all, [size]."""
    own = expectation.scenario.resolve().own
    rows = {row.line: row for row in file.table.blocks}
    return np.array([plausible.fastest_us(rows[lines[0]], own.topology, own.trays) for lines in curve.lines])


def _adapter_share(file: ResultFile, judged: JudgedCurve, scenario: Scenario) -> Iterator[AdapterShare]:
    """Share of a curve on all GPUs of several nodes, where its largest call shows it."""
    own, request, shape = scenario.resolve().own, judged.curve.kind.request, judged.curve.kind.shape
    collectives = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
    nbytes = int(judged.curve.bytes[-1])
    if own.trays or isinstance(request, Exchange) or request.collective not in collectives or nbytes < SHARE_BYTES:
        return
    if shape.nodes < 2 or shape.gpus_per_node != len(own.topology.gpus) or not own.topology.nets:
        return
    if dict(shape.settings).get("NCCL_ALGO", "Ring").lower() != "ring":  # a forced tree carries half of it by itself
        return
    row = next(row for row in file.table.blocks if row.line == judged.curve.lines[-1][0])
    share = plausible.least_us(row, own.topology) / float(judged.curve.time_us[-1])
    by_nodes = USUAL_SHARES[request.collective is Collective.AllReduce]
    usual = next((low, high) for most, low, high in by_nodes if shape.nodes <= most)
    yield AdapterShare(request.collective.name, shape.nodes, nbytes, share, usual)


def _diagnosed(judged: Sequence[JudgedCurve], expectation: Expectation) -> tuple[Diagnosis, ...]:
    """Faults that explain the times of all curves, where any is too slow; nothing where times cannot be true."""
    verdicts = {verdict for each in judged for verdict in each.verdicts}
    if Verdict.slow not in verdicts or Verdict.fast in verdicts:
        return ()
    topology = expectation.scenario.resolve().own.topology
    curves_of = [each.curve for each in judged]
    # The form of AllToAll says less of the links than those of collectives do.
    of_collectives = [each for each in curves_of if not isinstance(each.kind.request, Exchange)]
    explained = diagnosis.diagnose(of_collectives or curves_of, expectation, topology)
    return explained or tuple(_small_messages(judged))


def _small_messages(judged: Sequence[JudgedCurve]) -> Iterator[Diagnosis]:
    """Explanation by the host where only small sizes are too slow, and no fault of the fabric explains it."""
    slow = [np.array([verdict is Verdict.slow for verdict in each.verdicts]) for each in judged]
    sizes = np.concatenate([each.curve.bytes[which] for each, which in zip(judged, slow, strict=True)])
    if sizes.max() >= judge.HOST_BYTES:
        return
    extra = [each.curve.time_us - each.expected.time_us for each in judged]
    extra_us = float(np.median(np.concatenate([us[which] for us, which in zip(extra, slow, strict=True)])))
    off = [np.log(each.curve.time_us / each.expected.time_us)[which] for each, which in zip(judged, slow, strict=True)]
    what = f"small calls take {extra_us:.3g} us longer, more than ways of launching differ by: the host, not the links"
    yield Diagnosis(Resource.small_messages, what, 0.0, float(np.median(np.concatenate(off))))


def _extras(judged: Sequence[JudgedCurve]) -> Iterator[StartExtra]:
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


def _sizes(file: ResultFile, nccl: str, judged: JudgedCurve) -> Iterator[JudgedSize]:
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


def write_junit(path: Path, acceptance: Acceptance) -> None:
    """Problems of the files are a suite of their own. BadInput where the file cannot be written."""
    root = ET.Element("testsuites", name=f"nccl-tuner accept {acceptance.machine}")
    for name, sizes in groupby(acceptance.sizes, suite):
        _add_suite(root, name, [(human_bytes(each.bytes), _failure(each)) for each in sizes])
    wrong = [f"{plural(acceptance.wrong_results, 'call')} had wrong results"] if acceptance.wrong_results else []
    refused = [f"{each.file}: {each.kind}: {each.text}" for each in acceptance.problems if each.refused]
    _add_suite(root, "files", [("results can be judged", "\n".join([*wrong, *refused]) or None)])
    cases = list(root.iter("testcase"))
    root.set("tests", str(len(cases)))
    root.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    ET.indent(root)
    write_text(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def suite(size: JudgedSize) -> str:
    """Words for what a size belongs to: collective, type, placement, GPUs, release."""
    placement = "in place" if size.in_place else "out of place"
    on = f"{size.nodes} x {size.gpus_per_node} GPUs"
    settings = "".join(f", {name}={value}" for name, value in size.settings.items())
    return f"{size.collective}, {size.dtype}, {placement}, {on}, NCCL {size.nccl}{settings}"


def _add_suite(root: ET.Element, name: str, cases: list[tuple[str, str | None]]) -> None:
    failures = sum(failure is not None for _, failure in cases)
    suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)), failures=str(failures))
    for case, failure in cases:
        element = ET.SubElement(suite, "testcase", classname=name, name=case)
        if failure is not None:
            ET.SubElement(element, "failure", message=failure.partition("\n")[0]).text = failure


def _failure(size: JudgedSize) -> str | None:
    if not size.verdict.fails:
        return None
    return (
        f"{size.verdict}: {size.time_us:.2f} us, expected {size.low_us:.2f} to {size.high_us:.2f}; "
        f"{size.busbw_gbs:.2f} GB/s, floor {size.floor_gbs:.2f}"
    )
