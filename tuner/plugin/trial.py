"""What a decision table changes on one communicator: NCCL's own pick of each size beside the one with the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.base.errors import BadTable
from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.base.numerics import FloatArray, shortest
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, registered
from tuner.emulator.selection import Selection
from tuner.plugin import loading
from tuner.plugin.dry_run import DryRun, LogLine, PluginRefused
from tuner.plugin.formats import convert
from tuner.plugin.loading import Interface
from tuner.plugin.table.records import Table, find, find_cost

PREFIX = "TUNER/nccl-tuner: "  # of its lines in the log


@dataclass(frozen=True, slots=True)
class TrialPick:
    """``time_us`` is negative where NCCL computes none for the cell."""

    algorithm: Algorithm
    protocol: Protocol
    time_us: float
    channels: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One size. ``decision`` is the line of the row that names the pick, ``cost`` of the one that gives its time.

    ``unavailable`` is the line of a matching row of which NCCL can run nothing here. ``leaves_for`` is a kernel off
    the classic path: there is no pick, and no tuner is asked. Channels that the table sets are an upper bound.
    """

    bytes: int
    own: TrialPick | None
    picked: TrialPick | None
    decision: int | None = None
    cost: int | None = None
    unavailable: int | None = None
    leaves_for: str | None = None


@dataclass(frozen=True, slots=True)
class Trials:
    """What a plugin did when it was asked, size by size."""

    interface: int  # version of NCCL's tuner interface
    sizes: tuple[Trial, ...]
    log: tuple[LogLine, ...]  # what the plugin says in NCCL's log


def run(
    table: Path,
    selection: Selection,
    request: Request,
    sizes: Sequence[int],
    settings: Mapping[str, str] | None = None,
) -> Trials:
    """Sends each size through the plugin's own code, over the emulated cost table.

    ``settings`` are the plugin's own variables, NCCL_TUNER_*. BadTable where the plugin cannot use the table, BadInput
    for a release without plugins, NoAlgorithm as NCCL.
    """
    communicator = selection.communicator
    interface = loading.interface(communicator.release)
    masks = {name: communicator.environment.values.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    env = {**(settings or {}), **{name: text for name, text in masks.items() if text}, "NCCL_TUNER_STRICT": "1"}
    non_classic_paths = selection.non_classic_paths(request, sizes)
    staying = [size for size, non_classic in zip(sizes, non_classic_paths, strict=True) if non_classic is None]
    try:
        plugin = DryRun(table, ranks=communicator.ranks, nodes=communicator.nodes, version=interface.version, env=env)
    except PluginRefused as refused:
        raise BadTable(str(refused).rpartition(PREFIX)[2]) from None
    with plugin:
        asked = iter(_classic(plugin, interface, _rows(table), selection, request, staying) if staying else ())
        trials = tuple(
            next(asked) if non_classic is None else Trial(size, None, None, leaves_for=non_classic.name)
            for size, non_classic in zip(sizes, non_classic_paths, strict=True)
        )
    return Trials(interface.version, trials, tuple(plugin.log))


def _rows(table: Path) -> Table | None:
    """The rows with their lines; None for a file that only the plugin reads."""
    try:
        return convert.read(table).table
    except BadTable:
        return None


def _classic(
    plugin: DryRun,
    interface: Interface,
    rows: Table | None,
    selection: Selection,
    request: Request,
    sizes: Sequence[int],
) -> list[Trial]:
    told = interface.tells_registered and registered.keeps(selection.communicator, request)
    picks, costs_us = selection.pick(request, sizes), selection.cost_table(request, sizes)
    trials = []
    for at, size in enumerate(sizes):
        own = TrialPick(
            Algorithm(picks.algorithm[at]),
            Protocol(picks.protocol[at]),
            shortest(picks.time_us[at]),
            int(picks.channels[at]),
        )
        if interface.hands_costs:
            trial = _ask(plugin, selection, request, int(size), costs_us[at], own, told)
        else:
            trial = _ask_by_name(plugin, selection, request, int(size), costs_us[at], own)
        trials.append(_with_rows(trial, rows, selection, request, told))
    return trials


def _ask(
    plugin: DryRun, selection: Selection, request: Request, size: int, cost_us: FloatArray, own: TrialPick, told: bool
) -> Trial:
    """``told`` is whether the plugin hears of registered buffers."""
    count = selection.communicator.release.limits.algorithms
    answer = plugin.ask(request.collective, size, cost_us[:count], pipelined=request.pipelined, registered=told)
    left = cost_us.copy()
    left[:count] = answer.cost_us
    if not (left >= 0).any():  # NCCL falls back on Ring, without the table
        return Trial(size, own, own)
    best, time_us = selection.pick_by(left[None])
    # NCCL_CTA_POLICY, which may have moved NCCL's own pick, counts for nothing once a tuner is loaded.
    algorithm, protocol = ALGO_PROTOS[best[0]]
    channels = selection.channels(request, size, (algorithm, protocol))
    return Trial(
        size, own, TrialPick(algorithm, protocol, shortest(time_us[0]), min(channels, answer.channels or channels))
    )


def _ask_by_name(
    plugin: DryRun, selection: Selection, request: Request, size: int, cost_us: FloatArray, own: TrialPick
) -> Trial:
    """NCCL runs what is named; the time is the one it would have computed."""
    communicator = selection.communicator
    named = plugin.name(
        request.collective,
        size,
        pipelined=request.pipelined,
        collnet=candidate.collnet_supports_operation(communicator, request, Algorithm.CollNetDirect) is None,
        nvls=candidate.nvls_reduces_every_operation(communicator, request, Algorithm.NVLS) is None,
    )
    if named.choice is None:
        return Trial(size, own, own)
    channels = selection.channels(request, size, named.choice)
    time_us = shortest(cost_us[named.choice])
    return Trial(size, own, TrialPick(*named.choice, time_us, min(channels, named.channels or channels)))


def _with_rows(trial: Trial, rows: Table | None, selection: Selection, request: Request, told: bool) -> Trial:
    """Adds which rows matched, where the pick shows that they were followed."""
    communicator, picked = selection.communicator, trial.picked
    if rows is None or picked is None:
        return trial
    shape = {"ranks": communicator.ranks, "nodes": communicator.nodes}
    row = find(rows.decisions, request.collective, trial.bytes, **shape, pipelined=request.pipelined, registered=told)
    cost = find_cost(rows.costs, request.collective, picked.algorithm, picked.protocol, trial.bytes, **shape)
    asked = picked is not trial.own  # the very same is NCCL's own, whatever the rows say
    followed = row is not None and asked and (picked.algorithm, picked.protocol) in [c.algo_proto for c in row.choices]
    return replace(
        trial,
        decision=row.line if row and followed else None,
        unavailable=row.line if row and row.choices and not followed else None,
        cost=cost.line if cost and asked else None,
    )
