"""The machines of the catalogue that are nearest to a node that a listing, or a topology, shows."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from tuner.machine import catalogue, gpus
from tuner.machine.listings.shape import PXB, SYS, WORDS, NodeShape, of_topology
from tuner.machine.nearness import ComparedFact, Nearness, nearness
from tuner.machine.topology import Cpu


def ranked(node: NodeShape, trays: bool = False) -> list[Nearness]:
    """Every machine whose nodes are hosts, the nearest first; ``trays``: NVLink domains, too, by one of their hosts."""
    names = [name for name in catalogue.names() if trays or catalogue.load(name).trays is None]
    return sorted((compared(name, node) for name in names), key=lambda near: near.rank)


def compared(machine: str, node: NodeShape) -> Nearness:
    """One machine with the node."""
    unknown = ["PCIe links' speed"] if node.gbps is None else []
    return nearness(machine, _facts(_shape(machine), node), unknown)


@cache
def _shape(machine: str) -> NodeShape:
    return of_topology(catalogue.load(machine).topology_xml)


def _facts(machine: NodeShape, node: NodeShape) -> Iterator[ComparedFact]:
    yield ComparedFact(f"{node.gpus} GPUs", node.gpus == machine.gpus)
    if node.devices:
        same = bool(set(node.devices) & set(machine.devices))
        yield ComparedFact(f"GPUs {_models_in_words(node.devices)}", same, identifies=True)
    else:
        yield ComparedFact("GPUs' model", None)
    if node.comp_cap is not None and not node.devices:
        yield ComparedFact(f"compute capability {node.comp_cap / 10:.1f}", node.comp_cap == machine.comp_cap)
    if node.nvlinks is None:
        yield ComparedFact("NVLinks", None)
    else:
        linked = any(node.nvlinks.values())
        yield ComparedFact(_links_in_words(node.nvlinks), _same_links(node, machine), identifies=linked)
    each = "+".join(str(len(gpus)) for gpus in node.sockets)
    yield ComparedFact(f"GPUs of NUMA nodes: {each}", sorted(node.sockets) == sorted(machine.sockets))
    if not node.adapters:
        yield ComparedFact("adapters", None)
    else:
        below = any(level <= PXB for level, _ in node.near)
        yield ComparedFact(_near_in_words(node), _same_near(node, machine), identifies=below)
        yield ComparedFact(f"{len(node.adapters)} adapters", len(node.adapters) == len(machine.adapters), decides=False)
        names = set(node.adapters) == set(machine.adapters)
        yield ComparedFact("names of adapters", names, identifies=True, decides=False)
    if node.gbps is None:
        yield ComparedFact("adapters' speed", None)
    elif node.adapters:
        speeds = ", ".join(f"{gbps:g}" for gbps in node.gbps)
        yield ComparedFact(f"adapters of {speeds} Gb/s", node.gbps == machine.gbps)
    if node.cpu is None:
        yield ComparedFact("CPUs", None)
    else:
        yield ComparedFact(f"CPUs {_cpu_in_words(node.cpu)}", _same(node.cpu, machine.cpu))


def _models_in_words(devices: Sequence[str]) -> str:
    """The models that have one of these device ids, without other forms of them; where there is none, the ids."""
    models = list(dict.fromkeys(name for device in devices for name in gpus.of_device(device)))
    models = [name for name in models if not any(name.startswith(f"{other}-") for other in models)]
    return " or ".join(models) or ", ".join(devices)


def _nearest(node: NodeShape) -> tuple[tuple[int, int], ...]:
    """Of each GPU: how near, and how many where they are below its PCI switch."""
    return tuple((level, count if level <= PXB else 0) for level, count in node.near)


def _same_near(node: NodeShape, machine: NodeShape) -> bool:
    """GPU by GPU; with another number of GPUs, whether all are as near to as many."""
    mine, others = _nearest(node), _nearest(machine)
    return mine == others if node.gpus == machine.gpus else set(mine) == set(others)


def _same_links(node: NodeShape, machine: NodeShape) -> bool:
    """Pair by pair; with another number of GPUs, whether any two have as many."""
    mine, others = node.nvlinks or {}, machine.nvlinks or {}
    return mine == others if node.gpus == machine.gpus else set(mine.values()) == set(others.values())


def _near_in_words(node: NodeShape) -> str:
    levels = sorted(set(_nearest(node)))
    if len(levels) > 1:
        return "adapters near some GPUs alone"
    ((level, count),) = levels
    if level <= PXB:
        return f"{count} {'adapter' if count == 1 else 'adapters'} {WORDS[level]} to each GPU"
    return "adapters of other sockets alone" if level == SYS else "no adapter below the PCI switch of a GPU"


def _links_in_words(links: Mapping[tuple[int, int], int]) -> str:
    counts = sorted(set(links.values()))
    if not any(counts):
        return "no NVLinks"
    return f"NV{counts[0]} between all GPUs" if len(counts) == 1 else f"NV{counts[-1]} at most between GPUs"


def _cpu_in_words(cpu: Cpu) -> str:
    return ":".join(str(part) for part in (cpu.vendor, cpu.family, cpu.model)) if cpu.vendor else cpu.arch


def _same(cpu: Cpu, other: Cpu | None) -> bool:
    """Whether NCCL takes them for the same: it tells Intel's apart by family and model alone."""
    if other is None or (cpu.arch, cpu.vendor) != (other.arch, other.vendor):
        return False
    return cpu.vendor != "GenuineIntel" or (cpu.family, cpu.model) == (other.family, other.model)
