"""What each kind of call takes, by NCCL's model, in one release with one setting or table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin import trial
from tuner.scenario import Scenario
from tuner.workload.count import Entry


@dataclass(frozen=True, slots=True)
class Variant:
    """A column: the scenario, and a decision table that a tuner plugin applies in it."""

    name: str
    scenario: Scenario
    table: Path | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """Of one call, predicted; ``own_channels`` where their number is NCCL's and no table's."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    time_us: float
    own_channels: bool = True

    @property
    def algo_proto(self) -> str:
        """Algorithm and protocol as one word, such as ``Ring/LL``."""
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Why a call has no time."""

    reason: str


def prices(variant: Variant, entries: Sequence[Entry]) -> list[Price | Unpriced]:
    """One for each entry, which are in the order of their requests; picks are as rank 0 sees them.

    With a table the time is the model's of what the table chooses, with NCCL's own channels. BadInput for windows, and
    for a release without plugins; BadTable for a table that the plugin refuses.
    """
    selection = Selection(variant.scenario.communicator())
    priced: list[Price | Unpriced] = []
    for request, group in groupby(entries, key=lambda entry: entry.request):
        if request.symmetric:
            raise BadInput("--buffers window: calls may leave the model, without a time; valid: plain, registered")
        sizes = [entry.bytes for entry in group]
        try:
            priced += _of(selection, request, sizes, variant.table)
        except NoAlgorithm:  # of one of them at least
            priced += [_one(selection, request, size, variant.table) for size in sizes]
    return priced


def _one(selection: Selection, request: Request, size: int, table: Path | None) -> Price | Unpriced:
    try:
        (price,) = _of(selection, request, [size], table)
    except NoAlgorithm as error:
        return Unpriced(str(error))
    return price


def _of(selection: Selection, request: Request, sizes: list[int], table: Path | None) -> list[Price | Unpriced]:
    if table is not None:
        return list(_with_table(selection, request, sizes, table))
    picks = selection.pick(request, np.array(sizes, np.uint64))
    return [
        Price(
            Algorithm(picks.algorithm[at]),
            Protocol(picks.protocol[at]),
            int(picks.channels[at]),
            shortest(picks.time_us[at]),
        )
        for at in range(len(sizes))
    ]


def _with_table(selection: Selection, request: Request, sizes: list[int], table: Path) -> Iterator[Price | Unpriced]:
    """What the plugin itself makes of the sizes; a table's costs choose, but the time is the model's."""
    trials = trial.run(table, selection, request, sizes).sizes
    costs_us = selection.cost_table(request, sizes)
    for each, row_us in zip(trials, costs_us, strict=True):
        assert each.own is not None
        assert each.picked is not None
        algorithm, protocol = each.picked.algorithm, each.picked.protocol
        own = (each.own.algorithm, each.own.protocol) == (algorithm, protocol)
        time_us = each.own.time_us if own else shortest(row_us[algorithm, protocol])
        if time_us < 0:
            yield Unpriced(f"the table takes {algorithm.name}/{protocol.name}, for which the model has no time")
        else:
            channels = each.picked.channels
            own_channels = channels == selection.channels(request, each.bytes, (algorithm, protocol))
            yield Price(algorithm, protocol, channels, time_us, own_channels)
