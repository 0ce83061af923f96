"""``nccl-tuner diagnose``: the finding comes first, files say of each other what they lack, and exit codes hold."""

import json
import pickle
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import nccl_tests_text
from tests.support.cases import CASES
from tests.support.diagnoses import diagnosed
from tuner.base import tables
from tuner.base.errors import UnknownMachine
from tuner.base.findings import Severity
from tuner.base.printable import unstyled
from tuner.cli import everything
from tuner.cli.diagnose import VERDICTS
from tuner.times.measured import nccl_tests

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

JUDGED_NOT = "cannot be judged"
FAULT = CASES / "2xA100-pcie-nvlink-nccl2.27.7/raw/nccl-fault.log"
SOCKETS = """\
h0:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
h0:1:1 [0] NCCL INFO NET/IB : No device found.
h0:1:1 [0] NCCL INFO Using network Socket
h0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
h0:1:1 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
h0:1:1 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/Socket/0
h0:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 busId 1b000 commId 0x5 - Init COMPLETE
"""


def findings(*words: object) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = json.loads(diagnosed(*words, "--json").output)["files"]
    for file in files:
        file["severity"] = VERDICTS[Severity(file["severity"])]
        file["finding"], *file["evidence"] = (each["text"] for each in file["findings"])
    return files


def test_a_fault_of_a_topology_is_the_first_line_with_its_cost_and_command() -> None:
    result = diagnosed(EXAMPLES / "node.xml", EXAMPLES / "guest.xml")
    text = " ".join(unstyled(result.output).split())
    assert result.exit_code == 1
    assert text.startswith("fault: pci-flat: no PCI switch above any GPU")
    assert f"GPUDirect RDMA on such paths {EXAMPLES / 'guest.xml'}: topology" in text
    assert "instead of 454.6 GB/s busbw" in text
    assert f"more: nccl-tuner diagnose {EXAMPLES / 'guest.xml'}" in text
    assert text.index(f"{EXAMPLES / 'node.xml'}: topology") > text.index("nothing wrong: ") > text.index("more: ")
    assert max(map(len, result.output.splitlines())) <= 100 + len(str(EXAMPLES))  # paths are not broken


def test_a_log_says_why_it_has_two_channels(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(SOCKETS, "utf-8")
    result = diagnosed(tmp_path / "run.log")
    assert result.exit_code == 1, result.output
    text = " ".join(unstyled(result.output).split())
    assert text.startswith("fault: 2 channels, because: the network is IP sockets")
    assert f"{tmp_path / 'run.log'}: log of NCCL" in text
    assert "IP sockets, not InfiniBand or RoCE" in text


def test_results_of_one_node_are_judged_by_each_machine_with_such_gpus() -> None:
    """In a node the adapters do not matter, in which machines with such GPUs differ."""
    result = diagnosed(EXAMPLES / "all_reduce.log")
    assert result.exit_code == 1
    text = " ".join(unstyled(result.output).split())
    assert text.startswith("fault: too slow on each machine with such GPUs: AllReduce of 1 GiB takes ")
    assert "8 x H100 80GB HBM3 a node machines with such GPUs: " in text
    assert " dgx-h100," in text
    assert "a100" not in text


def test_results_are_read_once_however_many_machines_they_are_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    of_text = nccl_tests.of_text

    def counted(path: Path, *more: Any) -> Any:
        read.append(path)
        return of_text(path, *more)

    monkeypatch.setattr(nccl_tests, "of_text", counted)
    assert "machines with such GPUs" in diagnosed(EXAMPLES / "all_reduce.log").output
    assert read == [EXAMPLES / "all_reduce.log"]


@pytest.mark.parametrize(
    ("report", "says"),
    [("half-speed", "it looks slow on each machine with such GPUs: AllReduce, 2 nodes"), ("healthy", "the machine is")],
)
def test_slow_adapters_are_said_where_the_machine_is_not(report: str, says: str) -> None:
    file = CASES / f"reports/R3-{report}.log"
    if not file.exists():
        pytest.skip("the collected cases are not here")
    (results,) = findings(file)
    assert results["severity"] == "cannot be judged"
    assert results["finding"].startswith(says)


def test_results_are_not_slow_by_times_of_gpus_with_other_nvlinks(tmp_path: Path) -> None:
    """An H800 has 8 NVLinks, and no times were measured with as many: those of H100, which has 18, are not its."""
    times_us = [(1 << size, (2**size) / 9e4) for size in range(20, 33)]
    file = nccl_tests_text.write(tmp_path / "run.log", times_us, in_place=1)
    file.write_text(file.read_text("utf-8").replace("NVIDIA H100", "NVIDIA H800"), "utf-8")
    (results,) = findings(file)
    assert results["finding"].startswith("as fast as each machine with such GPUs should be, at 13 of 13 sizes")
    assert "machines with such GPUs: hgx-h800" in results["evidence"]
    (results,) = findings(file, "--machine", "hgx-h800")
    assert results["severity"] == "nothing wrong"


@pytest.mark.parametrize(
    ("slower", "severity", "code"),
    [
        (1.0, JUDGED_NOT, "well_anywhere"),
        (2.0, JUDGED_NOT, "machine_unknown"),  # as an A3 Mega should be, whose adapters have half the speed
        (8.0, JUDGED_NOT, "slow_anywhere"),  # half of the adapters would be the same
        (30.0, "fault", "fails_on_each"),  # which no number of adapters is
    ],
)
def test_results_between_nodes_are_judged_without_a_machine_where_no_adapters_explain_them(
    slower: float, severity: str, code: str, tmp_path: Path
) -> None:
    times_us = [(1 << size, slower * 1.9 * 2**size / 480e3) for size in range(28, 34)]
    file = nccl_tests_text.write(tmp_path / "run.log", times_us, nodes=2, nccl=22902, in_place=1)
    (results,) = findings(file)
    assert (results["severity"], results["findings"][0]["code"]) == (severity, f"diagnose.{code}")


def test_a_topology_beside_results_is_their_machine(tmp_path: Path) -> None:
    """Half of a DGX H100's adapters, at what these carry: slow for the whole machine, and not for this one."""
    times_us = [(1 << size, 1.9 * 2**size / 240e3) for size in range(28, 34)]
    file = nccl_tests_text.write(tmp_path / "run.log", times_us, nodes=2, nccl=22902, in_place=1)
    topology = ET.parse(tables.folder() / "machines/dgx-h100/topology.xml")
    with_adapters = [(parent, nic) for parent in topology.iter() for nic in parent.findall("nic")]
    for parent, nic in with_adapters[::2]:
        parent.remove(nic)
    topology.write(tmp_path / "four.xml")
    beside, *_ = [each for each in findings(file, tmp_path / "four.xml") if each["kind"] == "results of nccl-tests"]
    assert beside["severity"] == "nothing wrong"
    (alone,) = findings(file, "--machine", "dgx-h100")
    assert alone["severity"] == "fault"


@pytest.mark.parametrize("names", [("NVIDIA H20",), ("NVIDIA H100", "NVIDIA H800")])
def test_results_of_gpus_that_no_machine_has_are_held_against_none(names: tuple[str, ...], tmp_path: Path) -> None:
    text = nccl_tests_text.write(tmp_path / "run.log", [(1 << 30, 4600.0)]).read_text("utf-8")
    for number in range(8):
        text = text.replace(f"[0000:{number:02}:00] NVIDIA H100", f"[0000:{number:02}:00] {names[number % len(names)]}")
    (tmp_path / "run.log").write_text(text, "utf-8")
    (results,) = findings(tmp_path / "run.log")
    assert results["finding"].startswith("no machine of the catalogue has 8 x H")
    assert results["severity"] == "cannot be judged"


def test_a_release_that_is_not_known_looks_like_nothing(tmp_path: Path) -> None:
    """Its results are refused on each machine, which is not slow."""
    file = nccl_tests_text.write(tmp_path / "run.log", [(1 << 30, 4600.0)], nodes=2, nccl=21403)
    (results,) = findings(file)
    assert results["finding"].startswith("the machine is not known")


def test_columns_of_times_are_results(tmp_path: Path) -> None:
    (path := tmp_path / "given.csv").write_text(
        "collective,dtype,nodes,gpus_per_node,bytes,time_us\nallreduce,float32,2,8,8589934592,69723\n", "utf-8"
    )
    (results,) = findings(path, "--machine", "dgx-h100")
    assert results["kind"] == "results of nccl-tests"
    assert results["finding"].startswith("too slow at 1 of 1 sizes: AllReduce of 8 GiB takes 69723 us")


def test_what_one_file_shows_goes_for_the_others(tmp_path: Path) -> None:
    own = (EXAMPLES / "all_reduce.log").read_text("utf-8").replace("H100 80GB HBM3", "A100-SXM4-80GB")
    (tmp_path / "all_reduce.log").write_text(own, "utf-8")
    results, topology = findings(tmp_path / "all_reduce.log", EXAMPLES / "node.xml")
    assert (topology["kind"], topology["severity"]) == ("topology", "nothing wrong")
    assert "machine dgx-a100, according to" in " ".join(topology["evidence"])
    assert results["command"].endswith("all_reduce.log --machine dgx-a100")
    assert "the machine is not known" not in results["finding"]


def test_slow_results_are_a_fault_and_a_machine_that_is_named_goes_first() -> None:
    (results,) = findings(EXAMPLES / "all_reduce.log", "--machine", "dgx-h100")
    assert results["severity"] == "fault"
    assert results["finding"].startswith("too slow at 5 of 18 sizes: AllReduce of 1 GiB takes 4953 us")
    assert "NVLS: the NVSwitches do not reduce" in results["evidence"]


@pytest.mark.parametrize("nccl", ["2.28.9", "2.32.3"])
def test_a_trace_says_its_ranks(nccl: str) -> None:
    (trace,) = findings(EXAMPLES / "inspector.log", "--machine", "dgx-h100", "--nccl", nccl)
    assert trace["severity"] == "nothing wrong"
    assert trace["finding"] == f"8 of 8 calls ran as NCCL picks on 2 x dgx-h100, 8 GPUs each, NCCL {nccl}"


def test_calls_that_ran_otherwise_are_a_fault() -> None:
    (trace,) = findings(EXAMPLES / "profiler-plugin.json", "--machine", "dgx-h100", "--nodes", "1")
    assert trace["severity"] == "fault"
    assert trace["finding"].startswith("0 of 8 calls ran as NCCL picks")


@pytest.mark.skipif(not FAULT.is_file(), reason="../shared/cases is absent")
def test_a_log_that_holds_results_is_both(tmp_path: Path) -> None:
    alone = diagnosed(FAULT)
    assert alone.exit_code == 1
    assert "2 channels, because: the ring has 1 of 20 GB/s" in " ".join(alone.output.partition("\n\n")[0].split())
    (refused,) = (each for each in findings(FAULT, "--machine", "a100-4x-1nic") if "results" in each["kind"])
    assert refused["finding"].startswith("the file says A100 80GB PCIe, and a100-4x-1nic has A100 SXM4")
    as_sxm = tmp_path / FAULT.name
    as_sxm.write_text(FAULT.read_text("utf-8").replace("A100 80GB PCIe", "A100-SXM4-80GB"), "utf-8")
    log, results = findings(as_sxm, "--machine", "a100-4x-1nic")
    assert (log["kind"], results["kind"]) == ("log of NCCL", "results of nccl-tests")
    assert results["finding"].startswith("too slow at 11 of 11 sizes")
    assert f"NVLinks: {as_sxm} shows what is left of them" in results["evidence"]  # no number that the log denies


def test_what_cannot_be_judged_decides_the_code_where_nothing_is_wrong() -> None:
    files = [EXAMPLES / name for name in ("all_reduce-ring.log", "all_reduce.log", "nccl.log", "node.xml")]
    assert diagnosed(*files).exit_code == 3
    assert diagnosed(*files[2:]).exit_code == 0
    results = [each for each in findings(*files) if each["kind"] == "results of nccl-tests"]
    assert {each["finding"] for each in results} == {
        "the file says H100 80GB HBM3, and dgx-a100 has A100 SXM4; valid: --machine of these GPUs"
    }
    assert {each["command"].partition(" --")[2] for each in results} == {"machine NAME"}
    assert '"unlike" means different' in " ".join(diagnosed("--help").output.split())


def test_a_log_that_is_cut_in_init_cannot_be_judged_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "cut.log").write_bytes((EXAMPLES / "nccl.log").read_bytes()[:2000])
    result = diagnosed(tmp_path / "cut.log")
    assert result.exit_code == 3
    assert "the log ends while a communicator is created: 0 of 16 ranks are complete" in " ".join(result.output.split())
    assert diagnosed(EXAMPLES / "coll.log").exit_code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(range(256)) * 8,
        b"int main(void) { return 0; }\n",
        b"FROM a, b\nRUN c\n",
        b"#!/bin/sh\nsrun x\n",
        b"{}",
    ],
    ids=["empty", "bytes", "c", "two cells", "script", "json"],
)
def test_any_other_file_is_of_no_kind(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    (one,) = findings(tmp_path / "file")
    assert (one["kind"], one["severity"], one["command"]) == ("no kind that is known", "cannot be judged", None)


def test_a_decision_table_has_its_own_command(tmp_path: Path) -> None:
    (tmp_path / "it.table").write_text("nccl-tuner-table 1\n", "utf-8")
    (one,) = findings(tmp_path / "it.table")
    assert one["command"] == f"nccl-tuner plugin lint {tmp_path / 'it.table'}"


def test_graphs_and_cut_topologies_say_so(tmp_path: Path) -> None:
    (tmp_path / "cut.xml").write_bytes((EXAMPLES / "node.xml").read_bytes()[:3000])
    cut, graphs = findings(tmp_path / "cut.xml", EXAMPLES / "graphs.xml")
    assert cut["finding"].startswith("the file is cut off: it ends in line 32 without </system>")
    assert graphs["finding"].startswith("graphs of NCCL: other commands take them with --topo-graphs and --machine")


def test_messages_name_options_and_a_command_that_has_them() -> None:
    (skeleton,) = findings(EXAMPLES / "skeleton.xml")
    assert "`" not in skeleton["finding"]
    assert skeleton["finding"].endswith("with --gpu MODEL and how fast its 4 adapters are with --nic-gbps 400")
    assert skeleton["command"].startswith(f"nccl-tuner machines {EXAMPLES / 'skeleton.xml'} --gpu MODEL --nic")
    (results,) = findings(EXAMPLES / "all_reduce.log", "--machine", "dgx-h100", "--nodes", "2")
    assert results["finding"].endswith("all_reduce.log was measured on 1 node, but --nodes says 2")


def test_no_nvls_is_right_where_the_machine_never_has_it(tmp_path: Path) -> None:
    bare = tmp_path / "nccl.log"  # without the bandwidths of NVLinks, which tell the generation
    bare.write_text("".join(line for line in (EXAMPLES / "nccl.log").open() if " - NVS/" not in line), "utf-8")
    files = {each["kind"]: each for each in findings(bare, EXAMPLES / "node.xml")}
    assert files["log of NCCL"]["severity"] == "nothing wrong"
    assert "no NVLS, as expected on dgx-a100" in " ".join(files["log of NCCL"]["evidence"])
    (alone,) = findings(bare)
    assert (alone["severity"], alone["finding"][:16]) == ("unlike", "no NVLS, because")
    (whole,) = findings(EXAMPLES / "nccl.log")
    assert whole["severity"] == "nothing wrong"
    assert "no NVLS, because: such NVLinks are of GPUs before Hopper" in " ".join(whole["evidence"])
    later = tmp_path / "later.log"  # of a release without a table
    later.write_text((EXAMPLES / "nccl.log").read_text("utf-8").replace("2.28.9", "2.28.4"), "utf-8")
    (whole,) = findings(later)
    assert whole["severity"] == "nothing wrong"


def log_of(tmp_path: Path, *lines: str) -> dict[str, Any]:
    """The finding of a log whose lines are written by two ranks' processes of host h0, or of the host they name."""
    file = tmp_path / "run.log"
    file.write_text(
        "".join(f"{line if line.startswith('h') else f'h0:1:1 [0] NCCL INFO {line}'}\n" for line in lines), "utf-8"
    )
    return next(each for each in findings(file) if each["kind"] == "log of NCCL")


ONE_GPU_A_NODE = (
    "=== System : maxBw 24.0 totalBw 24.0 ===",
    "Pattern 4, crossNic 0, nChannels {n}, bw 24.000000/24.000000, type LOC/PHB, sameChannels 1",
    " 0 : NET/1 GPU/0 NET/1",
    "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA",
    "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 81000 commId 0x5 - Init COMPLETE",
)


def test_few_channels_that_take_all_of_the_system_are_no_fault(tmp_path: Path) -> None:
    whole = log_of(tmp_path, *(line.format(n=1) for line in ONE_GPU_A_NODE))
    assert whole["severity"] == "nothing wrong"
    assert "the ring has 1 of 24 GB/s over PHB to adapters, all that the system has" in " ".join(whole["evidence"])
    half = log_of(tmp_path, *(line.format(n=1).replace("24.000000/24", "12.000000/12") for line in ONE_GPU_A_NODE))
    assert half["severity"] == "unlike"
    assert half["finding"].startswith("2 channels, because: the ring has 1 of 12 GB/s over PHB")


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        (("Pattern 4, crossNic 0, nChannels 8, bw 20.0/20.0, type NVL/PIX, sameChannels 1", " 0 : GPU/0 GPU/1"), False),
        (("Pattern 4, crossNic 0, nChannels 8, bw 20.0/20.0, type NVL/PIX, sameChannels 1", " 0 : NET/0 GPU/1"), True),
        (
            (
                "comm 0x1 rank 0 nranks 2 commId 0x5 - Init COMPLETE",
                "h0:2:2 [1] NCCL INFO comm 0x2 rank 1 nranks 2 commId 0x5 - Init COMPLETE",
                "Channel 00 : 0[0] -> 1[1] via P2P/IPC",
            ),
            False,
        ),
        (("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",), True),
    ],
)
def test_sockets_are_a_fault_between_nodes_alone(tmp_path: Path, lines: tuple[str, ...], severity: bool) -> None:
    seen = log_of(tmp_path, "NET/IB : No device found.", "Using network Socket", *lines)
    assert (seen["severity"] == "fault") is severity
    assert ("IP sockets, not InfiniBand" in seen["finding"]) is severity


def test_processes_of_one_rank_each_are_named(tmp_path: Path) -> None:
    other = "h1:9:9 [0] NCCL INFO comm 0x2 rank 0 nranks 1 commId 0x6 - Init COMPLETE"
    alone = "comm 0x1 rank 0 nranks 1 commId 0x5 - Init COMPLETE"
    seen = log_of(tmp_path, alone, other)
    assert seen["severity"] == "fault"
    assert seen["finding"].startswith("2 processes made a communicator of one rank each")
    assert "one rank each" not in log_of(tmp_path, alone)["finding"]
    assert "one rank each" not in log_of(tmp_path, alone, other.replace("nranks 1", "nranks 2"))["finding"]


def test_an_error_comes_before_what_only_explains(tmp_path: Path) -> None:
    seen = log_of(
        tmp_path,
        "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
        "h0:1:1 [0] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
        "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    )
    assert seen["severity"] == "fault"
    assert seen["finding"].startswith("NCCL warned: Call to ibv_modify_qp failed")
    assert "NCCL_IB_GID_INDEX" in seen["finding"]


def test_a_failure_without_a_warning_is_a_fault(tmp_path: Path) -> None:
    seen = log_of(tmp_path, "misc/socket.cc:564 -> 2", "bootstrap.cc:270 -> 2", "group.cc:64 -> 2 [Async thread]")
    assert seen["severity"] == "fault"
    assert seen["finding"].startswith("NCCL failed with ncclSystemError at misc/socket.cc:564")


def test_logs_of_windows_and_a_last_warning_without_an_end_are_read(tmp_path: Path) -> None:
    warning = "h:1:2 [0] net_ib.cc:8 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "run.log").write_bytes(f"h:1:2 [0] NCCL INFO Using network IB\r\n{warning}".encode(encoding))
        (seen,) = findings(tmp_path / "run.log")
        assert seen["severity"] == "fault"
        assert "the other adapter did not answer in time" in seen["finding"]


def test_results_are_held_against_machines_of_their_gpus_form_alone(tmp_path: Path) -> None:
    text = (EXAMPLES / "all_reduce.log").read_text("utf-8")
    for name, machine in (("NVIDIA H100 PCIe", ""), ("NVIDIA H200", "dgx-h200"), ("NVIDIA H20", "")):
        (tmp_path / "run.log").write_text(text.replace("NVIDIA H100 80GB HBM3", name), "utf-8")
        (seen,) = findings(tmp_path / "run.log")
        said = " ".join(seen["evidence"])
        assert ("machines with such GPUs" in said) is bool(machine), name
        assert machine in said


def test_a_patch_release_that_is_not_known_is_judged_by_the_nearest(tmp_path: Path) -> None:
    text = (EXAMPLES / "all_reduce.log").read_text("utf-8")
    for patch, number, is_judged in (("2.28.8", 22808, True), ("2.16.5", 21605, False)):
        (tmp_path / "run.log").write_text(text.replace("nccl-library=22902", f"nccl-library={number}"), "utf-8")
        (seen,) = findings(tmp_path / "run.log", "--machine", "dgx-h100")
        said = " ".join((seen["finding"], *seen["evidence"]))
        assert ("too slow at" in said) is is_judged, said
        assert (f"NCCL {patch} is not in the catalogue: the nearest, 2.28." in said) is is_judged


def test_a_listing_names_no_machine_where_others_are_as_near(tmp_path: Path) -> None:
    gpus = range(8)
    names = [f"GPU{gpu}" for gpu in gpus] + [f"NIC{gpu}" for gpu in gpus]
    rows = [
        [
            names[gpu],
            *("X" if other == gpu else "NV18" for other in gpus),
            *("PIX" if nic == gpu else "SYS" for nic in gpus),
            f"{gpu // 4 * 48}-{gpu // 4 * 48 + 47}",
            str(gpu // 4),
        ]
        for gpu in gpus
    ]
    head = ["", *names, "CPU Affinity", "NUMA Affinity"]
    (tmp_path / "topo.txt").write_text("\n".join("\t".join(row) for row in [head, *rows]) + "\n", "utf-8")
    (seen,) = findings(tmp_path / "topo.txt")
    assert seen["machine"] is None
    assert "the GPUs' model would tell them apart" in " ".join(seen["evidence"])


def test_costs_are_those_of_all_faults_together() -> None:
    (guest,) = findings(EXAMPLES / "guest.xml")
    assert "costs: all 4 together, AllReduce of 1 GiB at 123.5 instead of 454.6" in " ".join(guest["evidence"])


def test_causes_that_other_results_exclude_are_left_out() -> None:
    files = findings(EXAMPLES / "all_reduce.log", EXAMPLES / "all_reduce-ring.log", "--machine", "dgx-h100")
    causes = {each["evidence"][0] for each in files}
    assert causes == {"NVLinks: 16 of 18 NVLinks of a GPU are left"}


def test_what_ranks_lose_is_not_nothing_wrong() -> None:
    (ranks,) = findings(EXAMPLES / "preflight")
    assert ranks["severity"] == "unlike"
    assert ranks["finding"].endswith("what differs costs up to 15.6 % by NCCL's times (AllGather, 256 KiB)")


def test_a_machine_that_is_not_known_is_bad_input() -> None:
    result = diagnosed(EXAMPLES / "node.xml", EXAMPLES / "nccl.log", "--machine", "nonsense")
    assert isinstance(result.exception, UnknownMachine)


def test_accept_refuses_a_file_without_times() -> None:
    result = CliRunner().invoke(everything, ["accept", str(EXAMPLES / "nccl.log"), "--machine", "dgx-h100"])
    assert str(result.exception).endswith("has no times: give what nccl-tests printed")


def test_a_file_that_is_not_there_is_bad_input() -> None:
    result = diagnosed("nowhere.log")
    assert result.exit_code != 0
    assert "No such file" in str(result.exception)


def test_a_folder_is_what_its_files_are(tmp_path: Path) -> None:
    for name in ("empty", "other", "job"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "notes.json").write_text("{}", "utf-8")
    inspected = (EXAMPLES / "inspector.log").read_text("utf-8")
    (tmp_path / "job" / "host0-pid7.log").write_text(inspected, "utf-8")
    for name, has in (("empty", "it is empty"), ("other", "it has notes.json")):
        (folder,) = findings(tmp_path / name)
        assert (folder["kind"], folder["severity"], folder["command"]) == ("no kind that is known", JUDGED_NOT, None)
        assert folder["finding"].startswith("a folder with neither preflight records nor a job's files")
        assert has in folder["finding"]
    (job,) = findings(tmp_path / "job")
    assert (job["kind"], job["finding"]) == ("files of a job's ranks", "no call has a record of every rank")
    assert job["command"] == f"nccl-tuner job read {tmp_path / 'job'}"


def test_one_preflight_record_says_that_its_folder_is_read() -> None:
    (record,) = findings(EXAMPLES / "preflight" / "host-node01.json")
    assert (record["kind"], record["severity"]) == ("preflight records", JUDGED_NOT)
    assert record["finding"].endswith("give the folder that it is in")
    assert record["command"] == f"nccl-tuner preflight check {EXAMPLES / 'preflight'}"


def test_a_log_larger_than_any_listing_is_a_log(tmp_path: Path) -> None:
    line = "h0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"
    warning = "h0:1:1 [0] proxy.cc:1 NCCL WARN Call to ibv_reg_mr failed"
    (tmp_path / "run.log").write_text(f"{line}\n" * 60_000 + f"{warning}\n", "utf-8")
    (seen,) = findings(tmp_path / "run.log")
    assert (seen["kind"], seen["severity"]) == ("log of NCCL", "fault")
    assert "memlock" in seen["finding"]


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b"", "no kind that is known", "the file has no line of NCCL and no output of its tools"),
        (b"NVIDIA Tegra Profiler Report 2023.4\n\x00\xff", "trace or counters of a job", "nsys export"),
        (b"# a comment\nallreduce,0,65536,tree,ll,2,1,8\n", "decision table", "a decision table (nvidia) of 1 row"),
        (b"allreduce,0,65536,oak,ll9,2,1,8\n", "no kind that is known", "the file has no line of NCCL and no output"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, kind: str, says: str) -> None:
    (tmp_path / "file").write_bytes(content)
    (seen,) = findings(tmp_path / "file")
    severity = "nothing wrong" if kind == "decision table" else JUDGED_NOT
    assert (seen["kind"], seen["severity"]) == (kind, severity)
    assert says in seen["finding"]


def test_a_trace_is_held_against_the_topology_beside_it(tmp_path: Path) -> None:
    """Of a machine that has no name: GPUs of another kind than the catalogue's."""
    topology = (EXAMPLES / "node.xml").read_text("utf-8").replace("0x20b2", "0x20bf").replace("mlx5_", "roce")
    (tmp_path / "node.xml").write_text(topology, "utf-8")
    for protocol, severity in (("SIMPLE", "nothing wrong"), ("LL", "fault")):
        (tmp_path / "dump.json").write_text(json.dumps(run_of(protocol)), "utf-8")
        seen = {each["kind"]: each for each in findings(tmp_path / "dump.json", tmp_path / "node.xml")}
        assert seen["trace or counters of a job"]["severity"] == severity, seen


def run_of(protocol: str) -> dict[str, Any]:
    """A record of NCCL Inspector: one AllReduce of 1 GiB by Ring."""
    call = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 1 << 30, "coll_exec_time_us": 9}
    return {
        "header": {"id": "0x1", "rank": 0, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.2", "hostname": "h", "pid": 1},
        "coll_perf": call | {"coll_algo": "RING", "coll_proto": protocol},
    }


def test_interfaces_of_one_host_are_named_where_sockets_are_used(tmp_path: Path) -> None:
    using = "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]virbr0:192.168.122.1<0>"
    send = "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"
    assert "virbr0 only reach this host" in log_of(tmp_path, using, send)["finding"]
    assert "nowhere" not in log_of(tmp_path, using.replace("virbr0", "eth1"), send)["finding"]


def test_a_virtual_machines_bridges_without_a_speed_are_named(tmp_path: Path) -> None:
    system = (
        "=== System : maxBw 48.0 totalBw 370.8 ===",
        "+ PCI[{}] - PCI/0-65000 (104c823200000000)",
        "ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init COMPLETE",
        "ncclCommInitRank comm 0x6 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x1 - Init COMPLETE",
    )
    slow = log_of(tmp_path, *(line.format("0.2") for line in system))
    assert slow["severity"] == "unlike"
    assert slow["finding"].startswith("the log shows PCI bridges of 0.2 GB/s")
    assert "PCI bridges" not in log_of(tmp_path, *(line.format("12.0") for line in system))["finding"]


def test_adapters_below_one_bridge_are_not_taken_for_alike(tmp_path: Path) -> None:
    bridge = (
        '<pci busid="000{n}:00:00.0" class="{kind}" vendor="0x8086" device="0x0d57" link_speed="" link_width="0"><nic>'
        '<net name="mlx5_{n}" dev="{n}" speed="{mbps}" port="1" guid="0x{n}" maxconn="1" gdr="1"/></nic></pci>'
    )
    slots = ((1, 100000), (2, 400000), (3, 400000))
    for kind, is_said in (("0x060000", False), ("0x020000", True)):
        nets = "".join(bridge.format(n=n, mbps=mbps, kind=kind) for n, mbps in slots)
        gpu = '<pci busid="0000:0a:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe"'
        (tmp_path / "node.xml").write_text(
            '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
            f'{gpu} link_width="16"><gpu dev="0" sm="90" rank="0" gdr="1"/></pci>{nets}</cpu></system>',
            "utf-8",
        )
        (seen,) = findings(tmp_path / "node.xml")
        assert ("adapter-speed: mlx5_1: 100 Gb/s" in " ".join((seen["finding"], *seen["evidence"]))) is is_said


ENDLESS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={what}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds"
)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([(7, "ALLREDUCE"), (7, "ALLREDUCE")], "2 ranks (0, 1) in ALLREDUCE 7; a rank that is not among these"),
        ([(7, "ALLREDUCE"), (8, "ALLREDUCE")], "1 rank (0) in ALLREDUCE 7 and 1 rank (1) in ALLREDUCE 8; ranks are at"),
        ([(7, "ALLREDUCE"), (7, "BROADCAST")], "ranks are at different collectives"),
    ],
)
def test_a_collective_that_did_not_end_is_named_with_its_ranks(
    tmp_path: Path, calls: list[tuple[int, str]], says: str
) -> None:
    lines = (ENDLESS.format(rank=rank, number=number, what=what) for rank, (number, what) in enumerate(calls))
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n", "utf-8")
    (seen,) = findings(tmp_path / "run.log")
    assert (seen["kind"], seen["severity"]) == ("log of NCCL", "fault")
    assert says in seen["finding"]


AT_WORK = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] {group} Exception (either an error or timeout) detected by watchdog at "
    "work: {number}, last enqueued NCCL work: {number}, last completed NCCL work: 4."
)
TP, DP = "[PG ID 2 PG GUID 9(TP) Rank 0]", "[PG ID 1 PG GUID 3(DP) Rank 0]"
NOT_AMONG, DIFFERENT = "a rank that is not among these", "ranks are at different collectives"


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([(7, TP), (7, TP)], ["2 ranks (0, 1) in ALLREDUCE 7;", NOT_AMONG]),
        ([(7, TP), (9, DP)], ["(1) in ALLREDUCE 9 of process group 3(DP) and 1 rank (0) in ALLREDUCE 7 of", NOT_AMONG]),
        ([(7, TP), (9, TP), (9, DP)], [DIFFERENT, "or not on all"]),
        ([(7, TP), (7, "")], ["2 ranks (0, 1) in ALLREDUCE 7;", NOT_AMONG]),
        ([(7, TP), (9, "")], [DIFFERENT, "if they are of one process group"]),
        ([(7, "[PG 1 Rank 0]"), (9, "[PG 2 Rank 0]")], ["process group 2", NOT_AMONG]),
    ],
)
def test_collectives_of_several_process_groups_are_not_compared(
    tmp_path: Path, calls: list[tuple[int, str]], says: list[str]
) -> None:
    lines = [
        line.format(rank=rank, number=number, what="ALLREDUCE", group=group)
        for rank, (number, group) in enumerate(calls)
        for line in (ENDLESS, AT_WORK)
    ]
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n", "utf-8")
    (seen,) = findings(tmp_path / "run.log")
    assert all(each in seen["finding"] for each in says)
    assert (DIFFERENT in seen["finding"]) == (DIFFERENT in says)
    assert ("one process group" in seen["finding"]) == ("one process group" in says[-1])


def test_an_error_as_pytorch_says_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL "
        "version 2.21.5\n[rank0]: Last error:\n[rank0]: Error while creating shared memory segment /dev/shm/nccl-1\n",
        "utf-8",
    )
    (seen,) = findings(tmp_path / "run.log")
    assert seen["finding"].startswith("NCCL warned: Error while creating shared memory segment")
    assert "shared memory is too small" in seen["finding"]
    assert seen["nccl"] == "2.21.5"


@pytest.mark.parametrize("line", ["RCCL Unroll Factor (pre-set): 4", "PROFILER/Plugin: Could not find: librccl-x.so"])
def test_a_log_of_rccl_without_its_version_is_told(tmp_path: Path, line: str) -> None:
    seen = log_of(tmp_path, "comm 0x1 rank 0 nranks 2 commId 0x5 - Init COMPLETE", line)
    assert seen["severity"] == "cannot be judged"
    assert "RCCL of an unknown release" in seen["finding"]


def test_a_log_of_rings_alone_is_one_of_nccl(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("h:1:2 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n", "utf-8")
    (found,) = findings(tmp_path / "run.log")
    assert found["kind"] == "log of NCCL"
    assert "the log ends before a communicator is complete" in found["finding"]


def test_results_with_a_line_of_nccl_that_says_nothing_are_results_alone(tmp_path: Path) -> None:
    text = (EXAMPLES / "all_reduce.log").read_text("utf-8").replace("#\n", "h:1:1 [0] NCCL INFO Launch mode Parallel\n")
    (tmp_path / "run.log").write_text(text, "utf-8")
    assert [each["kind"] for each in findings(tmp_path / "run.log")] == ["results of nccl-tests"]


def test_results_of_part_of_a_node_are_held_against_machines_with_more_gpus(tmp_path: Path) -> None:
    (found,) = findings(nccl_tests_text.write(tmp_path / "run.log", [(1 << 30, 4600.0)], gpus=4))
    assert any(line.startswith("machines with such GPUs: ") and "dgx-h100" in line for line in found["evidence"])


def test_bus_ids_of_results_narrow_the_machines_down(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", [(1 << 30, 4600.0)])
    text = file.read_text("utf-8")
    assert "with the bus ids" not in " ".join(findings(file)[0]["evidence"])
    for number, bus in enumerate(("1b", "43", "52", "61", "9d", "c3", "d1", "df")):
        text = text.replace(f"[0000:{number:02}:00]", f"[0000:{bus}:00]")
    file.write_text(text, "utf-8")
    assert "with the bus ids of these GPUs: dgx-h100" in findings(file)[0]["evidence"]


@pytest.mark.parametrize("start", ["[2026-11-29 08:50:44,619] [INFO] ready", "[rank0]: loss 2.0"])
def test_a_program_whose_lines_begin_with_brackets_wrote_no_json(start: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"{start}\n", "utf-8")
    (found,) = findings(tmp_path / "run.log")
    assert found["finding"].startswith("the file has no line of NCCL and no output of its tools")


def test_a_trace_without_a_collective_asks_for_no_machine(tmp_path: Path) -> None:
    event = {"ph": "X", "name": "aten::add", "cat": "cpu_op", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    (tmp_path / "rank.pt.trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}), "utf-8")
    (found,) = findings(tmp_path / "rank.pt.trace.json")
    assert found["finding"].startswith("Kineto trace without a call of NCCL")


RAS = """NCCL version 2.27.3 compiled with CUDA 12.9

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         4         8        32        32   RUNNING  {status}

Errors
======

{errors}
Warnings
========

{warnings}"""
DEAD = "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 6 on node 10.4.1.3 managing GPU 0\n"
BEHIND = "#0-0 (1) MISMATCH\n  Communicator ranks have different Reduce operation counts\n  Rank 12 -- GPU 4\n"


@pytest.mark.parametrize(
    ("errors", "warnings", "severity", "says"),
    [
        (DEAD, "", "fault", "INCOMPLETE: Missing communicator data from 1 job process; Process 6 on node 10.4.1.3"),
        (DEAD, BEHIND, "fault", "INCOMPLETE: Missing"),
        (
            "",
            BEHIND,
            JUDGED_NOT,
            "#0-0 (1) MISMATCH: Communicator ranks have different Reduce operation counts; Rank 12",
        ),
        ("", "", "nothing wrong", "RAS saw no error"),
    ],
)
def test_a_report_of_ras_says_which_ranks_are_missing_or_behind(
    tmp_path: Path, errors: str, warnings: str, severity: str, says: str
) -> None:
    (tmp_path / "ras.txt").write_text(RAS.format(status="OK", errors=errors, warnings=warnings), "utf-8")
    (found,) = findings(tmp_path / "ras.txt")
    assert (found["kind"], found["severity"]) == ("report of ncclras", severity)
    assert found["finding"].startswith(says)
    assert diagnosed(tmp_path / "ras.txt").exit_code == {"fault": 1, JUDGED_NOT: 3}.get(severity, 0)


@pytest.mark.parametrize("status", ["MISMATCH", "INCOMPLETE", None])
def test_a_report_of_ras_without_its_sections_is_cut(tmp_path: Path, status: str | None) -> None:
    whole = RAS.format(status=status, errors="", warnings="")
    (tmp_path / "ras.txt").write_text(whole[: whole.index("\nErrors\n" if status else "    0  ")], "utf-8")
    (found,) = findings(tmp_path / "ras.txt")
    assert found["severity"] == JUDGED_NOT
    assert found["finding"].startswith(f"the report is cut off: it has no line on {status or 'a communicator'}")


def dump(folder: Path, rank: int, *calls: tuple[str, int, str]) -> None:
    """A Flight Recorder's dump of one rank of four: names, numbers and states of calls; sends have number 0."""
    entries = [
        {
            "record_id": place,
            "process_group": ("7", "TENSOR_PARALLEL"),
            "collective_seq_id": number,
            "profiling_name": f"nccl:{name}",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4]],
            "output_dtypes": ["Float"],
            "state": state,
            "is_p2p": number == 0,
        }
        for place, (name, number, state) in enumerate(calls)
    ]
    group = {"7": {"name": "7", "desc": "TENSOR_PARALLEL", "ranks": "[0, 1, 2, 3]"}}
    value = {"version": "2.5", "pg_config": group, "entries": entries}
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, protocol=2))


DONE, WAITS = ("all_reduce", 4, "completed"), ("all_gather", 5, "scheduled")
SENT = ("send 0->1", 0, "scheduled")


@pytest.mark.parametrize(
    ("ranks", "severity", "says"),
    [
        ({0: (DONE, WAITS), 1: (WAITS,), 2: (DONE,), 3: (WAITS,)}, "fault", "rank 2 did not make the call"),
        ({0: (WAITS,), 1: (SENT,), 2: (), 3: (WAITS,)}, "fault", "ranks 1-2 did not make the call"),
        ({0: (DONE, WAITS), 1: (WAITS,), 3: (WAITS,)}, JUDGED_NOT, "no rank with a dump is behind"),
        ({0: (DONE,), 1: (SENT,), 2: (), 3: (DONE,)}, JUDGED_NOT, "no rank with a dump is behind"),
    ],
)
def test_dumps_of_all_ranks_say_who_is_behind(
    tmp_path: Path, ranks: dict[int, tuple[tuple[str, int, str], ...]], severity: str, says: str
) -> None:
    for rank, calls in ranks.items():
        dump(tmp_path, rank, *calls)
    (found,) = findings(tmp_path)
    assert (found["kind"], found["severity"]) == ("Flight Recorder dumps", severity)
    assert found["finding"].startswith(says)
    shown = " ".join(found["evidence"])
    behind = "rank 2 of TENSOR_PARALLEL [0, 1, 2, 3] has not called all_gather 5, in which ranks 0-1,3 wait for it."
    assert (f"{behind} Its last call there is 4." in shown) == (2 in ranks and ranks[2] == (DONE,))
    assert ("no whole dump of rank 2" in shown) == (2 not in ranks)


@pytest.mark.parametrize(
    ("first", "status", "calls", "dropped"),
    [
        (0, 0, [SENT], False),
        (3000, 0, [SENT], True),
        (3000, 0, [DONE], False),  # it keeps the last of them
        (0, 0, [], False),
        (0, 5, [], True),
    ],
)
def test_a_rank_whose_recorder_dropped_calls_is_not_called_behind(
    tmp_path: Path, first: int, status: int, calls: list[tuple[str, int, str]], dropped: bool
) -> None:
    for rank in range(4):
        dump(tmp_path, rank, *(calls if rank == 2 else (DONE, WAITS)))
    changed = tmp_path / "nccl_trace_rank_2"
    value = pickle.loads(changed.read_bytes())
    value["entries"] = [{**entry, "record_id": first + entry["record_id"]} for entry in value["entries"]]
    value["pg_status"] = {"0": {"last_enqueued_collective": status}}
    changed.write_bytes(pickle.dumps(value, protocol=2))
    (found,) = findings(tmp_path)
    assert found["severity"] == (JUDGED_NOT if dropped else "fault")
    assert found["finding"].startswith("whether rank 2 made the call" if dropped else "rank 2 did not make the call")


def test_a_dump_that_is_cut_is_of_a_rank_without_one(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, *((DONE,) if rank == 2 else (DONE, WAITS)))
    cut = tmp_path / "nccl_trace_rank_3"
    cut.write_bytes(cut.read_bytes()[:150])
    (found,) = findings(tmp_path)
    assert found["finding"].startswith("rank 2 did not make the call")
    assert "no whole dump of rank 3" in " ".join(found["evidence"])
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    (found,) = findings(tmp_path)
    assert "a pickle that is no Flight Recorder dump" in found["finding"]


def test_process_groups_of_the_same_ranks_are_not_compared(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, WAITS, ("all_reduce", 100 + (rank == 0), "completed"))
        changed = tmp_path / f"nccl_trace_rank_{rank}"
        value = pickle.loads(changed.read_bytes())
        value["entries"][1]["process_group"] = ("8", "TENSOR_PARALLEL")
        value["pg_config"]["8"] = value["pg_config"]["7"]
        changed.write_bytes(pickle.dumps(value, protocol=2))
    (found,) = findings(tmp_path)
    assert found["finding"].startswith("no rank with a dump is behind")


def test_one_dump_asks_for_the_others(tmp_path: Path) -> None:
    dump(tmp_path, 0, DONE, WAITS)
    (found,) = findings(tmp_path / "nccl_trace_rank_0")
    assert found["finding"].startswith(
        "a single rank's dump does not show which rank is behind: give the folder with all ranks' dumps"
    )
    assert "1 calls had not completed when it was dumped" in found["evidence"]


def test_a_broken_dump_is_named(tmp_path: Path) -> None:
    dump(tmp_path, 0, DONE, WAITS)
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"pg_config": {}, "entries": [7]}, protocol=2))
    (found,) = findings(tmp_path)
    assert "nccl_trace_rank_1: not what the Flight Recorder writes" in found["finding"]
