"""How many channels an operation on registered buffers may use: rules by name, in the order of the release table.

They hold for one process per GPU and buffers that do not overlap. Source: registerCollBuffers (src/enqueue.cc) up to
v2.23.4-1, src/register/coll_reg.cc from v2.24.3-1, ncclNvlsRegResourcesQuery (src/transport/nvls.cc) from v2.27.3-1.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, Protocol
from tuner.base.numerics import IntArray, f32
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.model import Tables
from tuner.emulator.request import Request

Cell: TypeAlias = tuple[Algorithm, Protocol]
RegisteredRule = Callable[[Communicator, Tables, Request, Cell, IntArray], IntArray]
RULES: Registry[RegisteredRule] = Registry()

NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)


def knows(communicator: Communicator, request: Request) -> bool:
    """Whether NCCL keeps what it was told about the buffers."""
    told = request.buffers is not Buffers.plain
    return told and communicator.environment.number("NCCL_LOCAL_REGISTER", 1) != 0


@RULES
def few_nvls_channels(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """The switch reads the user's buffers itself, so few blocks fill it."""
    if algo_proto[0] not in NVLS:
        return bound
    return np.full_like(bound, _within(communicator, _nvls_channels(communicator, tables, request.collective)))


@RULES
def within_the_nvls_channels(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """The kernel has no more channels than NVLS. Source: usableChannels, src/enqueue.cc, v2.21.5-1."""
    return np.minimum(bound, communicator.nvls_channels) if algo_proto[0] in NVLS else bound


@RULES
def few_of_the_nvls_channels(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """The switch reads the user's buffers itself: few blocks fill it, and no more than NVLS has channels."""
    if algo_proto[0] not in NVLS:
        return bound
    few = _nvls_channels(communicator, tables, request.collective)
    return np.full_like(bound, min(few, communicator.nvls_channels))


@RULES
def few_nvls_channels_by_heads(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """The number is that of eight GPUs; fewer GPUs per node need more blocks each."""
    if algo_proto[0] not in NVLS:
        return bound
    return np.full_like(bound, nvls_channels_by_heads(communicator, tables, request.collective))


@RULES
def sixteen_of_somewhat_more_on_one_node(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """Where all peers of one node read and write the buffers directly, 17 to 24 channels become 16."""
    if communicator.nodes > 1 or algo_proto[1] is not Protocol.Simple or not _peers_know(request, algo_proto[0]):
        return bound
    more = (bound > 16) & (bound <= 24)
    if more.any() and not communicator.direct_nvlink:
        raise BadInput(
            "registered buffers on 17 to 24 channels: not where two GPUs have no NVLink between them; valid: plain"
        )
    return np.where(more, 16, bound)


@RULES
def one_for_lone_ranks_on_direct_adapters(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """With one rank per node the adapters take the buffers whole, so one channel starts the transfers."""
    return np.ones_like(bound) if _adapters_know(communicator, request, algo_proto) else bound


@RULES
def near_adapters_for_lone_ranks(
    communicator: Communicator, tables: Tables, request: Request, algo_proto: Cell, bound: IntArray
) -> IntArray:
    """With one rank per node, a channel for each adapter near the GPU, whose number nobody has told."""
    if _adapters_know(communicator, request, algo_proto):
        raise BadInput(
            f"NCCL {communicator.release.name} gives {request.collective.name} of registered buffers a channel per "
            "adapter near the GPU where a node has one rank; their number is not emulated; valid: more ranks per node"
        )
    return bound


def _adapters_know(communicator: Communicator, request: Request, algo_proto: Cell) -> bool:
    """Whether the ring's adapters read and write the user's buffers (GPUDirect RDMA), with one rank per node."""
    lone = communicator.nodes == communicator.ranks
    keeps = request.collective in (Collective.AllGather, Collective.Broadcast)
    return lone and keeps and algo_proto == (Algorithm.Ring, Protocol.Simple) and _gpu_direct(communicator)


def _gpu_direct(communicator: Communicator) -> bool:
    """Whether every adapter of the ring reads and writes its GPU's memory.

    One that cannot is searched from the CPU: its path is PHB or farther, or P2C, which alone does not tell.
    Source: ncclTopoCheckGdr and ncclTopoComputePaths, src/graph/paths.cc, v2.28.9-1.
    """
    release, type_inter = communicator.release, communicator.graphs[Algorithm.Ring].type_inter
    asked = [name for name in communicator.environment.values if name.startswith("NCCL_NET_GDR_")]
    if asked:
        raise BadInput(f"{', '.join(asked)}: not emulated for registered buffers of one rank per node; valid: plain")
    if type_inter is None or release.path_rank(type_inter) > release.path_rank(release.table["paths"]["gpu_direct"]):
        return False
    if type_inter != "P2C":
        return True
    if communicator.gpu_direct is None:
        raise BadInput(
            "registered buffers of one rank per node: not where only some adapters read GPU memory; valid there: plain"
        )
    return communicator.gpu_direct


def nvls_channels_by_heads(communicator: Communicator, tables: Tables, collective: Collective) -> int:
    """Channels NVLS takes to fill the switch from registered buffers."""
    of_eight_gpus = 8 * _nvls_channels(communicator, tables, collective)
    return _within(communicator, -(-of_eight_gpus // communicator.nvls_heads))


def _nvls_channels(communicator: Communicator, tables: Tables, collective: Collective) -> int:
    table = communicator.release.table["registered_nvls_channels"]
    row = table["blackwell" if communicator.generation == "blackwell" else "hopper"]
    if communicator.nodes == 1:
        return int(row["one_node"][collective.name])
    multicast_gbs = tables.bandwidth_gbs[collective, Algorithm.NVLS, Protocol.Simple]
    fast_scatter = collective is Collective.ReduceScatter and multicast_gbs > f32(table["fast_reduce_scatter_gbs"])
    fast_reduce = collective is Collective.AllReduce and communicator.net_gbs >= row["fast_net_gbs"]
    key = "nodes_fast" if fast_scatter or fast_reduce else "nodes"
    return int(row[key][collective.name])


def _within(communicator: Communicator, channels: int) -> int:
    least, most = communicator.ctas
    return max(least, min(most, channels))


def _peers_know(request: Request, algorithm: Algorithm) -> bool:
    """Whether the algorithm hands the buffers to the peers: rings that keep nothing in between, and trees."""
    if algorithm is Algorithm.Tree:
        return True
    kept = request.collective in (Collective.Reduce, Collective.ReduceScatter)
    return algorithm is Algorithm.Ring and not kept
