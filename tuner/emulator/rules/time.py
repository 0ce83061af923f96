"""From latency and bandwidth of a cell to the time of each size, us, as float32.

Source: ncclTopoGetAlgoTime (src/graph/tuning.cc) and updateCollCostTable (src/enqueue.cc), v2.28.9-1.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tuner.base import trace
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import Float, FloatArray, SizeArray, ceil_div, f32, f64, powf
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import FP8, Request, Sizes, ring_steps

Value: TypeAlias = Float | FloatArray
CorrectionRule = Callable[[Value, Value, Communicator, Request, AlgoProto, Sizes], tuple[Value, Value]]
PenaltyRule = Callable[[FloatArray, Communicator, Request, AlgoProto], FloatArray]
CORRECTIONS: Registry[CorrectionRule] = Registry()
PENALTIES: Registry[PenaltyRule] = Registry()


def time_us(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> FloatArray:
    """Time of each size: corrected latency, once per batch of pipelined operations, plus size over bandwidth."""
    latency_us, bandwidth_gbs = corrected(latency_us, bandwidth_gbs, communicator, request, algo_proto, sizes)
    times = size_over_bandwidth(bandwidth_gbs, sizes)
    trace.step("time", "us", size_over_bandwidth, f32(0), times)
    times = plus_latency(times, latency_us, ceil_div(request.pipelined, per_batch(communicator, algo_proto)))
    return penalised(times, communicator, request, algo_proto)


def size_over_bandwidth(bandwidth_gbs: Value, sizes: Sizes) -> FloatArray:
    """What the bytes take at this size's bandwidth."""
    times: FloatArray = sizes.as_float / (f32(1000) * bandwidth_gbs)
    return times


def plus_latency(times: FloatArray, latency_us: Value, batches: int) -> FloatArray:
    """This size's latency on top, once per batch of pipelined operations.

    ``times`` is changed in place.
    """
    before = trace.kept(times)
    times += latency_us * f32(batches)
    trace.step("time", "us", plus_latency, before, times)
    return times


def corrected(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Latency and bandwidth with the corrections of each size."""
    for name in communicator.release.rules("time"):
        before = latency_us, bandwidth_gbs
        latency_us, bandwidth_gbs = CORRECTIONS[name](
            latency_us, bandwidth_gbs, communicator, request, algo_proto, sizes
        )
        trace.step("latency at this size", "us", CORRECTIONS[name], before[0], latency_us)
        trace.step("bandwidth at this size", "GB/s", CORRECTIONS[name], before[1], bandwidth_gbs)
    return latency_us, bandwidth_gbs


def per_batch(communicator: Communicator, algo_proto: AlgoProto) -> int:
    """How many pipelined operations share a latency."""
    return 1 if algo_proto[0] is Algorithm.Ring else communicator.release.limit("colls_per_batch")


def penalised(times: FloatArray, communicator: Communicator, request: Request, algo_proto: AlgoProto) -> FloatArray:
    for name in communicator.release.rules("penalty"):
        before, times = times, PENALTIES[name](times, communicator, request, algo_proto)
        trace.step("time", "us", PENALTIES[name], before, times)
    return times


@CORRECTIONS
def tree_correction(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Trees miss the model at medium sizes: a factor on the bandwidth by power of two, 64 B to 256 MB."""
    if algo_proto[0] is not Algorithm.Tree or request.collective is not Collective.AllReduce:
        return latency_us, bandwidth_gbs
    return latency_us, _corrected(bandwidth_gbs, communicator, algo_proto, sizes, "tree_corrections")


@CORRECTIONS
def tree_correction_from_0_bytes(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Trees miss the model at medium sizes: a factor by power of two to 256 MB; below 64 B the first (sic)."""
    if algo_proto[0] is not Algorithm.Tree:
        return latency_us, bandwidth_gbs
    at_least_64 = Sizes(np.maximum(sizes.nbytes, np.uint64(64)))
    return latency_us, _corrected(bandwidth_gbs, communicator, algo_proto, at_least_64, "tree_corrections")


@CORRECTIONS
def nvls_tree_correction_on_x86_blackwell(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """NVLSTree on Blackwell beside x86 processors takes the trees' factors by power of two, 64 B to 256 MB."""
    where = (
        algo_proto[0] is Algorithm.NVLSTree and communicator.min_comp_cap >= 100 and communicator.cpu_arch == "x86_64"
    )
    if not where:
        return latency_us, bandwidth_gbs
    return latency_us, _corrected(bandwidth_gbs, communicator, algo_proto, sizes, "nvls_tree_corrections")


@CORRECTIONS
def nvls_tree_correction_on_blackwell(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """NVLSTree on Blackwell takes the trees' factors beside x86, and beside ARM with 4 ranks a node on fast adapters.

    Two such nodes use fewer of them.

    Source: ncclTuningNvlsModelSim, src/tuning/nvls.cc, v2.31.2-1.
    """
    table = communicator.release.table["nvls_tree_correction_on_arm"]
    everywhere = communicator.min_local_ranks == communicator.max_local_ranks == table["local_ranks"]
    fast = everywhere and communicator.net_gbs >= table["fast_net_gbs"]
    where = algo_proto[0] is Algorithm.NVLSTree and communicator.min_comp_cap >= 100
    if not (where and communicator.cpu_arch == "arm64" and fast):
        return nvls_tree_correction_on_x86_blackwell(
            latency_us, bandwidth_gbs, communicator, request, algo_proto, sizes
        )
    used = "nvls_tree_corrections_on_two_arm_nodes" if communicator.nodes <= 2 else "nvls_tree_corrections"
    return latency_us, _corrected(bandwidth_gbs, communicator, algo_proto, sizes, used)


@CORRECTIONS
def preset_channels_only(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """The bandwidth of the channels that operations together are given. Source: src/graph/tuning.cc, v2.19.3-1."""
    if not request.preset_channels:
        return latency_us, bandwidth_gbs
    return latency_us, bandwidth_gbs / f32(communicator.coll_channels) * f32(request.preset_channels)


@CORRECTIONS
def ring_plateau(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Ring/Simple AllReduce across nodes: latency rises once every rank and channel has 64 bytes."""
    where = algo_proto == (Algorithm.Ring, Protocol.Simple) and request.collective is Collective.AllReduce
    if not where or communicator.nodes == 1:
        return latency_us, bandwidth_gbs
    table = communicator.release.table["ring_plateau"]
    start = table["from_bytes_per_channel_and_rank"] * communicator.channels * communicator.ranks
    raised = f32(latency_us * f64(table[communicator.generation]))
    return np.where(sizes.nbytes >= np.uint64(start), raised, latency_us), bandwidth_gbs


@CORRECTIONS
def ring_plateau_gathering_on_one_blackwell_node(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Ring/Simple: latency rises from 64 bytes per rank and channel: AllReduce across nodes, gathers on Blackwell."""
    alone = algo_proto == (Algorithm.Ring, Protocol.Simple) and request.spreads and _one_blackwell_node(communicator)
    if not alone:
        return ring_plateau(latency_us, bandwidth_gbs, communicator, request, algo_proto, sizes)
    raised = f32(latency_us * f64(_plateau(communicator)))
    return np.where(_per_channel_and_rank(communicator, sizes) >= _plateau_from(communicator), raised, latency_us), (
        bandwidth_gbs
    )


@CORRECTIONS
def ring_plateau_graded(
    latency_us: Value,
    bandwidth_gbs: Value,
    communicator: Communicator,
    request: Request,
    algo_proto: AlgoProto,
    sizes: Sizes,
) -> tuple[Value, Value]:
    """Ring/Simple: latency rises once every rank and channel has 64 bytes; on one Blackwell node less at large sizes.

    Source: ncclTuningRingModelSim, src/tuning/ring.cc, v2.32.3-1.
    """
    reduces = request.collective is Collective.AllReduce
    alone = (reduces or request.spreads) and _one_blackwell_node(communicator)
    between = reduces and communicator.nodes > 1
    if algo_proto != (Algorithm.Ring, Protocol.Simple) or not (alone or between):
        return latency_us, bandwidth_gbs
    each = _per_channel_and_rank(communicator, sizes)
    highest = f32(_plateau(communicator))
    factor: Value = highest
    if alone:
        table = communicator.release.table["ring_plateau"]
        fade, most = f32(table["fade"]), highest - f32(1)
        share = f32(1) - powf(fade / most, max(0, ring_steps(request.collective, communicator.ranks) - 1))
        from_bytes = np.uint64(table["fades_from_bytes_per_channel_and_rank"])
        beyond = np.maximum(each, from_bytes) - from_bytes
        left = most - fade * np.minimum(f32(1), beyond.astype(f32) / f32(from_bytes))
        factor = f32(1) + share * left
    return np.where(each >= _plateau_from(communicator), latency_us * factor, latency_us), bandwidth_gbs


def _one_blackwell_node(communicator: Communicator) -> bool:
    over_nvlink = communicator.graphs[Algorithm.Ring].type_intra == "NVL"
    return communicator.nodes == 1 and communicator.min_comp_cap >= 100 and over_nvlink


def _per_channel_and_rank(communicator: Communicator, sizes: Sizes) -> SizeArray:
    each: SizeArray = sizes.nbytes // np.uint64(communicator.channels * communicator.ranks)
    return each


def _plateau_from(communicator: Communicator) -> np.uint64:
    return np.uint64(communicator.release.table["ring_plateau"]["from_bytes_per_channel_and_rank"])


def _plateau(communicator: Communicator) -> float:
    return float(communicator.release.table["ring_plateau"][communicator.generation])


def _corrected(
    bandwidth_gbs: Value, communicator: Communicator, algo_proto: AlgoProto, sizes: Sizes, used: str
) -> FloatArray:
    factors = communicator.release.tree_correction[algo_proto[1]][: communicator.release.limit(used)]
    # One more entry stands for "no correction": index -1 and everything past the table.
    scaled: FloatArray = bandwidth_gbs * np.append(factors, f32(1))
    return scaled[np.minimum(sizes.log_of_64_bytes, len(factors))]


@PENALTIES
def deep_fp8_ring(times: FloatArray, communicator: Communicator, request: Request, algo_proto: AlgoProto) -> FloatArray:
    """Eight bits lose too much over more than eight additions in a row: such rings become the last choice."""
    lossy = algo_proto[0] is Algorithm.Ring and request.device_dtype in FP8 and communicator.ranks > 8
    return times * f32(1024) if lossy else times


@PENALTIES
def deep_fp8_ring_where_available(
    times: FloatArray, communicator: Communicator, request: Request, algo_proto: AlgoProto
) -> FloatArray:
    """Eight bits lose too much over more than eight additions in a row: such rings become the last choice.

    What is ignored stays as it is.
    """
    return np.where(times > 0, deep_fp8_ring(times, communicator, request, algo_proto), times)


@PENALTIES
def pat_of_several_ranks_last(
    times: FloatArray, communicator: Communicator, request: Request, algo_proto: AlgoProto
) -> FloatArray:
    """PAT with several ranks per node has no model: it is taken only where nothing else is left."""
    last = algo_proto[0] is Algorithm.PAT and communicator.ranks > communicator.nodes
    return np.where(times > 0, np.finfo(f32).max / f32(2), times) if last else times
