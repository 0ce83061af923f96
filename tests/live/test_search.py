"""Our own search for channels against the live libnccl: every number, every channel, and the file that it writes."""

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.random_topologies import Drawn, drawn
from tests.support.recorded import Recorder
from tests.support.search_variables import ASSIGNMENTS
from tests.support.searches import Searches, compared, difference, fails
from tests.support.two_ports import HOW, MERGING, How, with_two_ports
from tuner import release
from tuner.answers.graphs import of_scenario
from tuner.base.errors import BadInput, OracleFailed, TunerError
from tuner.base.names import Algorithm
from tuner.graphs import graph_file, searched
from tuner.machine import catalogue
from tuner.machine.graphs import release_key
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.release import load
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

Processors = Literal["POWER", "POWER with NVLinks", "Zhaoxin", "mixed"]
PROCESSORS: tuple[Processors, ...] = ("POWER", "POWER with NVLinks", "Zhaoxin", "mixed")
POWER = 'arch="ppc64"'
ZHAOXIN = tuple(
    f'arch="x86_64" vendor="{vendor}" familyid="{family}" modelid="{model}"'
    for vendor in ("CentaurHauls", "  Shanghai  ")
    for family, model in ((7, 0x5B), (7, 0x1B), (6, 0x5B))  # the first is a Yongfeng
)
CPU = re.compile(r'(<cpu numaid="\d+" affinity="[^"]*") arch[^>]*>')
NVSWITCH, POWER_BRIDGE = 'tclass="0x068000"', 'tclass="0x068001"'


def with_processors(topology: str, processors: Processors, seed: str) -> str:
    """The same with other processors; the same for the same seed."""
    random = Random(seed)
    choices = {"Zhaoxin": ZHAOXIN, "mixed": (POWER, *ZHAOXIN)}.get(processors, (POWER,))
    changed = CPU.sub(lambda cpu: f"{cpu[1]} {random.choice(choices)}>", topology)
    return changed.replace(NVSWITCH, POWER_BRIDGE) if processors == "POWER with NVLinks" else changed


pytestmark = pytest.mark.live

ALONE, TOGETHER = 1, 2
TWO_PORTS = ("dgx-h100", "dgx-1v", "pcie-l40s-4nic")  # of their adapters
MACHINES = ("a100-4x-2nic", "alps", "dgx-b200", "dgx-h100", "pcie-l40s-no-p2p", "ws-2x-a6000")
SETTINGS = (
    {"NCCL_COLLNET_ENABLE": "1"},
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NET_GDR_READ": "0"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_NVB_DISABLE": "1"},
    {"NCCL_NET_DISABLE_INTRA": "1"},
)


GROUPS = [  # releases whose search differs little
    [name for name in release.names() if release_key(first) <= release_key(name) < release_key(beyond)]
    for first, beyond in pairwise(("2.18.0", "2.19.0", "2.22.0", "2.25.0", "2.27.0", "2.30.0", "3.0.0"))
]


def compare(scenario: Scenario) -> None:
    request = scenario.resolve().own.for_search(scenario.nodes > 1)
    assert difference(scenario.oracle_configuration(), request) is None


def compare_or_refuse(configuration: OracleConfiguration) -> None:
    """What is refused here, libnccl fails on."""
    try:
        found = difference(configuration)
    except OracleFailed:
        raise
    except TunerError:
        assert fails(configuration)
    else:
        assert found is None


@pytest.mark.parametrize("nccl", HERE)
def test_latencies_go_by_a_search_for_nvls_that_finds_nothing(nccl: str) -> None:
    """As one GPU does not reach the NVSwitch; what libnccl fails on is refused."""
    scenario = Scenario(nccl, TOGETHER, machine="dgx-h100", hardware={"nvlinks": "0@gpu:2"})
    try:
        communicator = scenario.communicator()
    except BadInput:
        with pytest.raises(OracleFailed):
            Oracle(scenario.oracle_configuration()).close()
        return
    assert not communicator.graphs[Algorithm.NVLS].channels
    assert check(scenario).mismatches == ()


@pytest.mark.parametrize("nccl", HERE)
def test_a_part_of_a_host_on_which_the_search_fails_ends_the_communicator(nccl: str) -> None:
    """One GPU of the second socket does not reach the NVSwitch, and without peer-to-peer each socket is a node."""
    scenario = Scenario(
        nccl, 1, machine="dgx-h100", hardware={"nvlinks": "0@gpu:7"}, environment={"NCCL_P2P_DISABLE": "1"}
    )
    try:
        of_scenario(scenario)
    except BadInput:
        with pytest.raises(OracleFailed):
            Oracle(scenario.oracle_configuration()).close()
        return
    assert check(scenario).mismatches == ()


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "machine", "nodes"), list(product(HERE, MACHINES, (ALONE, TOGETHER))))
def test_every_channel_is_libnccls(nccl: str, machine: str, nodes: int) -> None:
    if nccl in catalogue.load(machine).crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, nodes, machine=machine))


@pytest.mark.parametrize("nccl", HERE)
def test_channels_of_seven_blackwell_gpus_are_libnccls(nccl: str) -> None:
    """Between nodes these take bandwidths that no whole node takes."""
    if nccl in catalogue.load("dgx-b300").crashes:
        pytest.skip("this release of libnccl crashes there")
    compare(Scenario(nccl, TOGETHER, machine="dgx-b300", gpus_per_node=7))


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_is_libnccls_with_a_variable_set(nccl: str, settings: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="a100-4x-2nic", collnet=True, environment=settings))


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", ["machine", "topology", "processors", "ports"])
@pytest.mark.parametrize("nccl", HERE)
def test_every_channel_of_a_random_node_is_libnccls(nccl: str, kind: str, draws: Draws) -> None:
    """Machines with variables and parts of their GPUs; topologies that nobody built, also of rare processors."""
    random = draws.random(f"search {kind} {nccl}")
    machines = [name for name in catalogue.names() if nccl not in catalogue.load(name).crashes]
    for _ in range(draws.times):
        node, number = drawn(str(random.random())), random.randrange(1 << 30)
        if kind in ("machine", "ports"):
            machine = catalogue.load(random.choice(machines if kind == "machine" else TWO_PORTS))
            xml, settings = machine.topology_xml, dict([random.choice(ASSIGNMENTS).split("=")])
            if kind == "ports":
                xml, settings = with_two_ports(xml, random.choice(HOW)), random.choice(MERGING)
            gpus, across = random.choice(sorted(machine.gpu_counts)), machine.peer_to_peer
            node = Drawn(xml, gpus, random.choice((1, 2, 3)), {**machine.environment, **settings}, across)
        elif kind == "processors":
            node = replace(node, xml=with_processors(node.xml, random.choice(PROCESSORS), str(number)))
        compare_or_refuse(node.oracle_configuration(nccl))


@pytest.mark.slow
@pytest.mark.parametrize("group", [group for group in GROUPS if set(group) & set(HERE)], ids="-".join)
def test_files_of_graphs_of_random_topologies(
    group: list[str], draws: Draws, recorder: Recorder, tmp_path: Path
) -> None:
    """Releases take turns; each is loaded once, which makes thousands possible."""
    counted, differs = Counter[str](), list[dict[str, str]]()
    with ExitStack() as loaded:
        here = [nccl for nccl in group if nccl in HERE]
        cheap = {nccl: loaded.enter_context(Searches(drawn("").oracle_configuration(nccl))) for nccl in here}
        for number in range(10 * draws.times):
            nccl, seed = here[number % len(here)], f"{draws.seed}{number} {group[0]}"
            found = compared(nccl, seed, drawn(seed), tmp_path, cheap[nccl])
            counted["refused_by_both" if found.refused else "compared"] += 1
            if found.why is not None:
                differs.append({"seed": seed, "release": nccl, "why": found.why})
    row = {"releases": group, "compared": counted["compared"], "equal": counted["compared"] - len(differs)}
    row["refused_by_both"] = counted["refused_by_both"]
    recorder.write("random", group[0], row | ({"differs": differs} if differs else {}))
    assert not differs
    assert counted["compared"]


@pytest.mark.each_choice
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("nccl", HERE)
def test_merged_adapters_are_libnccls(nccl: str, how: How) -> None:
    """Every way to ask for it in turn."""
    settings = MERGING[(HERE.index(nccl) + HOW.index(how)) % len(MERGING)]
    topology = with_two_ports(catalogue.load("dgx-h100").topology_xml, how)
    assert difference(OracleConfiguration(topology, TOGETHER, 2, nccl, settings, network_reduces=True)) is None


@pytest.mark.parametrize("setting", [{}, {"NCCL_IB_MERGE_NICS": "0"}, {"NCCL_IB_HCA": "^mlx5_18"}], ids=str)
@pytest.mark.parametrize("nccl", [nccl for nccl in HERE if load(nccl).search.ports_merged != "never"])
def test_ports_that_the_network_merges_are_libnccls(nccl: str, setting: dict[str, str]) -> None:
    compare(Scenario(nccl, TOGETHER, machine="oci-h100", gpus_per_node=4, environment=setting))


@pytest.mark.parametrize("nccl", HERE)
def test_affinity_that_a_topology_lacks_is_not_this_computers(nccl: str) -> None:
    """libnccl adds that of the NUMA node of its own computer, where there may be none, and joins ranks otherwise."""
    topology = re.sub(r' affinity="[^"]*"', "", catalogue.load("pcie-l40s").topology_xml)
    assert difference(OracleConfiguration(topology, TOGETHER, 8, nccl, {})) is None


def test_forced_groups_are_libnccls() -> None:
    topology = with_two_ports(catalogue.load("dgx-h100").topology_xml, "functions")
    settings = {"NCCL_NET_FORCE_MERGE": "mlx5_0,mlx5_3_1;mlx5_3,mlx5_0_1"}
    for nccl in HERE:
        assert difference(OracleConfiguration(topology, TOGETHER, 2, nccl, settings)) is None


@pytest.mark.each_choice
@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("nccl", HERE)
def test_rare_processors_are_libnccls(nccl: str, processors: Processors) -> None:
    topology = with_processors(catalogue.load("dgx-1v").topology_xml, processors, nccl)
    environment = {"NCCL_NET_GDR_READ": "1"}
    assert difference(OracleConfiguration(topology, TOGETHER, 4, nccl, environment)) is None


@pytest.mark.each_choice
@pytest.mark.parametrize("setting", ["=mlx5_3,mlx5_9", "^mlx5_0,mlx5_3", "mlx5_1:1"])
@pytest.mark.parametrize("nccl", HERE)
def test_selected_adapters_are_libnccls(nccl: str, setting: str) -> None:
    compare(Scenario(nccl, TOGETHER, machine="dgx-h100", gpus_per_node=2, environment={"NCCL_IB_HCA": setting}))


@pytest.mark.parametrize("nodes", [ALONE, TOGETHER])
@pytest.mark.parametrize("nccl", HERE)
def test_graphs_of_a_file_are_libnccls(nccl: str, nodes: int, tmp_path: Path) -> None:
    """Other numbers for the ring, and no tree; without ranks, which fail on several nodes."""
    scenario = Scenario(nccl, nodes, machine="dgx-h100", gpus_per_node=2)
    request = scenario.resolve().own.for_search(nodes > 1)
    form = release.load(nccl).search.dump
    written = graph_file.text(searched(request, nccl).graphs, replace(form, ranks=False))
    file = tmp_path / "graphs.xml"
    file.write_text(re.sub(r'speedintra="[0-9.]+"', 'speedintra="3.25"', written, count=1).replace('id="1"', 'id="9"'))
    compare(replace(scenario, environment={"NCCL_GRAPH_FILE": str(file)}))


@pytest.mark.skipif("2.32.3" not in HERE, reason="NCCL 2.32.3 is not here")
@pytest.mark.parametrize(
    ("capability", "has_own"), [(106, False), (107, True), (110, False), (121, False), (122, True)]
)
def test_which_gpus_have_bandwidths_of_their_own(capability: int, has_own: bool, tmp_path: Path) -> None:
    text = catalogue.load("dgx-b200").topology_xml
    (file := tmp_path / "node.xml").write_text(re.sub(r'sm="\d+"', f'sm="{capability}"', text))
    scenario = Scenario("2.32.3", 1, topology=file, gpus_per_node=2)
    with Oracle(scenario.oracle_configuration()) as oracle:
        found = oracle.graphs[Algorithm.Ring].bw_intra_gbs
    rubin = {gbs * 23.4 for gbs in (12, 8, 6, 4, 3, 2, 1.5, 1, 0.75)}  # rubinSpeedArrayIntra
    assert any(found == pytest.approx(gbs) for gbs in rubin) == has_own
    assert scenario.communicator().graphs[Algorithm.Ring].bw_intra_gbs == found
