"""A release's rules as functions: its names are looked up here, once.

Shapes: arrays are those of the rules: traffic in bytes, [size].
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tuner.base.errors import BadReleaseFile, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Pattern
from tuner.base.numerics import SizeArray
from tuner.emulator import printed_table
from tuner.emulator.communicator import Communicator
from tuner.emulator.printed_table import PrintRule
from tuner.emulator.request import Request
from tuner.emulator.rules import (
    bandwidth,
    bounds,
    candidate,
    chunk_sizes,
    collnet,
    cta_policy,
    deal,
    device_functions,
    domains,
    enabled,
    init,
    latency,
    launch,
    model_point,
    op_arguments,
    pick,
    registered,
    shares,
    symmetric,
    symmetric_arguments,
    symmetric_copies,
    symmetric_rail,
    symmetric_sides,
    symmetric_time,
    symmetric_variables,
    symmetric_waiting,
    time,
    windows,
)
from tuner.emulator.rules.bandwidth import BandwidthRule
from tuner.emulator.rules.candidate import CandidateRule
from tuner.emulator.rules.collnet import CollNetFacts
from tuner.emulator.rules.cta_policy import Policy
from tuner.emulator.rules.deal import Deal
from tuner.emulator.rules.domains import FabricRule
from tuner.emulator.rules.enabled import EnabledRule
from tuner.emulator.rules.latency import LatencyRule
from tuner.emulator.rules.launch import Launch
from tuner.emulator.rules.model_point import ModelPoint
from tuner.emulator.rules.pick import PickRule
from tuner.emulator.rules.registered import RegisteredRule
from tuner.emulator.rules.schedule import aside, cells, equal_bytes, least_loaded, scheduler, task
from tuner.emulator.rules.symmetric_time import BlockRule as SymmetricBlockRule
from tuner.emulator.rules.symmetric_time import TimeRule
from tuner.emulator.rules.time import CorrectionRule, PenaltyRule
from tuner.release import ALGORITHM_NAMES, Release, load
from tuner.release import names as release_names
from tuner.release.convert import WrongValue
from tuner.release.environment import GRAMMARS, Environment, Grammar
from tuner.release.rule_names import RuleNames
from tuner.release.schema import Hardware

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The functions of a :class:`tuner.release.rule_names.RuleNames`, field by field; None where it has none."""

    ctas: Callable[[Environment, str, int], int]
    cta_policy: Callable[[Environment], Policy]
    grammar: Grammar
    channels: tuple[Callable[[init.InitFacts, int], int], ...]
    nvls_channels: Callable[[init.InitFacts], int]
    nvls_search_start: Callable[[bool], str] | None
    collnet: tuple[Callable[[CollNetFacts], bool], ...]
    collnet_heads: Callable[[CollNetFacts], Algorithm]
    collnet_direct_heads: Callable[[CollNetFacts], int]
    domains: FabricRule
    nvls_if_shared: Callable[[Sequence[Sequence[int]]], bool] | None
    comp_caps: Callable[[Sequence[int]], Sequence[int]]
    cpu: Callable[[Sequence[init.Cpu]], init.Cpu]
    table_cpu: Callable[[Sequence[init.Cpu]], init.Cpu]
    tree_pattern: Callable[[Sequence[Pattern | None]], Pattern | None]
    exists: Mapping[Collective, tuple[Algorithm, ...]]
    fills: Mapping[Algorithm, tuple[EnabledRule, ...]]
    enabled: tuple[EnabledRule, ...]
    ring_backup: tuple[EnabledRule, ...]
    bandwidth: Mapping[Algorithm, tuple[BandwidthRule, ...]]
    latency: Mapping[Algorithm, tuple[LatencyRule, ...]]
    hw_latency_row: tuple[Callable[[ModelPoint, Hardware, Algorithm], Algorithm], ...]
    network_step: Callable[[ModelPoint], Algorithm]
    ring_network_steps: Callable[[ModelPoint], int]
    printed_table: PrintRule
    fp8_needs_hopper: Callable[[Request], bool]
    candidate: tuple[CandidateRule, ...]
    time: tuple[CorrectionRule, ...]
    penalty: tuple[PenaltyRule, ...]
    pick: PickRule
    launch: Launch
    thread_product: Callable[[int, int, int], list[int]]
    nvls_kind: Callable[[Communicator, Algorithm], bool]
    nvls_bound: bounds.NvlsBoundRule
    bound_channels: Callable[[Communicator], int]
    tuned_channels: Callable[[int, int], int]
    tuned_threads: Callable[[int], int]
    block: bounds.BlockRule
    deal: Deal
    traffic_per_channel: Callable[[SizeArray, int, int], SizeArray]
    registered: tuple[RegisteredRule, ...]
    schedule: scheduler.Scheduler
    task_order: Callable[[Communicator, list[task.Task]], list[task.Task]]
    counted_traffic: Callable[[int, int], int]
    device_op: Callable[[Op], Op]
    function: Callable[[task.Task, Op], DataType]
    device_functions: device_functions.DeviceFunctions
    shares: shares.Shares
    nvls_chunk: chunk_sizes.NvlsChunk
    direct_access: Callable[[int], int]
    op_argument: Callable[[Request, int], int]
    set_aside: aside.AsideRule | None
    symmetric_queue: Callable[[Request], bool] | None
    symmetric_reach: Callable[[Communicator], bool] | None
    group_bytes: Callable[[task.Task], int] | None
    channel_bytes: Callable[[Communicator, bool], int] | None
    work_estimate: Callable[[task.Task], int] | None
    non_classic_path: symmetric.NonClassicRule
    symmetric_blocks: SymmetricBlockRule
    symmetric_time: TimeRule
    windows_between_nodes: windows.BetweenNodesRule | None
    copies_between_nodes: symmetric_copies.BetweenNodesRule | None
    symmetric_ring: symmetric_rail.RingRule | None
    symmetric_requested: symmetric_variables.RequestedRule
    symmetric_low_latency: symmetric_sides.LowLatencyRule | None
    symmetric_arguments: symmetric_arguments.RoomRule | None


def of(release: Release) -> Rules:
    """The rules of a release. BadReleaseFile names file and key of a rule that does not exist, and those that do."""
    try:
        return _of_names(release.rules)
    except WrongValue as error:
        raise BadReleaseFile(f"{release.file_of(error.key)}: {error}") from None


@lru_cache(maxsize=1024)
def _of_names(rules: RuleNames) -> Rules:
    return _resolved(_Names(rules))


def registries() -> Mapping[str, Mapping[str, Callable[..., object]]]:
    """All rules there are, of any release, by kind and name."""
    names = _Names(load(release_names()[-1]).rules)
    _resolved(names)
    return names.registries


class _Names:
    """Looks the names of a release's rules up."""

    def __init__(self, names: RuleNames) -> None:
        self.names = names
        self.registries: dict[str, Mapping[str, Callable[..., object]]] = {}

    def one(self, kind: str, rules: Mapping[str, F]) -> F:
        return self._found(getattr(self.names, kind), kind, rules)

    def optional(self, kind: str, rules: Mapping[str, F]) -> F | None:
        name = getattr(self.names, kind)
        self.registries[kind] = rules
        return None if name is None else self._found(name, kind, rules)

    def several(self, kind: str, rules: Mapping[str, F]) -> tuple[F, ...]:
        self.registries[kind] = rules
        return tuple(self._found(name, kind, rules) for name in getattr(self.names, kind))

    def by_algorithm(self, kind: str, rules: Mapping[str, F]) -> Mapping[Algorithm, tuple[F, ...]]:
        """Every algorithm is in it, some without rules."""
        self.registries[kind] = rules
        names: Mapping[Algorithm, tuple[str, ...]] = getattr(self.names, kind)
        return {
            algorithm: tuple(self._found(name, f"{kind}.{key}", rules) for name in names.get(algorithm, ()))
            for algorithm, key in ALGORITHM_NAMES.items()
        }

    def _found(self, name: str, key: str, rules: Mapping[str, F]) -> F:
        self.registries.setdefault(key.partition(".")[0], rules)
        if name not in rules:
            raise WrongValue(f"rules.{key}", f"unknown rule {name!r}; {one_of(rules)}")
        return rules[name]


def _resolved(names: _Names) -> Rules:
    return Rules(
        ctas=names.one("ctas", init.CTAS_RULES),
        cta_policy=names.one("cta_policy", cta_policy.RULES),
        grammar=names.one("grammar", GRAMMARS),
        channels=names.several("channels", init.CHANNEL_RULES),
        nvls_channels=names.one("nvls_channels", init.NVLS_RULES),
        nvls_search_start=names.optional("nvls_search_start", init.START_RULES),
        collnet=names.several("collnet", collnet.SUPPORT_RULES),
        collnet_heads=names.one("collnet_heads", collnet.HEADS_RULES),
        collnet_direct_heads=names.one("collnet_direct_heads", collnet.DIRECT_HEADS_RULES),
        domains=names.one("domains", domains.RULES),
        nvls_if_shared=names.optional("nvls_if_shared", init.SHARED_RULES),
        comp_caps=names.one("comp_caps", init.COMP_CAP_RULES),
        cpu=names.one("cpu", init.CPU_RULES),
        table_cpu=names.one("table_cpu", init.CPU_RULES),
        tree_pattern=names.one("tree_pattern", init.TREE_PATTERN_RULES),
        exists=names.names.exists,
        fills=names.by_algorithm("fills", enabled.RULES),
        enabled=names.several("enabled", enabled.RULES),
        ring_backup=names.several("ring_backup", enabled.RULES),
        bandwidth=names.by_algorithm("bandwidth", bandwidth.RULES),
        latency=names.by_algorithm("latency", latency.RULES),
        hw_latency_row=names.several("hw_latency_row", model_point.ROW_RULES),
        network_step=names.one("network_step", latency.NETWORK_STEP_RULES),
        ring_network_steps=names.one("ring_network_steps", latency.RING_NETWORK_STEPS_RULES),
        printed_table=names.one("printed_table", printed_table.PRINT_RULES),
        fp8_needs_hopper=names.one("fp8_needs_hopper", candidate.FP8_RULES),
        candidate=names.several("candidate", candidate.RULES),
        time=names.several("time", time.CORRECTIONS),
        penalty=names.several("penalty", time.PENALTIES),
        pick=names.one("pick", pick.RULES),
        launch=names.one("launch", launch.RULES),
        thread_product=names.one("thread_product", bounds.PRODUCT_RULES),
        nvls_kind=names.one("nvls_kind", bounds.NVLS_KIND_RULES),
        nvls_bound=names.one("nvls_bound", bounds.NVLS_BOUND_RULES),
        bound_channels=names.one("bound_channels", bounds.BOUND_CHANNELS_RULES),
        tuned_channels=names.one("tuned_channels", bounds.TUNED_RULES),
        tuned_threads=names.one("tuned_threads", bounds.TUNED_THREADS_RULES),
        block=names.one("block", bounds.BLOCK_RULES),
        deal=names.one("deal", deal.RULES),
        traffic_per_channel=names.one("traffic_per_channel", deal.TRAFFIC_RULES),
        registered=names.several("registered", registered.RULES),
        schedule=names.one("schedule", scheduler.RULES),
        task_order=names.one("task_order", cells.ORDER_RULES),
        counted_traffic=names.one("counted_traffic", cells.COUNTED_TRAFFIC_RULES),
        device_op=names.one("device_op", task.DEVICE_OP_RULES),
        function=names.one("function", task.FUNCTION_RULES),
        device_functions=names.one("device_functions", device_functions.RULES),
        shares=names.one("shares", shares.RULES),
        nvls_chunk=names.one("nvls_chunk", chunk_sizes.NVLS_RULES),
        direct_access=names.one("direct_access", chunk_sizes.DIRECT_RULES),
        op_argument=names.one("op_argument", op_arguments.RULES),
        symmetric_reach=names.optional("symmetric_reach", symmetric.REACH_RULES),
        symmetric_queue=names.optional("symmetric_queue", symmetric_waiting.RULES),
        set_aside=names.optional("set_aside", aside.RULES),
        group_bytes=names.optional("group_bytes", least_loaded.TOTAL_RULES),
        channel_bytes=names.optional("channel_bytes", least_loaded.SHARE_RULES),
        work_estimate=names.optional("work_estimate", equal_bytes.ESTIMATE_RULES),
        non_classic_path=names.one("non_classic_path", symmetric.RULES),
        symmetric_blocks=names.one("symmetric_blocks", symmetric_time.BLOCK_RULES),
        symmetric_time=names.one("symmetric_time", symmetric_time.TIME_RULES),
        windows_between_nodes=names.optional("windows_between_nodes", windows.RULES),
        copies_between_nodes=names.optional("copies_between_nodes", symmetric_copies.RULES),
        symmetric_ring=names.optional("symmetric_ring", symmetric_rail.RING_RULES),
        symmetric_requested=names.one("symmetric_requested", symmetric_variables.REQUESTED_RULES),
        symmetric_low_latency=names.optional("symmetric_low_latency", symmetric_sides.RULES),
        symmetric_arguments=names.optional("symmetric_arguments", symmetric_arguments.RULES),
    )
