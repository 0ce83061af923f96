"""What a decision table changes on one communicator: NCCL's own pick of each size beside the one with the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.base.errors import BadTable
from tuner.base.names import ALGO_PROTOS, Algorithm, Protocol
from tuner.base.numerics import FloatArray, shortest
from tuner.base.records import json_form
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, registered
from tuner.emulator.selection import Selection
from tuner.plugin import loading
from tuner.plugin.dry_run import DryRun, LogLine, PluginRefused, TunerCall
from tuner.plugin.loading import Interface

PREFIX = "TUNER/nccl-tuner: "  # of its lines in the log


def _known(time_us: float) -> float | None:
    return time_us if time_us >= 0 else None


@dataclass(frozen=True, slots=True)
class TrialPick:
    """``time_us`` is negative where NCCL computes none for the algorithm and protocol."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    time_us: float = field(metadata=json_form(convert=_known))


@dataclass(frozen=True, slots=True)
class Trial:
    """One size. ``decision`` is the line of the row that names the pick, ``cost`` of the one that gives its time.

    ``unavailable`` is the line of the first matching row, where NCCL can run nothing of it here and no other row
    decides. With a ``bypass_kernel``, off the classic path, there is no pick and no tuner is asked. Channels that the
    table sets are an upper bound.
    """

    bytes: int
    own: TrialPick | None = field(metadata=json_form("nccl"))
    picked: TrialPick | None = field(metadata=json_form("table"))
    decision: int | None = field(default=None, metadata=json_form("decision_line"))
    cost: int | None = field(default=None, metadata=json_form("cost_line"))
    unavailable: int | None = field(default=None, metadata=json_form("unavailable_line"))
    bypass_kernel: str | None = field(default=None, metadata=json_form("leaves_for"))


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
    classic = [size for size, non_classic in zip(sizes, non_classic_paths, strict=True) if non_classic is None]
    try:
        plugin = DryRun(table, ranks=communicator.ranks, nodes=communicator.nodes, version=interface.version, env=env)
    except PluginRefused as refused:
        raise BadTable(str(refused).rpartition(PREFIX)[2]) from None
    with plugin:
        tried = iter(_Communicator(plugin, interface, selection, request).trials(classic) if classic else ())
        trials = tuple(
            next(tried) if non_classic is None else Trial(size, None, None, bypass_kernel=non_classic.name)
            for size, non_classic in zip(sizes, non_classic_paths, strict=True)
        )
    return Trials(interface.version, trials, tuple(plugin.log))


@dataclass(frozen=True, slots=True)
class _Communicator:
    """One with the plugin, and what it is asked to do."""

    plugin: DryRun
    interface: Interface
    selection: Selection
    request: Request

    def trials(self, sizes: Sequence[int]) -> list[Trial]:
        picks, costs_us = self.selection.pick(self.request, sizes), self.selection.cost_table(self.request, sizes)
        trials = []
        for at, size in enumerate(sizes):
            algo_proto = Algorithm(picks.algorithm[at]), Protocol(picks.protocol[at])
            own = TrialPick(*algo_proto, int(picks.channels[at]), shortest(picks.time_us[at]))
            call = self._call(int(size))
            pick = self._pick_by_costs if self.interface.hands_costs else self._pick_by_name
            picked = pick(call, costs_us[at])
            trials.append(self._with_rows(Trial(call.bytes, own, picked or own), call, costs_us[at]))
        return trials

    def _call(self, size: int) -> TunerCall:
        communicator, request = self.selection.communicator, self.request
        return TunerCall(
            request.collective,
            size,
            pipelined=request.pipelined,
            registered=self.interface.knows_registered and registered.keeps(communicator, request),
            collnet=candidate.collnet_supports_operation(communicator, request, Algorithm.CollNetDirect) is None,
            nvls=candidate.nvls_reduces_every_operation(communicator, request, Algorithm.NVLS) is None,
        )

    def _pick_by_costs(self, call: TunerCall, cost_us: FloatArray) -> TrialPick | None:
        """None where NCCL falls back on Ring, without the table."""
        count = self._algorithms
        answer = self.plugin.ask(call, cost_us[:count])
        left_us = cost_us.copy()
        left_us[:count] = answer.cost_us
        if not (left_us >= 0).any():
            return None
        best, time_us = self.selection.pick_by(left_us[None])
        # NCCL_CTA_POLICY, which may have moved NCCL's own pick, counts for nothing once a tuner is loaded.
        algorithm, protocol = ALGO_PROTOS[best[0]]
        channels = self.selection.channels(self.request, call.bytes, (algorithm, protocol))
        return TrialPick(algorithm, protocol, min(channels, answer.channels or channels), shortest(time_us[0]))

    def _pick_by_name(self, call: TunerCall, cost_us: FloatArray) -> TrialPick | None:
        """NCCL runs what is named; the time is the one it would have computed."""
        named = self.plugin.name(call)
        if named.choice is None:
            return None
        algorithm, protocol = named.choice
        channels = self.selection.channels(self.request, call.bytes, named.choice)
        channels, time_us = min(channels, named.channels or channels), shortest(cost_us[named.choice])
        return TrialPick(algorithm, protocol, channels, time_us)

    def _with_rows(self, trial: Trial, call: TunerCall, cost_us: FloatArray) -> Trial:
        """Adds the rows by which the plugin decided."""
        rows, picked = self.plugin.rows(call, cost_us[: self._algorithms]), trial.picked
        if picked is None or picked is trial.own:  # the very same is NCCL's own, whatever the rows say
            return replace(trial, unavailable=rows.unavailable)
        cost = rows.costs.get((picked.algorithm, picked.protocol))
        return replace(trial, decision=rows.decision, cost=cost, unavailable=rows.unavailable)

    @property
    def _algorithms(self) -> int:
        """How many a cost table of this release has."""
        return self.selection.communicator.release.limits.algorithms
