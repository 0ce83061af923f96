"""Rules for which cells exist and which stay enabled: each returns None, or the reason why the cell is off."""

from collections.abc import Callable
from enum import IntEnum

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.rules import init, symmetric_variables
from tuner.emulator.rules.call import ModelPoint
from tuner.release.schema import given

Reason = str | None
COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
EnabledRule = Callable[[ModelPoint], Reason]
RULES: Registry[EnabledRule] = Registry()


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.MODEL_MAP(since="2.31.2"))
def simple_only(point: ModelPoint) -> Reason:
    """The algorithm has only the protocol Simple."""
    return None if point.protocol is Protocol.Simple else f"{point.algorithm.name} has only the protocol Simple"


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def always(point: ModelPoint) -> Reason:
    """Always enabled."""
    return None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.28.3"), nccl.NVLS_MODEL_INIT(since="2.31.2"))
def nvls_needs_two_channels(point: ModelPoint) -> Reason:
    """NVLS needs two channels, as one is lost to latency."""
    return None if point.graph.channels >= 2 else too_few_channels(point)


def too_few_channels(point: ModelPoint) -> str:
    """Reason why a cell is off whose graph has no or too few channels. Source: ncclTopoCompute, src/graph/search.cc."""
    if point.algorithm not in (Algorithm.NVLS, Algorithm.NVLSTree):
        return f"NCCL found no graph for {point.algorithm.name}"
    if init.nvls_switched_off(point.environment):
        return "NCCL_NVLS_ENABLE=0 leaves NVLS out"
    needs = "NVLS needs an NVSwitch and two or more GPUs of a node, Hopper or later"
    return f"{needs}; NCCL found {point.graph.channels} channels for it"


@RULES(nccl.PAT_ENABLE(since="2.26.2"))
def pat_enabled(point: ModelPoint) -> Reason:
    """PAT needs compute capability 6.0 and, unless NCCL_PAT_ENABLE forces it, one rank per node."""
    if point.communicator.min_comp_cap < 60:
        return "PAT needs compute capability 6.0"
    return pat_enabled_on_any_gpu(point)


@RULES(nccl.PAT_ENABLE(since="2.23.4"))
def pat_enabled_on_any_gpu(point: ModelPoint) -> Reason:
    """PAT needs one rank per node, unless NCCL_PAT_ENABLE forces it."""
    requested = point.environment.c_int("NCCL_PAT_ENABLE", 2)
    on = point.nodes == point.ranks if requested == 2 else requested != 0
    return None if on else "PAT needs one rank per node" if requested == 2 else "NCCL_PAT_ENABLE=0"


@RULES(nccl.PAT_MODEL_INIT(since="2.31.2"))
def pat_enabled_with_nvls(point: ModelPoint) -> Reason:
    """PAT allows several ranks per node if each is a head of the NVLS graph; on one node it is on only on request."""
    through_switch = point.communicator.nvls and _everyone_is_a_head(point)
    if point.nodes < point.ranks and not through_switch:
        return "PAT needs one rank per node, or NVLS with every rank as a head"
    requested = point.environment.c_int("NCCL_PAT_ENABLE", 2)
    if requested == 2 and point.nodes > 1 and point.communicator.min_comp_cap >= 60:
        return None
    return pat_enabled(point)


def pat_given_up(point: ModelPoint) -> bool:
    """Whether NCCL began to compute PAT because ranks have NVLS, and gave it up because not every rank is a head."""
    if point.nodes == point.ranks or not point.communicator.nvls or _everyone_is_a_head(point):
        return False
    requested = point.environment.c_int("NCCL_PAT_ENABLE", 2)
    return point.communicator.min_comp_cap >= 60 and (point.nodes > 1 if requested == 2 else requested != 0)


def _everyone_is_a_head(point: ModelPoint) -> bool:
    heads = point.communicator.graphs[Algorithm.NVLS].channels
    return heads == point.communicator.min_local_ranks == point.communicator.max_local_ranks


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def protocol_requested(point: ModelPoint) -> Reason:
    """NCCL_PROTO allows the protocol."""
    return _requested(point, "NCCL_PROTO", point.protocol)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.24.3"))
def algorithm_requested(point: ModelPoint) -> Reason:
    """NCCL_ALGO allows the algorithm."""
    return _requested(point, "NCCL_ALGO", point.algorithm)


@RULES(nccl.COST_MODEL_INIT(since="2.31.2"))
def protocol_requested_where_forced(point: ModelPoint) -> Reason:
    """NCCL_PROTO allows the protocol.

    A collective that neither NCCL_ALGO, NCCL_PROTO nor NCCL_SYM_KERNEL names keeps every protocol.
    """
    return protocol_requested(point) if _forced(point) else None


@RULES(nccl.COST_MODEL_INIT(since="2.31.2"))
def algorithm_requested_where_forced(point: ModelPoint) -> Reason:
    """NCCL_ALGO allows the algorithm.

    The rule is only for collectives that NCCL_ALGO, NCCL_PROTO or NCCL_SYM_KERNEL names. If NCCL_ALGO or
    NCCL_SYM_KERNEL is set, such a collective has no algorithm unless NCCL_ALGO names it.
    """
    if not _forced(point):
        return None
    named = {name for name in ("NCCL_ALGO", symmetric_variables.KERNEL) if point.environment.text(name)}
    if named == {symmetric_variables.KERNEL}:
        return f"{symmetric_variables.KERNEL}={point.environment.text(symmetric_variables.KERNEL)} leaves it out"
    return _requested(point, "NCCL_ALGO", point.algorithm, unnamed=not named)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.19.3"))
def algorithm_requested_or_rescued(point: ModelPoint) -> Reason:
    """NCCL_ALGO allows the algorithm.

    If it allows none of Ring, Tree and NVLS (NVLSTree on several nodes), Ring and Tree stay on without CollNet.
    """
    if not (rows := _rows(point, "NCCL_ALGO", Algorithm)):
        return None
    left = [Algorithm.Ring, Algorithm.Tree, Algorithm.NVLS if point.nodes == 1 else Algorithm.NVLSTree]
    rescued = not point.communicator.collnet and not any(rows.get(algorithm, True) for algorithm in left)
    if rescued and point.algorithm in (Algorithm.Ring, Algorithm.Tree):
        return None
    return algorithm_requested(point)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def algorithm_requested_or_rescued_or_ring(point: ModelPoint) -> Reason:
    """As :func:`algorithm_requested_or_rescued`, but NCCL_ALGO cannot turn off Ring, except for AllReduce."""
    ring = point.algorithm is Algorithm.Ring and point.collective is not Collective.AllReduce
    return None if ring else algorithm_requested_or_rescued(point)


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.NVLS_MODEL_INIT(since="2.31.2"))
def nvls_tree_needs_nodes(point: ModelPoint) -> Reason:
    """NVLSTree is a tree of nodes."""
    alone = point.algorithm is Algorithm.NVLSTree and point.nodes == 1
    return "NVLSTree needs several nodes" if alone else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"), nccl.COLLNET_NVLS_MODEL_INIT(since="2.31.2"))
def collnet_needs_support(point: ModelPoint) -> Reason:
    """CollNet, and NVLS across nodes, need a network that reduces (NCCL_COLLNET_ENABLE=1)."""
    needs = point.algorithm in COLLNET or (point.algorithm is Algorithm.NVLS and point.nodes > 1)
    if not needs or point.communicator.collnet:
        return None
    return f"{point.algorithm.name} needs CollNet: several nodes, a network that reduces, and NCCL_COLLNET_ENABLE=1"


@RULES(nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_needs_support_or_one_node(point: ModelPoint) -> Reason:
    """On one node with an NVSwitch and a network that reduces, CollNetDirect has numbers that no call may use (sic)."""
    numbers = point.algorithm is Algorithm.CollNetDirect and point.nodes == 1 and point.communicator.has_nvswitch
    return None if numbers and point.communicator.network_reduces else collnet_needs_support(point)


@RULES(nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_needs_adapter_per_gpu(point: ModelPoint) -> Reason:
    """Across nodes, every GPU of a node has to be a head."""
    network = point.communicator.collnet
    if network is None or point.nodes == 1 or point.algorithm not in COLLNET:
        return None
    few = point.communicator.max_local_ranks > network.heads
    return f"{point.algorithm.name} needs an adapter per GPU" if few else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.30.7"), nccl.COLLNET_MODEL_INIT(since="2.31.2"))
def collnet_chain_needs_connected_heads(point: ModelPoint) -> Reason:
    """The heads of CollNetChain have to be among those that are connected."""
    network = point.communicator.collnet
    off = point.algorithm is Algorithm.CollNetChain and network is not None and not network.chain_heads_connected
    return "CollNetChain needs its heads among those that are connected" if off else None


@RULES(nccl.MODEL_MAP(since="2.31.2"))
def collnet_chain_reduces_everywhere_only(point: ModelPoint) -> Reason:
    """CollNetChain does AllReduce only."""
    off = point.algorithm is Algorithm.CollNetChain and point.collective is not Collective.AllReduce
    return f"CollNetChain does not do {point.collective.name}" if off else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def collnet_direct_needs_nvswitch(point: ModelPoint) -> Reason:
    """CollNetDirect needs an NVSwitch."""
    missing = point.algorithm is Algorithm.CollNetDirect and not point.communicator.has_nvswitch
    return "CollNetDirect needs an NVSwitch" if missing else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.3"), nccl.IS_LL128_ENABLED(since="2.31.2"))
def ll128_needs_volta(point: ModelPoint) -> Reason:
    """LL128 needs compute capability 7.0."""
    old = _ll128_by_itself(point) and point.communicator.min_comp_cap < 70
    return "LL128 needs compute capability 7.0" if old else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ll128_needs_tested_gpu(point: ModelPoint) -> Reason:
    """LL128 needs a compute capability that it was tested on."""
    tested = given(point.release.ll128, "ll128").tested
    other = _ll128_by_itself(point) and point.communicator.min_comp_cap not in tested
    return f"LL128 needs a compute capability it was tested on: {', '.join(map(str, tested))}" if other else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.5"), nccl.IS_LL128_ENABLED(since="2.31.2"))
def ll128_needs_near_paths(point: ModelPoint) -> Reason:
    """LL128's 128-byte stores must arrive whole, which far paths do not guarantee."""
    return _ll128_up_to(point, "PXN" if _hopper(point) and point.environment.number("NCCL_LL128_C2C", 1) else "PXB")


@RULES(nccl.TOPO_TUNE_MODEL(since="2.27.3"))
def ll128_needs_near_paths_or_c2c(point: ModelPoint) -> Reason:
    """LL128 goes as far as PXB; from Hopper on as far as P2C, or as far as PXN with NCCL_LL128_C2C=0."""
    beyond = "P2C" if point.environment.number("NCCL_LL128_C2C", 1) else "PXN"
    return _ll128_up_to(point, beyond if _hopper(point) else "PXB")


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.3"))
def ll128_needs_near_paths_by_generation(point: ModelPoint) -> Reason:
    """LL128 goes as far as PXB, from Hopper on as far as PXN."""
    return _ll128_up_to(point, "PXN" if _hopper(point) else "PXB")


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ll128_needs_direct_nvlink_by_generation(point: ModelPoint) -> Reason:
    """LL128 goes as far as PXB, from Hopper on as far as PXN, but not over the NVLinks of a GPU in between (NVB)."""
    via = _ll128_by_itself(point) and point.graph.type_intra == "NVB"
    return "LL128 is not allowed over NVB" if via else ll128_needs_near_paths_by_generation(point)


def _hopper(point: ModelPoint) -> bool:
    return point.communicator.min_comp_cap >= 90


def _ll128_up_to(point: ModelPoint, farthest: str) -> Reason:
    if not _ll128_by_itself(point):
        return None
    rank = point.release.paths.rank
    if rank(point.graph.type_inter) > rank(farthest):
        return f"LL128 is not allowed over {point.graph.type_inter} between nodes, only up to {farthest}"
    if rank(point.graph.type_intra) > rank("NVB"):
        return f"LL128 is not allowed over {point.graph.type_intra} inside a node, only over NVLink"
    return None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.18.1"))
def ll128_needs_equal_gpus(point: ModelPoint) -> Reason:
    """LL128 needs GPUs of one compute capability."""
    mixed = point.communicator.min_comp_cap != point.communicator.max_comp_cap
    return "LL128 needs GPUs of one compute capability" if mixed and _ll128_by_itself(point) else None


@RULES(nccl.TOPO_TUNE_MODEL(since="2.30.3"), nccl.IS_LL128_ENABLED(since="2.31.2"))
def ll128_needs_equal_gpus_or_hopper(point: ModelPoint) -> Reason:
    """LL128 needs GPUs of one compute capability before Hopper."""
    return None if _hopper(point) else ll128_needs_equal_gpus(point)


def _ll128_by_itself(point: ModelPoint) -> bool:
    """Whether the cell is LL128 and no NCCL_PROTO decides about it, so that NCCL decides whether it is safe."""
    return point.protocol is Protocol.LL128 and not _rows(point, "NCCL_PROTO", Protocol)


def _rows(point: ModelPoint, variable: str, elements: type[IntEnum]) -> dict[IntEnum, bool]:
    text = point.environment.text(variable)
    return {} if text is None else point.rules.grammar(text, variable, elements, point.collective)


def _forced(point: ModelPoint) -> bool:
    return point.collective in symmetric_variables.requested_collectives(point.communicator)


def _requested(point: ModelPoint, variable: str, element: Algorithm | Protocol, unnamed: bool = True) -> Reason:
    if point.environment.text(variable) is None and unnamed:
        return None  # as for almost every cell
    on = _rows(point, variable, type(element)).get(element, unnamed)
    return None if on else f"{variable}={point.environment.text(variable)} leaves it out"
