"""Turns measured times into calls of the time model, each row on the communicator on which it was measured."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from typing import Any

import numpy as np

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.times import measured
from tuner.times.calibration.time_fit import MeasuredTimes
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import Placement, Site
from tuner.times.timemodel import features
from tuner.times.timemodel.features import Ints
from tuner.times.timemodel.intervals import Place


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCalls:
    """Rows with what the emulator says about their calls, one element per row; ``skipped`` counts other rows by reason.

    ``nccl`` is each row's release, ``nccl_us`` the time by NCCL's own model. ``dtype`` and ``gpus_per_node`` are only
    used to select rows.
    """

    rows: tuple[SampleBlock, ...]
    machine: str | None
    generation: str
    nccl: tuple[str, ...]
    measured: MeasuredTimes
    nccl_us: features.Array
    dtype: Ints
    gpus_per_node: Ints
    skipped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> "MeasuredCalls":
        """The calls that a mask of rows selects."""
        return replace(
            self,
            rows=tuple(compress(self.rows, which.tolist())),
            nccl=tuple(compress(self.nccl, which.tolist())),
            measured=self.measured[which],
            nccl_us=self.nccl_us[which],
            dtype=self.dtype[which],
            gpus_per_node=self.gpus_per_node[which],
        )

    def places(self) -> list[Place]:
        """The place where each row was measured, one per row."""
        calls = self.measured.calls
        columns = zip(
            self.nccl,
            calls.collective.tolist(),
            calls.algo_proto.tolist(),
            self.gpus_per_node.tolist(),
            calls.nodes.astype(int).tolist(),
            strict=True,
        )
        return [Place(*each) for each in columns]

    def scope(self) -> frozenset[Place]:
        """The places where at least one row was measured."""
        return frozenset(self.places())


def of_table(table: Measurements, site: Site, *, launch: int = 0) -> MeasuredCalls:
    """The rows that the emulator can place on ``site``. ``launch``: the index of the rows' way of launching.

    Skipped and counted are in-place rows of a collective that was also measured out of place on as many nodes and GPUs,
    sends and receives, 8-bit floats, and rows of another setting of the search or the network. The adapters get the
    speed that the table names. CannotBeJudged if no row is left.
    """
    site = site.with_adapters(table.header.adapters)
    placement = Placement[SampleBlock](site)
    # rows in place only count if no such call was measured out of place
    out_of_place = {(row.point.name, row.nodes, row.gpus_per_node) for row in table.blocks if not row.point.in_place}
    for row in table.blocks:
        if row.point.in_place and (row.point.name, row.nodes, row.gpus_per_node) not in out_of_place:
            row = replace(row, point=replace(row.point, in_place=False))
        placement.add(row, table.environment_of(row), table.network_of(row), row)
    rows: list[SampleBlock] = []
    calls, nccl_us, generation = [], [], ""
    for selection, request, picks, placed in placement.picks():
        rows += placed
        generation = selection.communicator.generation
        calls.append(features.of_picks(selection, request, picks))
        nccl_us.append(picks.time_us.astype(np.float64))
    if not rows:
        raise placement.nothing(table)
    times_us = np.array([row.median_us for row in rows])
    together = features.concatenated(calls)
    return MeasuredCalls(
        rows=tuple(rows),
        machine=site.machine,
        generation=generation,
        nccl=(site.nccl,) * len(rows),
        measured=MeasuredTimes(together, times_us, np.full(len(rows), launch)),
        nccl_us=np.concatenate(nccl_us),
        dtype=np.array([row.point.dtype for row in rows], np.int64),
        gpus_per_node=np.round(together.ranks / together.nodes).astype(np.int64),
        skipped=dict(placement.skipped),
    )


def joined(several: Sequence[MeasuredCalls]) -> MeasuredCalls:
    """The rows of several tables of one machine."""
    first, rest = several[0], [each.measured for each in several]
    return MeasuredCalls(
        rows=tuple(row for each in several for row in each.rows),
        machine=first.machine,
        generation=first.generation,
        nccl=tuple(name for each in several for name in each.nccl),
        measured=MeasuredTimes(
            features.concatenated(each.calls for each in rest),
            np.concatenate([each.times_us for each in rest]),
            np.concatenate([each.launch for each in rest]),
        ),
        nccl_us=np.concatenate([each.nccl_us for each in several]),
        dtype=np.concatenate([each.dtype for each in several]),
        gpus_per_node=np.concatenate([each.gpus_per_node for each in several]),
        skipped=dict(sum((Counter(each.skipped) for each in several), Counter[str]())),
    )


def splits_file() -> Any:
    """Content of ``tables/splits.toml``, as a mapping."""
    return tables.toml(tables.folder() / "splits.toml")


@cache
def one_way_runs() -> Mapping[str, Sequence[str]]:
    """The runs to fit, by the table's name, for tables whose runs configure the network in several ways."""
    runs: Mapping[str, Sequence[str]] = splits_file()["runs"]
    return runs


def table_of_one_way(name: str) -> Measurements:
    """A table of ``tables/measured``, with only the runs that configure the network in the same way."""
    table, runs = measured.load(name), one_way_runs().get(name)
    return table if runs is None else replace(table, blocks=tuple(row for row in table.blocks if row.run in runs))
