"""Tells which communicators have the same tables, and which make the same choices: they are equal in certain values.

Each of these values contains everything that tables, or times, picks and launches, depend on.

Releases share most rules and constants, so an answer about many releases mostly repeats a few different results. Only
communicators without variables, tuners and shared resources are compared, and only calls on plain buffers. This module
lists what a rule may read of a release; a test hides everything else from the rules.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.names import AlgoProto, Algorithm, Buffers
from tuner.base.numerics import Float, FloatArray, IntArray, SizeArray
from tuner.emulator.communicator import Comm
from tuner.emulator.request import MessageSizes, Request
from tuner.emulator.rules import time as timing
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import CHUNK, Picks, Selection, size_array
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
# What else decides whether a call is refused, and which cells it may use, with the reasons.
CANDIDATE_RULES = ("candidate", "fp8_needs_hopper")
RULES_OF_CELLS = ("time", "penalty", "nvls_kind", "nvls_bound", "bound_channels")
CORRECTING_LIMITS = ("tree_corrections", "nvls_tree_corrections", "nvls_tree_corrections_on_two_arm_nodes")
SHAPE_AND_CHANNELS = (
    "ranks",
    "nodes",
    "min_local_ranks",
    "max_local_ranks",
    "channels",
    "coll_channels",
    "min_comp_cap",
    "cpu_arch",
)
CALL_FACTS = attrgetter(*SHAPE_AND_CHANNELS, "nvls_channels", "collnet")
# What corrections and penalties look at
CORRECTING_FACTS = attrgetter(*SHAPE_AND_CHANNELS, "net_gbs")

NOT_COMPARED = ("release", "environment", "rules", "links", "merges_adapters", "shared", "tuner", "copied_from")
FACTS = tuple(each.name for each in fields(Comm) if each.name not in (*NOT_COMPARED, "graphs"))
_facts = attrgetter(*FACTS)
_ONE = np.ones(1, np.float32)
_ONE_SIZE = MessageSizes(np.ones(1, np.uint64))


def _is_compared(communicator: Comm) -> bool:
    return not communicator.environment.values and communicator.tuner is None and communicator.shared is None


def of_tables(communicator: Comm) -> Hashable | None:
    """Communicators for which this value is equal have equal tables of latency and bandwidth.

    None for a communicator that is not compared: one with variables, a tuner or shared resources.
    """
    if not _is_compared(communicator):
        return None
    return _model_content(communicator.release, communicator.rules, communicator.generation), of_facts(communicator)


def of_calls(communicator: Comm) -> Hashable | None:
    """If this value is equal for two communicators, every call on plain buffers has the same answer on both.

    The answer consists of the candidates, the reasons that exclude other cells, times and their steps, picks and
    launches.

    None for a communicator that is not compared, as in :func:`of_tables`.
    """
    tables, generation = of_tables(communicator), communicator.generation
    return None if tables is None else (tables, _calls_content(communicator.release, communicator.rules, generation))


def of_choice(
    selection: Selection, request: Request
) -> tuple[Hashable, Hashable, tuple[Hashable, ...], tuple[Hashable, ...]] | None:
    """Calls for which this value is equal have equal candidates, times, picks and launches at every size.

    It has four parts: facts about the communicator, what all launches of the calls depend on, and for each candidate
    what its times, and what its launches depend on in addition.

    None for a call that NCCL refuses, and for one that is not compared: a call on other than plain buffers, with a
    configuration of its own, or on a communicator that :func:`of_tables` does not compare.
    """
    communicator = selection.communicator
    if not _is_compared(communicator):
        return None
    if request.buffers is not Buffers.plain or request.configuration is not None or not selection.usable(request):
        return None
    nccl, rules, facts = communicator.release, communicator.rules, CALL_FACTS(communicator)
    tables, bound = selection.tables_of(request.collective), rules.bound_channels(communicator)
    corrected = (
        _correcting_content(nccl, communicator.generation),
        CORRECTING_FACTS(communicator),
        communicator.graphs[Algorithm.Ring].type_intra,
    )
    times, launches = list[Hashable](), list[Hashable]()
    for algo_proto, bandwidth_gbs in selection.bandwidths_gbs(request).items():
        call = RuleCall(communicator, request, algo_proto)
        latency_us = tables.latency_us[(request.collective, *algo_proto)]
        times.append(_times_content(call, latency_us, bandwidth_gbs, corrected))
        like_nvls = call.like_nvls
        launches.append(
            (
                algo_proto,
                int(tables.max_threads[algo_proto]),
                int(tables.thread_thresholds_bytes[algo_proto]),
                rules.nvls_bound(communicator, algo_proto) if like_nvls else bound,
                like_nvls,
                communicator.nvls_channels if like_nvls else communicator.channels,
                call.like_collnet,
                communicator.collnet if call.algorithm is Algorithm.CollNetDirect else None,
            )
        )
    parts = request.parts(communicator.ranks)
    launched = request, _call_content(nccl, rules), parts, rules.launch.looks_at(communicator)
    return facts, launched, tuple(times), tuple(launches)


def _times_content(call: RuleCall, latency_us: Float, bandwidth_gbs: Float, corrected: Hashable) -> Hashable:
    """What the times of a cell depend on; ``corrected`` counts only if a correction or a penalty applies to it."""
    rules = call.rules
    # A rule that does not apply to a cell returns what it was given, at any size.
    applying = tuple(
        rule
        for rule in rules.time
        if _changes(rule(latency_us, bandwidth_gbs, call, _ONE_SIZE), latency_us, bandwidth_gbs)
    ) + tuple(rule for rule in rules.penalty if rule(_ONE, call) is not _ONE)
    batch = timing.per_batch(call) if call.request.pipelined > 1 else 1
    content = call.algo_proto, float(latency_us), float(bandwidth_gbs), call.request.pipelined, batch
    return (*content, applying, call.request, corrected) if applying else content


def _changes(corrected: timing.Corrected, latency_us: Float, bandwidth_gbs: Float) -> bool:
    return corrected[0] is not latency_us or corrected[1] is not bandwidth_gbs


def of_facts(communicator: Comm) -> Hashable:
    """The facts of a communicator that are compared: its GPUs' generation, all fields in ``FACTS``, and its graphs."""
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


def _pick_content(selection: Selection) -> Hashable:
    communicator = selection.communicator
    return communicator.release.limits.max_time_us, communicator.rules.pick


@lru_cache(256)
def _calls_content(nccl: Release, rules: Any, generation: Generation) -> int:
    of_rules = [getattr(rules, name) for name in (*CALL_RULES, *CANDIDATE_RULES, *RULES_OF_CELLS)]
    of_release = [getattr(nccl, name) for name in CORRECTED_BY]
    return _number(("calls", generation, nccl.limits, of_release, of_rules))


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


_Launches = tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]  # channels and threads, [size]


class Alike:
    """Selections of many communicators, such as a machine's in all releases: what they have in common is computed once.

    It keeps all that it has computed until :meth:`forget` is called. Call that after each machine if there are many.
    """

    def __init__(self) -> None:
        self._sizes: dict[bytes, SizeArray] = {}
        self._launches: dict[Hashable, _Launches] = {}  # by the array of :attr:`_sizes`, too, as the following
        self.forget()

    def forget(self) -> None:
        """Forgets everything except for launches, because most machines have the same launches."""
        self._of_tables: dict[Hashable, Selection] = {}  # a selection with these tables
        self._picks: dict[Hashable, Picks] = {}
        self._times: dict[Hashable, FloatArray] = {}
        self._best: dict[Hashable, tuple[NDArray[np.int8], FloatArray]] = {}  # which candidate, and its time in us

    def selection(self, communicator: Comm) -> Selection:
        """The selection of a communicator; it shares the tables of an earlier selection that has equal ones."""
        made, tables = Selection(communicator), of_tables(communicator)
        if tables is not None:
            made.take_tables(self._of_tables.setdefault(tables, made))
        return made

    def pick(self, selection: Selection, request: Request, sizes: SizeArray) -> Picks:
        """Returns what the selection's own ``pick`` returns for ``sizes`` [size].

        Communicators that share picks get the same object, which must not be changed. Raises NoAlgorithm and BadInput.
        """
        choice = of_choice(selection, request)
        if choice is None or not 0 < len(sizes) <= CHUNK:
            return selection.pick(request, sizes)
        content = sizes.tobytes()
        if (kept := self._sizes.get(content)) is None:
            kept = self._sizes[content] = np.frombuffer(content, size_array(sizes).dtype)
        _, launched, of_times, of_launches = choice
        at = id(kept), launched, of_times, of_launches
        if (known := self._picks.get(at)) is None:
            best, time_us = self._best_of(selection, request, kept, (_pick_content(selection), of_times))
            algo_protos = selection.candidates(request)
            algorithm, protocol = np.array(algo_protos, np.int8).T
            launches = {
                index: self._launch_of(selection, request, kept, algo_protos[index], (launched, of_launches[index]))
                for index in np.flatnonzero(np.bincount(best)).tolist()
            }
            channels, threads = _of_best(best, launches)
            known = self._picks[at] = Picks(kept, algorithm.take(best), protocol.take(best), time_us, channels, threads)
        return known

    def _best_of(
        self, selection: Selection, request: Request, sizes: SizeArray, content: tuple[Hashable, tuple[Hashable, ...]]
    ) -> tuple[NDArray[np.int8], FloatArray]:
        """The index of the picked candidate and its time in us, [size], of calls without variables and tuners."""

        def times() -> Iterator[FloatArray]:
            for algo_proto, each in zip(selection.candidates(request), content[1], strict=True):
                if (known := self._times.get((id(sizes), each))) is None:
                    known = self._times[id(sizes), each] = selection.combination_us(request, sizes, algo_proto)
                yield known

        at = id(sizes), *content
        if (known := self._best.get(at)) is None:
            known = self._best[at] = selection.communicator.rules.pick(times(), selection.communicator)
        return known

    def _launch_of(
        self, selection: Selection, request: Request, sizes: SizeArray, algo_proto: AlgoProto, content: Hashable
    ) -> _Launches:
        """Channels and threads, [size], of calls that pick this cell."""
        at = id(sizes), content
        if (known := self._launches.get(at)) is None:
            channels, threads = selection.launched(request, sizes, algo_proto)
            known = self._launches[at] = _narrow(channels), _narrow(threads)
        return known


def _of_best(best: NDArray[np.int8], launches: dict[int, _Launches]) -> _Launches:
    """Channels and threads, [size], of the candidates that are picked; ``launches`` are those of each at all sizes."""
    (_, (channels, threads)), *others = launches.items()
    for index, of_cell in others:
        chosen = best == index
        channels, threads = np.where(chosen, of_cell[0], channels), np.where(chosen, of_cell[1], threads)
    return channels, threads


def _narrow(numbers: IntArray) -> NDArray[np.integer[Any]]:
    """The numbers in two bytes each, if they are small enough."""
    return numbers.astype(np.int16) if numbers.max(initial=0) < 1 << 15 else numbers
