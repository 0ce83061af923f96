"""Lines of plain logs beside graphs and tables: what they answer, and that they find the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import report
from tests.support.command_line import run
from tests.support.plain_logs import plain
from tuner.base.findings import Severity, words
from tuner.emulator.connect import TreeOrder, summarize
from tuner.scenario import from_log
from tuner.scenario.describe import describe
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import Imported, LogAdditions

HEAD = """\
h:10:10 [0] NCCL INFO NCCL version 2.25.1+cuda12.8
h:10:11 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 21000 commId 0x11 - Init START
h:10:11 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes {nodes} localRanks 2 localRank 0 MNNVL 0
"""
CHANNELS = "h:10:11 [0] NCCL INFO {n} coll channels, 2 collnet channels, {nvls} nvls channels, 2 p2p channels, 2 p2p\n"


def said(tmp_path: Path, *lines: str, nodes: int = 1, n: int = 2, nvls: int = 0) -> Imported:
    own = "".join(f"h:10:11 [0] {'' if 'NCCL WARN' in line else 'NCCL INFO '}{line}\n" for line in lines)
    file = tmp_path / "nccl.log"
    file.write_text(HEAD.format(nodes=nodes) + own + CHANNELS.format(n=n, nvls=nvls))
    return importer.read(file, LogAdditions())


def answers(tmp_path: Path, *lines: str, nodes: int = 1, n: int = 2, nvls: int = 0) -> str:
    return "\n".join(map(words, said(tmp_path, *lines, nodes=nodes, n=n, nvls=nvls).evidence.findings))


SHM = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
SOCKETS = "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0"
NO_RING = "graph/search.cc:1135 NCCL WARN Could not find a path for pattern 4, falling back to simple order"
NO_TREE = NO_RING.replace("pattern 4", "pattern 1")

BRIDGE = (
    "=== System : maxBw 240.0 totalBw 240.0 ===",
    "+ PCI[24.0] - GPU/0-17000 (0)",
    "              + NVL[240.0] - GPU/0-65000",
)


def test_a_gpu_without_multicast_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    device = "#  Rank  {n} Group  0 Pid     10 on          h device  {n} [0x{n}a] NVIDIA RTX A6000"
    devices = (device.format(n=number) for number in (0, 1))
    file.write_text("\n".join((*devices, HEAD.format(nodes=1) + CHANNELS.format(n=8, nvls=0))))
    answered = "\n".join(map(words, importer.read(file, LogAdditions()).evidence.findings))
    assert "no NVLS, because: NVIDIA RTX A6000 has none: Hopper" in answered


def test_sockets_are_no_reason_for_few_channels_of_one_node(tmp_path: Path) -> None:
    using = "Using network Socket"
    assert "the network is IP sockets" not in answers(tmp_path, using)
    assert "2 channels, because: the network is IP sockets" in answers(tmp_path, using, nodes=2)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((NO_RING, NO_TREE), "2 channels, because: the search of channels found no way (ring, tree)"),
        (("NCCL_MAX_NCHANNELS set by environment to 2.",), "2 channels, because: NCCL_MAX_NCHANNELS=2"),
        ((SHM,), "2 channels, because: GPUs reach each other through host memory (SHM)"),
        (("NCCL_NVLS_ENABLE set by environment to 0.",), "no NVLS, because: NCCL_NVLS_ENABLE=0"),
        (("NVLS multicast support is not available on dev 0",), "no NVLS, because: the driver says"),
        ((*BRIDGE,), "no NVLS, because: NVLinks lead from GPU to GPU: Hopper"),
        ((BRIDGE[0],), "no NVLS, because: no NVSwitch in the system"),
        ((SHM, "NCCL_P2P_DISABLE set by environment to 1."), "not peer to peer, because: NCCL_P2P_DISABLE=1"),
        ((SHM, "NCCL_P2P_LEVEL set by environment to LOC"), "not peer to peer, because: NCCL_P2P_LEVEL=LOC"),
        ((SHM, "Check P2P Type intraNodeP2pSupport 0 directMode 1"), "peer-to-peer does not work between GPUs"),
        ((SOCKETS, "NCCL_IB_DISABLE set by environment to 1."), "not InfiniBand or RoCE, because: NCCL_IB_DISABLE=1"),
        ((SOCKETS, "Failed to open libibverbs.so[.1]"), "because: libibverbs is not there"),
        ((SOCKETS, "NET/IB : No device found."), "because: NCCL found no device"),
        ((SOCKETS, "NCCL_IB_HCA set by environment to mlx9"), "perhaps NCCL_IB_HCA=mlx9 names no adapter"),
        (("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0",), "no GPUDirect RDMA"),
        (("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0", "NCCL_NET_GDR_LEVEL set by environment to LOC"), "=LOC"),
        (("transport/net.cc:1 NCCL WARN something odd",), "NCCL warned: something odd"),
    ],
)
def test_what_people_ask_of_a_log(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    assert says in answers(tmp_path, *lines, nodes=2 if "NET" in lines[0] else 1)


@pytest.mark.parametrize(
    ("lines", "absent"),
    [
        (("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA",), "GPUDirect"),
        (("Channel 00 : 0[0] -> 1[1] via P2P/CUMEM",), "SHM"),
        (("Using network Socket",), "IP sockets"),  # one node needs no network
        ((), "NCCL warned"),
    ],
)
def test_what_is_well_is_no_answer(tmp_path: Path, lines: tuple[str, ...], absent: str) -> None:
    assert absent not in answers(tmp_path, *lines, n=16, nvls=16)


def test_the_graphs_that_a_warning_states(tmp_path: Path) -> None:
    (node,) = said(tmp_path, NO_RING, NO_TREE).nodes
    assert node.graphs is not None
    for name in ("ring", "tree"):
        graph = node.graphs[name]
        assert (graph.channels, graph.type_intra, graph.same_channels) == (1, "SYS", True)
        assert graph.bw_intra_gbs == pytest.approx(0.1)
    (several,) = {node.graphs is None for node in said(tmp_path, NO_RING, NO_TREE, nodes=2).nodes}
    assert several  # which adapters it enters by is not said


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("TUNER/Plugin: Using other_tuner (v5)",), "a tuner plugin chooses: other_tuner (v5);"),
        (
            ("TUNER/Plugin: Plugin name set by env to libx.so", "TUNER/Plugin: Using other (v4)"),
            "a tuner plugin chooses: other (v4);",
        ),
        (("TUNER/Plugin: Using tuner plugin nccl_ofi_tuner",), "a tuner plugin chooses: nccl_ofi_tuner;"),
    ],
)
def test_another_tuner_is_said_first(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    assert words(said(tmp_path, *lines).evidence.findings[0]).startswith(says)


def test_nccls_own_choice_is_no_other_tuner(tmp_path: Path) -> None:
    found = said(
        tmp_path, "TUNER/Plugin: Using internal tuner plugin.", "TUNER/Plugin: Could not find: libnccl-tuner.so"
    )
    assert found.evidence.tuner_plugin is None


def test_ring_orders_tell_machines_apart(tmp_path: Path) -> None:
    """Without names, bus ids and adapters: DGX A100's rings are in an order of their own."""
    rings = describe("dgx-a100", nccl="2.28.9", nodes=1).resolve().rings_and_trees.rings
    text = plain("dgx-a100")
    kept = [line for line in text.splitlines() if "NET/IB" not in line]
    printed = [f"host0:10:10 [0] NCCL INFO Channel {ring.channel:02d}/{len(rings)} : " for ring in rings]
    printed = [head + " ".join(map(str, ring.ranks)) for head, ring in zip(printed, rings, strict=True)]
    file = tmp_path / "nccl.log"
    bare = "\n".join(line.replace(" busId ", " bus ") for line in kept)
    file.write_text("\n".join([bare, *printed]) + "\n")
    found = describe(log=str(file), comp_cap=80).from_log
    assert found is not None
    assert found.machine == "dgx-a100"
    assert f"order of ranks in {len(rings)} rings" in " ".join(found.nearness.agrees)  # type: ignore[union-attr]


def tree_line(trees: tuple[TreeOrder, ...], rank: int) -> str:
    """The line of a rank as initTransportsRank prints it."""
    places = []
    for tree in trees:
        down = "/".join(map(str, (*tree.children[rank], -1, -1, -1)[:3]))
        parent = -1 if tree.parents[rank] is None else tree.parents[rank]
        places.append(f" [{tree.channel}] {down}->{rank}->{parent}")
    return f"host{rank // 8}:10:{10 + rank} [0] NCCL INFO Trees{''.join(places)}"


def test_trees_heads_and_adapters_are_read(tmp_path: Path) -> None:
    """What dgx-h100 prints agrees with it, and differs from another machine of eight GPUs and eight adapters."""
    across = summarize(describe("dgx-h100", nccl="2.28.9", nodes=2).resolve().connected)
    sends = {(crossing.sender, crossing.send_net) for ring in across.rings for crossing in ring.crossings}
    file = tmp_path / "nccl.log"
    file.write_text(
        "\n".join(
            [
                *(tree_line(across.trees, rank) for rank in range(16)),
                *(
                    f"host0:10:10 [0] NCCL INFO NVLS Head {head:2d}: " + " ".join(f"{rank:2d}" for rank in ranks)
                    for head, ranks in enumerate(across.nvls_heads)
                ),
                *(
                    f"host0:10:10 [0] NCCL INFO Channel 00/0 : {rank}[0] -> 8[0] [send] via NET/IB/{net}/GDRDMA"
                    for rank, net in sorted(sends)
                ),
                "",
            ]
        )
    )
    imported = importer.read(file, LogAdditions())
    assert len(imported.evidence.trees) == len(across.trees)
    assert imported.evidence.nvls_heads == across.nvls_heads
    run: Any = {"nccl": "2.28.9", "nodes": 2, "gpus_per_node": 8, "env": {}}
    what = f"{len(across.trees)} trees", "adapters that ranks send over", f"{len(across.nvls_heads)} NVLS heads"
    itself = from_log.compared("dgx-h100", imported, run, with_rings=True)
    assert set(what) <= set(itself.agrees)
    other = from_log.compared("dgx-a100", imported, run, with_rings=True)
    assert set(what[:2]) <= set(other.others)


def test_a_warning_alone_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    file.write_text(
        "h:1:2 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n"
    )
    assert "ibv_modify_qp" in words(importer.read(file, LogAdditions()).evidence.findings[0])


# --- what people brought ---


def test_warnings_of_a_report() -> None:
    seen = run("log", report("R6-warn.log")).stdout
    assert "found no way (ring, tree)" in seen
    assert "intraNodeP2pSupport 0" in seen
    assert "needed: the ring graph" not in seen
    done = run("explain", "allreduce", "--log", report("R6-warn.log"), "--bytes", "1M", code=2)
    assert "2 channels, because" in done.stdout
    assert "compute capability" in done.stderr
    assert "the CPU" in done.stderr  # all that is missing at once
    given = ("--comp-cap", "8.6", "--cpu-arch", "x86_64", "--cpu-vendor", "AuthenticAMD")
    assert "Ring/Simple, 2 channels" in run(*done.args[1:], *given).stdout


def test_another_tuner_in_a_report() -> None:
    done = run("pick", "allreduce", "--log", report("R7-foreign-tuner.log"), "--bytes", "1M,1G")
    assert done.stderr.startswith("note: a tuner plugin chooses: other_tuner (v5);")
    said = json.loads(run(*done.args[1:], "--json").stdout)["log"]["findings"]
    assert said[0]["code"] == "diagnose.tuner_chooses"
    assert said[0]["facts"]["file"] == "libnccl-tuner-other.so"


def test_a_tree_with_its_way_down_is_read(tmp_path: Path) -> None:
    log = said(tmp_path, "Trees [0] 3/-1/-1->1->0|0->1->3/-1/-1 [1] -1/-1/-1->1->0|0->1->-1/-1/-1")
    assert log.evidence.trees == {0: {1: (0, (3,))}, 1: {1: (0, ())}}


def test_an_adapter_too_far_for_gpudirect_is_no_missing_module(tmp_path: Path) -> None:
    far = "GPU Direct RDMA Disabled for GPU 0-81000 / HCA 0 (distance 6 > 4)"
    host = "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0"
    answered = answers(tmp_path, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_2'", far, host, nodes=2)
    assert "each adapter is too far from its GPU (distance 6, at most 4)" in answered
    assert "nvidia-peermem" not in answered
    omni_path = answers(tmp_path, "NET/IB : Using [0]hfi1_0:1/IB [1]hfi1_1:1/IB ; OOB ib0:10.1.1.1<0>", host, nodes=2)
    assert "because: Omni-Path's adapters (hfi1) only have it with their own network plugin" in omni_path
    without = answers(tmp_path, "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_2'", far, host, nodes=2)
    assert "nvidia-peermem is not loaded" in without


def test_a_variable_is_read_whoever_set_it(tmp_path: Path) -> None:
    assert said(tmp_path, "NCCL_IB_HCA set to mlx5_2").environment == {"NCCL_IB_HCA": "mlx5_2"}


def test_a_network_with_a_blank_in_its_name_has_gpudirect(tmp_path: Path) -> None:
    """AWS's plugin is called AWS Libfabric."""
    ways = (f"Channel 0{n}/0 : 1[1] -> 0[0] [{way}] via NET/AWS Libfabric/{n}(8)/GDRDMA" for n, way in ((1, "send"),))
    log = said(tmp_path, *ways, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/0/GDRDMA/Shared", nodes=2)
    assert log.evidence.transports == {"NET/AWS Libfabric/GDRDMA": 2}
    assert log.evidence.adapters_of_ranks == {0: (0,), 1: (1,)}
    assert "GPUDirect" not in "".join(map(words, log.evidence.findings))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'not now'",
            "That is: multicast",
        ),
        (
            "transport/p2p.cc:275 NCCL WARN Cuda failure 1 'no'",
            "That is: a GPU of the same host",
        ),
        ("enqueue.cc:1 NCCL WARN Cuda failure 700 'illegal'", "That is: CUDA itself failed"),
        (
            "graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found",
            "That is: the topology file (NCCL_TOPO_FILE",
        ),
        (
            "graph/search.cc:702 NCCL WARN XML Import Channel : dev 2 not found.",
            "That is: a graph file is of other GPUs",
        ),
        ("of:9 NCCL WARN NET/OFI Couldn't open AV. RC: -22", "That is: libfabric cannot open the EFA device"),
        ("of:9 NCCL WARN NET/OFI Request 0x1 completed with error. RC: 21", "That is: the other host did not answer"),
    ],
)
def test_what_a_warning_means_by_its_place_and_text(tmp_path: Path, line: str, says: str) -> None:
    assert says in answers(tmp_path, line)


@pytest.mark.parametrize(
    "record",
    [
        '{{"log": {}, "stream": "stdout"}}',
        '{{"timestamp": 1, "message": {}, "id": 2}}',
        '{{"textPayload": {}, "timestamp": 1}}',
        '{{"insertId": "1", "jsonPayload": {{"message": {}}}}}',
        '  {{\n    "textPayload": {},\n    "timestamp": "1"\n  }},',
        '    {{\n        "timestamp": 1,\n        "message": {}\n    }},',
    ],
)
def test_lines_in_json_records_are_read(tmp_path: Path, record: str) -> None:
    lines = ["NCCL version 2.28.9+cuda12.9", "h:1:1 [0] misc/socket.cc:1 NCCL WARN Connect to 10.0.0.4<5> failed"]
    (tmp_path / "pod.log").write_text("".join(record.format(json.dumps(line)) + "\n" for line in lines))
    log = importer.read(tmp_path / "pod.log", LogAdditions())
    assert log.release == "2.28.9"
    assert log.evidence.warnings == ("Connect to 10.0.0.4<5> failed",)


def test_a_warning_that_harms_nothing_is_no_fault(tmp_path: Path) -> None:
    log = said(tmp_path, "ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use", n=8)
    (answer,) = (each for each in log.evidence.findings if "bind" in words(each))
    assert answer.severity is Severity.NOTE
    assert "(ras/client_support.cc:160) (line 4). That is: another job on this host" in words(answer)
