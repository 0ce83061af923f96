"""Algorithms that a call may use at all: each rule returns None, or the reason why not."""

from collections.abc import Callable

from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Comm
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import init
from tuner.release.schema import given

Reason = str | None
CandidateRule = Callable[[Comm, Request, Algorithm], Reason]
RULES: Registry[CandidateRule] = Registry()
FP8_RULES: Registry[Callable[[Request], bool]] = Registry()

COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)
NVLS_ANY_ORDER = (
    DataType.int32,
    DataType.uint32,
    DataType.int64,
    DataType.uint64,
    DataType.float16,
    DataType.bfloat16,
)
# The types of the simulated network: csrc/sim/net.c
NETWORK_TYPES = tuple(dtype for dtype in DataType if dtype not in FP8)
NETWORK_OPS = (Op.sum, Op.min, Op.max, Op.avg)
NVLS_SUM_ONLY = (DataType.float32, DataType.float64)


@RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.UPDATE_COLL_COST_TABLE(since="2.22.3"),
    nccl.COLLNET_MODEL_SIM(since="2.31.2"),
)
def collnet_supports_operation(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """CollNet needs a network that reduces this type with this operation."""
    return collnet_missing(communicator, request) if algorithm in COLLNET else None


@RULES(nccl.UPDATE_COLL_COST_TABLE(since="2.28.3"), nccl.COLLNET_MODEL_SIM(since="2.31.2"))
def collnet_needs_few_local_ranks(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """CollNet allows a limited number of ranks per node."""
    most = communicator.release.limits.max_direct_local_ranks
    many = algorithm in COLLNET and communicator.max_local_ranks > most
    return f"{algorithm.name} takes at most {most} ranks per node" if many else None


@RULES(nccl.UPDATE_COLL_COST_TABLE(since="2.23.4"))
def collnet_direct_needs_few_local_ranks(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """CollNetDirect allows a limited number of ranks per node."""
    if algorithm is not Algorithm.CollNetDirect:
        return None
    return collnet_needs_few_local_ranks(communicator, request, algorithm)


@RULES(nccl.TOPO_GET_ALGO_INFO(since="2.19.3"), nccl.UPDATE_COLL_COST_TABLE(since="2.22.3"))
def nvls_reduces_operation(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS is on, and the switch can reduce this type with this operation; AllGather needs no reduction."""
    if algorithm not in NVLS or request.collective is Collective.AllGather:
        return None
    return nvls_missing(communicator, request)


@RULES(nccl.GET_ALGO_INFO(since="2.18.1"), nccl.TOPO_GET_ALGO_INFO(since="2.20.5"))
def nvls_reduces_every_operation(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS is on, and the switch can reduce this type with this operation, which even AllGather needs and lacks."""
    if algorithm not in NVLS or (communicator.nvls and _switch_reduces(request)):
        return None
    return nvls_missing(communicator, request) or f"NVLS {request.collective.name} would have to reduce bytes"


@RULES(nccl.TOPO_GET_ALGO_INFO(since="2.19.3"), nccl.UPDATE_COLL_COST_TABLE(since="2.22.3"))
def nvls_gathers_on_one_node(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS gathers and scatters on one node only."""
    off = algorithm is Algorithm.NVLS and request.spreads and communicator.nodes > 1
    return f"NVLS {request.collective.name} needs a single node" if off else None


@RULES(nccl.UPDATE_COLL_COST_TABLE(since="2.25.1"))
def nvls_gathers_few_ranks(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS gathers and scatters over a limited number of ranks."""
    most = communicator.release.limits.max_nvls_local_ranks
    off = algorithm is Algorithm.NVLS and request.spreads and communicator.ranks > most
    return f"NVLS {request.collective.name} takes at most {most} ranks" if off else None


@RULES(nccl.UPDATE_COLL_COST_TABLE(since="2.27.3"), nccl.NVLS_MODEL_SIM(since="2.31.2"))
def nvls_supports_operation(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS is on, and the switch can reduce this type with this operation (gathering reduces nothing)."""
    if algorithm not in NVLS:
        return None
    if (missing := nvls_missing(communicator, request)) is not None:
        return missing
    most = communicator.release.limits.max_nvls_local_ranks
    many = request.collective is not Collective.AllReduce and communicator.local_ranks > most
    return f"NVLS {request.collective.name} takes at most {most} ranks per node" if many else None


@RULES(
    nccl.GET_ALGO_INFO(since="2.18.1"),
    nccl.TOPO_GET_ALGO_INFO(since="2.19.3"),
    nccl.UPDATE_COLL_COST_TABLE(since="2.22.3"),
    nccl.NVLS_MODEL_SIM(since="2.31.2"),
)
def nvls_between_nodes_needs_collnet(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """Across nodes NVLS needs a network that reduces this type with this operation."""
    needs = algorithm is Algorithm.NVLS and communicator.nodes > 1
    return collnet_missing(communicator, request) if needs else None


@RULES(nccl.NVLS_MODEL_SIM(since="2.31.2"))
def nvls_gathers_over_few_channels(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS gathers and scatters over a graph with a limited number of channels."""
    most = given(communicator.release.limits.max_nvls_gather_channels, "limits.max_nvls_gather_channels")
    many = communicator.graphs[Algorithm.NVLS].channels > most and request.collective is not Collective.AllReduce
    off = many and algorithm in NVLS
    return f"NVLS {request.collective.name} takes a graph of at most {most} channels" if off else None


@RULES(nccl.PAT_MODEL_SIM(since="2.31.2"))
def pat_of_several_ranks_needs_nvls(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """With several ranks per node, PAT uses the switch inside the node."""
    needs = algorithm is Algorithm.PAT and communicator.ranks > communicator.nodes
    return nvls_missing(communicator, request) if needs else None


@RULES(nccl.UPDATE_COLL_COST_TABLE(since="2.23.4"))
def pat_cannot_scale(communicator: Comm, request: Request, algorithm: Algorithm) -> Reason:
    """PAT has no ReduceScatter with an operation that scales, such as the average."""
    off = algorithm is Algorithm.PAT and request.collective is Collective.ReduceScatter and request.scales
    return "PAT ReduceScatter cannot average" if off else None


def collnet_missing(communicator: Comm, request: Request) -> Reason:
    """The reason why CollNet cannot do this call; None if it can.

    The network can always gather, because that only moves bytes. It reduces the types and operations that SHARP
    supports; an average is reduced as a sum.
    """
    if communicator.collnet is None:
        return "CollNet needs several nodes and a network that reduces (NCCL_COLLNET_ENABLE=1)"
    if request.moves_only or (request.dtype in NETWORK_TYPES and request.op in NETWORK_OPS):
        return None
    return f"the network cannot reduce {request.dtype.name} with {request.op.name}"


def nvls_missing(communicator: Comm, request: Request) -> Reason:
    """The reason why NVLS cannot do this call, as far as the switch is concerned; None if it can."""
    if init.nvls_switched_off(communicator.environment):
        return "NCCL_NVLS_ENABLE=0 leaves NVLS out"
    if not communicator.nvls:
        return "NVLS needs an NVSwitch that multicasts (Hopper or later)"
    if request.collective is not Collective.AllGather and not _switch_reduces(request):
        return f"NVLS cannot reduce {request.device_dtype.name} with {request.op.name}"
    return None


def _switch_reduces(request: Request) -> bool:
    if request.device_dtype in NVLS_SUM_ONLY:
        return request.op is Op.sum
    return request.device_dtype in NVLS_ANY_ORDER and request.op in (Op.sum, Op.min, Op.max)


@FP8_RULES(nccl.TASK_APPEND(since="2.28.3"), nccl.TASK_APPEND_MOVED(since="2.31.2"))
def reduced_fp8_only(request: Request) -> bool:
    """Whether NCCL treats the call as fp8, which older GPUs refuse. Data that is only moved counts as bytes."""
    return request.device_dtype in FP8


@FP8_RULES(nccl.TASK_APPEND(since="2.24.3"))
def every_fp8_call(request: Request) -> bool:
    """Whether the call is fp8, whether it moves or reduces data."""
    return request.dtype in FP8
