"""Which algorithms a call may use at all: each rule returns None, or the reason why not.

Source: updateCollCostTable and ncclPrepareTasks, src/enqueue.cc; ncclNvlsSupported, src/include/device.h, v2.28.9-1.
"""

from collections.abc import Callable

from tuner.communicator import Communicator
from tuner.names import Algorithm, Collective, DataType, Op
from tuner.rules.request import Request

Reason = str | None
CandidateRule = Callable[[Communicator, Request, Algorithm], Reason]

COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)
NVLS_ANY_ORDER = (
    DataType.int32, DataType.uint32, DataType.int64, DataType.uint64, DataType.float16, DataType.bfloat16,
)
NVLS_SUM_ONLY = (DataType.float32, DataType.float64)


def collnet_supports_operation(communicator: Communicator, request: Request, algorithm: Algorithm) -> Reason:
    off = algorithm in COLLNET and not communicator.collnet
    return f"{algorithm.name} needs CollNet" if off else None


def collnet_needs_few_local_ranks(communicator: Communicator, request: Request, algorithm: Algorithm) -> Reason:
    most = communicator.release.limit("max_direct_local_ranks")
    many = algorithm in COLLNET and communicator.max_local_ranks > most
    return f"{algorithm.name} takes at most {most} ranks per node" if many else None


def nvls_supports_operation(communicator: Communicator, request: Request, algorithm: Algorithm) -> Reason:
    """NVLS at all, and the switch can reduce this type with this operation (gathering reduces nothing)."""
    if algorithm not in NVLS:
        return None
    if not communicator.nvls:
        return "NVLS needs an NVSwitch that multicasts (Hopper or later)"
    if request.collective is not Collective.AllGather and not _switch_reduces(request):
        return f"NVLS cannot reduce {request.device_dtype.name} with {request.op.name}"
    most = communicator.release.limit("max_nvls_local_ranks")
    many = request.collective is not Collective.AllReduce and communicator.max_local_ranks > most
    return f"NVLS {request.collective.name} takes at most {most} ranks per node" if many else None


def nvls_between_nodes_needs_collnet(communicator: Communicator, request: Request, algorithm: Algorithm) -> Reason:
    off = algorithm is Algorithm.NVLS and communicator.nodes > 1 and not communicator.collnet
    return "NVLS between nodes needs CollNet" if off else None


def pat_cannot_scale(communicator: Communicator, request: Request, algorithm: Algorithm) -> Reason:
    off = algorithm is Algorithm.PAT and request.collective is Collective.ReduceScatter and request.scales
    return "PAT ReduceScatter cannot average" if off else None


def _switch_reduces(request: Request) -> bool:
    if request.device_dtype in NVLS_SUM_ONLY:
        return request.op is Op.sum
    return request.device_dtype in NVLS_ANY_ORDER and request.op in (Op.sum, Op.min, Op.max)


RULES: dict[str, CandidateRule] = {
    rule.__name__: rule
    for rule in (
        collnet_supports_operation, collnet_needs_few_local_ranks, nvls_supports_operation,
        nvls_between_nodes_needs_collnet, pat_cannot_scale,
    )
}
