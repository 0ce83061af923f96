"""What a machine's links carry by their data sheets: the limits that measured bandwidths are held against."""

from dataclasses import dataclass
from functools import cache

from tuner.base import tables
from tuner.base.errors import BadInput
from tuner.machine.topology.records import Gpu, Target, Topology
from tuner.scenario import Scenario
from tuner.times.costmodels.checks import positive


@dataclass(frozen=True, slots=True)
class Links:
    """GB/s in one direction: ``intra_gbs`` of a GPU inside its node, ``inter_gbs`` of a node's adapters together.

    None where there is nothing of the kind: one GPU per node, one node.
    """

    intra_gbs: float | None
    inter_gbs: float | None


def of_case(scenario: Scenario, intra_gbs: float | None = None, inter_gbs: float | None = None) -> Links:
    """The data sheets' values unless given. BadInput where neither there are such nor they are given."""
    if scenario.others:
        raise BadInput("nodes that differ have no one limit; valid: `machine` with `nodes`")
    for name, given_gbs in (("intra_gbs", intra_gbs), ("inter_gbs", inter_gbs)):
        if given_gbs is not None:
            positive(name, given_gbs)
    scenario.check_gpu_for_each_rank("what links carry")
    gpus = scenario.gpus()
    if gpus > 1 and intra_gbs is None:
        intra_gbs = _nvlink_gbs(scenario, gpus)
    if scenario.nodes > 1 and inter_gbs is None:
        inter_gbs = _net_gbs(scenario, gpus)
    return Links(intra_gbs if gpus > 1 else None, inter_gbs if scenario.nodes > 1 else None)


def gpu_gbs(topology: Topology, count: int) -> float:
    """The most that one of the first ``count`` GPUs sends to others, by NVLink or PCIe; 0 where neither is known.

    BadInput where there are fewer GPUs.
    """
    sms = topology.compute_capabilities(count)
    pcie_gbs = max(_table("pcie_gbs").get(str(sm), 0.0) for sm in sms)
    return max(_nvlink(topology, count, most=True), pcie_gbs)


def reduces_in_switch(topology: Topology, count: int) -> bool:
    """Whether NVSwitches join the first ``count`` GPUs that reduce and multicast by themselves: from Hopper on."""
    return topology.has_nvswitch(count) and min(topology.compute_capabilities(count)) >= 90


def _nvlink_gbs(scenario: Scenario, count: int) -> float:
    """The least of a GPU's links to switches and to the GPUs that are used."""
    gbs = _nvlink(scenario.resolve().own.topology, count)
    if not gbs:
        raise BadInput(f"{scenario.name}: no NVLink bandwidth between its GPUs is known; valid: `intra_gbs` GBS")
    return gbs


def _nvlink(topology: Topology, count: int, most: bool = False) -> float:
    """0 where there is none, or none is known."""
    gpus = topology.first_gpus(count)
    used = {gpu.busid for gpu in gpus}
    links = (max if most else min)(_links(gpu, used) for gpu in gpus)
    return float(links * _table("nvlink_gbs").get(str(gpus[0].sm), 0.0))


@cache
def _table(name: str) -> dict[str, float]:
    table: dict[str, float] = tables.toml(tables.folder() / "links.toml")[name]
    return table


def _links(gpu: Gpu, used: set[str]) -> int:
    return sum(link.count for link in gpu.nvlinks if link.kind is Target.SWITCH or link.target in used)


def _net_gbs(scenario: Scenario, gpus: int) -> float:
    """All adapters of the node; of a part of its GPUs the same part."""
    topology = scenario.resolve().own.topology
    total_gbs = sum(net.speed_mbps for net in topology.nets) / 8000
    if not total_gbs:
        raise BadInput(f"{scenario.name}: its adapters are not known; valid: `inter_gbs` GBS")
    return total_gbs * gpus / len(topology.gpus)
