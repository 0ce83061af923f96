"""Tells which communicators have the same tables, and which choose alike: values that are equal where everything that
tables, times, picks and launches depend on is equal.

Releases share most rules and constants, so what an answer about many releases consists of is mostly the same few times
over. Only communicators without variables, tuners and shared resources are compared, and calls on plain buffers; what
a rule may read of a release is listed here, and a test takes everything else away from the rules.
"""

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from tuner.base.names import AlgoProto, Algorithm, Buffers
from tuner.base.numerics import Float, SizeArray
from tuner.emulator.communicator import Comm
from tuner.emulator.model import Tables
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Picks, Selection
from tuner.release import Generation, Release

# What the tables of latency and bandwidth depend on, of a release and of its rules.
MODEL_CONSTANTS = (
    "paths",
    "generations",
    "base_latency_us",
    "hw_latency_us",
    "nvls_efficiency",
    "net_overhead_us",
    "threads",
    "thread_threshold_bytes",
    "ll128",
    "efficiency",
)
MODEL_RULES = (
    "exists",
    "fills",
    "enabled",
    "ring_backup",
    "bandwidth",
    "latency",
    "hw_latency_row",
    "network_step",
    "ring_network_steps",
)
CAPPED_AS: tuple[Generation, ...] = ("volta", "ampere")  # by which LL is capped between nodes, beside the own one

# What a call's times, pick and launch depend on beside these tables. Of rules that only say yes or no, or a number, the
# answer counts; of corrections and penalties those that apply.
CORRECTED_BY = ("tree_correction", "ring_plateau", "nvls_tree_correction_on_arm")
CALL_RULES = (
    "pick",
    "launch",
    "thread_product",
    "block",
    "channel_split",
    "traffic_per_channel",
)
LIMITS = (
    "warp_size",
    "max_threads",
    "min_block_threads",
    "min_traffic_per_channel_bytes",
    "ll_traffic",
    "cell_alignment_bytes",
    "max_time_us",
    "part_alignment_bytes",
    "simple_alignment_bytes",
    "ll128_alignment_bytes_per_warp",
    "ll_alignment_bytes_per_thread",
)
CORRECTING_LIMITS = ("tree_corrections", "nvls_tree_corrections", "nvls_tree_corrections_on_two_arm_nodes")
CALL_FACTS = attrgetter(
    "ranks",
    "nodes",
    "min_local_ranks",
    "max_local_ranks",
    "channels",
    "coll_channels",
    "nvls_channels",
    "min_comp_cap",
    "cpu_arch",
    "collnet",
)

NOT_COMPARED = ("release", "environment", "rules", "links", "merges_adapters", "shared", "tuner", "copied_from")
FACTS = tuple(each.name for each in fields(Comm) if each.name not in (*NOT_COMPARED, "graphs"))
_facts = attrgetter(*FACTS)
_ONE = np.ones(1, np.float32)
_ONE_SIZE = MessageSizes(np.ones(1, np.uint64))


def of_tables(communicator: Comm) -> Hashable | None:
    """A value that communicators with equal tables of latency and bandwidth share; None: this one is not compared."""
    if communicator.environment.values or communicator.tuner is not None or communicator.shared is not None:
        return None
    return _model_content(communicator.release, communicator.rules, communicator.generation), of_facts(communicator)


def of_choice(selection: Selection, request: Request) -> Hashable | None:
    """A value that is equal where these calls have equal candidates, times, picks and launches at every size.

    None where that is not compared, or where NCCL refuses the call.
    """
    communicator = selection.communicator
    if communicator.environment.values or communicator.tuner is not None or communicator.shared is not None:
        return None
    if request.buffers is not Buffers.plain or request.configuration is not None or not selection.usable(request):
        return None
    tables = selection.tables_of(request.collective)
    return (
        request,
        _call_content(communicator.release, communicator.rules),
        CALL_FACTS(communicator),
        communicator.rules.launch.looks_at(communicator),
        *(_cell_content(selection, tables, request, algo_proto) for algo_proto in selection.candidates(request)),
    )


def _cell_content(selection: Selection, tables: Tables, request: Request, algo_proto: AlgoProto) -> Hashable:
    """What the time and the launch of a cell depend on, in addition to what all cells depend on."""
    communicator = selection.communicator
    call, rules = RuleCall(communicator, request, algo_proto), communicator.rules
    latency_us, bandwidth_gbs = selection.model_of(call)
    # A rule that does not apply to a cell returns what it was given, at any size.
    corrections = [
        rule
        for rule in rules.time
        if _changes(rule(latency_us, bandwidth_gbs, call, _ONE_SIZE), latency_us, bandwidth_gbs)
    ]
    penalties = [rule for rule in rules.penalty if rule(_ONE, call) is not _ONE]
    corrected = _correcting_content(communicator.release, communicator.generation), communicator.net_gbs
    return (
        algo_proto,
        float(latency_us),
        float(bandwidth_gbs),
        int(tables.max_threads[algo_proto]),
        int(tables.thread_thresholds_bytes[algo_proto]),
        timing.per_batch(call) if request.pipelined > 1 else 1,
        rules.bound_channels(communicator),
        rules.nvls_bound(communicator, algo_proto) if call.like_nvls else None,
        call.like_collnet,
        tuple(corrections),
        tuple(penalties),
        (*corrected, communicator.graphs[Algorithm.Ring].type_intra) if corrections else None,
    )


def _changes(corrected: timing.Corrected, latency_us: Float, bandwidth_gbs: Float) -> bool:
    return corrected[0] is not latency_us or corrected[1] is not bandwidth_gbs


def of_facts(communicator: Comm) -> Hashable:
    """What is known about a communicator, including the generation of its GPUs, apart from its release and its
    graphs."""
    graphs = communicator.graphs
    return communicator.generation, _facts(communicator), tuple(graphs[algorithm] for algorithm in Algorithm)


@lru_cache(256)
def _model_content(nccl: Release, rules: Any, generation: Generation) -> int:
    rows = {generation, *CAPPED_AS}
    caps = {
        name: {row: values for row, values in of_cap.items() if row in rows} for name, of_cap in nccl.cap_gbs.items()
    }
    constants = [getattr(nccl, name) for name in MODEL_CONSTANTS]
    return _number(("model", constants, caps, [getattr(rules, name) for name in MODEL_RULES]))


@lru_cache(256)
def _call_content(nccl: Release, rules: Any) -> int:
    limits = [getattr(nccl.limits, name) for name in LIMITS]
    return _number(("call", limits, [getattr(rules, name) for name in CALL_RULES]))


@lru_cache(256)
def _correcting_content(nccl: Release, generation: Generation) -> int:
    limits = [getattr(nccl.limits, name) for name in CORRECTING_LIMITS]
    return _number(("corrections", generation, limits, [getattr(nccl, name) for name in CORRECTED_BY]))


_NUMBERS: dict[Hashable, int] = {}


def _number(content: Any) -> int:
    """A number for each content, which is quicker to compare."""
    return _NUMBERS.setdefault(_hashable(content), len(_NUMBERS))


def _hashable(content: Any) -> Hashable:
    """Constants and rules as values that are equal where their content is."""
    if isinstance(content, Mapping):
        return tuple((key, _hashable(value)) for key, value in content.items())
    if isinstance(content, (list, tuple)):
        return tuple(map(_hashable, content))
    if is_dataclass(content):
        return tuple(_hashable(getattr(content, each.name)) for each in fields(content))
    known: Hashable = content
    return known


class Alike:
    """Selections of many communicators, such as a machine's in all releases: what they have in common is computed once.

    It keeps all that it has computed, so one serves one machine or one answer.
    """

    def __init__(self) -> None:
        self._of_tables: dict[Hashable, Selection] = {}  # a selection with these tables
        self._picks: dict[Hashable, Picks] = {}

    def selection(self, communicator: Comm) -> Selection:
        """The selection of a communicator; its tables may be those of another one."""
        made, tables = Selection(communicator), of_tables(communicator)
        if tables is not None:
            made.take_tables(self._of_tables.setdefault(tables, made))
        return made

    def pick(self, selection: Selection, request: Request, sizes: SizeArray) -> Picks:
        """Returns what the selection's own ``pick`` returns for ``sizes`` [size].

        Communicators that share picks get the same object, which must not be changed. Raises NoAlgorithm and BadInput.
        """
        choice = of_choice(selection, request)
        if choice is None:
            return selection.pick(request, sizes)
        at = choice, sizes.tobytes()
        if (known := self._picks.get(at)) is None:
            known = self._picks[at] = selection.pick(request, sizes)
        return known
