"""A decision table from forced and default runs of any origin: rows that beat NCCL's pick beyond the noise."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from tuner.base.provenance import sha256, today
from tuner.bench.decide import Decided, DecidedFile, DecidedRow
from tuner.bench.decision.rows import Regrets
from tuner.plugin.headers import NCCL
from tuner.plugin.lint import GAPS
from tuner.plugin.table.parse import write
from tuner.plugin.table.records import Choice, Decision, Interval, Table
from tuner.times.regret import workflow
from tuner.times.regret.judged import JudgedPick, Verdict
from tuner.times.regret.workflow import Asked, MeasuredRegret, RecommendedRow, recommended

NOT_GATED = "none: no A/B run, as nccl-tests' runs cannot be repeated here; rows are as measured"
_Shape = tuple[int, int]  # nodes and GPUs of each


def decide(asked: Asked, out: Path, command: str | None = None) -> Decided:
    """Writes ``out``: a row for neighbouring sizes at which one forced combination is faster beyond the noise.

    No row has been tried in an A/B run, and the table says so. Errors: those of ``workflow.read``; BadInput where the
    table cannot be written.
    """
    regret = workflow.of_arms(workflow.read(asked))
    write(out, Table(tuple(map(_decision, regret.rows)), provenance=_provenance(asked, regret, command)))
    shapes = list(dict.fromkeys(_shape(one) for one in regret.sizes))
    files = tuple(_file(asked, regret, shape) for shape in shapes)
    return Decided(
        table=out,
        gate=False,
        kept=tuple(map(_row, regret.rows, [regret] * len(regret.rows))),
        dropped=(),
        regret_before=float(np.mean([file.regret_before for file in files])),
        regret_after=float(np.mean([file.regret_after for file in files])),
        files=files,
        other_ranks=(),
    )


def _decision(row: RecommendedRow) -> Decision:
    ranks = row.nodes * row.gpus_per_node
    return Decision(
        row.collective,
        bytes=Interval(row.low_bytes, row.high_bytes),
        ranks=Interval(ranks, ranks),
        nodes=Interval(row.nodes, row.nodes),
        choices=(Choice(row.choice.algorithm, row.choice.protocol, row.choice.channels or None),),
    )


def _provenance(asked: Asked, regret: MeasuredRegret, command: str | None) -> dict[str, str]:
    said = {"by": "nccl-tuner decide", "date": today(), **({} if command is None else {"command": command})}
    for number, path in enumerate(asked.paths, start=1):
        said[f"measured-{number}"] = f"{path} sha256 {sha256(path)}"
    said |= {"machine": regret.measured.site.name or "", NCCL: regret.nccl, "gate": NOT_GATED}
    if regret.simulated:
        said["times"] = f"simulated, which no machine took: {', '.join(regret.simulated)}"
    for number, row in enumerate(regret.rows, start=1):
        gain = f"{100 * row.gain_low:.1f} to {100 * row.gain_high:.1f} %"
        said[f"gain-{number}"] = f"{gain}, at least {100 * row.surely:.1f} % beyond the noise"
    if regret.rows:
        return {**said, GAPS: "sizes without a row keep NCCL's own choice: nothing better is proven there"}
    return {**said, "result": "no row: NCCL's default is the best that was found"}


def _row(row: RecommendedRow, regret: MeasuredRegret) -> DecidedRow:
    inside = {one.bytes for one in _of_shape(regret.sizes, (row.nodes, row.gpus_per_node)) if _holds(row, one)}
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


def _file(asked: Asked, regret: MeasuredRegret, shape: _Shape) -> DecidedFile:
    nodes, gpus = shape
    own = [one for one in _of_shape(regret.sizes, shape) if one.best_us is not None and one.pick_us is not None]
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


def _hold_out(sizes: Sequence[JudgedPick]) -> Regrets:
    """Rows made of every other size of a collective, at the sizes in between."""
    made: list[JudgedPick] = []
    between: list[JudgedPick] = []
    for _, several in groupby(sorted(sizes, key=lambda one: one.collective), key=lambda one: one.collective):
        own = list(several)
        for at, size in enumerate(sorted({one.bytes for one in own})):
            (between if at % 2 else made).extend(one for one in own if one.bytes == size)
    return Regrets(len(between), *_means(between, recommended(made)))


def _means(sizes: Sequence[JudgedPick], rows: Sequence[RecommendedRow]) -> tuple[float, float]:
    """Mean regrets over the best that was measured: by NCCL's picks, and with the rows."""
    before, after = [0.0], [0.0]
    for one in sizes:
        best_us, pick_us = one.best_us or 1.0, one.pick_us or 1.0
        row = next((row for row in rows if _holds(row, one)), None)
        chosen_us = [arm.time_us for arm in one.arms if row is not None and arm.combination == row.choice]
        before.append(pick_us / best_us - 1)
        after.append(min(chosen_us, default=pick_us) / best_us - 1)
    return float(np.mean(before[1:] or before)), float(np.mean(after[1:] or after))


def _holds(row: RecommendedRow, one: JudgedPick) -> bool:
    alike = row.collective is one.collective and one.verdict is not Verdict.unknown
    return alike and row.low_bytes <= one.bytes <= row.high_bytes


def _of_shape(sizes: Sequence[JudgedPick], shape: _Shape) -> Iterator[JudgedPick]:
    return (one for one in sizes if _shape(one) == shape)


def _shape(one: JudgedPick) -> _Shape:
    return one.nodes, one.gpus_per_node
