"""What `make test-releases` compares in one release: machines, NVLink domains, settings, and what the search reads.

Every machine on 1 and 2 whole nodes; two machines each, others in every release, on 3, 4 and 8 nodes with as many GPUs
as make up to 16 ranks; one each with a setting; four machines with ranks that share GPUs, where the release has them.
Trays of a NVLink domain, in one domain, in two, and in two of different sizes, also with 3 of their 4 GPUs.
Of graphs and channels alone: every machine on 3 nodes and with parts of its GPUs, each variable of the search on one
machine, others in every release, and random combinations of all these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from tests.support.gb200_tray import tray
from tests.support.search_variables import ASSIGNMENTS
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.oracle.conformance.check import ALL_COLLECTIVES
from tuner.scenario import Scenario

MOST_RANKS = 16  # on 3 and more nodes
TYPES_AND_OPS = [  # what a release or a machine has not is refused by both
    (DataType.float32, Op.sum),
    (DataType.bfloat16, Op.avg),
    (DataType.float8e4m3, Op.sum),
    (DataType.int8, Op.max),
    (DataType.float64, Op.prod),
]
ALL_TYPES = tuple(Request(collective, dtype, op) for dtype, op in TYPES_AND_OPS for collective in Collective)
FEW_SIZES_BYTES = tuple(3 << power for power in range(10, 32, 3))  # of many ranks
SETTINGS = [
    {"NCCL_ALGO": "Tree"},
    {"NCCL_ALGO": "^Ring"},
    {"NCCL_PROTO": "^LL"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_MAX_NCHANNELS": "3"},
    {"NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_NTHREADS": "256"},
    {"NCCL_NVLS_ENABLE": "0"},
]
SHARED = ("dgx-h100", "dgx-a100", "pcie-l40s", "dgx-b200")  # on 1 and 2 nodes, in each of these
GPUS_AND_RANKS = ((1, 2), (1, 4), (1, 8), (2, 2), (8, 2))  # GPUs per node, ranks per GPU

# Of NVLink domains: hosts, hosts per domain, GPUs of each, calls, sizes.
DOMAINS = (
    (2, 2, 4, ALL_TYPES, None),
    (2, 2, 3, ALL_TYPES, None),
    (4, 2, 4, ALL_TYPES, None),
    (4, 4, 4, ALL_TYPES, None),
    (3, 2, 4, ALL_TYPES, None),  # the second has one tray
    (4, 2, 3, ALL_COLLECTIVES, None),
    (8, 4, 4, ALL_COLLECTIVES, FEW_SIZES_BYTES),
    (8, 8, 4, ALL_COLLECTIVES, None),
    (8, 8, 3, ALL_COLLECTIVES, FEW_SIZES_BYTES),
    (16, 8, 2, ALL_COLLECTIVES, FEW_SIZES_BYTES),
    (18, 18, 4, ALL_COLLECTIVES, FEW_SIZES_BYTES),
)
SEVERAL_DOMAINS = (  # in the release that answers one domain of all hosts in a way that is not emulated
    (2, 1, 4, ALL_TYPES, None),
    (2, 1, 3, ALL_TYPES, None),
    (4, 1, 4, ALL_TYPES, None),
    (4, 2, 2, ALL_TYPES, None),
)
TRAYS = ((1, 2), (2, 4))  # domains and trays of each, of machines that are domains
LEAST_OF_DOMAINS = {"cells": 200_000, "picks": 15_000}  # in every release
BY_HOST = ("hosts_are_nodes", "only_the_whole_communicator")  # rules of the others
COMBINATIONS = 12  # random ones, of graphs and channels alone
MOST_RANKS_OF_GRAPHS = 24


@dataclass(frozen=True, slots=True)
class Planned:
    """A communicator, the calls asked of it, and sizes in bytes; without calls graphs, channels and tables alone."""

    scenario: Scenario
    requests: tuple[Request, ...]
    sizes: tuple[int, ...] | None = None

    @property
    def of_domain(self) -> bool:
        """Whether NVLink joins its hosts."""
        return self.scenario.hosts_per_domain is not None or self.scenario.trays is not None

    @property
    def title(self) -> str:
        return f"{self.scenario.title} {self.scenario.environment or ''}".strip()


def plan(name: str, folder: Path) -> Iterator[Planned]:
    """``folder`` takes the topology file of a tray, which the communicators name."""
    for scenario in of_machines(name):
        yield Planned(scenario, ALL_TYPES if scenario.nodes == 1 else ALL_COLLECTIVES)
    yield from of_domains(name, folder)
    for scenario in of_graphs(name):
        yield Planned(scenario, ())


def hosts(name: str) -> list[str]:
    """The machines of the catalogue that are one host and run the release."""
    machines = [catalogue.load(machine) for machine in catalogue.names()]
    return [machine.name for machine in machines if machine.trays is None and name in machine.releases]


def of_machines(name: str) -> Iterator[Scenario]:
    here = hosts(name)
    connected = [machine for machine in here if catalogue.load(machine).topology.nets]
    for machine in here:
        if catalogue.load(machine).gpus_per_node > 1:  # one rank has nothing to choose
            yield Scenario(nccl=name, machine=machine, nodes=1)
        if machine in connected:
            yield Scenario(nccl=name, machine=machine, nodes=2)
    start = release.names().index(name)  # other machines for these in every release
    for at, nodes in enumerate((3, 4, 8) * 2, start=start):
        machine = connected[at % len(connected)]
        yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=most_gpus(machine, nodes, MOST_RANKS))
    for at, settings in enumerate(SETTINGS, start=start):
        machine = connected[at % len(connected)]
        gpus = min(catalogue.load(machine).gpus_per_node, 4)
        yield Scenario(nccl=name, machine=machine, nodes=2, gpus_per_node=gpus, collnet=True, environment=settings)
    if release.load(name).environment.shares_gpus is None:
        return
    for machine, nodes, (gpus, per_gpu) in product(SHARED, (1, 2), GPUS_AND_RANKS):
        yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, ranks_per_gpu=per_gpu)


def of_domains(name: str, folder: Path) -> Iterator[Planned]:
    """Those that the emulator answers: it refuses NVLS on more GPUs than libnccl has room for, which crashes it."""
    file = folder / "tray.xml"
    file.write_text(tray())
    by_host = release.load(name).rules.domains == "only_the_whole_communicator"
    for nodes, per_domain, gpus, requests, sizes in DOMAINS + (SEVERAL_DOMAINS if by_host else ()):
        if nodes * gpus > MOST_RANKS and not joins_hosts(name):
            continue
        scenario = Scenario(nccl=name, topology=file, nodes=nodes, hosts_per_domain=per_domain, gpus_per_node=gpus)
        if answered(scenario):
            yield Planned(scenario, requests, sizes and possible(sizes, scenario))
    domains = [machine for machine in catalogue.names() if catalogue.load(machine).trays and joins_hosts(name)]
    for machine, (nodes, trays) in product(domains, TRAYS):
        scenario = Scenario(nccl=name, machine=machine, nodes=nodes, trays=trays)
        if answered(scenario):
            yield Planned(scenario, ALL_COLLECTIVES, possible(FEW_SIZES_BYTES, scenario))


def possible(sizes: tuple[int, ...], scenario: Scenario) -> tuple[int, ...]:
    """Such sizes that every collective can have, that is whole elements of each rank."""
    unit = max(request.unit_bytes(scenario.ranks) for request in ALL_COLLECTIVES)
    return tuple(size // unit * unit for size in sizes)


def joins_hosts(name: str) -> bool:
    """Whether the release takes the hosts of a NVLink domain for one node."""
    return release.load(name).rules.domains not in BY_HOST


def answered(scenario: Scenario) -> bool:
    try:
        scenario.communicator()
    except BadInput:
        return False
    return True


def of_graphs(name: str) -> Iterator[Scenario]:
    here = hosts(name)
    for machine in here:
        for nodes in (1, 2, 3):
            for gpus in parts(machine, nodes):
                yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus)
    start = release.names().index(name)  # other machines for these in every release
    for at, assignment in enumerate(ASSIGNMENTS, start=start):
        machine = here[at % len(here)]
        gpus = most_gpus(machine, 2, MOST_RANKS)
        yield Scenario(
            nccl=name, machine=machine, nodes=2, gpus_per_node=gpus, collnet=True, environment=settings(assignment)
        )
    random = Random(name)
    for _ in range(COMBINATIONS):
        nodes = random.choice((1, 2, 2, 3))
        machine = random.choice([each for each in here if nodes > 1 or catalogue.load(each).gpus_per_node > 1])
        counts = [count for count in catalogue.load(machine).gpu_counts if 1 < count * nodes <= MOST_RANKS_OF_GRAPHS]
        chosen = settings(*random.sample(ASSIGNMENTS, random.choice((2, 2, 3))))
        if counts:  # a machine of one GPU has no communicator on one node
            gpus = random.choice(counts)
            yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=chosen)


def most_gpus(machine: str, nodes: int, ranks: int) -> int:
    return max(count for count in catalogue.load(machine).gpu_counts if count * nodes <= ranks)


def parts(machine: str, nodes: int) -> list[int]:
    """GPUs of each node, some that :func:`of_machines` has not; tests/live/test_search.py draws others."""
    counts = catalogue.load(machine).gpu_counts
    most = max(counts)
    wanted = {1: most // 2, 2: most - 1, 3: most}[nodes]
    return [wanted] if wanted in counts and wanted * nodes > 1 else []


def settings(*assignments: str) -> dict[str, str]:
    return dict(assignment.split("=") for assignment in assignments)
