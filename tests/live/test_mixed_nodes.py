"""Communicators of nodes that differ: the emulator against the live library, exactly."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.check_exchange import compare as compare_exchange
from tests.support.check_exchange import compare_mixed
from tests.support.gb200_tray import tray
from tests.support.random_exchanges import draw
from tests.support.random_groups import random_groups
from tests.support.split_hosts import UNEVEN
from tuner import release
from tuner.base.errors import BadInput, BadTopology
from tuner.base.names import Buffers, Collective, DataType, Op, Sides, WindowFlag, Windows
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import Host, OracleConfiguration
from tuner.scenario.p2p import p2p_context

H100, A100, B200 = "dgx-h100", "dgx-a100", "dgx-b200"
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'

# Machine or edited machine, GPUs, nodes; in the order of ranks.
Nodes = tuple[str, int, int]
SHAPES: dict[str, tuple[Nodes, ...]] = {
    "fewer GPUs": ((H100, 4, 1), (H100, 2, 1)),
    "one GPU first": ((H100, 1, 1), (H100, 3, 1)),
    "NVLS on the first node only": ((H100, 3, 1), (H100, 2, 1)),
    "three nodes": ((H100, 2, 2), (H100, 1, 1)),
    "older GPUs and another vendor": ((H100, 3, 1), (A100, 2, 1)),
    "newer GPUs and another vendor": ((A100, 3, 1), (H100, 4, 1)),
    "two generations with NVLS": ((B200, 4, 1), (H100, 4, 1)),
    "Volta": ((A100, 2, 1), ("volta", 2, 1)),
    "vendors": (("intel", 2, 1), ("amd", 2, 1)),
    "vendors the other way": (("amd", 2, 1), ("intel", 2, 1)),
    "architectures": (("intel", 2, 1), ("arm", 2, 1)),
    "slower adapters": ((H100, 2, 1), ("slow", 2, 1)),
    "a latency of the first node": (("far", 2, 1), (H100, 2, 1)),
    "a latency of the second node": ((H100, 2, 1), ("far", 2, 1)),
    "fewer adapters": ((H100, 2, 1), ("one adapter", 2, 1)),
    "fewer adapters first": (("one adapter", 2, 1), (H100, 2, 1)),
}


def edited(name: str, folder: Path) -> Path:
    """The topology of a machine as one changed fact makes it."""
    h100, a100 = catalogue.load(H100).topology_xml, catalogue.load(A100).topology_xml
    xml = {
        "intel": h100,
        "amd": h100.replace(INTEL, 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'),
        "arm": h100.replace(INTEL, 'arch="arm64"'),
        "volta": a100.replace('sm="80"', 'sm="70"'),
        "slow": h100.replace('speed="400000"', 'speed="100000"'),
        "far": h100.replace('latency="0"', 'latency="2.5"'),
        "one adapter": "\n".join(line for line in h100.splitlines() if "<net " not in line or 'dev="0"' in line),
    }[name]
    assert name == "intel" or xml not in (h100, a100)
    path = folder / f"{name}.xml"
    path.write_text(xml)
    return path


def scenario(nccl: str, nodes: tuple[Nodes, ...], folder: Path) -> Scenario:
    first, *others = [
        Scenario(
            nccl,
            nodes=count,
            gpus_per_node=gpus,
            machine=name if name in catalogue.names() else None,
            topology=None if name in catalogue.names() else edited(name, folder),
        )
        for name, gpus, count in nodes
    ]
    return Scenario(
        nccl, first.nodes, first.machine, first.topology, gpus_per_node=first.gpus_per_node, others=tuple(others)
    )


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HERE)
def test_nodes_that_differ(name: str, shape: str, tmp_path: Path) -> None:
    report = check(scenario(name, SHAPES[shape], tmp_path))
    assert report.mismatches == ()
    assert report.compared["cells"] >= 5 * 60 * 18
    assert report.compared["picks"] >= 5 * 60
    assert report.compared["groups"] >= 900


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", ["three nodes", "older GPUs and another vendor", "fewer adapters"])
@pytest.mark.parametrize("name", HERE)
def test_sends_beside_collectives_on_nodes_that_differ(name: str, shape: str, tmp_path: Path) -> None:
    described = scenario(name, SHAPES[shape], tmp_path)
    resolved, generator = described.resolve(), random.Random(shape)
    selection = Selection(resolved.views[0])
    with Oracle(described.oracle_configuration()) as oracle:
        for operations in random_groups(selection, 12, most=20):
            rank = generator.randrange(resolved.ranks)
            group = operations, draw("random", rank, resolved.ranks, generator)
            where = p2p_context(resolved, rank)
            assert compare_mixed(Selection(where.communicator), where, oracle, group) == {}


REGISTERING = [name for name in HERE if release.load(name).rules.registered]


def assert_registered_buffers_equal(described: Scenario) -> None:
    """All collectives on registered and on captured buffers."""
    assert not described.communicator().nodes_are_alike
    kinds = [(collective, buffers) for collective in Collective for buffers in (Buffers.registered, Buffers.graph)]
    requests = [Request(collective, DataType.float32, Op.sum, buffers=buffers) for collective, buffers in kinds]
    unit_bytes = 4 * described.ranks
    report = check(described, requests, [unit_bytes << power for power in range(4, 26, 3)])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 5 * 8


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", ["NVLS everywhere", "fewer GPUs", "older GPUs and another vendor", "fewer adapters"])
@pytest.mark.parametrize("name", REGISTERING)
def test_registered_buffers_on_nodes_that_differ(name: str, shape: str, tmp_path: Path) -> None:
    shapes = {**SHAPES, "NVLS everywhere": ((H100, 4, 1), (H100, 3, 1))}
    assert_registered_buffers_equal(scenario(name, shapes[shape], tmp_path))


WITH_WINDOWS = [name for name in REGISTERING if release.load(name).rules.non_classic_path != "classic_path_only"]


@pytest.mark.each_choice
@pytest.mark.parametrize("name", WITH_WINDOWS)
@pytest.mark.parametrize("gin", ["0", "3"])
@pytest.mark.parametrize("shape", ["NVLS everywhere", "fewer GPUs", "older GPUs and another vendor", "fewer adapters"])
def test_windows_of_nodes_that_differ(shape: str, gin: str, name: str, tmp_path: Path) -> None:
    """None is made without GPUs that start transfers."""
    shapes = {**SHAPES, "NVLS everywhere": ((H100, 4, 1), (H100, 3, 1))}
    described = replace(scenario(name, shapes[shape], tmp_path), environment={"NCCL_GIN_TYPE": gin})
    flags = (WindowFlag.COLL_SYMMETRIC, WindowFlag.DEFAULT)
    windows = [Windows(), *(Windows(sides, flag) for sides in (Sides.send, Sides.receive) for flag in flags)]
    requests = [
        Request(collective, DataType.float32, Op.sum, buffers=Buffers.window, windows=each)
        for collective in Collective
        for each in windows
    ]
    sizes = [4 * described.ranks << power for power in (4, 12, 18, 25)]
    report = check(described, requests, sizes)
    assert report.mismatches == ()
    assert report.compared["channels"] == len(requests) * len(sizes)


@pytest.mark.parametrize("name", REGISTERING)
def test_registered_buffers_on_parts_of_a_host_that_differ(name: str, tmp_path: Path) -> None:
    host = tmp_path / "host.xml"
    host.write_text(UNEVEN)
    assert_registered_buffers_equal(Scenario(name, 2, topology=host))


@pytest.mark.parametrize(
    "name", [name for name in REGISTERING if release.load(name).rules.domains != "hosts_are_nodes"]
)
def test_registered_buffers_on_domains_of_different_sizes(name: str, tmp_path: Path) -> None:
    host = tmp_path / "tray.xml"
    host.write_text(tray())
    assert_registered_buffers_equal(Scenario(name, 5, topology=host, hosts_per_domain=(3, 2)))


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", ["fewer GPUs", "older GPUs and another vendor"])
@pytest.mark.parametrize("name", REGISTERING)
def test_sends_on_registered_buffers_on_nodes_that_differ(name: str, shape: str, tmp_path: Path) -> None:
    resolved, generator = scenario(name, SHAPES[shape], tmp_path).resolve(), random.Random(shape)
    with Oracle(resolved.oracle_configuration()) as oracle:
        for rank in (0, resolved.ranks - 1):
            calls = draw("random", rank, resolved.ranks, generator)
            where = p2p_context(resolved, rank)
            Selection(where.communicator).check_buffers(Buffers.registered)
            assert compare_exchange(where, oracle, calls, Buffers.registered) == {}


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (((H100, 1, 1), (A100, 1, 1)), "one rank differ"),
        (((B200, 4, 1), (H100, 4, 1)), "their generation of GPUs"),
    ],
    ids=["one rank", "generations"],
)
def test_registered_buffers_that_are_refused_where_nodes_differ(
    nodes: tuple[Nodes, ...], reason: str, tmp_path: Path
) -> None:
    selection = Selection(scenario(HERE[-1], nodes, tmp_path).communicator())
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.registered)
    with pytest.raises(BadInput, match=reason):
        selection.pick(request, [1 << 20])


@pytest.mark.each_choice
@pytest.mark.parametrize("machines", [(A100, "a100-4x-2nic"), ("a100-4x-2nic", A100)], ids=" ".join)
@pytest.mark.parametrize("name", HERE)
def test_only_hosts_with_infiniband_merge_adapters(name: str, machines: tuple[str, str]) -> None:
    """Beside hosts of another network, whose adapters nothing merges, on either end of the order."""
    first, second = machines
    environment = {"NCCL_NET_MERGE_LEVEL": "PXB"}
    report = check(
        Scenario(name, 1, machine=first, environment=environment, others=(Scenario(name, 1, machine=second),))
    )
    assert report.mismatches == ()
    assert report.compared["graphs"] >= 60


@pytest.mark.parametrize("name", HERE)
def test_every_rank_is_on_its_own_node(name: str) -> None:
    h100, a100 = catalogue.load(H100).topology_xml, catalogue.load(A100).topology_xml
    with Oracle(OracleConfiguration(h100, 1, 2, name, {}, others=(Host(a100, 1), Host(h100, 3)))) as oracle:
        facts, lines = oracle.facts, oracle.log_lines()
    assert (facts.n_ranks, facts.n_nodes, facts.local_ranks, facts.max_local_ranks) == (6, 3, 2, 3)
    # NCCL prints the CPUs of each rank's own topology, and 1 for Intel, 2 for AMD.
    cpus = {match[1] for line in lines if (match := re.search(r"NCCL INFO CPU/\S+ \(\d+/(\d+)/", line))}
    assert cpus == {"1", "2"}


def test_what_cannot_be_simulated_is_refused() -> None:
    h100 = catalogue.load(H100).topology_xml
    kinds = tuple(Host(f"{h100}<!-- {number} -->", 1) for number in range(16))
    with pytest.raises(BadInput, match="17 kinds of nodes are too many: the oracle simulates at most 16"):
        Oracle(OracleConfiguration(h100, 1, 1, HERE[0], {}, others=kinds))
    with pytest.raises(BadInput, match="gpus_per_node is 9: valid are 1 to 8"):
        Oracle(OracleConfiguration(h100, 1, 1, HERE[0], {}, others=(Host(h100, 9),)))
    alone = "\n".join(line for line in h100.splitlines() if "<net " not in line)
    with pytest.raises(BadTopology, match="no <net> element"):
        Oracle(OracleConfiguration(h100, 1, 1, HERE[0], {}, others=(Host(alone, 1),)))
