"""A release's rules as functions: the names in its table are looked up here, once.

Shapes: arrays have the same shapes as in the rules, such as [size] for traffic in bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadReleaseFile, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Pattern
from tuner.base.numerics import SizeArray
from tuner.base.registry import Registry
from tuner.emulator import model
from tuner.emulator.communicator import Comm
from tuner.emulator.model import PrintRule
from tuner.emulator.request import Request
from tuner.emulator.rules import (
    bandwidth,
    bounds,
    call,
    candidate,
    channel_work,
    collnet,
    device_functions,
    enabled,
    init,
    latency,
    launch,
    registered,
    symmetric,
    symmetric_kernels,
    symmetric_rail,
    symmetric_variables,
    time,
)
from tuner.emulator.rules.bandwidth import BandwidthRule
from tuner.emulator.rules.call import ModelPoint
from tuner.emulator.rules.candidate import CandidateRule
from tuner.emulator.rules.channel_work import NvlsChunk
from tuner.emulator.rules.collnet import CollNetFacts
from tuner.emulator.rules.enabled import EnabledRule
from tuner.emulator.rules.init import FabricRule
from tuner.emulator.rules.latency import LatencyRule
from tuner.emulator.rules.launch import ChannelSplit, LaunchRule
from tuner.emulator.rules.registered import CtaPolicy, RegisteredRule
from tuner.emulator.rules.schedule import scheduler, task
from tuner.emulator.rules.symmetric_kernels import BlockRule as SymmetricBlockRule
from tuner.emulator.rules.symmetric_kernels import TimeRule
from tuner.emulator.rules.time import CorrectionRule, PenaltyRule, PickRule
from tuner.release import ALGORITHM_NAMES, Release
from tuner.release.convert import WrongValue
from tuner.release.environment import GRAMMARS, Environment, Grammar
from tuner.release.schema import Hardware, RuleNames


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules of a release as functions. The fields have the names of those of
    :class:`tuner.release.schema.RuleNames`; a field is None if the release names no rule.

    Each kind of rule has a field in that class, which says how many names a release gives, and a field here, which says
    how the function is called and which registry has the rules of the kind.
    """

    ctas: Annotated[Callable[[Environment, str, int], int], init.CTAS_RULES]
    cta_policy: Annotated[Callable[[Environment], CtaPolicy], registered.POLICY_RULES]
    grammar: Annotated[Grammar, GRAMMARS]
    channels: Annotated[tuple[Callable[[init.InitFacts, int], int], ...], init.CHANNEL_RULES]
    nvls_channels: Annotated[Callable[[init.InitFacts], int], init.NVLS_RULES]
    nvls_search_start: Annotated[Callable[[bool], str] | None, init.START_RULES]
    collnet: Annotated[tuple[Callable[[CollNetFacts], bool], ...], collnet.SUPPORT_RULES]
    collnet_heads: Annotated[Callable[[CollNetFacts], Algorithm], collnet.HEADS_RULES]
    collnet_direct_heads: Annotated[Callable[[CollNetFacts], int], collnet.DIRECT_HEADS_RULES]
    domains: Annotated[FabricRule, init.DOMAIN_RULES]
    nvls_if_shared: Annotated[Callable[[Sequence[Sequence[int]]], bool] | None, init.SHARED_RULES]
    comp_caps: Annotated[Callable[[Sequence[int]], Sequence[int]], init.COMP_CAP_RULES]
    cpu: Annotated[Callable[[Sequence[init.Cpu]], init.Cpu], init.CPU_RULES]
    table_cpu: Annotated[Callable[[Sequence[init.Cpu]], init.Cpu], init.CPU_RULES]
    tree_pattern: Annotated[Callable[[Sequence[Pattern | None]], Pattern | None], init.TREE_PATTERN_RULES]
    exists: Mapping[Collective, tuple[Algorithm, ...]]  # rows, not rules
    fills: Annotated[Mapping[Algorithm, tuple[EnabledRule, ...]], enabled.RULES]
    enabled: Annotated[tuple[EnabledRule, ...], enabled.RULES]
    ring_backup: Annotated[tuple[EnabledRule, ...], enabled.RULES]
    bandwidth: Annotated[Mapping[Algorithm, tuple[BandwidthRule, ...]], bandwidth.RULES]
    latency: Annotated[Mapping[Algorithm, tuple[LatencyRule, ...]], latency.RULES]
    hw_latency_row: Annotated[tuple[Callable[[ModelPoint, Hardware, Algorithm], Algorithm], ...], call.ROW_RULES]
    network_step: Annotated[Callable[[ModelPoint], Algorithm], latency.NETWORK_STEP_RULES]
    ring_network_steps: Annotated[Callable[[ModelPoint], int], latency.RING_NETWORK_STEPS_RULES]
    printed_table: Annotated[PrintRule, model.PRINT_RULES]
    fp8_needs_hopper: Annotated[Callable[[Request], bool], candidate.FP8_RULES]
    candidate: Annotated[tuple[CandidateRule, ...], candidate.RULES]
    time: Annotated[tuple[CorrectionRule, ...], time.CORRECTIONS]
    penalty: Annotated[tuple[PenaltyRule, ...], time.PENALTIES]
    pick: Annotated[PickRule, time.RULES]
    launch: Annotated[LaunchRule, launch.RULES]
    thread_product: Annotated[Callable[[int, int, int], list[int]], bounds.PRODUCT_RULES]
    nvls_kind: Annotated[Callable[[Comm, Algorithm], bool], bounds.NVLS_KIND_RULES]
    nvls_bound: Annotated[bounds.NvlsBoundRule, bounds.NVLS_BOUND_RULES]
    bound_channels: Annotated[Callable[[Comm], int], bounds.BOUND_CHANNELS_RULES]
    tuned_channels: Annotated[Callable[[int, int], int], bounds.TUNED_RULES]
    tuned_threads: Annotated[Callable[[int], int], bounds.TUNED_THREADS_RULES]
    block: Annotated[bounds.BlockRule, bounds.BLOCK_RULES]
    channel_split: Annotated[ChannelSplit, launch.SPLIT_RULES]
    traffic_per_channel: Annotated[Callable[[SizeArray, int, int], SizeArray], launch.TRAFFIC_RULES]
    registered: Annotated[tuple[RegisteredRule, ...], registered.RULES]
    schedule: Annotated[scheduler.Scheduler, scheduler.RULES]
    task_order: Annotated[Callable[[Comm, list[task.CollectiveTask]], list[task.CollectiveTask]], scheduler.ORDER_RULES]
    counted_traffic: Annotated[Callable[[int, int], int], scheduler.COUNTED_TRAFFIC_RULES]
    device_op: Annotated[Callable[[Op], Op], task.DEVICE_OP_RULES]
    function: Annotated[Callable[[task.CollectiveTask, Op], DataType], task.FUNCTION_RULES]
    device_functions: Annotated[device_functions.DeviceFunctions, device_functions.RULES]
    channel_work: Annotated[channel_work.ChannelWork, channel_work.RULES]
    nvls_chunk: Annotated[NvlsChunk, channel_work.NVLS_RULES]
    direct_access: Annotated[Callable[[int], int], channel_work.DIRECT_RULES]
    op_argument: Annotated[Callable[[Request, int], int], device_functions.ARGUMENT_RULES]
    bypass_first: Annotated[symmetric.BypassRule | None, symmetric.BYPASSING_RULES]
    symmetric_queue: Annotated[Callable[[Request], bool] | None, symmetric.WAITING_RULES]
    symmetric_reach: Annotated[Callable[[Comm], bool] | None, symmetric.REACH_RULES]
    group_bytes: Annotated[Callable[[task.CollectiveTask], int] | None, scheduler.TOTAL_RULES]
    channel_bytes: Annotated[Callable[[Comm, bool], int] | None, scheduler.SHARE_RULES]
    work_estimate: Annotated[Callable[[task.CollectiveTask], int] | None, scheduler.ESTIMATE_RULES]
    non_classic_path: Annotated[symmetric.NonClassicRule, symmetric.RULES]
    symmetric_blocks: Annotated[SymmetricBlockRule, symmetric_kernels.BLOCK_RULES]
    symmetric_time: Annotated[TimeRule, symmetric_kernels.TIME_RULES]
    windows_between_nodes: Annotated[symmetric_variables.BetweenNodesRule | None, symmetric_variables.RULES]
    copies_between_nodes: Annotated[symmetric_kernels.BetweenNodesRule | None, symmetric_kernels.RULES]
    symmetric_ring: Annotated[symmetric_rail.RingRule | None, symmetric_rail.RING_RULES]
    symmetric_requested: Annotated[symmetric_variables.RequestedRule, symmetric_variables.REQUESTED_RULES]
    symmetric_low_latency: Annotated[symmetric_rail.LowLatencyRule | None, symmetric_rail.RULES]
    symmetric_arguments: Annotated[symmetric.RoomRule | None, symmetric.ARGUMENT_RULES]


def rules_for(release: Release) -> Rules:
    """The rules of a release. BadReleaseFile names the file and key of an unknown rule, and the known ones."""
    try:
        return _of_names(release.rules)
    except WrongValue as error:
        raise BadReleaseFile(f"{release.file_of(error.key)}: {error}") from None


@lru_cache(maxsize=1024)
def _of_names(rules: RuleNames) -> Rules:
    found = {kind: _of_registry(kind, getattr(rules, kind), functions) for kind, functions in registries().items()}
    return Rules(exists=rules.exists, **found)


@cache
def registries() -> Mapping[str, Registry[Any]]:
    """All rules of any release, by kind and name."""
    return {kind: hint.__metadata__[0] for kind, hint in Rules.__annotations__.items() if hasattr(hint, "__metadata__")}


def _of_registry(kind: str, names: Any, rules: Registry[Any]) -> Any:
    """The functions that a field of :class:`RuleNames` names: one, None, several, or several for each algorithm."""
    if names is None:
        return None
    if isinstance(names, Mapping):  # every algorithm is in it, some without rules
        return {
            algorithm: _of_registry(f"{kind}.{key}", names.get(algorithm, ()), rules)
            for algorithm, key in ALGORITHM_NAMES.items()
        }
    if isinstance(names, tuple):
        return tuple(_of_registry(kind, name, rules) for name in names)
    if names not in rules:
        raise WrongValue(f"rules.{kind}", f"unknown rule {names!r}; {one_of(rules)}")
    return rules[names]
