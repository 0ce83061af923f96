"""What a machine's links carry by their data sheets: the limits that measured bandwidths are held against."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from tuner.base.errors import BadInput
from tuner.costmodels.checks import positive
from tuner.machine.topology.records import Gpu, Target
from tuner.scenario import Scenario


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
        raise BadInput("nodes that differ have no one limit; valid: --machine with --nodes")
    for name, given_gbs in (("intra_gbs", intra_gbs), ("inter_gbs", inter_gbs)):
        if given_gbs is not None:
            positive(name, given_gbs)
    gpus = scenario.gpus()
    if gpus > 1 and intra_gbs is None:
        intra_gbs = _nvlink_gbs(scenario, gpus)
    if scenario.nodes > 1 and inter_gbs is None:
        inter_gbs = _net_gbs(scenario, gpus)
    return Links(intra_gbs if gpus > 1 else None, inter_gbs if scenario.nodes > 1 else None)


def _nvlink_gbs(scenario: Scenario, count: int) -> float:
    """The least of a GPU's links to switches and to the GPUs that are used."""
    gpus = scenario.resolve().own.topology.first_gpus(count)
    used = {gpu.busid for gpu in gpus}
    table = tomllib.loads((files("tuner.tables") / "links.toml").read_text("utf-8"))["nvlink_gbs"]
    links = min(_links(gpu, used) for gpu in gpus)
    each = table.get(str(gpus[0].sm))
    if not links or each is None:
        raise BadInput(f"{scenario.name}: no NVLink bandwidth between its GPUs is known; valid: --intra-gbs GBS")
    return float(links * each)


def _links(gpu: Gpu, used: set[str]) -> int:
    return sum(link.count for link in gpu.nvlinks if link.kind is Target.SWITCH or link.target in used)


def _net_gbs(scenario: Scenario, gpus: int) -> float:
    """All adapters of the node; of a part of its GPUs the same part."""
    topology = scenario.resolve().own.topology
    total_gbs = sum(net.speed_mbps for net in topology.nets) / 8000
    if not total_gbs:
        raise BadInput(f"{scenario.name}: its adapters are not known; valid: --inter-gbs GBS")
    return total_gbs * gpus / len(topology.gpus)
