"""Judges whether a cluster's results are accepted: gives a verdict on every file, and names the faults to which a loss
points."""

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import groupby
from pathlib import Path
from statistics import median

import numpy as np

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, CannotBeJudged, TunerError, UnknownRelease
from tuner.base.files import write_text
from tuner.base.findings import Finding, Severity
from tuner.base.frames import Column, Framed, Rows
from tuner.base.nouns import Shape
from tuner.base.records import json_form
from tuner.base.sizes import human_bytes, plural
from tuner.base.spelling import option
from tuner.machine import described, gpus
from tuner.scenario import Scenario
from tuner.times import measured
from tuner.times.acceptance import curves, diagnosis, evidence, fabric, judge, public_runs, shapes
from tuner.times.acceptance.curves import Curve, Exchange
from tuner.times.acceptance.diagnosis import Diagnosis
from tuner.times.acceptance.evidence import NOTHING_LOGGED, LogFacts
from tuner.times.acceptance.expected import Expectation, ReferenceRun, Whose, expected_network, nothing
from tuner.times.acceptance.fabric import FabricCause, FabricFacts
from tuner.times.acceptance.faults import Resource
from tuner.times.acceptance.in_findings import RunVerdict, calls_of, in_findings
from tuner.times.acceptance.in_findings import wrong_results as wrong_results_finding
from tuner.times.acceptance.judge import JudgedCurve, SizeVerdict
from tuner.times.acceptance.public_runs import Network, RankedRun
from tuner.times.acceptance.shapes import CurveLoss, LossShape
from tuner.times.calibration import plausible
from tuner.times.measured import Kind, Problem
from tuner.times.measured.checks import named, nearest_release
from tuner.times.measured.formats import WRONG, FileFormat, Given, MeasurementFile
from tuner.times.measured.header import MeasuredHealth
from tuner.times.measured.nccl_tests import out_of_bounds
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.timemodel import calibration as calibrations
from tuner.times.timemodel.features import Array

_LONG = 6  # least number of times of a point that can show a drift
_SLOWER = 1.1  # the last third over the first, as the median over points
_MOST = 2 / 3  # share of the points that have to drift in the same direction


def drifts(file: MeasurementFile, table: Measurements, given: Given) -> Iterator[Problem]:
    """Yields a problem if calls become slower during the run.

    The last third of a point's times is compared with the first third. The result is a problem if most points take
    longer at the end, and the median point takes over 10 % longer. The repeated times of a point come from the calls in
    nccl-tests' JSON, from the samples in measurement files of this package, or from several rows of the same point.
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
    """Yields the line, name and times of each point; the times are in the order in which they were measured."""
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


# A row with one of these problems is judged nevertheless, and fails.
_JUDGED = (Kind.above_links, Kind.too_short)


@dataclass(frozen=True, slots=True)
class ResultFile:
    """The rows of a result file that can be judged, and the problems of all of its rows.

    ``names_release``: whether the file itself names its NCCL release. ``stand_in``: a note on the release that stands
    in for the file's release, if that is not known. ``executed``: what NCCL's log says ran, by line.
    """

    path: Path
    table: Measurements
    problems: tuple[Problem, ...]
    names_release: bool
    executed: dict[int, str]
    stand_in: str = ""
    wrong: "WrongResults | None" = None
    log: LogFacts = NOTHING_LOGGED

    @property
    def is_shipped(self) -> bool:
        """Whether the file is a shipped table, which is not compared with itself."""
        return self.table.name in measured.names() and not self.path.is_file()

    @property
    def is_refused(self) -> bool:
        """Whether rows were left out because something is wrong with them, or results have wrong values."""
        return self.wrong is not None or any(problem.refused for problem in self.problems)


@dataclass(frozen=True, slots=True)
class WrongResults:
    """The calls of a file that computed wrong results: how many, their sizes in bytes, the most wrong values in one
    call.

    ``out_of_bounds``: the count that nccl-tests prints at the end of its output, for files whose rows have no counts.
    """

    file: str
    calls: int
    sizes: tuple[int, ...]
    most: int
    in_place: int
    out_of_place: int
    lines: tuple[int, ...]
    out_of_bounds: int


def wrong_results(file: MeasurementFile, given: Given) -> WrongResults | None:
    """The wrong results in a file, whatever machine it is from; None if all results were right, or none were checked.

    BadMeasurement if the file cannot be read.
    """
    found = file.read(given)
    wrong = [block for block in found.blocks if block.wrong > 0]
    out_of_bounds = found.header.out_of_bounds or 0
    if not wrong and not out_of_bounds:
        return None
    return WrongResults(
        file=str(file.path),
        calls=len(wrong) or out_of_bounds,
        sizes=tuple(sorted({block.point.bytes for block in wrong})),
        most=max((block.wrong for block in wrong), default=0),
        in_place=sum(bool(block.point.in_place) for block in wrong),
        out_of_place=sum(not block.point.in_place for block in wrong),
        lines=tuple(sorted({block.line for block in wrong})),
        out_of_bounds=out_of_bounds,
    )


def read_results(path: Path | MeasurementFile, given: Given, scenario: Scenario) -> ResultFile:
    """Reads the rows to judge on the machine of ``scenario``: from a path, a file that is read already, or a table's
    name.

    BadMeasurement if the file cannot be read or contradicts ``given``. CannotBeJudged if the file's GPUs are not
    NVIDIA's, so that NCCL does not run on them.
    """
    file = path if isinstance(path, MeasurementFile) else MeasurementFile(measured.file_of(path))
    path = file.path if isinstance(path, MeasurementFile) else path
    own = scenario.resolve().own
    given = replace(given, machine_gpus=len(own.topology.gpus))
    table = file.table(given)
    if table.other_hosts:
        raise BadMeasurement(table.other_hosts)
    if of_amd := not_of_nccl(table.header.gpu):
        raise CannotBeJudged(f"{path}: {of_amd}")
    executed: dict[int, str] = {}
    if file.format is FileFormat.nccl_tests_text:
        executed = {
            row.line: f"{row.executed.algorithm.name}/{row.executed.protocol.name}"
            for row in table.blocks
            if row.executed is not None
        }
        rows = (replace(row, executed=None) for row in table.blocks)
        table = replace(table, blocks=tuple(rows))
    without = scenario.machine if not own.topology.nets and any((row.nodes or 1) > 1 for row in table.blocks) else None
    if without and (with_one := described.with_adapter(without)) and own.trays is None:
        raise BadMeasurement(
            f"{path} was measured on several nodes, but {without} has no adapter: describe your adapters, as in "
            f"{option('machine')} {with_one}"
        )
    names_release = _names_release(file, table, given)
    stand_in = ""
    with suppress(UnknownRelease):  # no minor release of it is known; this is refused below
        name, stand_in = nearest_release(table.header.nccl or scenario.nccl)
        table = replace(table, header=replace(table.header, nccl=name)) if stand_in else table
    found = plausible.judge(table, own.topology, own.trays)
    for each in found:
        if each.kind is Kind.too_many_gpus:
            raise BadMeasurement(
                f"{path}:{each.lines[0]}: {each.text}: give {option('machine')} of the machine that was measured"
            )
        if each.kind is Kind.too_short and 2 * len(each.lines) > len(table.blocks):
            raise BadMeasurement(f"{path}:{each.lines[0]}: {each.text}, so nothing of the file is judged")
    problems = (*found, *_other_machine(table, scenario), *drifts(file, table, given))
    return ResultFile(
        path,
        plausible.usable(table, problems, despite=_JUDGED),
        problems,
        names_release=names_release,
        executed=executed,
        stand_in=stand_in,
        wrong=wrong_results(file, given),
        log=evidence.of_file(path) if file.format is FileFormat.nccl_tests_text else NOTHING_LOGGED,
    )


def not_of_nccl(gpu: str) -> str:
    """Reason why results on a GPU are not judged if NCCL does not run on it, else empty. ``gpu``: the GPU's name in
    files.
    """
    if "AMD" not in gpu.upper():
        return ""
    return f"results on {gpu}: AMD's library RCCL runs there, whose choices and times are not known here"


def _names_release(file: MeasurementFile, table: Measurements, given: Given) -> bool:
    if not given.nccl or file.format is FileFormat.parquet:
        return bool(table.header.nccl)
    return bool(file.table(replace(given, nccl="")).header.nccl)


UNNAMED_GPU = "Graphics Device"  # a driver that is older than a GPU uses this name


def _other_machine(table: Measurements, scenario: Scenario) -> Iterator[Problem]:
    """Yields a problem if the file names GPUs that the machine does not have."""
    kinds = [kind for kind in table.header.gpu.split(", ") if kind not in ("", UNNAMED_GPU)]
    own = scenario.gpu_models
    if not own or all(any(gpus.is_product(kind, model) for model in own) for kind in kinds):
        return
    has = ", ".join(own)
    text = f"the file says {', '.join(kinds)}, and {scenario.name} has {has}; valid: {option('machine')} of these GPUs"
    yield Problem(Kind.mixed_machines, tuple(row.line for row in table.blocks), text)


@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """Options of ``accept``: the machine and its settings, and the facts that the files must not contradict.

    ``given`` has the release, nodes and GPUs that the user named. ``calibration``: a name or file; None takes the
    calibration of the machine. ``like``: a run of the same cluster on a healthy day; its times are then the expected
    times. ``log``: what a separate log of the run shows; log lines in the result files are read as well.
    """

    scenario: Scenario
    given: Given = field(default_factory=Given)
    calibration: str | None = None
    like: Path | None = None
    log: LogFacts = NOTHING_LOGGED


@dataclass(frozen=True, slots=True)
class JudgedSize:
    """One size of a curve: its time in us and the times that pass, its bandwidth in GB/s, NCCL's pick and the verdict.

    ``limit`` and ``limit_alone`` are factors over the expected time: above ``limit`` the size is slow, above
    ``limit_alone`` it fails by itself. ``runs``: how many public runs the expected time comes from, 0 if it comes from
    a model. Numbers are NaN if there is no expected time.
    """

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
    limit: float
    limit_alone: float
    runs: int
    verdict: SizeVerdict

    @property
    def shape_words(self) -> str:
        """The nodes, GPUs, NCCL release and settings as text."""
        settings = "".join(f", {name}={value}" for name, value in self.settings.items())
        return f"{self.nodes} x {self.gpus_per_node} GPUs, NCCL {self.nccl}{settings}"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something that is wrong in rows of a file, whether or not a size fails because of it."""

    file: str
    kind: str
    refused: bool
    lines: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class StartExtra(Shape):
    """How much later than expected a communicator's calls start, us; None if no call is small enough to show it."""

    extra_us: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Acceptance(Framed):
    """Whether results are those of a healthy machine, and why. As a data frame it has one row per element of ``sizes``.

    ``judged``: whether there is a verdict; if not, ``missing`` says what would allow one. ``sizes`` has every size that
    was judged, ``skipped`` counts the other rows by reason. ``expected_by`` says where the expected times come from.
    ``diagnosis``: the faults that explain a loss, the best explanation first. ``passes_as``: releases with which all
    sizes would pass, if some fail and the files name no release. ``findings``: the whole answer as codes with facts.
    The verdict comes first; only findings of wrong results come before it.
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
    comparisons: tuple[RankedRun, ...]
    skipped: Mapping[str, int]
    sizes: tuple[JudgedSize, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def calls_judged(self) -> tuple[int, int]:
        """How many calls fail, and how many were judged; a size in place and out of place counts as one call."""
        return calls_of(each for each in self.sizes if each.verdict.fails), calls_of(self.sizes)

    def columns(self) -> dict[str, Column]:
        """The fields of :class:`JudgedSize` as columns with one element per size: times in us, bandwidths in GB/s."""
        return Rows(self.sizes).columns()

    @property
    def verdict(self) -> RunVerdict:
        """The verdict on all files together."""
        if self.passes:
            return RunVerdict.passes
        return RunVerdict.fails if self.judged else RunVerdict.not_judged


def accept(files: Sequence[Path | MeasurementFile], asked: AcceptOptions) -> Acceptance:
    """Judges the results of ``files``, which are paths or files that are read already.

    Sizes that are too slow or too fast fail, and so do rows that cannot be true. Wrong results fail, whatever else can
    be judged. If a file has any, none of the errors below is raised; a finding then has the error's text.

    BadMeasurement if a file cannot be read, contradicts ``asked``, or has no times. CannotBeJudged if every row is left
    out or has an unknown release. BadInput if the scenario or calibration is invalid.
    """
    try:
        return _accepted(files, asked)
    except TunerError as error:
        if (wrong := wrong_alone(files, asked.given, error, asked.scenario.name)) is None:
            raise
        return wrong


def wrong_alone(
    files: Sequence[Path | MeasurementFile], given: Given, error: TunerError, machine: str = ""
) -> Acceptance | None:
    """The verdict on files with wrong results whose times cannot be judged because of ``error``; None if no file has
    any.
    """
    wrong: list[WrongResults] = []
    for each in files:
        with suppress(TunerError):  # the error says what is wrong with the file
            file = each if isinstance(each, MeasurementFile) else MeasurementFile(measured.file_of(each))
            wrong += _wrong_anywhere(file, given)
    if not wrong:
        return None
    made = Acceptance(
        passes=False,
        judged=True,
        missing=(),
        machine=machine,
        expected_by=(),
        problems=(),
        wrong_results=sum(each.calls for each in wrong),
        diagnosis=(),
        passes_as=(),
        start_extra=(),
        comparisons=(),
        skipped={},
        sizes=(),
    )
    times = Finding("accept.times_not_judged", Severity.UNKNOWN, {"text": str(error)})
    return replace(made, findings=(*map(wrong_results_finding, wrong), times))


def _wrong_anywhere(file: MeasurementFile, given: Given) -> Iterator["WrongResults"]:
    """The wrong results of a file: by its rows, else, where these cannot be read, by nccl-tests' last lines."""
    try:
        found = wrong_results(file, given)
    except TunerError:
        calls = out_of_bounds(file.text) or 0
        found = WrongResults(str(file.path), calls, (), 0, 0, 0, (), calls) if calls else None
    yield from filter(None, [found])


def _accepted(files: Sequence[Path | MeasurementFile], asked: AcceptOptions) -> Acceptance:
    """The verdict, with the errors of :func:`accept` wherever results are wrong, too."""
    read = [read_results(path, asked.given, asked.scenario) for path in files]
    like = None if asked.like is None else read_results(asked.like, asked.given, asked.scenario)
    skipped = Counter[str]()
    judged: list[tuple[ResultFile, str, JudgedCurve]] = []
    extras: list[StartExtra] = []
    diagnoses: list[Diagnosis] = []
    expected_by: dict[str, None] = {}
    comparisons: list[RankedRun] = []
    losses: list[tuple[JudgedCurve, CurveLoss]] = []
    other_links: list[Finding] = []
    for nccl, those in _by_release(read, asked).items():
        scenario = replace(asked.scenario, nccl=nccl)
        expectation = Expectation(scenario, asked.calibration, _network(those, asked))
        expectation.of_site = None if asked.calibration else _of_site(those)
        expectation.judged_tables = frozenset(file.table.name for file in those if file.is_shipped)
        if like is not None:
            reference = curves.of_table(like.table, str(like.path), scenario)[0]
            expectation = ReferenceRun(scenario, asked.calibration, reference)
        own = _judged(those, expectation, asked.given, skipped)
        judged += [(file, nccl, each) for file, each in own]
        extras += _extras([each for _, each in own])
        for _, each in own:
            if SizeVerdict.fast not in each.verdicts:  # a time that the links cannot reach has no rank
                comparisons += filter(None, [expectation.ranked(each.curve)])
            losses += [(each, loss) for loss in [shapes.loss_of(each)] if loss is not None]
        diagnoses += _diagnosed(own, expectation, asked.log)
        other_links += filter(None, [expectation.other_links])
        expected_by |= {file.stand_in: None for file in those if file.stand_in} | _expected_by(own, expectation)
    for file in read:
        skipped.update({why: count for why, count in file.table.header.left_out.items() if why != WRONG})
    problems = [_problem(str(file.path), each) for file in read for each in file.problems]
    slipped = [_problem(each.curve.file, slip) for each, slip in judge.problems([each for _, _, each in judged])]
    refused = bool(slipped) or any(file.is_refused for file in read)
    passes = all(each.passes for _, _, each in judged)
    # AllToAll between nodes is in no frozen split, and the collectives beside it are not judged by it.
    counted = [each for _, _, each in judged if not isinstance(each.curve.kind.request, Exchange)]
    ends_early = tuple(f"{REST} {file.path}, which ends within a row" for file in read if file.table.ends_early)
    known = not ends_early and _mostly_known(counted or [each for _, _, each in judged])
    by_kind = {each.kind: f"{each.file}: {each.text}" for each in problems if each.refused}
    is_wrong = slipped or any(file.wrong for file in read)
    if passes and by_kind.keys() == {Kind.unknown_release} and not is_wrong:
        raise CannotBeJudged(by_kind[Kind.unknown_release])
    if not judged and not refused:
        names = ", ".join(str(file.path) for file in read)
        if not skipped:
            raise BadMeasurement(f"{names} has no times: give what nccl-tests printed")
        reasons = "; ".join(f"{plural(count, 'row')}: {why}" for why, count in skipped.items())
        raise CannotBeJudged(f"{names}: {reasons}")
    made = Acceptance(
        passes=passes and known and not refused,
        judged=known or not passes or refused,
        missing=ends_early or (() if known else (*_no_release(read, asked.given), *_missing(counted))),
        machine=asked.scenario.name,
        expected_by=tuple(expected_by),
        problems=(*problems, *slipped),
        wrong_results=sum(file.wrong.calls for file in read if file.wrong),
        diagnosis=() if slipped else tuple(diagnoses),
        passes_as=() if refused or passes or len(judged[0][2].curve.bytes) < FEW_SIZES else _passes_as(read, asked),
        start_extra=tuple(extras),
        comparisons=tuple(comparisons),
        skipped=dict(skipped),
        sizes=tuple(size for file, nccl, each in judged for size in _sizes(file, nccl, each)),
    )
    findings = in_findings(
        made,
        wrong=[file.wrong for file in read if file.wrong],
        ends_early=bool(ends_early),
        curves=[each for _, _, each in judged],
        losses=losses,
        logs=[file.log.joined(asked.log) for file in read],
        other_links=other_links,
        fabric={} if made.passes or slipped else _fabric_causes(judged, losses, asked),
    )
    return replace(made, findings=tuple(findings))


def _fabric_causes(
    judged: Sequence[tuple[ResultFile, str, JudgedCurve]],
    losses: Sequence[tuple[JudgedCurve, CurveLoss]],
    asked: AcceptOptions,
) -> dict[tuple[str, ...], Sequence[FabricCause]]:
    """Maps calls, named in words, to the causes that the shapes of their losses leave possible. If all failing curves
    share causes, there is one entry with these; else each curve has its own. Within a node only losses that grow with
    the size are explained.
    """
    files = {id(each): file for file, _, each in judged}
    topology = asked.scenario.resolve().own.topology
    every = [each for _, _, each in judged]
    found: dict[str, list[FabricCause]] = {}
    for each, loss in losses:
        kind = each.curve.kind
        if each.passes or kind.sockets or (kind.shape.nodes == 1 and loss.shape is not LossShape.falling):
            continue
        file = files[id(each)]
        log = file.log.joined(asked.log)
        if any(name.lower().startswith("socket") for name in log.networks):
            continue  # this is the cause
        facts = FabricFacts(
            network=_network([file], asked) or expected_network(asked.scenario),
            adapters=len(topology.nets),
            reduces=plausible.reduces_in_switch(topology, kind.shape.gpus_per_node),
            as_picked=_ran_as_picked(file, each),
            log=log,
        )
        calls = f"{kind.request.collective.name} on {plural(kind.shape.nodes, 'node')}"
        causes = fabric.causes(each, loss, every, facts)
        before = found.get(calls, causes)
        found[calls] = [cause for cause in causes if cause in before] or [*before, *causes]
    found = {calls: list(dict.fromkeys(causes)) for calls, causes in found.items() if causes}
    common = [cause for cause in next(iter(found.values()), []) if all(cause in each for each in found.values())]
    return {tuple(found): common} if common else {(calls,): causes for calls, causes in found.items()}


def _ran_as_picked(file: ResultFile, judged: JudgedCurve) -> bool:
    """Whether the log shows that NCCL's own choice ran at every slow size."""
    names = judged.expected.pick_names()
    ran = [
        file.executed.get(lines[0]) == name
        for lines, name, verdict in zip(judged.curve.lines, names, judged.verdicts, strict=True)
        if verdict is SizeVerdict.slow
    ]
    return bool(ran) and all(ran)


FEW_SIZES = 4  # fewer sizes cannot tell one release from another
REST = "the rest of"
_HEALTHY_RUN = "a run of this cluster that is known to be healthy, as a reference"
_OWN_CALIBRATION = "four rows of this cluster on a healthy day, spread over sizes, as a calibration of its own"


_FORCES = {"NCCL_ALGO", "NCCL_PROTO"}


def _mostly_known(judged: Sequence[JudgedCurve]) -> bool:
    """Whether half of the deciding sizes are judged, both in every curve without a forced choice and in all curves
    together.
    """
    if not judged:
        return True
    chosen = [each for each in judged if not _FORCES & dict(each.curve.kind.shape.settings).keys()]
    known = np.concatenate([each.known for each in judged])
    return all(each.judged for each in chosen) and float(known.mean()) >= judge.MOST


def _missing(collectives: Sequence[JudgedCurve]) -> Iterator[str]:
    """What the user could add so that sizes can be judged. Without ``collectives`` a calibration is not among it,
    because calibrations have no times of sends."""
    if collectives:
        yield _OWN_CALIBRATION
    yield _HEALTHY_RUN


def _no_release(files: Sequence[ResultFile], given: Given) -> tuple[str, ...]:
    named = bool(given.nccl) or all(file.names_release for file in files)
    return () if named else ("the release that was measured: at sizes left open another release makes other picks",)


def _of_site(files: Sequence[ResultFile]) -> str | None:
    """Name of the shipped calibration of the site that the files name; None if they name no site or several sites."""
    sites = {file.table.header.site for file in files}
    return calibrations.of_site(sites.pop()) if len(sites) == 1 else None


def _network(files: Sequence[ResultFile], asked: AcceptOptions) -> Network | None:
    """The kind of network that the logs show; None if they show no network, several networks, or sockets.

    A run over sockets is compared with the network that the machine has.
    """
    named = {name for file in files for name in file.log.joined(asked.log).networks}
    if len(named) != 1 or any(name.lower().startswith("socket") for name in named):
        return None
    return public_runs.network_in_words(named.pop(), expected_network(asked.scenario))


def _expected_by(judged: Sequence[tuple[ResultFile, JudgedCurve]], expectation: Expectation) -> dict[str, None]:
    """Sentences that say where the expected times come from: public runs, or which calibration and why that one."""
    runs: dict[Whose, list[int]] = {}
    count = 0
    for _, each in judged:
        count += len(each.curve.bytes)
        for at, whose in enumerate(each.expected.whose):
            number = 0 if each.expected.runs is None else int(each.expected.runs[at])
            runs.setdefault(whose, []).append(number)
    reasons: dict[str, None] = {}
    for whose, words in ((Whose.public, "of the same class"), (Whose.nearest, "of the nearest classes")):
        if numbers := runs.get(whose):
            between = f"{min(numbers)} to {max(numbers)}" if min(numbers) < max(numbers) else str(min(numbers))
            reasons[f"{between} healthy runs {words}, at {len(numbers)} of {count} sizes"] = None
    if runs.keys() - {Whose.public, Whose.nearest, Whose.nothing}:
        reasons |= expectation.reasons
    return reasons


def _by_release(files: Sequence[ResultFile], asked: AcceptOptions) -> dict[str, list[ResultFile]]:
    """The files by NCCL release: the release that was given, else the one the file names, else the scenario's."""
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
    """Judges the curves of files. A file may name no release; then a size at which releases pick differently is left
    open, if its expected time comes from a model. ``a_release`` says that the scenario's release is right, so that
    nothing is left open.
    """
    of_files: list[tuple[ResultFile, Curve]] = []
    for file in files:
        table = replace(file.table, blocks=tuple(_wanted(file.table.blocks, given, skipped)))
        for name, part in _apart(table, str(file.path)):
            own, why = curves.of_table(part, name, expectation.scenario)
            skipped.update(why)
            of_files += [(file, each) for each in own]
    judged = []
    unexpected: list[tuple[ResultFile, Curve, str]] = []
    for file, curve in of_files:
        try:
            expected = expectation.times(curve.kind, curve.bytes)
        except TunerError as error:  # the forced choice cannot run by NCCL's rules, or a setting is not emulated
            unexpected.append((file, curve, str(error)))
            continue
        found = judge.judge(curve, expected, _least_us(file, curve, expectation))
        by_model = np.array([whose in (Whose.calibrated, Whose.nccl) for whose in expected.whose])
        if by_model.any() and not file.names_release and not given.nccl and not a_release:
            found = found.left_open(by_model & expectation.picked_otherwise(curve.kind, curve.bytes))
        if by_model.any() and expectation.has_other_links(curve.kind.shape):
            found = found.left_open(by_model)
        judged.append((file, found))
    no_others = not judged
    for file, curve, reason in unexpected:
        found = judge.judge(curve, nothing(len(curve.bytes)), _least_us(file, curve, expectation))
        sends = isinstance(curve.kind.request, Exchange) and not isinstance(expectation, ReferenceRun)
        if sends and (no_others or found.beyond_links.any()):  # the links alone can make them fail
            judged.append((file, found))
        else:
            skipped[reason] += sum(map(len, curve.lines))
    return judged


def _apart(table: Measurements, name: str) -> Iterator[tuple[str, Measurements]]:
    """The table, or its parts whose hardware differs in health, each with a name: times of a healthy and of a degraded
    run have no common median.
    """
    parts: dict[MeasuredHealth, list[SampleBlock]] = defaultdict(list)
    for row in table.blocks:
        parts[table.health_of(row)].append(row)
    for rows in parts.values():
        runs = ", ".join(dict.fromkeys(row.run for row in rows)) if len(parts) > 1 else ""
        yield f"{name}, {runs}" if runs else name, replace(table, blocks=tuple(rows))


def _passes_as(files: Sequence[ResultFile], asked: AcceptOptions) -> tuple[str, ...]:
    """The releases with which every curve passes, if no file names its release; empty if a file does."""
    if any(file.names_release for file in files):
        return ()
    accepted, failed_with = [], asked.scenario.nccl
    for nccl in sorted(asked.scenario.releases, key=lambda each: each != failed_with):  # the run's own release first
        expectation = Expectation(replace(asked.scenario, nccl=nccl), asked.calibration)
        judged = _judged(files, expectation, asked.given, Counter(), a_release=True)
        if judged and all(each.passes for _, each in judged):
            if nccl == failed_with:  # then something else than the release makes it fail
                return ()
            accepted.append(nccl)
    return tuple(accepted)


def _wanted(rows: Sequence[SampleBlock], given: Given, skipped: Counter[str]) -> Iterator[SampleBlock]:
    """Yields the rows with the numbers of nodes and GPUs that ``given`` names; counts the other rows in ``skipped``."""
    for row in rows:
        if given.nodes not in (None, row.nodes) or given.gpus_per_node not in (None, row.gpus_per_node):
            skipped[f"of {row.nodes} x {row.gpus_per_node} GPUs"] += 1
        else:
            yield row


def _least_us(file: ResultFile, curve: Curve, expectation: Expectation) -> Array:
    """For each size, the time in us below which a row cannot be true: the time that the links alone need, less a
    margin."""
    own = expectation.scenario.resolve().own
    rows = {row.line: row for row in file.table.blocks}
    fastest_us = plausible.fastest_us_on(own.topology, own.trays)
    return np.array([fastest_us(rows[lines[0]]) for lines in curve.lines])


def _diagnosed(
    judged: Sequence[tuple[ResultFile, JudgedCurve]], expectation: Expectation, log: LogFacts
) -> tuple[Diagnosis, ...]:
    """Faults that explain the times of all curves and that no log refutes; empty if no size is too slow, or if some
    times are too short to be true.
    """
    judged = [each for each in judged if set(each[1].expected.whose) != {Whose.nothing}]
    verdicts = {verdict for _, each in judged for verdict in each.verdicts}
    if SizeVerdict.slow not in verdicts or SizeVerdict.fast in verdicts:
        return ()
    topology = expectation.scenario.resolve().own.topology
    failing = [each for _, each in judged if not each.passes]
    losses = [loss for each in failing for loss in [shapes.loss_of(each)] if loss is not None]
    if losses and all(loss.shape is LossShape.alone for loss in losses):
        return ()  # a fault of the machine shows at more than one size
    # If only one placement of a call is slow, the other placement says nothing about the fault.
    failing_calls = {replace(each.curve.kind, in_place=False) for each in failing}
    curves_of = [
        each.curve
        for _, each in judged
        if not each.passes or replace(each.curve.kind, in_place=False) not in failing_calls
    ]
    if any(each.kind.sockets for each in curves_of):
        return (Diagnosis(Resource.sockets, "the file says that NCCL talked over TCP sockets", 0.0, 0.0),)
    # The form for AllToAll says less about the links than those for collectives.
    of_collectives = [each for each in curves_of if not isinstance(each.kind.request, Exchange)]
    if not of_collectives and any(each.kind.request.collective.name != "AllToAll" for each in curves_of):
        return ()
    explained = diagnosis.diagnose(of_collectives or curves_of, expectation, topology)
    logs = [file.log.joined(log) for file, _ in judged]
    adapters = len(topology.nets)
    refuted = _refuted_in_a_node([each for _, each in judged])
    networks = {file.table.network_of(row) for file, _ in judged for row in file.table.blocks}
    if "" not in networks:  # and sockets were answered above
        refuted.add(Resource.sockets)
    kept = tuple(
        each
        for each in explained
        if each.resource not in refuted and not any(evidence.refutes(one, each, adapters) for one in logs)
    )
    return kept or (() if explained else tuple(_small_messages([each for _, each in judged])))


def _refuted_in_a_node(judged: Sequence[JudgedCurve]) -> set[Resource]:
    """Parts of a node that cannot be at fault, because the one-node runs in the same files pass up to large calls."""
    alone = [
        each
        for each in judged
        if each.curve.kind.shape.nodes == 1
        and each.curve.kind.shape.gpus_per_node > 2
        and each.judged
        and each.curve.bytes[-1] >= judge.BANDWIDTH_BYTES
    ]
    if not alone or not all(each.passes for each in alone):
        return set()
    reduced = any(each.curve.kind.request.collective.name == "AllReduce" for each in alone)
    return {Resource.nvlinks, Resource.p2p} | ({Resource.nvls} if reduced else set())


def _small_messages(judged: Sequence[JudgedCurve]) -> Iterator[Diagnosis]:
    """Yields the host as the explanation if only small sizes are too slow and no fault of the fabric explains them."""
    slow = [np.array([verdict is SizeVerdict.slow for verdict in each.verdicts]) for each in judged]
    sizes = np.concatenate([each.curve.bytes[which] for each, which in zip(judged, slow, strict=True)])
    if sizes.max() >= judge.HOST_BYTES:
        return
    extra = [each.curve.time_us - each.expected.time_us for each in judged]
    extra_us = median(np.concatenate([us[which] for us, which in zip(extra, slow, strict=True)]).tolist())
    off = [np.log(each.curve.time_us / each.expected.time_us)[which] for each, which in zip(judged, slow, strict=True)]
    what = f"small calls take {extra_us:.3g} us longer, more than ways of launching differ: the host, not the links"
    yield Diagnosis(Resource.small_messages, what, 0.0, median(np.concatenate(off).tolist()))


def _extras(judged: Sequence[JudgedCurve]) -> Iterator[StartExtra]:
    starts: dict[tuple[int, int], list[float]] = defaultdict(list)
    for each in judged:
        shape = each.curve.kind.shape
        starts[shape.nodes, shape.gpus_per_node] += [] if each.start_us is None else [each.start_us]
    for (nodes, gpus_per_node), those in starts.items():
        yield StartExtra(nodes, gpus_per_node, round(median(those), 2) if those else None)


def _problem(file: str, problem: Problem) -> FileProblem:
    return FileProblem(file, problem.kind, problem.refused, problem.lines, problem.text)


def _sizes(file: ResultFile, nccl: str, judged: JudgedCurve) -> Iterator[JudgedSize]:
    curve, expected, kind = judged.curve, judged.expected, judged.curve.kind
    names, busbw_gbs, floor_gbs = expected.pick_names(), judged.busbw_gbs, judged.floor_gbs
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
            busbw_gbs=float(busbw_gbs[at]),
            floor_gbs=float(floor_gbs[at]),
            time=judged.expected.whose[at],
            measured=bool(expected.measured[at]),
            limit=float(expected.high[at]),
            limit_alone=float(expected.far[at]),
            runs=0 if expected.runs is None else int(expected.runs[at]),
            verdict=judged.verdicts[at],
        )


def write_junit(path: Path, acceptance: Acceptance) -> None:
    """Writes the verdicts as JUnit XML; the files' problems are a separate suite. BadInput if it cannot be written."""
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
    """Name of the suite that a size belongs to: collective, type, placement, GPUs, release."""
    placement = "in place" if size.in_place else "out of place"
    return f"{size.collective}, {size.dtype}, {placement}, {size.shape_words}"


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
