"""Computes the time of each size from a cell's latency and bandwidth, in us as float32.

Shapes: latencies in us and bandwidths in GB/s are scalars or [size]; times in us are [size].
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.base import trace
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import Float, FloatArray, SizeArray, ceil_div, f32, f64, powf
from tuner.base.registry import Registry, found_in
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import FP8, MessageSizes, ring_steps
from tuner.emulator.rules.call import RuleCall
from tuner.release.schema import given

Value: TypeAlias = Float | FloatArray
Corrected = tuple[Value, Value]  # latency in us and bandwidth in GB/s, for one size or for each
CorrectionRule = Callable[[Value, Value, RuleCall, MessageSizes], Corrected]
PenaltyRule = Callable[[FloatArray, RuleCall], FloatArray]
CORRECTIONS: Registry[CorrectionRule] = Registry()
PENALTIES: Registry[PenaltyRule] = Registry()


def time_us(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> FloatArray:
    """Time of each size: corrected latency, once per batch of pipelined operations, plus size over bandwidth."""
    latency_us, bandwidth_gbs = corrected(latency_us, bandwidth_gbs, call, sizes)
    times = size_over_bandwidth(bandwidth_gbs, sizes)
    trace.step("time", "us", size_over_bandwidth, f32(0), times)
    times = plus_latency(times, latency_us, ceil_div(call.request.pipelined, per_batch(call)))
    return penalised(times, call)


@found_in(nccl.TOPO_GET_ALGO_TIME(since="2.18.1"), nccl.TUNING_GET_TIME(since="2.31.2"))
def size_over_bandwidth(bandwidth_gbs: Value, sizes: MessageSizes) -> FloatArray:
    """Time of the bytes at this size's bandwidth."""
    times: FloatArray = sizes.as_float / (f32(1000) * bandwidth_gbs)
    return times


@found_in(nccl.TOPO_GET_ALGO_TIME(since="2.18.1"), nccl.TUNING_GET_TIME(since="2.31.2"))
def plus_latency(times: FloatArray, latency_us: Value, batches: int) -> FloatArray:
    """Adds this size's latency, once per batch of pipelined operations.

    ``times`` is changed in place.
    """
    before = trace.kept(times)
    times += latency_us * f32(batches)
    trace.step("time", "us", plus_latency, before, times)
    return times


def corrected(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> Corrected:
    """Latency and bandwidth with the corrections for each size."""
    listening = trace.listening()
    for rule in call.rules.time:
        before = latency_us, bandwidth_gbs
        latency_us, bandwidth_gbs = rule(latency_us, bandwidth_gbs, call, sizes)
        if not listening:
            continue
        trace.step("latency at this size", "us", rule, before[0], latency_us)
        trace.step("bandwidth at this size", "GB/s", rule, before[1], bandwidth_gbs)
    return latency_us, bandwidth_gbs


def per_batch(call: RuleCall) -> int:
    """Number of pipelined operations that share a latency."""
    return 1 if call.algorithm is Algorithm.Ring else call.limits.colls_per_batch


def penalised(times: FloatArray, call: RuleCall) -> FloatArray:
    """The times in us, [size], with the penalties of the release."""
    for rule in call.rules.penalty:
        before, times = times, rule(times, call)
        trace.step("time", "us", rule, before, times)
    return times


@CORRECTIONS(nccl.TOPO_GET_ALGO_TIME(since="2.22.3"), nccl.TREE_MODEL_SIM(since="2.31.2"))
def tree_correction(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> Corrected:
    """The model is wrong for trees at medium sizes: a factor for each power of two from 64 B to 256 MB corrects it."""
    if call.algorithm is not Algorithm.Tree or call.request.collective is not Collective.AllReduce:
        return latency_us, bandwidth_gbs
    return latency_us, _corrected(bandwidth_gbs, call, sizes, call.limits.tree_corrections)


@CORRECTIONS(nccl.TOPO_GET_ALGO_TIME(since="2.18.1"))
def tree_correction_from_0_bytes(
    latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes
) -> Corrected:
    """The model is wrong for trees at medium sizes: a factor by power of two to 256 MB, below 64 B the first (sic)."""
    if call.algorithm is not Algorithm.Tree:
        return latency_us, bandwidth_gbs
    at_least_64 = MessageSizes(np.maximum(sizes.nbytes, np.uint64(64)))
    return latency_us, _corrected(bandwidth_gbs, call, at_least_64, call.limits.tree_corrections)


@CORRECTIONS(nccl.TOPO_GET_ALGO_TIME(since="2.29.2"))
def nvls_tree_correction_on_x86_blackwell(
    latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes
) -> Corrected:
    """NVLSTree on Blackwell with x86 processors has the trees' factor for each power of two, 64 B to 256 MB."""
    blackwell = call.communicator.min_comp_cap >= 100 and call.communicator.cpu_arch == "x86_64"
    where = call.algorithm is Algorithm.NVLSTree and blackwell
    if not where:
        return latency_us, bandwidth_gbs
    return latency_us, _corrected(
        bandwidth_gbs, call, sizes, given(call.limits.nvls_tree_corrections, "limits.nvls_tree_corrections")
    )


@CORRECTIONS(nccl.NVLS_MODEL_SIM(since="2.31.2"))
def nvls_tree_correction_on_blackwell(
    latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes
) -> Corrected:
    """NVLSTree on Blackwell has the trees' factors with x86; with ARM only at 4 ranks per node and fast adapters.

    Two nodes with ARM CPUs have fewer of the factors.
    """
    arm = given(call.communicator.release.nvls_tree_correction_on_arm, "nvls_tree_correction_on_arm")
    everywhere = call.communicator.min_local_ranks == call.communicator.max_local_ranks == arm.local_ranks
    fast = everywhere and call.communicator.net_gbs >= arm.fast_net_gbs
    where = call.algorithm is Algorithm.NVLSTree and call.communicator.min_comp_cap >= 100
    if not (where and call.communicator.cpu_arch == "arm64" and fast):
        return nvls_tree_correction_on_x86_blackwell(latency_us, bandwidth_gbs, call, sizes)
    two, more = call.limits.nvls_tree_corrections_on_two_arm_nodes, call.limits.nvls_tree_corrections
    used = given(two if call.communicator.nodes <= 2 else more, "limits.nvls_tree_corrections")
    return latency_us, _corrected(bandwidth_gbs, call, sizes, used)


@CORRECTIONS(nccl.TOPO_GET_ALGO_TIME(since="2.18.1"))
def preset_channels_only(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> Corrected:
    """The bandwidth of only the channels that operations chosen together get."""
    if not call.request.preset_channels:
        return latency_us, bandwidth_gbs
    return latency_us, bandwidth_gbs / f32(call.communicator.coll_channels) * f32(call.request.preset_channels)


@CORRECTIONS(nccl.TOPO_GET_ALGO_TIME(since="2.18.1"))
def ring_plateau(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> Corrected:
    """Ring/Simple AllReduce across nodes: latency rises once every rank and channel has 64 bytes."""
    where = call.algo_proto == (Algorithm.Ring, Protocol.Simple) and call.request.collective is Collective.AllReduce
    if not where or call.communicator.nodes == 1:
        return latency_us, bandwidth_gbs
    start = int(_plateau_from(call)) * call.communicator.channels * call.communicator.ranks
    raised = f32(latency_us * f64(_plateau(call)))
    return np.where(sizes.nbytes >= np.uint64(start), raised, latency_us), bandwidth_gbs


@CORRECTIONS(nccl.RING_MODEL_SIM(since="2.31.2"))
def ring_plateau_gathering_on_one_blackwell_node(
    latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes
) -> Corrected:
    """Ring/Simple: latency rises from 64 bytes per rank and channel: AllReduce across nodes, gathers on Blackwell."""
    alone = call.algo_proto == (Algorithm.Ring, Protocol.Simple) and call.request.spreads and _one_blackwell_node(call)
    if not alone:
        return ring_plateau(latency_us, bandwidth_gbs, call, sizes)
    raised = f32(latency_us * f64(_plateau(call)))
    return np.where(_per_channel_and_rank(call, sizes) >= _plateau_from(call), raised, latency_us), (bandwidth_gbs)


@CORRECTIONS(nccl.RING_MODEL_SIM(since="2.32.3"))
def ring_plateau_graded(latency_us: Value, bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes) -> Corrected:
    """Ring/Simple: latency rises once every rank and channel has 64 bytes; on one Blackwell node less at large sizes.

    On one Blackwell node, the rise gets smaller at large sizes; how much smaller depends on the steps of the ring.
    """
    reduces = call.request.collective is Collective.AllReduce
    alone = (reduces or call.request.spreads) and _one_blackwell_node(call)
    between = reduces and call.communicator.nodes > 1
    if call.algo_proto != (Algorithm.Ring, Protocol.Simple) or not (alone or between):
        return latency_us, bandwidth_gbs
    each = _per_channel_and_rank(call, sizes)
    highest = f32(_plateau(call))
    factor: Value = highest
    if alone:
        plateau = call.communicator.release.ring_plateau
        fade, most = f32(given(plateau.fade, "ring_plateau.fade")), highest - f32(1)
        share = f32(1) - powf(fade / most, max(0, ring_steps(call.request.collective, call.communicator.ranks) - 1))
        from_bytes = np.uint64(
            given(plateau.fades_from_bytes_per_channel_and_rank, "ring_plateau.fades_from_bytes_per_channel_and_rank")
        )
        beyond = np.maximum(each, from_bytes) - from_bytes
        left = most - fade * np.minimum(f32(1), beyond.astype(f32) / f32(from_bytes))
        factor = f32(1) + share * left
    return np.where(each >= _plateau_from(call), latency_us * factor, latency_us), bandwidth_gbs


def _one_blackwell_node(call: RuleCall) -> bool:
    over_nvlink = call.communicator.graphs[Algorithm.Ring].type_intra == "NVL"
    return call.communicator.nodes == 1 and call.communicator.min_comp_cap >= 100 and over_nvlink


def _per_channel_and_rank(call: RuleCall, sizes: MessageSizes) -> SizeArray:
    each: SizeArray = sizes.nbytes // np.uint64(call.communicator.channels * call.communicator.ranks)
    return each


def _plateau_from(call: RuleCall) -> np.uint64:
    return np.uint64(call.communicator.release.ring_plateau.from_bytes_per_channel_and_rank)


def _plateau(call: RuleCall) -> float:
    return call.communicator.release.ring_plateau.factors[call.communicator.generation]


def _corrected(bandwidth_gbs: Value, call: RuleCall, sizes: MessageSizes, used: int) -> FloatArray:
    # One more entry means "no correction"; it is used for index -1 and for everything past the table.
    factors = [*call.communicator.release.tree_correction[call.protocol][:used], 1.0]
    scaled: FloatArray = bandwidth_gbs * np.array(factors, f32)
    return scaled[np.minimum(sizes.log_of_64_bytes, len(factors) - 1)]


@PENALTIES(nccl.UPDATE_COLL_COST_TABLE(since="2.24.3"))
def deep_fp8_ring(times: FloatArray, call: RuleCall) -> FloatArray:
    """Eight bits lose too much in more than eight consecutive additions: such rings become the last choice."""
    lossy = call.algorithm is Algorithm.Ring and call.request.device_dtype in FP8 and call.communicator.ranks > 8
    return times * f32(1024) if lossy else times


@PENALTIES(nccl.TUNING_GET_TIME(since="2.31.2"))
def deep_fp8_ring_where_available(times: FloatArray, call: RuleCall) -> FloatArray:
    """Eight bits lose too much in more than eight consecutive additions: such rings become the last choice.

    Ignored cells stay ignored.
    """
    worse = deep_fp8_ring(times, call)
    return times if worse is times else np.where(times > 0, worse, times)


@PENALTIES(nccl.PAT_MODEL_SIM(since="2.31.2"))
def pat_of_several_ranks_last(times: FloatArray, call: RuleCall) -> FloatArray:
    """PAT with several ranks per node has no model: it is picked only if nothing else is left."""
    last = call.algorithm is Algorithm.PAT and call.communicator.ranks > call.communicator.nodes
    return np.where(times > 0, np.finfo(f32).max / f32(2), times) if last else times


PickRule = Callable[[Iterator[FloatArray], Comm], tuple[NDArray[np.int8], FloatArray]]
RULES: Registry[PickRule] = Registry()


@RULES(nccl.GET_ALGO_INFO(since="2.18.1"), nccl.TOPO_GET_ALGO_INFO(since="2.19.3"))
def first_fastest(times: Iterator[FloatArray], communicator: Comm) -> tuple[NDArray[np.int8], FloatArray]:
    """The pick with the lowest time, and that time in us, [size]; of equal cells the first in NCCL's order.

    Negative times do not count. A ring with one rank per node can have a negative time in releases that count more
    network steps for it than steps in all.
    """
    of_each = list(times)
    best, best_us = _first_least(of_each)
    if not (best_us >= 0).all():
        best, best_us = _first_least([unless_negative(time_us) for time_us in of_each])
    return best, _fast_enough(best_us, communicator)


def _first_least(of_each: Sequence[FloatArray]) -> tuple[NDArray[np.int8], FloatArray]:
    """For each size the index of the first of the least times, and that time in us."""
    best_us = of_each[0].copy()
    best = np.zeros(best_us.shape, np.int8)
    for index, time_us in enumerate(of_each[1:], start=1):
        np.copyto(best, index, where=time_us < best_us, casting="unsafe")
        np.minimum(best_us, time_us, out=best_us)
    return best, best_us


def unless_negative(time_us: FloatArray) -> FloatArray:
    """The times in us, [size]; a negative time, which does not count, becomes infinite."""
    positive = time_us >= 0
    return time_us if positive.all() else np.where(positive, time_us, np.float32(np.inf))


@RULES(nccl.TUNING_SELECT_BEST_TUNING(since="2.31.2"))
def last_fastest(times: Iterator[FloatArray], communicator: Comm) -> tuple[NDArray[np.int8], FloatArray]:
    """The pick with the lowest time, and that time in us, [size]; of equal cells the last in NCCL's order."""
    best_us = next(times).copy()
    best = np.zeros(best_us.shape, np.int8)
    for index, time_us in enumerate(times, start=1):
        np.copyto(best, index, where=time_us <= best_us, casting="unsafe")
        np.minimum(best_us, time_us, out=best_us)
    return best, _fast_enough(best_us, communicator)


def _fast_enough(best_us: FloatArray, communicator: Comm) -> FloatArray:
    slowest = communicator.release.limits.max_time_us
    if (best_us >= np.float32(slowest)).any():
        raise NoAlgorithm(f"NCCL picks nothing that takes {slowest:g} us or more, and every candidate is that slow")
    return best_us
