"""Makes a decision table for the plugin from files of measurements, and tells the gain of each row."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, field, replace
from itertools import chain, groupby
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadMeasurement, CannotBeJudged
from tuner.base.frames import Column, Framed, of_records
from tuner.base.names import Collective
from tuner.base.records import Files, json_form, paths, sha256, today
from tuner.bench.decision.gate import GateSettings, RowVerdict, of_one_table, tried
from tuner.bench.decision.rows import DecisionRow, Proposal, Regrets, proposed, regrets, table
from tuner.bench.opened import OtherRank, again, serves
from tuner.plugin.headers import NCCL
from tuner.plugin.lint import GAPS
from tuner.plugin.table.parse import size_text, write
from tuner.plugin.table.records import Table
from tuner.plugin.table.values import GPUS
from tuner.times.measured.header import noting, scenario_of
from tuner.times.measured.samples import Combination, SampleBlock, Writer, check_same, existing, sha256s
from tuner.times.picks import JudgedPick
from tuner.times.regret import workflow
from tuner.times.regret.judged import RunsPick, best_arm
from tuner.times.regret.workflow import MeasuredRegret, RecommendedRow, RunsQuery, recommended

DEFAULT_GATE = GateSettings()


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A row that was decided, for communicators of ``ranks`` ranks on ``nodes`` nodes; ``row`` is its text in the
    table.

    If ``high_bytes`` is None, the row is for all sizes from ``low_bytes`` on. ``gain`` is how much faster the calls are
    with the row; its 95 % interval is from ``gain_low`` to ``gain_high``. ``probability`` is that of an improvement,
    corrected because all rows of the table are tested together. These values are shares of 1; without an A/B run, those
    that are not known are None. ``sizes`` are the sizes that were tried, in bytes. ``cut`` are measured sizes that were
    removed from the row, because it was slower at them or between them and the remaining sizes. ``reason`` says why the
    row was dropped.
    """

    ranks: int
    nodes: int
    row: str
    collective: Collective
    low_bytes: int
    high_bytes: int | None
    choice: Combination = field(metadata=json_form(convert=str))
    gain: float | None
    probability: float | None
    sizes: tuple[int, ...]
    reason: str | None = field(metadata=json_form(optional=True))
    gain_low: float | None = None
    gain_high: float | None = None
    cut: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecidedFile:
    """The mean regrets at the sizes of one file, with NCCL's picks and with the table.

    Regret is the share of time by which a choice is slower than the best measured one.

    For ``hold_out``, rows are made from every other size only, and their regrets are taken at the sizes in between.
    ``origin`` says where the times come from.
    """

    file: Path
    ranks: int
    nodes: int
    regret_before: float
    regret_after: float
    hold_out: Regrets
    origin: str


@dataclass(frozen=True, slots=True)
class OtherRanks:
    """How rows that were made for one number of ranks would perform on another number of ranks.

    The plugin does not use them there: a row only applies to its own number of ranks.
    """

    decided_at: int
    tried_at: int
    regrets: Regrets = field(metadata=json_form(merged=True))


@dataclass(frozen=True, slots=True)
class Decided(Framed):
    """Answer of :func:`decide`: the table it wrote, the rows it kept and dropped, and mean regrets over all files.

    ``stand_in`` is a sentence if the tables lack the measured release, and the nearest release was used instead; else
    it is empty.

    As a data frame it has one row for each row of a table, the kept ones first.
    """

    table: Path
    gate: bool
    kept: tuple[DecidedRow, ...]
    dropped: tuple[DecidedRow, ...]
    regret_before: float
    regret_after: float
    files: tuple[DecidedFile, ...]
    other_ranks: tuple[OtherRanks, ...]
    stand_in: str = ""

    def columns(self) -> dict[str, Column]:
        """Columns, an array [row] each: collective, low_bytes, high_bytes (-1: none), choice, ranks, nodes, gain,
        probability (NaN: none).
        """
        rows = [*self.kept, *self.dropped]
        numbers = dict.fromkeys(("gain", "probability", "gain_low", "gain_high"), np.float64)
        high = {"high_bytes": np.array([-1 if row.high_bytes is None else row.high_bytes for row in rows], int)}
        sizes = of_records(rows, collective=int, low_bytes=int) | high
        return sizes | of_records(rows, choice=str, ranks=int, nodes=int, **numbers, reason=str)


def decide(
    files: Files,
    *,
    out: str | PathLike[str],
    constants: str | PathLike[str] | None = None,
    gate: GateSettings | None = DEFAULT_GATE,
    command: str | None = None,
) -> Decided:
    """Writes ``out``, a table of few rows, from files that ``nccl-tuner measure`` wrote, one file for each communicator
    size.

    A row stays only if an A/B run through the plugin shows that it gains more than 2 %, with a probability of at least
    0.975 for all rows of the table together. The A/B run is on the backend that measured the file, in several fresh
    processes, and is kept beside ``out``, as out.ab.jsonl. Without a ``gate`` (None) there is no such run, and the
    table says so. Without ``constants``, a row ends halfway between two measured sizes. With a file of fitted
    ``constants``, it ends where the times that they predict for the two choices cross. ``command`` is the command line
    that the table names as its origin. BadMeasurement for files that cannot be judged, or two files of one communicator
    size. CannotBeJudged if at no size another choice was measured besides NCCL's pick. BadConstants if the constants
    are invalid. BadInput if the table cannot be written. MeasuringFailed if the A/B run fails. OtherRank is raised on
    ranks other than 0 of a launcher's processes, which only take part in the A/B run and write nothing.
    """
    given, out = paths(files), Path(out)
    fitted = None if constants is None else Path(constants)
    proposals = [proposed(path, fitted) for path in given]
    _check_compared([one for proposal in proposals for one in proposal.comparison.sizes])
    read = dict(zip(given, sha256s(given), strict=True))
    sizes = [(proposal.ranks, proposal.nodes) for proposal in proposals]
    if len(set(sizes)) < len(sizes):
        raise BadMeasurement("two FILEs have the same numbers of ranks and nodes: give one for each")
    serving = gate is not None and serves(proposal.comparison.measurements.header for proposal in proposals)
    verdicts = [
        [RowVerdict(row, None, float("nan"), row.sizes, None) for row in proposal.rows]
        if gate is None
        else _tried(path, proposal, _beside(out, proposal, proposals), gate)
        for path, proposal in zip(given, proposals, strict=True)
    ]
    if serving:
        raise OtherRank("this process has served rank 0's, which decides and writes the table")
    if gate is not None:
        controlled = iter(of_one_table(list(chain.from_iterable(verdicts))))
        verdicts = [[next(controlled) for _ in its] for its in verdicts]
    decisions = [_Decision(*each) for each in zip(given, proposals, verdicts, strict=True)]
    rows = [(each.proposal.ranks, each.proposal.nodes, row) for each in decisions for row in each.rows]
    sources = [f"{path} sha256 {digest}" for path, digest in read.items()]
    write(
        out,
        table(rows, {**_by(command), **_measured(sources, proposals), **_constants(fitted), **_rows(decisions, gate)}),
    )
    decided = [each.file for each in decisions]
    return Decided(
        table=out,
        gate=gate is not None,
        kept=tuple(row for each in decisions for row in each.kept),
        dropped=tuple(row for each in decisions for row in each.dropped),
        regret_before=sum(file.regret_before for file in decided) / len(decided),
        regret_after=sum(file.regret_after for file in decided) / len(decided),
        files=tuple(decided),
        other_ranks=tuple(
            OtherRanks(own.proposal.ranks, other.ranks, regrets(other.sizes, own.rows))
            for own in decisions
            for other in proposals
            if other is not own.proposal
        ),
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    """The rows for one file, and the gate's verdict on them."""

    path: Path
    proposal: Proposal
    verdicts: list[RowVerdict]

    @property
    def rows(self) -> list[DecisionRow]:
        return [verdict.row for verdict in self.verdicts if verdict.why_not is None]

    @property
    def kept(self) -> list[DecidedRow]:
        return [self._row(verdict) for verdict in self.verdicts if verdict.why_not is None]

    @property
    def dropped(self) -> list[DecidedRow]:
        return [self._row(verdict) for verdict in self.verdicts if verdict.why_not is not None]

    @property
    def file(self) -> DecidedFile:
        proposal, total = self.proposal, regrets(self.proposal.sizes, self.rows)
        return DecidedFile(
            self.path,
            proposal.ranks,
            proposal.nodes,
            total.before,
            total.after,
            hold_out=proposal.hold_out(),
            origin=proposal.comparison.measurements.header.origin,
        )

    def _row(self, verdict: RowVerdict) -> DecidedRow:
        row, found = verdict.row, verdict.found
        return DecidedRow(
            ranks=self.proposal.ranks,
            nodes=self.proposal.nodes,
            row=str(row),
            collective=row.collective,
            low_bytes=row.low,
            high_bytes=row.high,
            choice=row.choice,
            gain=found.gain if found else None,
            probability=verdict.probability if found else None,
            sizes=verdict.sizes,
            reason=verdict.why_not,
            gain_low=found.interval[0] if found and found.is_bounded else None,
            gain_high=found.interval[1] if found and found.is_bounded else None,
            cut=verdict.cut,
        )


def _check_compared(sizes: Sequence[JudgedPick[Any, Any, Any]]) -> None:
    """Raises CannotBeJudged if nothing besides NCCL's pick was measured at any size."""
    if not any(one.same and one.others for one in sizes):
        raise CannotBeJudged(f"no size can be decided: {'; '.join(dict.fromkeys(one.why for one in sizes))}")


def _beside(out: Path, proposal: Proposal, proposals: Sequence[Proposal]) -> Path:
    """The path of the A/B run's file. Each communicator has its own file, named after its number of ranks and, if
    needed, of nodes."""
    names = [out.name, *([str(proposal.ranks)] if len(proposals) > 1 else [])]
    if [other.ranks for other in proposals].count(proposal.ranks) > 1:
        names.append(str(proposal.nodes))
    return out.with_name(".".join([*names, "ab.jsonl"]))


def _tried(path: Path, proposal: Proposal, beside: Path, settings: GateSettings) -> list[RowVerdict]:
    if not proposal.rows:
        return []
    measurements = proposal.comparison.measurements
    opened = again(path, measurements)
    if opened is None:
        return []
    with closing(opened) as backend:
        header = backend.describe()
        if (there := existing(beside)) is not None:
            check_same(beside, there, header)
        first = 0 if there is None else 1 + max((block.process for block in there.blocks), default=-1)
        with Writer(beside, noting(header, asdict(settings))) as writer:

            def add(block: SampleBlock) -> None:
                writer.add(replace(block, process=first + block.process))

            return tried(backend, proposal, settings, add)


def _measured(sources: Sequence[str], proposals: Sequence[Proposal]) -> dict[str, str]:
    """The entries of the table's provenance that describe the files."""
    said = {}
    for number, (source, proposal) in enumerate(zip(sources, proposals, strict=True), start=1):
        header = proposal.comparison.measurements.header
        said[f"measured-{number}"] = source
        said[f"communicator-{number}"] = header.communicator
        said[f"backend-{number}"] = str(header.backend)
        if header.is_simulated:
            said[f"times-{number}"] = header.origin
    headers = [proposal.comparison.measurements.header for proposal in proposals]
    said[NCCL] = ", ".join(dict.fromkeys(scenario_of(header).nccl for header in headers))
    known = [[header.gpu] if header.gpu else scenario_of(header).gpu_names for header in headers]
    if all(known):
        said[GPUS] = ", ".join(dict.fromkeys(chain.from_iterable(known)))
    return said


def _constants(path: Path | None) -> dict[str, str]:
    return {} if path is None else {"layer": f"{path} sha256 {sha256(path)}"}


def _rows(decisions: Sequence[_Decision], settings: GateSettings | None) -> dict[str, str]:
    none = "none: rows are as measured"
    run = "" if settings is None else f"A/B run of {settings.rounds} rounds in {settings.count} processes"
    said = {"gate": f"{run} through the plugin" if run else none}
    kept = [row for each in decisions for row in each.kept]
    for number, row in enumerate(kept if settings is not None else [], start=1):
        assert row.gain is not None
        said[f"gate-{number}"] = (
            f"{row.row}, {row.ranks} ranks: gains {100 * row.gain:.1f} %, "
            f"probability {row.probability:.4f}, at " + ", ".join(map(size_text, row.sizes))
        )
    return {**said, **_result(bool(kept))}


def _by(command: str | None) -> dict[str, str]:
    """Entries of the table's provenance: the command that made it, and the day."""
    return {"by": "nccl-tuner decide", "date": today(), **({} if command is None else {"command": command})}


def _result(has_rows: bool) -> dict[str, str]:
    """Entry of the table's provenance: why sizes have no row."""
    if has_rows:
        return {GAPS: "sizes without a row keep NCCL's own choice: nothing better is proven there"}
    return {"result": "no row: NCCL's default is the best that was found"}


NOT_GATED = "none: no A/B run, as nccl-tests' runs cannot be repeated here; rows are as measured"
_Shape = tuple[int, int]  # number of nodes, and GPUs per node


def decide_runs(asked: RunsQuery, out: Path, command: str | None = None) -> Decided:
    """Writes ``out``: a row for neighbouring sizes at which one forced combination is faster beyond the noise.

    No row has been tried in an A/B run, and the table says so. BadInput if machine or release are missing, a label is
    invalid, or the table cannot be written. BadMeasurement if a file has no times, or times that cannot be true.
    CannotBeJudged if no size has two choices.
    """
    regret = workflow.of_arms(workflow.read(asked))
    _check_compared(regret.sizes)
    write(out, Table(tuple(row.decision for row in regret.rows), provenance=_of_runs(asked, regret, command)))
    shapes = list(dict.fromkeys(_shape(one) for one in regret.sizes))
    files = tuple(_decided_file(asked, regret, shape) for shape in shapes)
    return Decided(
        table=out,
        gate=False,
        kept=tuple(_decided_row(row, regret) for row in regret.rows),
        dropped=(),
        regret_before=float(np.mean([file.regret_before for file in files])),
        regret_after=float(np.mean([file.regret_after for file in files])),
        files=files,
        other_ranks=(),
        stand_in=regret.stand_in,
    )


def _of_runs(asked: RunsQuery, regret: MeasuredRegret, command: str | None) -> dict[str, str]:
    said = _by(command)
    for number, path in enumerate(asked.paths, start=1):
        said[f"measured-{number}"] = f"{path} sha256 {sha256(path)}"
    site = regret.measured.site
    said |= {"machine": site.name or "", NCCL: site.stands_for or regret.nccl, "gate": NOT_GATED}
    if regret.stand_in:
        said["release"] = regret.stand_in
    if regret.simulated:
        said["times"] = f"simulated, which no real machine took: {', '.join(regret.simulated)}"
    for number, row in enumerate(regret.rows, start=1):
        gain = f"{100 * row.gain_low:.1f} to {100 * row.gain_high:.1f} %"
        said[f"gain-{number}"] = f"{gain}, at least {100 * row.surely:.1f} % beyond the noise"
    return {**said, **_result(bool(regret.rows))}


def _decided_row(row: RecommendedRow, regret: MeasuredRegret) -> DecidedRow:
    inside = {one.call.bytes for one in _of_shape(regret.sizes, (row.nodes, row.gpus_per_node)) if row.holds(one)}
    return DecidedRow(
        ranks=row.nodes * row.gpus_per_node,
        nodes=row.nodes,
        row=row.row,
        collective=row.collective,
        low_bytes=row.low_bytes,
        high_bytes=row.high_bytes,
        choice=row.choice,
        gain=row.gain_low,
        probability=None,
        sizes=tuple(sorted(inside)),
        reason=None,
        gain_low=row.surely,
        gain_high=row.gain_high,
    )


def _decided_file(asked: RunsQuery, regret: MeasuredRegret, shape: _Shape) -> DecidedFile:
    nodes, gpus = shape
    own = [one for one in _of_shape(regret.sizes, shape) if one.others and one.same]
    known = Regrets(len(own), *_means(own, [row for row in regret.rows if (row.nodes, row.gpus_per_node) == shape]))
    return DecidedFile(
        file=asked.paths[0] if asked.paths else Path(asked.tables[0]),
        ranks=nodes * gpus,
        nodes=nodes,
        regret_before=known.before,
        regret_after=known.after,
        hold_out=_hold_out(own),
        origin=f"{'simulated' if regret.simulated else 'measured'} times of {nodes} x {gpus} GPUs"
        f" on {regret.measured.site.name}, NCCL {regret.nccl}, of {len(asked.paths) or len(asked.tables)} files",
    )


def _hold_out(sizes: Sequence[RunsPick]) -> Regrets:
    """Makes rows from every other size of a collective, and returns their regrets at the sizes in between."""
    made: list[RunsPick] = []
    between: list[RunsPick] = []
    for _, several in groupby(sorted(sizes, key=lambda one: one.call.collective), key=lambda one: one.call.collective):
        own = list(several)
        for at, size in enumerate(sorted({one.call.bytes for one in own})):
            (between if at % 2 else made).extend(one for one in own if one.call.bytes == size)
    return Regrets(len(between), *_means(between, recommended(made)))


def _means(sizes: Sequence[RunsPick], rows: Sequence[RecommendedRow]) -> tuple[float, float]:
    """Mean regrets compared with the best measured choice: with NCCL's picks, and with the rows."""
    before, after = [0.0], [0.0]
    for one in sizes:
        best_us, pick_us = best_arm(one).time_us, one.same[0].time_us
        row = next((row for row in rows if row.holds(one)), None)
        chosen_us = [arm.time_us for arm in one.evidence.columns if row is not None and arm.combination == row.choice]
        before.append(pick_us / best_us - 1)
        after.append(min(chosen_us, default=pick_us) / best_us - 1)
    return float(np.mean(before[1:] or before)), float(np.mean(after[1:] or after))


def _of_shape(sizes: Sequence[RunsPick], shape: _Shape) -> Iterator[RunsPick]:
    return (one for one in sizes if _shape(one) == shape)


def _shape(one: RunsPick) -> _Shape:
    return one.call.nodes, one.call.gpus_per_node
