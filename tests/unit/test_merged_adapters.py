"""Adapters that NCCL selects and merges before it searches, and graphs that it reads from a file instead."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.two_ports import with_two_ports
from tuner.api import communicator
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.graphs import SearchRequest, find
from tuner.machine import catalogue
from tuner.machine.adapters import NamedAdapter, mergeable, name_list, network_of, selecting, used
from tuner.scenario import Scenario
from tuner.scenario.node import ResolvedNode
from tuner.scenario.notes import of_scenario

PORTS = {f"net:{number}" for number in range(4)}  # of the adapters of the first two GPUs
FOUR = [NamedAdapter(f"mlx5_{number}", 1, f"0000:1{number}:00.0") for number in (0, 1, 2, 10)]
TWO_PORTS = [NamedAdapter("mlx5_0", 1, "0000:10:00.0"), NamedAdapter("mlx5_1", 2, "0000:10:00.0")]


def request_of(how: str, **variables: str) -> SearchRequest:
    node = catalogue.load("dgx-h100")
    return SearchRequest(with_two_ports(node.topology_xml, how), 2, True, variables)  # type: ignore[arg-type]


def nets_of(request: SearchRequest, nccl: str) -> set[str]:
    ring = find(request, nccl)["ring"]
    return {device for order in ring.orders for device in order if device.startswith("net")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mlx5_1", [1, 3]),  # as beginnings
        ("=mlx5_1", [1]),
        ("^mlx5_1", [0, 2]),
        ("^=mlx5_1,mlx5_2", [0, 3]),
        ("mlx5_0:1,mlx5_2:2", [0]),
        ("=mlx5_1:", []),  # sic: no number is port 0
        ("", [0, 1, 2, 3]),
    ],
)
def test_adapters_are_selected_as_nccl_selects_them(text: str, expected: list[int]) -> None:
    if not expected:
        with pytest.raises(BadInput, match="leaves no adapter"):
            used(FOUR, {"NCCL_IB_HCA": text})
    else:
        assert used(FOUR, {"NCCL_IB_HCA": text}) == expected


def test_ports_of_one_device_are_counted_through_in_a_topology() -> None:
    assert used(TWO_PORTS, {"NCCL_IB_HCA": "mlx5:1"}) == [0, 1]
    assert used([replace(TWO_PORTS[0]), NamedAdapter("mlx5_0", 3, "0000:10:00.0")], {"NCCL_IB_HCA": "mlx5_0:2"}) == [1]


def test_a_network_of_a_plugin_does_not_read_the_list_for_infiniband() -> None:
    assert used([NamedAdapter("rdmap79s0", 1, "0000:4f:00.0")], {"NCCL_IB_HCA": "mlx5"}) == [0]
    assert used(FOUR, {"NCCL_IB_HCA": "mlx5_2", "NCCL_NET": "AWS Libfabric"}) == [0, 1, 2, 3]


def test_an_entry_without_a_name_counts_for_nothing() -> None:
    assert name_list(",a,:1,b:2", 8) == (("a", -1), ("b", 2))
    assert name_list("a,b,c", 2) == (("a", -1), ("b", -1))


def test_selected_adapters_are_numbered_anew() -> None:
    node = catalogue.load("dgx-h100")
    request = SearchRequest(node.topology_xml, 8, True, {"NCCL_IB_HCA": "=mlx5_3,mlx5_9"})
    assert nets_of(request, "2.28.9") == {"net:0", "net:1"}


def test_both_ports_of_an_adapter_are_one_from_2_24_on() -> None:
    before, since = (nets_of(request_of("functions"), nccl) for nccl in ("2.23.4", "2.28.9"))
    assert before <= PORTS
    assert since == {"net:16", "net:17"}  # what is merged comes after all


OCI_PORTS = ["mlx5_18", "mlx5_19", "mlx5_26", "mlx5_27"]


def adapters_of(nccl: str, **variables: str) -> list[tuple[str, int]]:
    node = ResolvedNode(Scenario(nccl=nccl, machine="oci-h100", nodes=2, environment=variables))
    return [(net.name, net.speed_mbps) for net in node.topology.nets]


@pytest.mark.parametrize("nccl", ["2.20.5", "2.21.5", "2.22.3", "2.23.4"])
def test_the_network_of_2_20_to_2_23_makes_one_adapter_of_two_ports(nccl: str) -> None:
    found = adapters_of(nccl)
    assert found[:2] == [("mlx5_18+mlx5_19", 400000), ("mlx5_26+mlx5_27", 400000)]
    assert len(found) == 8
    assert [name for name, _ in adapters_of(nccl, NCCL_IB_MERGE_NICS="0")][:4] == OCI_PORTS
    assert communicator("oci-h100", nodes=2, nccl=nccl).pick("allreduce", 1 << 33).algorithm[0] == Algorithm.NVLSTree


@pytest.mark.parametrize("nccl", ["2.19.3", "2.24.3", "2.28.9"])
def test_ports_stay_adapters_of_their_own_in_other_releases(nccl: str) -> None:
    assert [name for name, _ in adapters_of(nccl)][:4] == OCI_PORTS


def test_ports_that_are_left_out_are_not_merged() -> None:
    """From 2.22 on a single port among pairs keeps all apart (sic)."""
    some = {"NCCL_IB_HCA": "^mlx5_18"}
    assert [name for name, _ in adapters_of("2.21.5", **some)][:3] == ["mlx5_18", "mlx5_19", "mlx5_26+mlx5_27"]
    assert [name for name, _ in adapters_of("2.22.3", **some)][:4] == OCI_PORTS
    merged = [NamedAdapter("mlx5_18+mlx5_19", 1, "0000:0c:00.0"), NamedAdapter("mlx5_26+mlx5_27", 1, "0000:2a:00.0")]
    assert used(merged, {"NCCL_IB_HCA": "=mlx5_26:1,mlx5_27"}) == [1]
    assert used(merged, {"NCCL_IB_HCA": "^=mlx5_26"}) == [0, 1]


def test_only_near_ports_are_merged() -> None:
    assert nets_of(request_of("apart"), "2.28.9") <= PORTS
    assert nets_of(request_of("apart", NCCL_NET_MERGE_LEVEL="PXB"), "2.28.9") == {"net:16", "net:17"}
    assert nets_of(request_of("functions", NCCL_NET_MERGE_LEVEL="LOC"), "2.28.9") <= PORTS
    assert nets_of(request_of("functions", NCCL_IB_MERGE_NICS="0"), "2.28.9") <= PORTS


def test_by_rail_only_what_is_asked_for_by_name_is_merged() -> None:
    """A topology knows no rail of an adapter. Releases before 2.30.7 do not know the variable."""
    by_rail = {"NCCL_NET_MERGE_POLICY": "rail"}
    assert nets_of(request_of("functions", **by_rail), "2.30.7") <= PORTS
    assert nets_of(request_of("functions", **by_rail), "2.30.4") == {"net:16", "net:17"}
    assert nets_of(request_of("functions", NCCL_NET_MERGE_POLICY="ALL"), "2.30.7") == {"net:16", "net:17"}
    forced = request_of("functions", NCCL_NET_FORCE_MERGE="mlx5_0,mlx5_0_1", **by_rail)
    assert "net:16" in nets_of(forced, "2.30.7")
    assert "net:17" not in nets_of(forced, "2.30.7")


def test_a_merged_adapter_has_the_bandwidth_of_all() -> None:
    request = request_of("one device")
    slow = replace(request, topology=request.topology.replace('speed="400000"', 'speed="100000"'))
    apart = replace(slow, environment={"NCCL_NET_MERGE_LEVEL": "LOC"})
    assert [find(each, "2.28.9")["ring"].graph.bw_inter_gbs for each in (slow, apart)] == [24.0, 12.0]


def test_up_to_2_26_single_adapters_are_numbered_anew_too() -> None:
    node = catalogue.load("dgx-h100")
    request = SearchRequest(node.topology_xml, 2, True)
    assert nets_of(request, "2.26.5") == {"net:8", "net:9"}
    assert nets_of(request, "2.27.3") == {"net:0", "net:1"}


@pytest.mark.parametrize(
    ("variables", "nccl", "why"),
    [
        ({"NCCL_NET_FORCE_MERGE": "mlx5_0,nowhere"}, "2.28.9", "1 adapters match it"),
        ({"NCCL_NET_FORCE_MERGE": "mlx5_0;,"}, "2.28.9", "group without a name"),
        ({"NCCL_IB_MERGE_NICS": "0"}, "2.25.1", "NCCL_NET_MERGE_LEVEL=LOC"),
        ({"NCCL_NET_FORCE_MERGE": "mlx5_0,mlx5_11"}, "2.30.7", "different sockets"),
        ({"NCCL_IB_HCA": "mlx4"}, "2.28.9", "leaves no adapter"),
        ({"NCCL_IB_HCA": "mlx5_0:1:0"}, "2.30.7", "rails"),
    ],
)
def test_what_nccl_fails_with_is_refused(variables: dict[str, str], nccl: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        find(request_of("functions", **variables), nccl)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    file = tmp_path / "graphs.xml"
    run("graphs", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--dump", str(file))
    return file


def graphs_with(file: Path, nccl: str = "2.28.9", nodes: str = "2") -> dict[str, dict[str, object]]:
    words = ("graphs", "--machine", "dgx-h100", "--nodes", nodes, "--nccl", nccl, "--env", f"NCCL_GRAPH_FILE={file}")
    answer: dict[str, dict[str, object]] = json.loads(run(*words, "--json").stdout)["graphs"]
    return answer


def test_graphs_are_read_from_the_file(dump: Path) -> None:
    dump.write_text(dump.read_text().replace('speedintra="48"', 'speedintra="7.5"', 1))
    assert graphs_with(dump)["ring"]["bw_intra_gbs"] == 7.5
    words = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "1G")
    plain, slow = (
        json.loads(run("pick", "allreduce", *words, *more, "--env", "NCCL_ALGO=Ring", "--json").stdout)
        for more in ((), ("--env", f"NCCL_GRAPH_FILE={dump}"))
    )
    assert slow != plain


def test_a_graph_that_the_file_lacks_is_searched(dump: Path) -> None:
    dump.write_text(dump.read_text().replace('<graph id="1"', '<graph id="9"'))
    searched = json.loads(run("graphs", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--json").stdout)
    assert graphs_with(dump)["tree"] == searched["graphs"]["tree"]


def test_a_file_that_is_changed_is_read_again(dump: Path) -> None:
    text = dump.read_text()
    for value in ("3.5", "2.25"):
        dump.write_text(text.replace('speedintra="48"', f'speedintra="{value}"', 1))
        assert graphs_with(dump)["ring"]["bw_intra_gbs"] == float(value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('version="1"', 'version="2"', "version='2' is unknown"),
        ("</graphs>", "", "not XML"),
        ('speedinter="48" ', "", "<graph> has no speedinter"),
        ('dev="0x7"', 'dev="0x9"', "GPU 0x9 is not on the node"),
        ('nchannels="8"', 'nchannels="99"', "which has 8 channels"),
        ('pattern="4"', 'pattern="44"', "graph pattern 44 is unknown"),
        ("<graphs", "<system", "not XML"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(dump: Path, old: str, new: str, why: str) -> None:
    text = dump.read_text()
    assert old in text
    dump.write_text(text.replace(old, new))
    words = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--env", f"NCCL_GRAPH_FILE={dump}")
    refused = run("graphs", *words, code=2).stderr
    assert why in refused
    assert refused.count("\n") == 1


def test_a_file_that_is_not_there_is_refused() -> None:
    words = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--env", "NCCL_GRAPH_FILE=/nowhere/a.xml")
    assert "/nowhere/a.xml: No such file" in run("pick", "allreduce", *words, code=2).stderr


def test_ranks_of_a_file_hold_for_one_node_alone(tmp_path: Path) -> None:
    file = tmp_path / "graphs.xml"
    run("graphs", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.30.7", "--dump", str(file))
    words = ("graphs", "--machine", "dgx-h100", "--nccl", "2.30.7", "--env", f"NCCL_GRAPH_FILE={file}")
    assert "fails on several nodes" in run(*words, "--nodes", "2", code=2).stderr
    run(*words, "--nodes", "1")


def test_a_later_communicator_of_a_process_sees_the_ports_too() -> None:
    """Beside the virtual adapters, whose numbers begin at 16; libnccl says so in tests/live/test_parts.py."""
    first = request_of("functions")
    later = replace(first, later=True)
    for nccl, leaks in (("2.26.5", False), ("2.27.3", True), ("2.30.4", True), ("2.30.7", False)):
        assert (nets_of(first, nccl) != nets_of(later, nccl)) is leaks


SOCKET, INFINIBAND = NamedAdapter("ib0", 0, "0000:10:00.0", gpu_direct=False), NamedAdapter("mlx5_0", 1, "0000:10:00.0")
OVER_SOCKETS, OVER_INFINIBAND = (Scenario("2.28.9", 2, machine=name) for name in ("ws-2x-a6000", "dgx-h100"))


@pytest.mark.parametrize(
    ("adapters", "network"),
    [
        ([SOCKET], "Socket"),
        ([INFINIBAND], "IB"),
        ([INFINIBAND, SOCKET], None),
        ([NamedAdapter("rdmap79s0", 1, "0000:4f:00.0")], "libfabric"),
        ([NamedAdapter("cxi0", 1, "0000:4f:00.0")], "libfabric"),
        ([NamedAdapter("rdmap79s0", 1, "0000:4f:00.0"), INFINIBAND], None),
        ([], None),
    ],
)
def test_the_network_of_adapters(adapters: list[NamedAdapter], network: str | None) -> None:
    assert network_of(adapters) == network


@pytest.mark.parametrize(
    ("scenario", "variables"),
    [
        (OVER_SOCKETS, {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none"}),
        (OVER_SOCKETS, {"NCCL_NET": "socket"}),
        (OVER_INFINIBAND, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_NET_PLUGIN": "none"}),
        (replace(OVER_INFINIBAND, nodes=1), {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}),
    ],
)
def test_what_agrees_with_the_adapters_changes_nothing(scenario: Scenario, variables: dict[str, str]) -> None:
    with_them, without = replace(scenario, environment=variables).communicator(), scenario.communicator()
    assert with_them.graphs == without.graphs
    assert with_them.channels == without.channels


@pytest.mark.parametrize(
    ("scenario", "variables"),
    [
        (OVER_SOCKETS, {"NCCL_NET": "IB"}),
        (OVER_INFINIBAND, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}),
        (OVER_INFINIBAND, {"NCCL_NET_PLUGIN": "libnccl-net.so", "NCCL_IB_DISABLE": "1"}),
        (OVER_INFINIBAND, {"NCCL_NET": "AWS Libfabric"}),
        (OVER_INFINIBAND, {"NCCL_NET_PLUGIN": "libnccl-net.so"}),
        (replace(OVER_INFINIBAND, nodes=1), {"NCCL_NET": "AWS Libfabric"}),
    ],
)
def test_what_does_not_is_refused(scenario: Scenario, variables: dict[str, str]) -> None:
    says = "the topology's adapters say which network is taken|NCCL_IB_DISABLE forbids|is libfabric's"
    with pytest.raises(BadInput, match=says):
        replace(scenario, environment=variables).communicator()


@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        ("aws-p5en", {"NCCL_NET": "AWS Libfabric"}),
        ("aws-p5en", {"NCCL_NET_PLUGIN": "aws-ofi"}),
        ("aws-p5en", {"NCCL_NET_PLUGIN": "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "NCCL_IB_DISABLE": "1"}),
        ("alps", {"NCCL_NET": "AWS Libfabric", "NCCL_NET_PLUGIN": "aws-ofi"}),
        ("dgx-h100", {"NCCL_NET_PLUGIN": ""}),
        ("dgx-h100", {"NCCL_NET": "IBext_v8"}),
        ("dgx-h100", {"NCCL_NET": "gib", "NCCL_NET_PLUGIN": "libnccl-net_internal.so"}),
        ("azure-nd-h100-v5", {"NCCL_NET_PLUGIN": "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"}),
    ],
)
def test_a_network_of_the_machines_own_adapters_changes_nothing(machine: str, variables: dict[str, str]) -> None:
    plain = Scenario("2.28.9", 2, machine=machine)
    named = replace(plain, environment=variables)
    assert named.communicator().graphs == plain.communicator().graphs
    assert not {"NCCL_NET", "NCCL_NET_PLUGIN"} & named.resolve().own.for_oracle(2).env.keys()
    known = machine in ("aws-p5en", "alps") or variables.get("NCCL_NET_PLUGIN") == ""
    assert any("not compared" in note for note in of_scenario(named)) == (not known)


@pytest.mark.parametrize("variables", [{"NCCL_NET": "Socket"}, {"NCCL_IB_DISABLE": "1"}], ids=str)
def test_sockets_that_variables_ask_for_are_the_adapters_without_ports_and_gpudirect(variables: dict[str, str]) -> None:
    asked = replace(OVER_INFINIBAND, environment=variables).communicator()
    changed = replace(OVER_INFINIBAND, hardware={"gpudirect": "off"}).communicator()
    assert asked.graphs == changed.graphs != OVER_INFINIBAND.communicator().graphs
    mixed = replace(OVER_SOCKETS, others=(replace(OVER_INFINIBAND, nodes=1),), environment={"NCCL_NET": "Socket"})
    assert mixed.communicator().nodes == OVER_SOCKETS.nodes + 1


def test_nothing_agrees_with_no_adapters() -> None:
    variables = {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}
    assert selecting(None, variables, nodes=2) == set()
    assert selecting(None, variables, nodes=1) == variables.keys() - {"NCCL_IB_HCA"}


def test_sockets_are_not_merged() -> None:
    """Also those of interfaces whose names say nothing, such as IP over InfiniBand."""
    assert mergeable([INFINIBAND, INFINIBAND], {})
    assert not mergeable([SOCKET, SOCKET], {})


def test_graphs_takes_the_same() -> None:
    words = ("graphs", "--machine", "ws-2x-a6000", "--nodes", "2", "--nccl", "2.28.9")
    assert run(*words, "--env", "NCCL_NET=Socket", "--json").stdout == run(*words, "--json").stdout
    assert "--change gpudirect=off" in run(*words, "--env", "NCCL_NET=IB", code=2).stderr
