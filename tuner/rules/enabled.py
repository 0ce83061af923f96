"""Which cells exist, and which stay enabled: each rule returns None, or the reason why the cell is off.

Source: ncclTopoTuneModel, src/graph/tuning.cc, v2.28.9-1.
"""

from collections.abc import Callable
from enum import IntEnum

from tuner import collnet, derive
from tuner.environment import GRAMMARS, forced
from tuner.names import Algorithm, Collective, Protocol
from tuner.registry import Registry
from tuner.rules.cell import Cell

Reason = str | None
COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
EnabledRule = Callable[[Cell], Reason]
RULES: Registry[EnabledRule] = Registry()


@RULES
def simple_only(cell: Cell) -> Reason:
    return None if cell.protocol is Protocol.Simple else f"{cell.algorithm.name} has only the protocol Simple"


@RULES
def in_any_case(cell: Cell) -> Reason:
    return None


@RULES
def nvls_needs_two_channels(cell: Cell) -> Reason:
    return None if cell.graph.channels >= 2 else too_few_channels(cell)


def too_few_channels(cell: Cell) -> str:
    """What is missing where the graph of a cell has none, or too few. Source: ncclTopoCompute, src/graph/search.cc."""
    if cell.algorithm not in (Algorithm.NVLS, Algorithm.NVLSTree):
        return f"NCCL found no graph for {cell.algorithm.name}"
    if derive.nvls_switched_off(cell.environment):
        return "NCCL_NVLS_ENABLE=0 leaves NVLS out"
    needs = "NVLS needs an NVSwitch and two or more GPUs of a node, Hopper or later"
    return f"{needs}; NCCL found {cell.graph.channels} channels for it"


@RULES
def pat_enabled(cell: Cell) -> Reason:
    """Unless forced by NCCL_PAT_ENABLE: one rank per node."""
    if cell.communicator.min_comp_cap < 60:
        return "PAT needs compute capability 6.0"
    return pat_enabled_on_any_gpu(cell)


@RULES
def pat_enabled_on_any_gpu(cell: Cell) -> Reason:
    """Unless forced by NCCL_PAT_ENABLE: one rank per node."""
    asked = cell.environment.c_int("NCCL_PAT_ENABLE", 2)
    on = cell.nodes == cell.ranks if asked == 2 else asked != 0
    return None if on else "PAT needs one rank per node" if asked == 2 else "NCCL_PAT_ENABLE=0"


@RULES
def pat_enabled_with_nvls(cell: Cell) -> Reason:
    """Several ranks per node will do where each is a head of the NVLS graph; on one node only if asked for."""
    heads = cell.communicator.graphs[Algorithm.NVLS].channels
    everyone = heads == cell.communicator.min_local_ranks == cell.communicator.max_local_ranks
    through_switch = cell.communicator.nvls and everyone
    if cell.nodes < cell.ranks and not through_switch:
        return "PAT needs one rank per node, or NVLS with every rank as a head"
    asked = cell.environment.c_int("NCCL_PAT_ENABLE", 2)
    if asked == 2 and cell.nodes > 1 and cell.communicator.min_comp_cap >= 60:
        return None
    return pat_enabled(cell)


@RULES
def protocol_asked_for(cell: Cell) -> Reason:
    return _asked(cell, "NCCL_PROTO", cell.protocol)


@RULES
def algorithm_asked_for(cell: Cell) -> Reason:
    return _asked(cell, "NCCL_ALGO", cell.algorithm)


@RULES
def protocol_asked_for_where_forced(cell: Cell) -> Reason:
    """Only collectives for which NCCL_ALGO or NCCL_PROTO names anything are looked at."""
    return protocol_asked_for(cell) if _forced(cell) else None


@RULES
def algorithm_asked_for_where_forced(cell: Cell) -> Reason:
    """The same; with NCCL_ALGO set, a collective it does not name has no algorithm left."""
    if not _forced(cell):
        return None
    return _asked(cell, "NCCL_ALGO", cell.algorithm, unnamed=not cell.environment.text("NCCL_ALGO"))


@RULES
def algorithm_asked_for_or_rescued(cell: Cell) -> Reason:
    """Without CollNet, a list that leaves no other algorithm brings Ring and Tree back."""
    rows = _rows(cell, "NCCL_ALGO", Algorithm)
    left = [Algorithm.Ring, Algorithm.Tree, Algorithm.NVLS if cell.nodes == 1 else Algorithm.NVLSTree]
    rescued = not cell.communicator.collnet and not any(rows.get(algorithm, True) for algorithm in left)
    if rescued and cell.algorithm in (Algorithm.Ring, Algorithm.Tree):
        return None
    return algorithm_asked_for(cell)


@RULES
def algorithm_asked_for_or_rescued_or_ring(cell: Cell) -> Reason:
    """The same, but Ring stays for everything except AllReduce: so that NCCL_ALGO=Tree can run whole programs."""
    ring = cell.algorithm is Algorithm.Ring and cell.collective is not Collective.AllReduce
    return None if ring else algorithm_asked_for_or_rescued(cell)


@RULES
def nvls_tree_needs_nodes(cell: Cell) -> Reason:
    alone = cell.algorithm is Algorithm.NVLSTree and cell.nodes == 1
    return "NVLSTree needs several nodes" if alone else None


@RULES
def collnet_needs_support(cell: Cell) -> Reason:
    """CollNet, and NVLS across nodes, need a network that reduces (NCCL_COLLNET_ENABLE=1)."""
    needs = cell.algorithm in COLLNET or (cell.algorithm is Algorithm.NVLS and cell.nodes > 1)
    if not needs or cell.communicator.collnet:
        return None
    return f"{cell.algorithm.name} needs CollNet: several nodes, a network that reduces, and NCCL_COLLNET_ENABLE=1"


@RULES
def collnet_needs_support_or_one_node(cell: Cell) -> Reason:
    """sic: on one node an NVSwitch and a plugin for CollNet give CollNetDirect numbers, which no call may use."""
    numbers = cell.algorithm is Algorithm.CollNetDirect and cell.nodes == 1 and cell.communicator.has_nvswitch
    found = collnet.asked_for(cell.environment) and cell.graph.channels > 0  # no adapter, no plugin, no graph
    return None if numbers and found else collnet_needs_support(cell)


@RULES
def collnet_needs_adapter_per_gpu(cell: Cell) -> Reason:
    network = cell.communicator.collnet
    if network is None or cell.nodes == 1 or cell.algorithm not in COLLNET:
        return None
    few = cell.communicator.max_local_ranks > network.heads
    return f"{cell.algorithm.name} needs an adapter per GPU" if few else None


@RULES
def collnet_chain_needs_connected_heads(cell: Cell) -> Reason:
    network = cell.communicator.collnet
    off = cell.algorithm is Algorithm.CollNetChain and network is not None and not network.chain_heads_connected
    return "CollNetChain needs its heads among those that are connected" if off else None


@RULES
def collnet_chain_reduces_everywhere_only(cell: Cell) -> Reason:
    off = cell.algorithm is Algorithm.CollNetChain and cell.collective is not Collective.AllReduce
    return f"CollNetChain does not do {cell.collective.name}" if off else None


@RULES
def collnet_direct_needs_nvswitch(cell: Cell) -> Reason:
    missing = cell.algorithm is Algorithm.CollNetDirect and not cell.communicator.has_nvswitch
    return "CollNetDirect needs an NVSwitch" if missing else None


@RULES
def ll128_needs_volta(cell: Cell) -> Reason:
    old = _ll128_by_itself(cell) and cell.communicator.min_comp_cap < 70
    return "LL128 needs compute capability 7.0" if old else None


@RULES
def ll128_needs_tested_gpu(cell: Cell) -> Reason:
    tested = cell.release.table["ll128"]["tested"]
    other = _ll128_by_itself(cell) and cell.communicator.min_comp_cap not in tested
    return f"LL128 needs a compute capability it was tested on: {', '.join(map(str, tested))}" if other else None


@RULES
def ll128_needs_near_paths(cell: Cell) -> Reason:
    """LL128's 128-byte stores must arrive whole, which far paths do not guarantee."""
    return _ll128_up_to(cell, "PXN" if _hopper(cell) and cell.environment.number("NCCL_LL128_C2C", 1) else "PXB")


@RULES
def ll128_needs_near_paths_or_c2c(cell: Cell) -> Reason:
    beyond = "P2C" if cell.environment.number("NCCL_LL128_C2C", 1) else "PXN"
    return _ll128_up_to(cell, beyond if _hopper(cell) else "PXB")


@RULES
def ll128_needs_near_paths_by_generation(cell: Cell) -> Reason:
    return _ll128_up_to(cell, "PXN" if _hopper(cell) else "PXB")


@RULES
def ll128_needs_direct_nvlink_by_generation(cell: Cell) -> Reason:
    """The same, and not over the NVLinks of a GPU in between."""
    via = _ll128_by_itself(cell) and cell.graph.type_intra == "NVB"
    return "LL128 is not allowed over NVB" if via else ll128_needs_near_paths_by_generation(cell)


def _hopper(cell: Cell) -> bool:
    return cell.communicator.min_comp_cap >= 90


def _ll128_up_to(cell: Cell, farthest: str) -> Reason:
    if not _ll128_by_itself(cell):
        return None
    rank = cell.release.path_rank
    if rank(cell.graph.type_inter) > rank(farthest):
        return f"LL128 is not allowed over {cell.graph.type_inter} between nodes, only up to {farthest}"
    if rank(cell.graph.type_intra) > rank("NVB"):
        return f"LL128 is not allowed over {cell.graph.type_intra} inside a node, only over NVLink"
    return None


@RULES
def ll128_needs_equal_gpus(cell: Cell) -> Reason:
    mixed = cell.communicator.min_comp_cap != cell.communicator.max_comp_cap
    return "LL128 needs GPUs of one compute capability" if mixed and _ll128_by_itself(cell) else None


@RULES
def ll128_needs_equal_gpus_or_hopper(cell: Cell) -> Reason:
    return None if _hopper(cell) else ll128_needs_equal_gpus(cell)


def _ll128_by_itself(cell: Cell) -> bool:
    """LL128 that no NCCL_PROTO asks for or rules out: NCCL decides whether it is safe."""
    return cell.protocol is Protocol.LL128 and not _rows(cell, "NCCL_PROTO", Protocol)


def _rows(cell: Cell, variable: str, elements: type[IntEnum]) -> dict[IntEnum, bool]:
    text = cell.environment.text(variable)
    (grammar,) = cell.release.rules("grammar")
    return {} if text is None else GRAMMARS[grammar](text, variable, elements, cell.collective)


def _forced(cell: Cell) -> bool:
    lists: tuple[tuple[str, type[IntEnum]], ...] = (("NCCL_ALGO", Algorithm), ("NCCL_PROTO", Protocol))
    return any(
        cell.collective in forced(text, variable, elements)
        for variable, elements in lists
        if (text := cell.environment.text(variable)) is not None
    )


def _asked(cell: Cell, variable: str, element: Algorithm | Protocol, unnamed: bool = True) -> Reason:
    on = _rows(cell, variable, type(element)).get(element, unnamed)
    return None if on else f"{variable}={cell.environment.text(variable)} leaves it out"
