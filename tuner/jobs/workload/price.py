"""Predicts the time of each kind of call by NCCL's model, in one release with one setting or table."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from tuner.answers.symmetric import AnyPick, NonClassicPick, picks_of
from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.jobs.workload.count import Entry
from tuner.plugin import trial
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class BudgetVariant:
    """A variant of a budget: a scenario, and a decision table that a tuner plugin applies in it."""

    name: str
    scenario: Scenario
    table: Path | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """The predicted time of one call, and what it runs; ``own_channels``: NCCL, not a table, chose the number of
    channels.

    If the symmetric kernel ``bypass`` runs the call, algorithm and protocol are None and ``channels`` are its blocks.
    The time is then by NCCL's model of symmetric kernels, which differs from its model of algorithms.
    """

    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: int
    time_us: float
    own_channels: bool = True
    bypass: str | None = None

    @property
    def name(self) -> str:
        """Algorithm and protocol as one word, such as ``Ring/LL``, or the name of the kernel that runs the call."""
        if self.algorithm is None or self.protocol is None:
            return str(self.bypass)
        return f"{self.algorithm.name}/{self.protocol.name}"


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Reason why a call has no predicted time, or no measured one."""

    reason: str


def prices(variant: BudgetVariant, entries: Sequence[Entry]) -> list[Price | Unpriced]:
    """The prices of the entries, in their order; picks are those that rank 0 computes.

    With a table, the time is what the model predicts for the table's choice if it runs with NCCL's own number of
    channels. BadInput for buffers that the release does not have, and for a table if the release has no plugins.
    BadTable if the plugin refuses the table.
    """
    selection = Selection(variant.scenario.communicator())
    priced: list[Price | Unpriced] = []
    for request, group in groupby(entries, key=lambda entry: entry.request):
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
    if not selection.may_leave_classic_path(request):
        return list(_picked(selection.pick(request, np.array(sizes, np.uint64))))
    return [_of_any(pick) for pick in picks_of(selection, request, np.array(sizes, np.uint64))]


def _picked(picks: Picks) -> Iterator[Price]:
    for at, (algorithm, protocol) in enumerate(picks.algo_protos()):
        yield Price(algorithm, protocol, int(picks.channels[at]), shortest(picks.time_us[at]))


def _of_any(pick: AnyPick) -> Price | Unpriced:
    if isinstance(pick, NonClassicPick):
        return _bypassing(pick.name, pick.channels, pick.symmetric_model_us)
    return Price(*pick.algo_proto, pick.channels, pick.time_us)


def _bypassing(name: str, channels: int, time_us: float | None) -> Price | Unpriced:
    return (
        Unpriced(f"runs on {name}, for which NCCL has no time model")
        if time_us is None
        else Price(None, None, channels, time_us, bypass=name)
    )


def _with_table(selection: Selection, request: Request, sizes: list[int], table: Path) -> Iterator[Price | Unpriced]:
    """Prices sizes by the plugin's own decisions: costs in a table decide the choice, but the times are the model's."""
    trials = trial.run(table, selection, request, sizes).sizes
    costs_us = selection.cost_table(request, sizes)
    for each, row_us in zip(trials, costs_us, strict=True):
        if each.bypass is not None:
            yield _bypassing(each.bypass.name, each.bypass.channels, each.bypass.time_us)
            continue
        assert each.picked is not None
        algorithm, protocol = each.picked.algorithm, each.picked.protocol
        own = each.own is not None and (each.own.algorithm, each.own.protocol) == (algorithm, protocol)
        time_us = each.own.time_us if own and each.own else shortest(row_us[algorithm, protocol])
        if time_us < 0:
            yield Unpriced(f"the table chooses {algorithm.name}/{protocol.name}, for which the model has no time")
        else:
            channels = each.picked.channels
            own_channels = channels == selection.channels(request, each.bytes, (algorithm, protocol))
            yield Price(algorithm, protocol, channels, time_us, own_channels)
