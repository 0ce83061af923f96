"""The plugin with a decision table, asked on one emulated communicator as a release of NCCL asks it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTable
from tuner.base.names import ALGO_PROTOS, Algorithm
from tuner.base.numerics import FloatArray
from tuner.base.provenance import sha256
from tuner.emulator.communicator import Communicator
from tuner.emulator.group import Tuned
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, registered
from tuner.emulator.selection import Selection
from tuner.plugin import loading
from tuner.plugin.dry_run import CommunicatorSize, DecidingRows, DryRun, PluginRefused, TunerCall
from tuner.plugin.loading import Interface

PREFIX = "TUNER/nccl-tuner: "  # of its lines in the log


@contextmanager
def opened(table: Path, selection: Selection, settings: Mapping[str, str] | None = None) -> Iterator["Asked"]:
    """The plugin of the selection's communicator; ``settings`` are the plugin's own variables, NCCL_TUNER_*.

    BadTable where the plugin cannot use the table, BadInput for a release without plugins.
    """
    communicator = selection.communicator
    interface = loading.interface(communicator.release)
    masks = {name: communicator.environment.values.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")}
    env = {**(settings or {}), **{name: text for name, text in masks.items() if text}, **strict(table)}
    try:
        plugin = DryRun.of(table, size(communicator, interface), version=interface.version, env=env)
    except PluginRefused as refused:
        raise BadTable(str(refused).rpartition(PREFIX)[2]) from None
    with plugin:
        yield Asked(plugin, interface, selection)


def strict(table: Path) -> dict[str, str]:
    """What has the plugin refuse a table with a mistake, and take any other with the content that it has now."""
    pinned = {"NCCL_TUNER_TABLE_SHA256": sha256(table)} if table.is_file() else {}
    return {"NCCL_TUNER_STRICT": "1", **pinned}


def size(communicator: Communicator, interface: Interface) -> CommunicatorSize:
    """What NCCL says of the communicator: its NVLink domains are its nodes (initNvlDomainInfo, init.cc, v2.28.9-1)."""
    domains = communicator.nodes if interface.says_domains else None
    return CommunicatorSize(communicator.ranks, communicator.nodes, domains)


@dataclass(frozen=True, slots=True)
class Asked:
    """A plugin, how it is asked, and what NCCL computes before it asks."""

    plugin: DryRun
    interface: Interface
    selection: Selection

    def __call__(self, request: Request, size: int) -> Tuned:
        """A :data:`tuner.emulator.group.Tuner`. BadInput where calls in a group are asked in ways not emulated."""
        if not self.interface.says_who_asks:
            release = self.selection.communicator.release.name
            raise BadInput(f"NCCL {release}: groups with a table are not emulated; valid: 2.21 and later")
        tuned = self.answer(self.call(request, size), self.selection.cost_table(request, size)[0])
        if tuned is None:
            picks = self.selection.classic_pick(request, size)
            return Tuned(picks.algo_protos()[0], picks.time_us[0])
        return tuned

    def call(self, request: Request, size: int) -> TunerCall:
        """A call of so many bytes as NCCL describes it."""
        communicator = self.selection.communicator
        return TunerCall(
            request.collective,
            size,
            pipelined=request.pipelined,
            registered=self.interface.knows_registered and registered.keeps(communicator, request),
            collnet=candidate.collnet_supports_operation(communicator, request, Algorithm.CollNetDirect) is None,
            nvls=candidate.nvls_reduces_every_operation(communicator, request, Algorithm.NVLS) is None,
        )

    def answer(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """What NCCL runs then; None where that is its own pick. ``cost_us``: [algorithm][protocol], in us."""
        return self._by_costs(call, cost_us) if self.interface.hands_costs else self._by_name(call, cost_us)

    def rows(self, call: TunerCall, cost_us: FloatArray) -> DecidingRows:
        """The rows by which the plugin decides. ``cost_us``: [algorithm][protocol], in us."""
        return self.plugin.rows(call, cost_us[: self._algorithms])

    def _by_costs(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """None where NCCL falls back on Ring."""
        count = self._algorithms
        answer = self.plugin.ask(call, cost_us[:count])
        left_us = cost_us.copy()
        left_us[:count] = answer.cost_us
        if not (left_us >= 0).any():
            return None
        best, time_us = self.selection.pick_by(left_us[None])
        # NCCL_CTA_POLICY, which may have moved NCCL's own pick, counts for nothing once a tuner is loaded.
        return Tuned(ALGO_PROTOS[best[0]], time_us[0], answer.channels)

    def _by_name(self, call: TunerCall, cost_us: FloatArray) -> Tuned | None:
        """NCCL runs what is named; the time is the one it would have computed."""
        named = self.plugin.name(call)
        return None if named.choice is None else Tuned(named.choice, cost_us[named.choice], named.channels)

    @property
    def _algorithms(self) -> int:
        """How many a cost table of this release has."""
        return self.selection.communicator.release.limits.algorithms
