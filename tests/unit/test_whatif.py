"""Before and after a change: the picks of two communicators; changed hardware is what libnccl sees, too."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.available_releases import HERE
from tests.support.command_line import run, run_process
from tuner import graphs
from tuner.answers.changes import at_sizes, changed
from tuner.answers.diff import Side
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.graphs.request import SearchResult
from tuner.machine import catalogue
from tuner.machine.gpus import PeerToPeer
from tuner.machine.topology import read
from tuner.machine.topology.edit import edited
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.scenario import Scenario

ALLREDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIZES = [4 << shift for shift in range(0, 31, 2)]
SKELETON = Path(__file__).parents[2] / "docs" / "examples" / "skeleton.xml"
H100 = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2, gpus_per_node=2)


def xml(machine: str) -> str:
    return catalogue.load(machine).topology_xml


def values(topology: str, tag: str, attribute: str) -> list[str]:
    return [element.attrib[attribute] for element in ET.fromstring(topology).iter(tag)]


# --- edits of a topology ---


def test_speed_of_adapters() -> None:
    after = edited(xml("dgx-h100"), {"nic-gbps": "12.5"})
    assert values(after, "net", "speed") == ["12500"] * 8
    assert edited(after, {"nic-gbps": "400"}) == edited(xml("dgx-h100"), {"nic-gbps": "400"})


@pytest.mark.parametrize("count", ["8", "3", "2", "1"])
def test_number_of_adapters(count: str) -> None:
    """Those left are spread over the sockets, and counted from 0 again, as NCCL's networks count."""
    before = {net.name: net for net in read(xml("dgx-h100")).nets}
    after = read(edited(xml("dgx-h100"), {"nics": count})).nets
    assert [net.dev for net in after] == list(range(int(count)))
    assert {replace(net, dev=before[net.name].dev) for net in after} <= set(before.values())
    assert len({net.numaid for net in after}) == min(int(count), 2)


@pytest.mark.parametrize(
    ("machine", "count", "links"),
    [
        ("dgx-h100", "18", [4, 4, 5, 5]),
        ("dgx-h100", "3", [1, 1, 1]),
        ("dgx-h100", "0", []),
        ("dgx-b200", "9", [9]),
        ("dgx-1v", "6", [1, 1, 2, 2]),
        ("a100-4x-1nic", "6", [2, 2, 2]),
        ("gh200-4x", "6", [2, 2, 2]),
    ],
)
def test_nvlinks_per_gpu(machine: str, count: str, links: list[int]) -> None:
    after = read(edited(xml(machine), {"nvlinks": count}))
    for gpu in after.gpus:
        assert sorted(link.count for link in gpu.nvlinks) == links
    ends = {(gpu.busid, link.target): link.count for gpu in after.gpus for link in gpu.nvlinks}
    if machine in ("dgx-1v", "gh200-4x", "a100-4x-1nic"):  # GPUs that face each other have the same links
        assert all(ends[there, here] == links_between for (here, there), links_between in ends.items())


def test_pcie() -> None:
    after = edited(xml("aws-p5"), {"pcie": "6"})
    assert set(values(after, "pci", "link_speed")) == {"64.0 GT/s PCIe"}
    assert values(after, "pci", "link_width") == values(xml("aws-p5"), "pci", "link_width")
    assert set(values(edited(xml("aws-p5"), {"pcie": "4x8"}), "pci", "link_width")) == {"8"}


@pytest.mark.parametrize(
    ("machine", "change", "message"),
    [
        ("dgx-h100", "nic-gbps=0", "give a speed of 0.001 to 1000000"),
        ("dgx-h100", "nic-gbps=fast", "give a speed of 0.001"),
        ("dgx-h100", "nics=9", "valid are 1 to 8"),
        ("dgx-h100", "nics=0", "valid are 1 to 8"),
        ("dgx-h100", "nvlinks=-1", "valid are 0 to 18 per GPU"),
        ("dgx-h100", "nvlinks=99", "valid are 0 to 18 per GPU, the most that these GPUs have"),
        ("dgx-h100", "nvlinks=19@gpu:3", "valid are 0 to 18 per GPU"),
        ("dgx-a100", "nvlinks=13", "valid are 0 to 12 per GPU"),
        ("dgx-h100", "nvlinks=1@gpu:8", "no GPU gpu:8; valid: gpu:0, "),
        ("dgx-h100", "nvlinks=1@gpu:0-gpu:1", "no NVLink connects these GPUs"),
        ("dgx-1v", "nvlinks=3@gpu:0-gpu:3", "gpu:0 would have 7 links, but such a GPU has at most 6"),
        ("dgx-1v", "nvlinks=0,4@gpu:3", "gpu:3 has no NVLinks"),
        ("dgx-h100", "nic-gbps=100@mlx5_99", "no adapter mlx5_99; valid: mlx5_0, "),
        ("dgx-h100", "nic-gbps=100@", "give VALUE or VALUE@DEVICE"),
        ("dgx-h100", "nic-latency-us=1_0", "give a latency of 0 to 1000000 us"),
        ("dgx-h100", "nic-latency-us=nan", "give a latency of 0 to 1000000 us"),
        ("dgx-h100", "gpudirect=maybe", "give on or off"),
        ("dgx-h100", "add-nic=extra", "give NAME@PLACE"),
        (
            "dgx-h100",
            "add-nic=extra@0000:1b:00.0",
            "0000:1b:00.0 is neither a PCI switch nor a NUMA node; valid: cpu:0, cpu:1, ",
        ),
        ("dgx-h100", "add-nic=mlx5_0@cpu:0", "mlx5_0 is there already"),
        ("dgx-h100", "move-nic=mlx5_0@cpu:7", "cpu:7 is neither a PCI switch nor a NUMA node"),
        ("dgx-h100", "remove-gpu=gpu:0,gpu:1,gpu:2,gpu:3,gpu:4,gpu:5,gpu:6,gpu:7", "would leave no GPU"),
        ("dgx-h100", "sockets=0", "valid are 1 to 8"),
        ("dgx-h100", "sockets=9", "valid are 1 to 8"),
        ("dgx-h100", "pcie=4@0000:ff:00.0", "no device 0000:ff:00.0"),
        ("dgx-h100", "p2p=some", "valid: all, within-sockets, none, off"),
        ("pcie-l40s", "nvlinks=4", "no GPU of this node has NVLinks"),
        ("dgx-1v", "nvlinks=4", r"1\+1\+2\+2.*give a multiple of 6$"),
        ("a100-4x-1nic", "nvlinks=4", r"4\+4\+4.*give a multiple of 3$"),
        ("dgx-h100", "pcie=7", "give a PCIe generation"),
        ("dgx-h100", "pcie=5x3", "give a PCIe generation"),
        ("dgx-h100", "speed=1", "'speed' is not a key that can be changed"),
    ],
)
def test_what_a_node_cannot_have_is_refused(machine: str, change: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        changed(replace(H100, machine=machine), [change]).communicator()


def test_devices_are_changed_by_name() -> None:
    after = read(edited(xml("dgx-h100"), {"nic-gbps": "100@mlx5_3,50@net:0", "gpudirect": "off@mlx5_4,off@gpu:2"}))
    assert [net.speed_mbps for net in after.nets] == [50_000, 100_000, *[400_000] * 6]
    assert [net.gpu_direct for net in after.nets] == [True, True, False, *[True] * 5]
    assert [gpu.gpu_direct for gpu in after.gpus] == [True, True, False, *[True] * 5]
    slower = ET.fromstring(edited(xml("dgx-h100"), {"pcie": "4x8@gpu:0,3@mlx5_3,1@0000:16:00.0"}))
    speeds = {pci.get("busid"): (pci.get("link_speed"), pci.get("link_width")) for pci in slower.iter("pci")}
    assert speeds["0000:1b:00.0"] == ("16.0 GT/s PCIe", "8")
    assert speeds["0000:40:00.0"] == ("8.0 GT/s PCIe", "16")
    assert speeds["0000:16:00.0"][0] == "2.5 GT/s PCIe"
    assert speeds["0000:43:00.0"] == ("32.0 GT/s PCIe", "16")


def test_adapters_come_go_and_move() -> None:
    before = read(xml("dgx-h100"))
    names = [net.name for net in before.nets]
    gone = read(edited(xml("dgx-h100"), {"remove-nic": "mlx5_0,net:2"})).nets
    assert [(net.dev, net.name) for net in gone] == list(enumerate([names[1], *names[3:]]))
    more = read(edited(xml("dgx-h100"), {"add-nic": "a@cpu:1,b@0000:16:00.0"})).nets
    assert [(net.name, net.numaid, net.speed_mbps) for net in more[8:]] == [("a", 1, 400_000), ("b", 0, 400_000)]
    assert len({net.guid for net in more}) == len({net.busid for net in more}) == len(more) == 10
    moved = read(edited(xml("dgx-h100"), {"move-nic": "mlx5_0@cpu:1"}))
    assert [net.numaid for net in moved.nets] == [1, *(net.numaid for net in before.nets[1:])]
    assert [gpu.numaid for gpu in moved.gpus] == [gpu.numaid for gpu in before.gpus]


def test_gpus_and_sockets() -> None:
    before = read(xml("dgx-1v"))
    less = read(edited(xml("dgx-1v"), {"remove-gpu": "gpu:1,gpu:6"}))
    kept = [gpu.busid for gpu in before.gpus if gpu.dev not in (1, 6)]
    assert [(gpu.dev, gpu.busid) for gpu in less.gpus] == list(enumerate(kept))
    assert {link.target for gpu in less.gpus for link in gpu.nvlinks} <= set(kept)
    moved = read(edited(xml("dgx-1v"), {"move-gpu": "gpu:0@cpu:1"}))
    assert [gpu.numaid for gpu in moved.gpus] == [1, *(gpu.numaid for gpu in before.gpus[1:])]
    one, four = (read(edited(xml("dgx-h100"), {"sockets": count})) for count in ("1", "4"))
    assert {gpu.numaid for gpu in one.gpus} == {0}
    assert [gpu.numaid for gpu in four.gpus] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [net.numaid for net in four.nets] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_links_between_two_gpus_have_two_ends() -> None:
    after = read(edited(xml("dgx-1v"), {"nvlinks": "0@gpu:0-gpu:3,0@gpu:5"}))
    ends = {(gpu.busid, link.target): link.count for gpu in after.gpus for link in gpu.nvlinks}
    busids = [gpu.busid for gpu in after.gpus]
    assert (busids[0], busids[3]) not in ends
    assert all(ends[there, here] == count for (here, there), count in ends.items())
    assert busids[5] not in {busid for pair in ends for busid in pair}


def test_changes_by_name_add_up_and_others_replace() -> None:
    words = ["nic-gbps=200", "nic-gbps=100@mlx5_0", "nic-gbps=50@mlx5_3", "remove-nic=mlx5_4", "remove-nic=mlx5_5"]
    scenario = changed(H100, words)
    assert scenario.hardware == {"nic-gbps": "200,100@mlx5_0,50@mlx5_3", "remove-nic": "mlx5_4,mlx5_5"}
    assert changed(scenario, ["nic-gbps=25"]).hardware == {"nic-gbps": "25", "remove-nic": "mlx5_4,mlx5_5"}
    assert [net.speed_mbps for net in scenario.resolve().own.topology.nets] == [100_000, 50_000, *[200_000] * 4]


def test_peer_to_peer_is_what_nvml_says_or_a_variable() -> None:
    node = replace(H100, machine="pcie-l40s")
    assert changed(node, ["p2p=within-sockets"]).oracle_configuration().peer_to_peer == "within-sockets"
    other = changed(replace(H100, machine="pcie-l40s-no-p2p"), ["p2p=all"])
    assert other.oracle_configuration().peer_to_peer == "all"
    assert changed(node, ["p2p=off"]).environment == {"NCCL_P2P_DISABLE": "1"}


def test_a_skeleton_has_no_more_links_than_its_model() -> None:
    node = Scenario("2.28.9", 2, topology=SKELETON, gpu="h100-sxm", net_gbps=400)
    assert changed(node, ["nvlinks=18"]).resolve().own.topology.gpus[0].nvlinks[0].count == 18
    with pytest.raises(BadInput, match="valid are 0 to 0 per GPU, as many as h100-pcie has"):
        changed(replace(node, gpu="h100-pcie"), ["nvlinks=2"]).resolve().own.topology  # noqa: B018


def test_pick_and_graphs_take_changes_of_the_nodes() -> None:
    words = ("--machine", "a100-4x-2nic", "--nodes", "2", "--nccl", "2.28.9", "--change", "remove-nic=cxi1", "--json")
    graphs = json.loads(run("graphs", *words).stdout)
    assert {device for order in graphs["graphs"]["ring"]["orders"] for device in order if device.startswith("net")} == {
        "net:0"
    }
    (answer,) = json.loads(run("pick", "allreduce", "--bytes", "1M", *words).stdout)["picks"]
    whatif = json.loads(run("diff", "allreduce", "remove-nic=cxi1", "--bytes", "1M", *words[:6], "--json").stdout)
    assert answer["pick"] == whatif["comparisons"][0]["sizes"][0]["after"]
    shown = run("machines", "a100-4x-2nic", "--change", "remove-nic=cxi1").stdout
    assert [net.name for net in read(shown).nets] == ["cxi0"]


def test_hardware_changes_alike_nodes_as_they_are() -> None:
    with pytest.raises(BadInput, match="cannot be changed if nodes differ"):
        changed(replace(H100, others=(H100,)), ["nic-gbps=100"])
    with pytest.raises(BadInput, match="found on the unchanged node"):
        changed(replace(H100, graphs=Path("dump.xml")), ["nic-gbps=100"]).communicator()
    other = changed(H100, ["nic-gbps=100", "machine=dgx-a100"])
    assert (other.hardware, other.title) == (None, "2 x dgx-a100, 8 GPUs each, NCCL 2.28.9")


# --- changed hardware, and the real library on it ---

CHANGES = {
    "slower adapters": ("dgx-h100", 2, ("nic-gbps=100",)),
    "one adapter": ("dgx-h100", 2, ("nics=1", "nic-gbps=200")),
    "fewer links": ("dgx-h100", 4, ("nvlinks=4",)),
    "no links": ("dgx-a100", 2, ("nvlinks=0",)),
    "older PCIe": ("dgx-a100", 2, ("pcie=3x8",)),
    "fewer links between GPUs": ("a100-4x-1nic", 4, ("nvlinks=3",)),
    "one slow adapter": ("a100-4x-2nic", 4, ("nic-gbps=50@cxi0",)),
    "an adapter elsewhere": ("dgx-h100", 4, ("move-nic=mlx5_0@cpu:1",)),
    "an adapter more, and fewer before": ("dgx-h100", 4, ("remove-nic=mlx5_0,mlx5_3", "add-nic=extra@cpu:0")),
    "no GPUDirect": ("dgx-h100", 2, ("gpudirect=off",)),
    "a link lost": ("dgx-1v", 2, ("nvlinks=0@gpu:0-gpu:1",)),
    "one GPU without links": ("dgx-1v", 4, ("nvlinks=0@gpu:3",)),
    "a slow slot": ("dgx-h100", 4, ("pcie=3x8@gpu:1",)),
    "a GPU at the other socket": ("dgx-h100", 4, ("move-gpu=gpu:1@cpu:1",)),
    "a GPU less": ("dgx-1v", 3, ("remove-gpu=gpu:1",)),
    "more sockets": ("pcie-l40s", 2, ("sockets=4",)),
    "with a nccl.conf": ("pcie-l40s-4nic", 8, ("nic-gbps=25",)),
    "a variable of the search": ("dgx-h100", 4, ("NCCL_P2P_DISABLE=1",)),
    "without peer-to-peer": ("pcie-l40s-no-p2p", 4, ("nic-gbps=25",)),
}


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("nccl", HERE)
def test_emulator_and_libnccl_agree_on_changed_hardware(nccl: str, what: str) -> None:
    machine, gpus, changes = CHANGES[what]
    before = Scenario(nccl=nccl, machine=machine, nodes=2, gpus_per_node=gpus)
    after = changed(before, changes)
    report = check(after)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 5 * 60
    old, new = (Selection(scenario.communicator()).cost_table(ALLREDUCE, SIZES) for scenario in (before, after))
    assert not np.array_equal(old, new), "it makes a difference"


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize("change", ["sockets=1", "p2p=within-sockets", "p2p=off"])
@pytest.mark.parametrize("nccl", HERE)
def test_emulator_and_libnccl_agree_on_other_ways_between_sockets(nccl: str, change: str) -> None:
    assert check(changed(Scenario(nccl, 1, "pcie-l40s"), [change])).mismatches == ()


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_libnccl_launches_the_picks_of_the_changed_machine(nccl: str, tmp_path: Path) -> None:
    """Against a file that was edited by hand, whose picks libnccl launches; unchanged adapters pick otherwise."""
    file = tmp_path / "slow.xml"
    file.write_text(xml("dgx-h100").replace('speed="400000"', 'speed="50000"'))
    after = changed(replace(H100, nccl=nccl), ["nic-gbps=50"])
    picks = Selection(after.communicator()).pick(ALLREDUCE, SIZES)
    with Oracle(replace(after, machine=None, topology=file, hardware=None).oracle_configuration()) as oracle:
        launched = oracle.launch(ALLREDUCE, SIZES)
    ours = [
        (*algo_proto, channels, threads)
        for algo_proto, channels, threads in zip(picks.algo_protos(), picks.channels, picks.threads, strict=True)
    ]
    assert ours == [(real.algorithm, real.protocol, real.channels, real.threads) for real in launched]
    unchanged = Selection(replace(H100, nccl=nccl).communicator()).pick(ALLREDUCE, SIZES)
    assert unchanged.algo_protos() != picks.algo_protos() or not np.array_equal(unchanged.channels, picks.channels)


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_a_skeleton_is_completed_before_it_is_changed(nccl: str) -> None:
    """Adapters that are made slower afterwards are those that were slower from the start."""
    fast = Scenario(nccl=nccl, nodes=2, topology=SKELETON, gpu="h100-sxm", net_gbps=400, gpus_per_node=2)
    slow = replace(fast, net_gbps=100)
    tables = [
        Selection(scenario.communicator()).cost_table(ALLREDUCE, SIZES)
        for scenario in (changed(fast, ["nic-gbps=100"]), slow, fast)
    ]
    assert np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])
    assert check(changed(fast, ["nics=1", "pcie=4x8", "nvlinks=6"])).mismatches == ()


@pytest.mark.live
def test_hardware_as_it_was_changes_nothing() -> None:
    """What libnccl finds now is what was captured for the catalogue."""
    same = changed(H100, ["nic-gbps=400", "pcie=5", "nvlinks=18", "nics=8"])
    old, new = (Selection(scenario.communicator()).cost_table(ALLREDUCE, SIZES) for scenario in (H100, same))
    assert np.array_equal(old, new)


def test_the_machines_own_settings_stay() -> None:
    machine = catalogue.load("pcie-l40s-no-p2p")
    configuration = changed(
        replace(H100, machine=machine.name), ["nic-gbps=25", "NCCL_PROTO=Simple"]
    ).oracle_configuration()
    assert configuration.env == {**machine.environment, "NCCL_PROTO": "Simple"}
    assert machine.environment
    assert configuration.peer_to_peer == "within-sockets"


def test_the_search_is_asked_as_described(monkeypatch: pytest.MonkeyPatch) -> None:
    class AskedError(Exception):
        pass

    def ask(request: graphs.SearchRequest, nccl: str) -> SearchResult:
        raise AskedError(request, nccl)

    monkeypatch.setattr(graphs, "searched", ask)
    machine, several = catalogue.load("pcie-l40s-no-p2p"), changed(H100, ["machine=pcie-l40s-no-p2p", "nic-gbps=26"])
    for nodes, together in ((1, False), (2, True), (4096, True)):
        with pytest.raises(AskedError) as asked:
            replace(several, nodes=nodes).communicator()
        topology = edited(machine.topology_xml, {"nic-gbps": "26"})
        expected = graphs.SearchRequest(
            topology, 8, together, dict(machine.environment), peer_to_peer=PeerToPeer.within_sockets
        )
        assert asked.value.args == (expected, "2.28.9")


@pytest.mark.live
def test_nodes_without_nvlink_have_no_switch() -> None:
    before, after = (scenario.communicator() for scenario in (H100, changed(H100, ["nvlinks=0"])))
    assert (before.has_nvswitch, before.direct_nvlink, before.nvls) == (True, True, True)
    assert (after.has_nvswitch, after.direct_nvlink, after.nvls) == (False, False, False)


# --- both sides, size by size ---


def test_both_picks_and_what_they_take() -> None:
    after = changed(H100, ["nodes=8", "gpus-per-node=8"])
    old, new = Side(H100), Side(after)
    answers = at_sizes(old, new, ALLREDUCE, SIZES)
    for side, which, ranks in ((old, "before", 4), (new, "after", 64)):
        picks = side.selection.pick(ALLREDUCE, SIZES)
        for row, one in enumerate(answers):
            pick = getattr(one, which)
            algo_proto = picks.algo_protos()[row]
            assert (pick.algorithm, pick.protocol) == algo_proto
            assert (pick.channels, pick.threads) == (picks.channels[row], picks.threads[row])
            assert np.float32(pick.time_us) == picks.time_us[row]
            busbw_gbs = SIZES[row] / picks.time_us[row] / 1000 * 2 * (ranks - 1) / ranks
            assert getattr(one, f"busbw_gbs_{which}") == pytest.approx(busbw_gbs)
    assert [one.ratio for one in answers] == pytest.approx([one.after.time_us / one.before.time_us for one in answers])


COMMAND = (
    "diff",
    "allreduce",
    "nodes=8",
    "NCCL_PROTO=Simple",
    "--machine",
    "dgx-h100",
    "--nodes",
    "2",
    "--nccl",
    "2.28.9",
)


def test_json_has_sizes_and_ranges() -> None:
    (answer,) = json.loads(run(*COMMAND, "--bytes", "1K,16M", "--json").stdout)["comparisons"]
    assert answer["before"] == "2 x dgx-h100, 8 GPUs each, NCCL 2.28.9"
    assert answer["after"] == "8 x dgx-h100, 8 GPUs each, NCCL 2.28.9, NCCL_PROTO=Simple"
    assert [one["bytes"] for one in answer["sizes"]] == [1024, 16 << 20]
    assert {one["after"]["protocol"] for one in answer["sizes"]} == {"Simple"}
    same = json.loads(
        run("diff", "allreduce", "--change", "nodes=8", "--change", "NCCL_PROTO=Simple", *COMMAND[4:], "--json").stdout
    )["comparisons"]
    assert answer["changes"] == same[0]["changes"]


def test_table_shows_both_sides_and_ranges() -> None:
    text = run(*COMMAND, "--bytes", "1K,16M").stdout
    assert text.startswith("the pick changes in ")
    assert "; at the sizes below up to " in text.splitlines()[0]
    assert "\nbefore: 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9\nafter:  8 x dgx-h100, 8 GPUs each" in text
    assert "AllReduce: where the pick changes" in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("16 MiB   ")]
    assert row.split()[2:6] == ["NVLSTree/Simple", "x16", "NVLSTree/Simple", "x16"]


def test_a_pick_that_stays_is_said_so() -> None:
    text = run("diff", "allreduce", "NCCL_NTHREADS=512", *COMMAND[4:], "--bytes", "1K", "--time", "nccl").stdout
    assert text.endswith("\nthe same algorithm and protocol at every size: AllReduce\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("allreduce",), "nothing differs"),
        (("nodes=2",), "nothing differs"),
        (("allreduce", "nodes"), "unknown coll"),
        (("nodes=x",), "valid are 1 to 1048576"),
        (("nics=",), "not of the form KEY=VALUE"),
    ],
)
def test_no_change_is_said_so(words: tuple[str, ...], message: str) -> None:
    assert message in run("diff", *words, *COMMAND[4:], code=2).stderr


@pytest.mark.live
def test_diff_takes_hardware_too() -> None:
    answer = json.loads(run("diff", "allreduce", "--change", "nic-gbps=100", *COMMAND[4:], "--json").stdout)[
        "comparisons"
    ][0]["changes"]
    assert answer
    assert {change["collective"] for change in answer} == {"AllReduce"}


@pytest.mark.slow
def test_without_libnccl_it_answers_and_the_oracle_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    # In this process a search may be known from another test.
    assert "after:  2 x dgx-h100" in run_process("diff", "allreduce", "nic-gbps=100", *COMMAND[4:]).stdout
    error = run_process("graphs", "--libnccl", *COMMAND[4:], code=2).stderr
    assert "`nccl-tuner fetch-nccl 2.28.9` gets it" in error


@pytest.mark.parametrize(
    ("value", "cpu"),
    [
        ("AuthenticAMD:143:49", ("x86_64", "AuthenticAMD", 143, 49)),
        ("GenuineIntel:6:85", ("x86_64", "GenuineIntel", 6, 85)),
        ("arm64", ("arm64", None, None, None)),
    ],
)
def test_other_processors(value: str, cpu: tuple[object, ...]) -> None:
    after = read(edited(xml("dgx-h100"), {"cpu": value})).cpus
    assert {(each.arch, each.vendor, each.family, each.model) for each in after} == {cpu}
    with pytest.raises(BadInput, match="give VENDOR:FAMILY:MODEL"):
        edited(xml("dgx-h100"), {"cpu": f"{value}:1"})
