"""Chooses the node that stands for a rank's host: its recorded topology, a named machine, or the most similar one of
the catalogue."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadTopology
from tuner.base.expressions import expression
from tuner.jobs.preflight.reading import Processor, RankFacts
from tuner.machine import catalogue, skeleton
from tuner.machine.gpus import nccls_family
from tuner.machine.topology import Cpu, Topology, reader

GPU_DEVICE = expression(r'class="0x03[^>]*?device="(0x[0-9a-f]+)"')
ADAPTERS = "adapters"
UNPLACED = 3  # adapters that a machine has no place for make it less like a record than so many changes
ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}  # Linux's words for what NCCL calls otherwise


@dataclass(frozen=True, slots=True)
class HostLocation:
    """A node as scenarios describe it: ``machine`` or ``topology``, and how many of its GPUs are used.

    ``hardware`` says where the records differ from the machine, as pairs of a key and a value in the form of
    ``--change``. ``agrees`` are texts that say what was recognised in the records, ``assumed`` texts that say what is
    taken from the machine's description, and not from the records.
    """

    machine: str | None
    topology: Path | None
    gpus: int | None
    hardware: tuple[tuple[str, str], ...] = ()
    agrees: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the machine or topology, with the changed hardware."""
        own = self.machine or str(self.topology)
        return " with ".join([own, *(f"{key}={value}" for key, value in self.hardware)])


def of_topology(path: Path, gpus: int | None) -> HostLocation | None:
    """The location for a host's complete topology; None for a file that only places devices, describes several hosts,
    or cannot be read."""
    try:
        _, topology = skeleton.read_complete(path)
        several_hosts = reader.hosts_of(path)
    except BadTopology:
        return None
    if several_hosts:
        return None
    return HostLocation(None, path, _fewer(gpus, topology), agrees=("topology",))


def named(machine: str, facts: RankFacts, variables: Mapping[str, str], gpus: int | None) -> HostLocation:
    """The machine that the user named, with the recorded processor and adapters.

    UnknownMachine, and BadInput for an NVLink domain of several hosts.
    """
    found = catalogue.load(machine)
    if found.trays is not None:
        raise BadInput(
            f"{machine} is an NVLink domain of several hosts, for which the ranks' choices are not computed here"
        )
    return _as_recorded(found, facts, variables, gpus)


def nearest(alike: Sequence[RankFacts]) -> tuple[str, ...]:
    """The machines of the catalogue that are most similar to records with the same GPUs; there may be several.

    These machines have the recorded GPUs, and differ least in everything else. NVIDIA's machines come first, then the
    order is by name. Empty if no machine has these GPUs, or no GPU is recorded.
    """
    devices = alike[0].gpus
    fitting = [machine for machine in _hosts() if devices and _devices(machine.name) == set(devices)]
    fitting = [machine for machine in fitting if machine.gpus_per_node == len(devices)]
    unlike = {machine.name: sum(_unlike(machine, facts) for facts in alike) for machine in fitting}
    return tuple(name for name, count in unlike.items() if count == min(unlike.values()))


def _unlike(machine: catalogue.Machine, facts: RankFacts) -> int:
    place = _as_recorded(machine, facts, facts.settled(None), None)
    return len(place.hardware) + UNPLACED * any(words.startswith(ADAPTERS) for words in place.assumed)


@cache
def _hosts() -> tuple[catalogue.Machine, ...]:
    """The machines of the catalogue that are single hosts, as records do not say which hosts NVLink joins."""
    hosts = [machine for machine in map(catalogue.load, catalogue.names()) if machine.trays is None]
    return tuple(sorted(hosts, key=lambda machine: (machine.vendor != "NVIDIA", machine.name)))


@cache
def _devices(machine: str) -> set[str]:
    """The PCI device ids of a machine's GPUs."""
    return set(GPU_DEVICE.findall(catalogue.load(machine).topology_xml))


def _fewer(gpus: int | None, topology: Topology) -> int | None:
    return gpus if gpus is not None and gpus < len(topology.gpus) else None


def _as_recorded(
    machine: catalogue.Machine, facts: RankFacts, variables: Mapping[str, str], gpus: int | None
) -> HostLocation:
    changes, agrees, assumed = dict[str, str](), list[str](), list[str]()
    if facts.gpus:
        agrees.append(f"GPUs: {facts.gpu_words}")
    processor = facts.processor
    if processor.vendor is None and processor.architecture == "x86_64":
        assumed.append("processor")
    elif same_processor(machine.topology.cpu, processor):
        agrees.append(f"processor: {processor.in_words}")
    else:
        changes["cpu"] = processor_change(processor)
    _compare_adapters(machine.topology, facts, variables, (changes, agrees, assumed))
    assumed.append("PCI and NVLink")
    return HostLocation(
        machine.name, None, _fewer(gpus, machine.topology), tuple(changes.items()), tuple(agrees), tuple(assumed)
    )


Found = tuple[dict[str, str], list[str], list[str]]  # changes, what agrees, what is assumed


def _compare_adapters(topology: Topology, facts: RankFacts, variables: Mapping[str, str], found: Found) -> None:
    changes, agrees, assumed = found
    nets, sockets = topology.nets, facts.sockets(variables)
    over_ip = bool(sockets) and not facts.used_ports(variables)
    ports = sockets if over_ip else facts.used_ports(variables)
    speeds = [port.gbps for port in ports if port.gbps and isfinite(port.gbps)]
    if not ports or len(speeds) < len(ports) or len(ports) > len(nets):
        assumed.append(f"{ADAPTERS} ({facts.port_words(variables)} on record)")
        return
    if over_ip:
        changes["gpudirect"] = "off"
    if len(ports) < len(nets):
        changes["nics"] = str(len(ports))
    if {net.speed_mbps for net in nets} != {round(gbps * 1000) for gbps in speeds}:
        devs = sorted(nets, key=lambda net: net.dev)
        changes["nic-gbps"] = _speeds(speeds, [devs[at * len(devs) // len(ports)].name for at in range(len(ports))])
    if not {"nics", "nic-gbps", "gpudirect"} & changes.keys():
        agrees.append(f"adapters: {facts.port_words(variables)}")


def _speeds(speeds: Sequence[float], names: Sequence[str]) -> str:
    """The change that gives adapters the recorded speeds, in their order; records do not say which port is which
    adapter."""
    usual, *others = Counter(speeds).most_common()
    own = (f"{gbps:g}@{name}" for gbps, name in zip(speeds, names, strict=False) if gbps != usual[0])
    return ",".join([f"{usual[0]:g}", *own]) if others else f"{usual[0]:g}"


def same_processor(cpu: Cpu, processor: Processor) -> bool:
    """Whether NCCL sees the recorded processor as the same as that of the catalogue."""
    if cpu.arch != ARCHITECTURES.get(processor.architecture, processor.architecture):
        return False
    if cpu.arch != "x86_64":
        return True
    family = None if processor.family is None else nccls_family(processor.family)
    return (cpu.vendor, cpu.family, cpu.model) == (processor.vendor, family, processor.model)


def processor_change(processor: Processor) -> str:
    """The change that gives a node this processor: ``GenuineIntel:6:143``, or an architecture."""
    architecture = ARCHITECTURES.get(processor.architecture, processor.architecture)
    if architecture != "x86_64" or processor.vendor is None:
        return architecture
    return f"{processor.vendor}:{nccls_family(processor.family or 0)}:{processor.model or 0}"
