"""Our own search for channels against what libnccl's found, as captured, and the forms in which it is answered."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import captured_graphs
from tests.support.command_line import run
from tests.support.gb200_tray import tray
from tests.support.random_topologies import drawn
from tuner import release
from tuner.base.errors import BadInput, TunerError
from tuner.base.numerics import f32, mirrored
from tuner.graphs import SearchRequest, cached, compiled, find, graph_file
from tuner.graphs.channels import ChannelSearch
from tuner.graphs.explain import explain
from tuner.graphs.graphs import prepared, search
from tuner.graphs.load import GivenBack, Load, Taken, given_by, in_thousandths, taken_by
from tuner.graphs.request import Hosts
from tuner.graphs.system import DeviceKind
from tuner.graphs.trial import Trial
from tuner.machine import catalogue
from tuner.machine.graphs import (
    COLLNET_GRAPHS,
    EMPTY,
    PLAIN_GRAPHS,
    WITH_COLLNET,
    Graph,
    Graphs,
    OrderedGraph,
    Shape,
    read_dump,
    read_orders,
)
from tuner.machine.topology.edit import edited
from tuner.release.environment import Environment

SEVERAL = (False, True)
# Each machine with one release, in turn; and two whose search is short with all of them.
MACHINES = [catalogue.load(name) for name in catalogue.names()]
CASES = [(each.name, each.releases[-1 - at % len(each.releases)], None) for at, each in enumerate(MACHINES)]
CASES += [(machine, nccl, 2) for machine in ("dgx-h100", "pcie-l40s-no-p2p") for nccl in release.names()]


def request_of(machine: str, gpus: int | None, several: bool, **variables: str) -> SearchRequest:
    node = catalogue.load(machine)
    environment = {**node.environment, **variables}
    return SearchRequest(
        node.topology_xml,
        gpus or node.gpus_per_node,
        several,
        environment,
        node.peer_to_peer,
        network_reduces="NCCL_COLLNET_ENABLE" in variables,
    )


def request_of_random(seed: str) -> SearchRequest:
    node = drawn(seed)
    reduces = node.environment.get("NCCL_COLLNET_ENABLE") == "1"
    return SearchRequest(
        node.xml, node.gpus, node.nodes > 1, node.environment, node.peer_to_peer, network_reduces=reduces
    )


def known_graphs(machine: str) -> Mapping[Shape, Graphs]:
    """What libnccl found; where it was not asked, what was searched before."""
    asked = machine in captured_graphs.names()
    return captured_graphs.of(machine).table.graphs if asked else catalogue.load(machine).graph_table.graphs


def graphs_of(request: SearchRequest, nccl: str) -> dict[str, Graph]:
    return {name: found.graph for name, found in search(request, nccl).graphs.items() if found.graph.channels}


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(("machine", "nccl", "gpus"), CASES)
@pytest.mark.parametrize("several", SEVERAL, ids=["one", "several"])
def test_graphs_are_those_that_libnccl_found(machine: str, nccl: str, gpus: int | None, several: bool) -> None:
    shape = nccl, gpus or catalogue.load(machine).gpus_per_node, several
    captured = known_graphs(machine)[shape]
    expected = {name: graph for name, graph in captured.items() if name in PLAIN_GRAPHS}
    assert graphs_of(request_of(machine, gpus, several), nccl) == expected


@pytest.mark.parametrize("nccl", ["2.18.3", "2.22.3", "2.28.9", "2.32.3"])
@pytest.mark.parametrize("several", SEVERAL, ids=["one", "several"])
def test_graphs_with_collnet_are_those_that_libnccl_found(nccl: str, several: bool) -> None:
    captured = captured_graphs.of("dgx-h100").table.graphs[nccl, 2, several]
    expected = {name: captured.get(f"{name}{WITH_COLLNET}", captured.get(name)) for name in (*COLLNET_GRAPHS, "ring")}
    found = graphs_of(request_of("dgx-h100", 2, several, NCCL_COLLNET_ENABLE="1"), nccl)
    assert {name: found.get(name) for name in expected} == expected


def test_a_channel_says_every_device_in_its_order() -> None:
    ring = search(request_of("dgx-h100", None, True), "2.28.9").graphs["ring"]
    assert len(ring.orders) == ring.graph.channels == 8
    assert ring.orders[0] == ("net:0", *(f"gpu:{gpu}" for gpu in (0, 7, 6, 5, 4, 3, 2, 1)), "net:1")
    for order in ring.orders:
        assert sorted(order[1:-1]) == [f"gpu:{gpu}" for gpu in range(8)]
    assert search(request_of("dgx-h100", None, True), "2.28.9").graphs["nvls"].orders[3] == ("net:3", "gpu:3", "net:3")


def test_a_variable_of_the_search_reaches_it() -> None:
    found = [graphs_of(request_of("dgx-h100", 4, True, NCCL_CROSS_NIC=value), "2.28.9") for value in "01"]
    assert [graphs["ring"].cross_nic for graphs in found] == [0, 1]
    far = graphs_of(request_of("dgx-h100", 4, True, NCCL_NET_GDR_LEVEL="LOC"), "2.28.9")
    assert far["ring"].type_inter == "PHB"


def test_every_variable_that_the_search_asks_for_is_one_that_it_is_given() -> None:
    folder = Path(cached.__file__).parent
    asked = {name for file in folder.rglob("*.py") for name in re.findall(r'"(NCCL_[A-Z0-9_]+)"', file.read_text())}
    assert asked - {"NCCL_TUNER_CACHE"} <= release.load("2.28.9").search_variables


def test_releases_are_alike_where_the_search_reads_the_same() -> None:
    rules = {name: cached.rules_of(name) for name in release.names()}
    assert rules["2.26.2"] == rules["2.26.5"]
    assert rules["2.18.1"] != rules["2.18.3"] != rules["2.19.3"]


def test_bandwidths_are_rounded_to_thousandths_as_nccl_rounds_them() -> None:
    left = Taken(45.1 / 8)[12.0]
    assert left == pytest.approx(6.363, abs=1e-6)  # 6.3625, half away from zero
    assert GivenBack(45.1 / 8)[left or 0] != 12.0  # which giving back does not undo
    assert Taken(24.0)[23.999] is None


def test_bits_are_mirrored() -> None:
    assert [mirrored(value, 8) for value in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert mirrored(5, 1) == 0


OTHER_FORMS = [
    "[]",
    "5",
    '"x"',
    "null",
    "{}",
    "[[]]",
    '{"sha256": "", "answer": 5}',
    '{"graphs": [], "nccl": {}}',
    "[" * 9999,
]


def test_a_second_question_is_answered_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    monkeypatch.setattr(cached, "_searched", cached._searched.__wrapped__)  # without what this process remembers
    first, other = request_of("ws-2x-a6000", None, False), request_of("ws-2x-a6000", 1, False)
    found = find(first, "2.28.9")
    (file,) = cached.folder().iterdir()
    monkeypatch.setattr("tuner.graphs.graphs.search", None)
    assert find(first, "2.28.9") == found
    with pytest.raises(TypeError):
        find(other, "2.28.9")  # another request is another file
    kept = file.read_text()
    other_numbers = kept.replace('channels\\": ', 'channels\\": 1')
    assert other_numbers != kept
    sealed = [json.dumps({"sha256": hashlib.sha256(each.encode()).hexdigest(), "answer": each}) for each in OTHER_FORMS]
    for broken in ("{", other_numbers, *OTHER_FORMS, *sealed):
        file.write_text(broken)
        with pytest.raises(TypeError):
            find(first, "2.28.9")  # and what is not as it was written is searched again
    file.write_text(kept)
    file.chmod(0o666)
    with pytest.raises(TypeError):
        find(first, "2.28.9")  # nor what others could have written


def test_what_is_kept_goes_by_the_object_that_searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "libnccl_tuner_picks.so"
    other.write_bytes(b"another search")
    before = cached._code.__wrapped__()
    monkeypatch.setattr(cached, "shared_object", lambda name: tmp_path / f"lib{name}.so")
    assert cached._code.__wrapped__() != before


# Machines whose searches go other ways: by PCI, through switches, from trays; one with a GPU that no NVLink reaches.
OTHER_WAYS = [("dgx-b200", {}, 4), ("dgx-1v", {"nvlinks": "0@gpu:5"}, None), ("dgx-2", {}, 3), ("pcie-l40s", {}, 4)]
OTHER_WAYS += [("gb200-nvl72", {}, None), ("dgx-a100", {}, None)]


def both_ways(monkeypatch: pytest.MonkeyPatch, request: SearchRequest, nccl: str) -> tuple[object, object, int]:
    """What C and Python find, or why they refuse the node, and how many searches C made."""
    run, runs = compiled.CompiledSearch.run, list[tuple[int, bool]]()
    every: list[list[object]] = []

    def counted(self: compiled.CompiledSearch, trial: Trial, best: Trial, tries: int) -> tuple[int, bool]:
        runs.append(run(self, trial, best, tries))
        return runs[-1]

    search_one = ChannelSearch.search

    def searched(self: ChannelSearch, trial: Trial, best: Trial, tries: int) -> int:
        left = search_one(self, trial, best, tries)
        laid = replace(best, intra=best.intra[: best.channels], inter=best.inter[: best.channels])
        every[-1].append((left, trial.hops, laid, list(self.load.left), list(self.net_left)))
        return left

    found: list[object] = []
    for native in (True, False):
        every.append([])
        with monkeypatch.context() as patched:
            patched.setattr(compiled.CompiledSearch, "run", counted)
            patched.setattr(ChannelSearch, "search", searched)
            if not native:
                patched.setattr(compiled, "of", lambda search: None)
            try:
                found.append(search(request, nccl))
            except TunerError as error:
                found.append(str(error))
    return (found[0], every[0]), (found[1], every[1]), len(runs)


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "changes", "gpus"), OTHER_WAYS)
@pytest.mark.parametrize("several", SEVERAL, ids=["one", "several"])
def test_c_makes_every_search_as_python_does(
    monkeypatch: pytest.MonkeyPatch, machine: str, changes: Mapping[str, str], gpus: int | None, several: bool
) -> None:
    """Each search of a node: the tries left, the best graph so far, and the bits of what is left of links."""
    request = request_of(machine, gpus, several)
    request = replace(request, topology=edited(request.topology, changes))
    releases = catalogue.load(machine).releases
    for nccl in {releases[0], releases[len(releases) // 2], releases[-1]}:
        in_c, in_python, runs = both_ways(monkeypatch, request, nccl)
        assert in_c == in_python, nccl
        assert runs > 0


@pytest.mark.slow
def test_c_searches_random_topologies_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0
    for number in range(2 * len(release.names())):
        nccl = release.names()[number % len(release.names())]
        in_c, in_python, made = both_ways(monkeypatch, request_of_random(f"c{number}"), nccl)
        assert in_c == in_python, (number, nccl)
        runs += made
    assert runs > 500


def test_a_tree_that_leaves_by_an_adapter_of_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters of a host that fell off are too slow to enter from, but not to leave by; rings do, trees crash."""
    apart = {"NCCL_P2P_DISABLE": "1", "NCCL_MNNVL_ENABLE": "1"}
    slow = Hosts(tray(gpus=1, speed_mbps=25000), 1)
    request = SearchRequest(tray(gpus=2), 2, False, apart, in_domain=True, others=(slow,))
    for nccl in ("2.25.1", "2.26.5"):
        in_c, in_python, runs = both_ways(monkeypatch, request, nccl)
        assert in_c == in_python
        assert "a tree leaves by NET" in str(in_c)
        assert runs > 0
    assert search(request, "2.23.4").graphs["tree"].graph.channels == 4


def test_c_ends_with_the_error_that_python_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = {"NCCL_P2P_DISABLE": "1", "NCCL_MNNVL_ENABLE": "1"}
    request = SearchRequest(tray(), 4, True, apart, in_domain=True, hosts=3)
    for nccl in ("2.25.1", "2.26.5"):
        in_c, in_python, _ = both_ways(monkeypatch, request, nccl)
        assert in_c == in_python
        assert "libnccl crashes" in str(in_c)


def test_without_adapters_there_is_no_collnet() -> None:
    with_adapters = request_of("dgx-h100", 2, False, NCCL_COLLNET_ENABLE="1")
    without = re.sub(r"<nic>.*?</nic>", "", with_adapters.topology, flags=re.DOTALL)
    assert {"collnet_chain", "collnet_direct"} <= find(with_adapters, "2.28.9").keys()
    assert {"ring", "tree", "nvls"} == find(replace(with_adapters, topology=without), "2.28.9").keys()


def test_a_dump_has_ranks_where_gpus_have_numbers_with_gaps() -> None:
    """What libnccl reads back: the numbers of devices are no ranks."""
    order = ("gpu:0", "gpu:5", "gpu:2")
    found = {"ring": OrderedGraph(replace(EMPTY, channels=1), (order,))}
    written = graph_file.text(found, release.load("2.32.3").search.dump)
    for gpu in ('dev="0" rank="0"', 'dev="0x2" rank="1"', 'dev="0x5" rank="2"'):
        assert f"<gpu {gpu}/>" in written


def test_the_dump_is_read_back(tmp_path: Path) -> None:
    for nccl, nodes in product(("2.20.5", "2.22.3", "2.30.7"), ("1", "2")):
        file = tmp_path / f"{nccl}-{nodes}.xml"
        words = ("graphs", "--machine", "dgx-h100", "--gpus-per-node", "2", "--nodes", nodes, "--nccl", nccl)
        answered = json.loads(run(*words, "--json", "--dump", str(file)).stdout)["graphs"]
        dumped, gpus = read_dump(file)
        assert gpus == 2
        orders = read_orders(file.read_text())
        for name, graph in dumped.items():
            assert graph.channels == answered[name]["channels"]
            assert [list(order) for order in orders[name]] == answered[name]["orders"]


def test_an_explanation_has_every_search_that_was_tried() -> None:
    words = ("graphs", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--explain", "ring")
    explained = json.loads(run(*words, "--json").stdout)
    assert explained["max_gbs"] == 48.0
    searches = explained["searches"]
    assert [search["channels"] for search in searches] == sorted(search["channels"] for search in searches)
    first, last = searches[0], searches[-1]
    assert (first["bw_intra_gbs"], first["same_channels"], first["tried"], first["channels"]) == (48.0, True, 120, 0)
    assert (last["cross_nic"], last["outcome"], last["channels"]) == (2, "better, out of tries", 8)
    assert last["refused"]["link"] == "gpu:0 -> pci 0000:19:00.0"
    assert sum(search["repeats"] for search in searches) == 20
    printed = run(*words).stdout
    assert "all channels have at most 370.8 GB/s" in printed
    assert "20 more searches repeat one of these" in printed


def test_an_explanation_does_not_change_what_is_found() -> None:
    request = request_of("ws-2x-a6000", None, False)
    asked = explain(request, "2.28.9", "tree")
    assert asked.searches[-1].channels == search(request, "2.28.9").graphs["tree"].graph.channels


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--node", "dgx-h100", "--node", "dgx-a100"), "nodes of one kind"),
        (("--machine", "ws-2x-a6000", "--explain", "nvls"), "NCCL searches no nvls there; valid: ring, tree"),
        (("--machine", "dgx-h100", "--env", "NCCL_IB_HCA=mlx5_0:1:0:0"), "rails and planes are not emulated"),
    ],
)
def test_what_it_cannot_do_is_one_line(words: tuple[str, ...], why: str) -> None:
    refused = run("graphs", "--nccl", "2.28.9", *words, code=2).stderr
    assert why in refused
    assert refused.count("\n") == 1


def test_a_gpu_without_a_link_to_the_nvswitch_ends_the_search_of_newer_releases() -> None:
    request = request_of("dgx-h100", None, False)
    gpu = re.split(r"(?=<pci [^>]*>\s*<gpu )", request.topology)[1]
    cut = re.sub(r"<nvlink [^>]*/>", "", gpu)
    assert cut != gpu
    one_less = replace(request, topology=request.topology.replace(gpu, cut))
    assert "nvls" in graphs_of(request, "2.32.3")
    assert "nvls" not in graphs_of(one_less, "2.30.7")
    with pytest.raises(BadInput, match="nothing joins NVS 0 and GPU 0; valid with NCCL_NVLS_ENABLE=0"):
        search(one_less, "2.32.3")
    assert "ring" in graphs_of(replace(one_less, environment={"NCCL_NVLS_ENABLE": "0"}), "2.32.3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        # NVLS has fewer heads than GPUs: NCCL reads beyond its list of adapters.
        ("t2022", "240c4676c489aa7a6830c6700bcc17327b8994d632ad89a0e5c16cbf596bd878"),
        # Adapters are shared unevenly, which NCCL only sees where GPUs relay.
        ("t1890", "89beed93c893158d0b1be5e9d59d6a65fac1c8a6fe26b43094dbd8006fa8021a"),
    ],
)
def test_random_topologies_give_the_file_that_libnccl_wrote(seed: str, sha256: str) -> None:
    found = search(request_of_random(seed), "2.18.3").graphs
    written = graph_file.text(found, release.load("2.18.3").search.dump)
    digest = hashlib.sha256(written.encode()).hexdigest()
    assert digest == sha256


def test_a_relay_that_is_cut_off_is_refused_without_peer_to_peer_too() -> None:
    with pytest.raises(BadInput, match="NCCL refuses GPUs 2 and 0: NVLinks join them over GPU 1"):
        search(request_of_random("t2195"), "2.30.3")


def test_a_system_is_printed_without_going_in_circles() -> None:
    text = catalogue.load("dgx-h100").topology_xml
    system = prepared(
        SearchRequest(text, 8, True), release.load("2.28.9"), Environment({}, non_numeric_is_default=False)
    )
    assert len(repr(system.gpus[0].paths[DeviceKind.NET])) < 10_000


def test_more_gpus_than_nccl_has_room_for_are_refused_at_once(tmp_path: Path) -> None:
    gpu = '<pci busid="{n:04x}:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">'
    gpus = "".join(f'{gpu.format(n=n)}<gpu dev="{n}" sm="80"/></pci>' for n in range(641))
    cpu = '<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
    file = tmp_path / "wide.xml"
    file.write_text(f'<system version="1">{cpu}{gpus}</cpu></system>')
    refused = run("graphs", "--topology", str(file), "--nodes", "1", "--nccl", "2.28.9", code=2).stderr
    assert refused == "nccl-tuner: 641 GPUs in one node: NCCL has room for 640\n"


def test_the_table_of_graphs_has_no_words_of_python() -> None:
    said = run("graphs", "--machine", "ws-2x-a6000", "--nodes", "2", "--nccl", "2.28.9").stdout
    assert not {"None", "True", "False"} & set(said.split())
    assert {"yes", "no", "-"} & set(said.split())


BELOW = 999_999  # thousandths of a GB/s


@given(st.integers(0, BELOW), st.integers(1, BELOW))
def test_thousandths_are_given_back_without_loss(have_thousandths: int, taken_thousandths: int) -> None:
    have, amount = float(f32(have_thousandths) / f32(1000)), float(f32(taken_thousandths) / f32(1000))
    assert in_thousandths(have)
    assert in_thousandths(amount)
    left = taken_by(amount)[have]
    assert (left is None) == (have_thousandths < taken_thousandths)
    if left is not None:
        assert in_thousandths(left)
        assert given_by(amount)[left] == have


@given(st.integers(0, 200_000), st.integers(1, 1000))
def test_overhead_and_the_way_back_are_given_back_without_loss(have_thousandths: int, tenths: int) -> None:
    """Six fifths of a bandwidth in float32, and an eighth of one, need not be the float32 nearest to thousandths."""
    have = float(f32(have_thousandths) / f32(1000))
    for amount in (float(f32(tenths / 10) * f32(6) / f32(5)), tenths / 10 / 8):
        left = taken_by(amount)[have]
        if in_thousandths(amount) and left is not None:
            assert given_by(amount)[left] == have


def test_what_is_no_thousandth_may_be_lost() -> None:
    left = taken_by(0.0625)[2.0]
    assert left is not None
    assert not in_thousandths(0.0625)
    assert given_by(0.0625)[left] != 2.0
    assert not in_thousandths(5000.0)  # float32 has few digits left for thousandths there


@pytest.mark.parametrize("gbs", [20.0, 10.0625])
def test_a_refused_route_leaves_links_as_taking_and_giving_back_does(gbs: float) -> None:
    """Where something is lost, each refusal changes the links before the short one, as in NCCL."""
    node, nccl = catalogue.load("dgx-h100"), release.load("2.28.9")
    request = SearchRequest(node.topology_xml, 8, True, dict(node.environment), node.peer_to_peer)
    system = prepared(request, nccl, Environment(request.environment, non_numeric_is_default=False))
    load, gpu = Load(system, False, False), system.gpus[0]
    path = max(gpu.paths[DeviceKind.NET], key=lambda path: len(path.links))
    load.left[load.number(path.links[-1])] = 1.0
    load.begin()
    route = load.route(gpu, path, gbs, 0)
    *before, _ = route.steps
    assert len(before) > 2
    kept = list(load.left)
    for _ in range(3):
        expected = list(load.left)
        for link, taken, given_back in before:
            rest = taken[expected[link]]
            assert rest is not None
            expected[link] = given_back[rest]
        assert not load.take(route)
        assert load.left == expected
    assert (load.left == kept) == load.exact == (gbs == 20.0)
