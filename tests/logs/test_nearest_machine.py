"""Logs without graphs: the catalogue's nearest machine answers, and what agrees and what is not known is said."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.plain_logs import channels, plain
from tuner.base.errors import BadInput
from tuner.machine import catalogue
from tuner.scenario.describe import describe

NCCL = "2.28.9"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nccl.log"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nccl.log"


# A log of nodes with one GPU says too little of them.
HOSTS = [
    name
    for name, machine in ((name, catalogue.load(name)) for name in catalogue.names())
    if machine.trays is None and NCCL in machine.releases and machine.gpus_per_node > 1
]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("machine", HOSTS)
def test_a_machines_own_log_leads_to_it(machine: str, nodes: int, file: Path) -> None:
    """Or to one whose nodes are the same to NCCL's model."""
    file.write_text(plain(machine, nodes), encoding="utf-8")
    found = describe(log=file)
    assert (found.nodes, found.nccl) == (nodes, NCCL)
    own = describe(machine, nccl=NCCL, nodes=nodes)
    assert found.resolve().own.for_emulator(nodes > 1) == own.resolve().own.for_emulator(nodes > 1)


def test_what_agrees_and_what_is_not_known_is_said(file: Path) -> None:
    file.write_text(plain("dgx-a100", 2), encoding="utf-8")
    done = run("pick", "allreduce", "--log", str(file), "--bytes", "1M", "--json")
    assert "answered for dgx-a100, the nearest machine of the catalogue" in done.stderr
    assert "agrees with the log: 8 GPUs per node, bus ids of 8 GPUs, NVLS is not available, 8 adapters" in done.stderr
    assert "not known whether it agrees: GPUs by name, CPUs, PCIe switches, NVLinks" in done.stderr
    answer = json.loads(done.stdout)
    assert (answer["log"]["machine"], answer["log"]["release"], answer["picks"][0]["nccl"]) == ("dgx-a100", NCCL, NCCL)
    assert "8 adapters" in answer["log"]["nearness"]["agrees"]
    assert "CPUs" in answer["log"]["nearness"]["unknown"]
    by_name = run(
        "pick", "allreduce", "--machine", "dgx-a100", "--nodes", "2", "--nccl", NCCL, "--bytes", "1M", "--json"
    )
    assert json.loads(by_name.stdout) == {key: value for key, value in answer.items() if key != "log"}


def test_another_number_of_channels_is_another_machine(file: Path) -> None:
    coll, nvls = channels("dgx-a100", 2)
    file.write_text(plain("dgx-a100", 2, (coll - 2, nvls)), encoding="utf-8")
    with pytest.raises(BadInput, match=rf"nearest: .*dgx-a100 \(agrees: .*; differs: {coll - 2} channels"):
        describe(log=file)
    done = run("pick", "allreduce", "--log", str(file), "--machine", "dgx-a100", "--bytes", "1M")
    assert f"dgx-a100 as asked differs from the log: {coll - 2} channels" in done.stderr


def test_a_clouds_instance_type_decides(file: Path) -> None:
    lines = [
        "ip-10-0:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9",
        "ip-10-0:7:7 [0] NCCL INFO NET/OFI Running on p5.48xlarge platform, topology file p5.48xl-topo.xml",
        "ip-10-0:7:7 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = describe(log=file)
    assert (found.machine, found.nodes, found.gpus_per_node) == (catalogue.load("p5.48xlarge").name, 2, 8)


def test_hosts_are_counted_where_no_line_says_the_nodes(file: Path) -> None:
    """As before 2.20, where all ranks are shown."""
    text = "\n".join(line for line in plain("dgx-a100", 2).splitlines() if "nNodes" not in line) + "\n"
    file.write_text(text, encoding="utf-8")
    found = describe(log=file)
    assert (found.machine, found.nodes, found.gpus_per_node) == ("dgx-a100", 2, 8)
    file.write_text("\n".join(line for line in text.splitlines() if " rank 15 " not in line) + "\n", encoding="utf-8")
    with pytest.raises(BadInput, match="does not say how many nodes there are"):
        describe(log=file)


def test_without_a_fact_that_tells_machines_apart_some_are_listed(file: Path) -> None:
    file.write_text(
        "a:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n"
        "a:7:7 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n",
        encoding="utf-8",
    )
    with pytest.raises(BadInput, match=r"no graphs in the log.*machine= NAME; nearest: .* \(agrees: 8 GPUs per node"):
        describe(log=file)
    found = describe("dgx-h100", log=file)
    assert (found.nodes, found.nccl, found.gpus_per_node) == (2, NCCL, 8)


def test_the_gpus_that_a_user_names_narrow_it(file: Path) -> None:
    facts = "nranks 16 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init START"
    made = "24 coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels, 2 per peer"
    lines = ["NCCL version 2.28.9+cuda12.9", "comm 0x1 rank 0 nRanks 16 nNodes 1 localRanks 16 localRank 0 MNNVL 0"]
    lines += [f"comm 0x1 rank 0 {facts}"]
    file.write_text("".join(f"a:7:7 [0] NCCL INFO {line}\n" for line in lines), encoding="utf-8")
    assert describe(log=file, gpu="v100-sxm3").machine == "dgx-2"
    file.write_text(file.read_text("utf-8") + f"a:7:7 [0] NCCL INFO {made}\n", encoding="utf-8")
    with pytest.raises(
        BadInput,
        match=r"nearest: .*dgx-2 \(agrees: GPUs V100-SXM3, compute capability 7\.0, 16 GPUs per node; differs: 24",
    ):
        describe(log=file, gpu="v100-sxm3")


def test_a_compute_capability_counts_and_is_never_passed_over(file: Path) -> None:
    file.write_text(plain("dgx-a100"), encoding="utf-8")
    assert describe(log=file, comp_cap=80).machine == "dgx-a100"
    with pytest.raises(BadInput, match=r"nearest: .*differs: compute capability 9\.0"):
        describe(log=file, comp_cap=90)
    with pytest.raises(BadInput, match="comp_cap describes nodes as the log shows them: remove machine="):
        describe("dgx-a100", log=file, comp_cap=80)


def test_the_devices_that_nccl_tests_lists_are_the_ranks(file: Path) -> None:
    """Of a log of NCCL_DEBUG_SUBSYS=GRAPH alone."""
    text = EXAMPLE.read_text("utf-8")
    listed = [f"#  Rank {rank:2} Group  0 Pid 1 on a device  0 [0x07] NVIDIA A100-SXM4-80GB\n" for rank in range(16)]
    only = [line for line in text.splitlines(keepends=True) if " comm 0x" not in line]
    file.write_text("".join([*listed, *only]), encoding="utf-8")
    assert describe(log=file, comp_cap=80).ranks == describe(log=EXAMPLE, comp_cap=80).ranks == 16


def test_what_a_user_says_goes_before_the_log(file: Path) -> None:
    text = plain("dgx-a100", 2).replace("Using network IB", "NCCL_ALGO set by environment to Tree", 1)
    file.write_text(text, encoding="utf-8")
    assert describe(log=file).environment == {"NCCL_ALGO": "Tree"}
    words = ("--env", "NCCL_ALGO=Ring", "--nodes", "4", "--nccl", "2.27.7")
    done = run("pick", "allreduce", "--log", str(file), "--machine", "dgx-a100", *words, "--bytes", "1M")
    assert "4 x dgx-a100, 8 GPUs each, NCCL 2.27.7" in done.stdout
    for said in (
        "NCCL_ALGO=Ring as asked, where the log has Tree",
        "4 nodes as asked, where the log has 2",
        "NCCL 2.27.7 as asked, where the log has 2.28.9",
    ):
        assert f"note: {said}\n" in done.stderr


def test_one_of_several_communicators_has_to_be_named(file: Path) -> None:
    text = plain("dgx-a100")
    file.write_text(text + text.replace("commId 0x77", "commId 0x99").replace("0xabc", "0xdef"), encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"has 2 communicators: name one with log_communicator= ID; 0x77 \(8 ranks\), 0x99"
    ):
        describe(log=file)
    assert describe(log=file, log_communicator="0x99").ranks == 8


def test_what_completes_a_log_needs_one() -> None:
    with pytest.raises(BadInput, match="comp_cap= only apply to a log: add log= FILE"):
        describe("dgx-a100", comp_cap=80)
