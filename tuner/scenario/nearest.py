"""The machine of the catalogue that is nearest to what a log without graphs says of its nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.base.errors import TunerError
from tuner.machine import catalogue, gpus
from tuner.machine.catalogue import Machine
from tuner.machine.nearness import ComparedFact, Nearness, nearness
from tuner.scenario.description import Scenario
from tuner.scenario.logs.imported import Imported, LogEvidence

if TYPE_CHECKING:
    from tuner.emulator.connect import Across
    from tuner.scenario.describe import Description

MULTICAST_COMP_CAP = 90  # the first GPUs that can NVLS
MOST_WITH_RINGS = 6  # machines whose rings are searched, the nearest without them
_IN_NO_LOG = ("CPUs", "PCIe switches", "NVLinks")  # that NCCL prints without GRAPH


def ranked(imported: Imported, run: "Description") -> list[Nearness]:
    """Every machine, the nearest first. ``run``: release, nodes, GPUs per node and variables of the log."""
    every = sorted((compared(name, imported, run) for name in catalogue.names()), key=lambda near: near.rank)
    if not (imported.evidence.rings or imported.evidence.trees):
        return every
    alike = [near for near in every[:MOST_WITH_RINGS] if len(near.differs) == len(every[0].differs)]
    by_name = {near.machine: compared(near.machine, imported, run, with_rings=True) for near in alike}
    return sorted((by_name.get(near.machine, near) for near in every), key=lambda near: near.rank)


def compared(name: str, imported: Imported, run: "Description", with_rings: bool = False) -> Nearness:
    """One machine with what the log says; ``with_rings``: the orders of ranks, too, which have to be searched."""
    machine = catalogue.load(name)
    several = (run.get("nodes") or 1) > 1
    facts = [*_gpus(machine, imported, run), *_adapters(machine, imported, several), *_channels(machine, imported, run)]
    if with_rings:
        facts += _orders(machine, imported, run)
    return nearness(machine.name, facts, _IN_NO_LOG)


def _gpus(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    hardware, used = imported.hardware, run.get("gpus_per_node")
    if hardware.instance:
        alias = catalogue.alias(hardware.instance)
        same = alias is not None and alias.machine == machine.name
        yield ComparedFact(f"instance type {hardware.instance}", same, identifies=True)
    known = ", ".join(hardware.gpu_names)
    yield ComparedFact(f"GPUs {known or 'by name'}", _is_model(machine.gpu, known) if known else None, identifies=True)
    if hardware.comp_caps:
        caps = ", ".join(f"{cap / 10:.1f}" for cap in hardware.comp_caps)
        same = set(hardware.comp_caps) == {gpu.sm for gpu in machine.topology.gpus}
        yield ComparedFact(f"compute capability {caps}", same)
    has = machine.gpus_per_node * (machine.trays or 1)
    if used is None or used < has:
        yield ComparedFact("number of GPUs", None)
    else:
        yield ComparedFact(f"{used} GPUs per node", used == has)
    if len(hardware.bus_ids) > 1:
        there = {int(re.sub("[:.]", "", gpu.busid), 16) for gpu in machine.topology.gpus}
        same = set(hardware.bus_ids) <= there
        yield ComparedFact(f"bus ids of {len(hardware.bus_ids)} GPUs", same, identifies=True, decides=False)
    nvls = (run.get("env") or {}).get("NCCL_NVLS_ENABLE") != "0"
    if hardware.multicast is not None and nvls:
        can = machine.topology.gpus[0].sm >= MULTICAST_COMP_CAP and machine.topology.has_nvswitch(
            len(machine.topology.gpus)
        )
        yield ComparedFact(f"NVLS is {'' if hardware.multicast else 'not '}available", can == hardware.multicast)


def _is_model(model: str, name: str) -> bool:
    """Whether CUDA's name of a product, ``NVIDIA A100-SXM4-80GB``, is the model, ``A100 SXM4``."""
    chip = gpus.chip(model)
    return bool(re.search(rf"\b{re.escape(chip)}\b", name.upper())) and ("PCI" in name.upper()) <= ("SXM" not in model)


def _adapters(machine: Machine, imported: Imported, several: bool) -> Iterator[ComparedFact]:
    """On one node adapters reach no choice, but for the node's topology."""
    hardware, nets = imported.hardware, machine.topology.nets
    if not hardware.adapters:
        yield ComparedFact("adapters", None)
        return
    number = len(hardware.adapters)
    yield ComparedFact(f"{number} adapters", number == len(nets), decides=several)
    named = set(hardware.adapters) == {net.name for net in nets}
    yield ComparedFact(f"adapters {', '.join(hardware.adapters)}", named, decides=False)
    if not hardware.adapters_mbps:
        yield ComparedFact("speed of adapters", None)
        return
    gbps = ", ".join(f"{speed / 1000:g}" for speed in hardware.adapters_mbps)
    speeds = set(hardware.adapters_mbps) == {net.speed_mbps for net in nets}
    yield ComparedFact(f"adapters of {gbps} Gb/s", speeds, decides=several)


def _channels(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    """The numbers of channels that NCCL makes there, where the catalogue has the graphs."""
    if imported.coll_channels is None:
        yield ComparedFact("channels", None)
        return
    logged = f"{imported.coll_channels} channels" + (
        f", {imported.nvls_channels} of NVLS" if imported.nvls_channels else ""
    )
    here = _made(machine, run)
    if here is None:
        yield ComparedFact(f"{logged}", None)
        return
    coll, nvls = here
    yield ComparedFact(
        logged, (coll, nvls if imported.nvls_channels else None) == (imported.coll_channels, imported.nvls_channels)
    )


def _orders(machine: Machine, imported: Imported, run: "Description") -> Iterator[ComparedFact]:
    """Orders of ranks in rings and trees, and adapters: a fingerprint of what joins GPUs, and of their numbers."""
    said = imported.evidence
    found = _across(_known(machine, run), whole=bool(said.adapters_of_ranks or said.nvls_heads))
    if said.rings:
        plain = all(list(ring) == sorted(ring) for ring in said.rings)
        agrees = None if found is None else [ring.ranks for ring in found.rings] == list(said.rings)
        what = f"order of ranks in {len(said.rings)} rings"
        yield ComparedFact(what, agrees, identifies=not plain, decides=False)
    if said.trees:
        yield ComparedFact(
            f"{len(said.trees)} trees", None if found is None else _same_trees(found, said), decides=False
        )
    if said.adapters_of_ranks and found is not None and any(ring.crossings for ring in found.rings):
        yield ComparedFact("adapters that ranks send over", _same_adapters(found, said), decides=False)
    if said.nvls_heads:
        same = None if found is None else found.nvls_heads == said.nvls_heads
        yield ComparedFact(f"{len(said.nvls_heads)} NVLS heads", same, decides=False)


def _across(scenario: Scenario | None, whole: bool) -> "Across | None":
    """Channels across nodes, of rings and trees their orders alone unless ``whole``; None where they are not known."""
    from tuner.emulator.connect import summarize

    if scenario is None:
        return None
    try:
        resolved = scenario.resolve()
        return summarize(resolved.connected) if whole else resolved.rings_and_trees
    except TunerError:
        return None


def _same_trees(found: "Across", said: LogEvidence) -> bool:
    """Whether the ranks that the log shows have these parents and children in as many trees."""
    places = {tree.channel: list(zip(tree.parents, tree.children, strict=True)) for tree in found.trees}
    return all(
        channel in places and rank < len(places[channel]) and places[channel][rank] == place
        for channel, places_of in said.trees.items()
        for rank, place in places_of.items()
    )


def _same_adapters(found: "Across", said: LogEvidence) -> bool:
    """Whether ranks that the log shows send over the adapters that rings leave a node by."""
    return all(
        crossing.send_net in said.adapters_of_ranks[crossing.sender]
        for ring in found.rings
        for crossing in ring.crossings
        if crossing.sender in said.adapters_of_ranks
    )


def _made(machine: Machine, run: Mapping[str, Any]) -> tuple[str, str] | None:
    """Channels of collectives and of NVLS; None where the run is not possible there, or its graphs are not known."""
    scenario = _known(machine, run)
    if scenario is None:
        return None
    communicator = scenario.communicator()
    return str(communicator.channels), str(communicator.nvls_channels)


def same(machines: Sequence[str], run: Mapping[str, Any]) -> bool:
    """Whether the nodes of the run are the same to NCCL's model on all of these machines, as far as that is known."""
    if len(machines) == 1:
        return True
    scenarios = [_known(catalogue.load(name), run) for name in machines]
    nodes = [scenario and scenario.resolve().own.for_emulator(scenario.nodes > 1) for scenario in scenarios]
    return None not in nodes and all(node == nodes[0] for node in nodes)


def _known(machine: Machine, run: Mapping[str, Any]) -> "Scenario | None":
    """The run there; None where it is not possible, or its graphs would have to be searched first."""
    if machine.trays is not None:
        return None
    scenario = Scenario(
        nccl=run["nccl"],
        nodes=run["nodes"],
        machine=machine.name,
        gpus_per_node=run.get("gpus_per_node"),
        environment=run["env"],
    )
    try:
        known = scenario.resolve().own.searched_before(scenario.nodes > 1) is not None
        return scenario if known and scenario.communicator() else None
    except TunerError:
        return None
