"""``nccl-tuner diagnose``: the finding comes first, files say of each other what they lack, and exit codes hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tuner.cli import everything

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SOCKETS = """\
h0:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
h0:1:1 [0] NCCL INFO NET/IB : No device found.
h0:1:1 [0] NCCL INFO Using network Socket
h0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
h0:1:1 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
h0:1:1 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/Socket/0
h0:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 16 busId 1b000 commId 0x5 - Init COMPLETE
"""


def diagnosed(*words: object) -> Result:
    return CliRunner().invoke(everything, ["diagnose", *map(str, words)])


def findings(*words: object) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = json.loads(diagnosed(*words, "--json").output)["files"]
    return files


def test_a_fault_of_a_topology_is_the_first_line_with_its_cost_and_command() -> None:
    result = diagnosed(EXAMPLES / "node.xml", EXAMPLES / "guest.xml")
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert text.startswith(f"fault: {EXAMPLES / 'guest.xml'}: pci-flat: no PCI switch above any GPU")
    assert "instead of 454.6 GB/s busbw" in text
    assert f"more: nccl-tuner machines diagnose {EXAMPLES / 'guest.xml'}" in text
    assert text.index(f"nothing wrong: {EXAMPLES / 'node.xml'}") > text.index("more: ")
    assert max(map(len, result.output.splitlines())) <= 100 + len(str(EXAMPLES))  # paths are not broken


def test_a_log_says_why_it_has_two_channels(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(SOCKETS, "utf-8")
    result = diagnosed(tmp_path / "run.log")
    assert result.exit_code == 1, result.output
    text = " ".join(result.output.split())
    assert text.startswith(f"fault: {tmp_path / 'run.log'}: 2 channels, because: the network is IP sockets")
    assert "IP sockets, not InfiniBand or RoCE" in text


def test_results_alone_cannot_be_judged_and_say_what_they_lack() -> None:
    result = diagnosed(EXAMPLES / "all_reduce.log")
    assert result.exit_code == 3
    assert "the machine is not known" in " ".join(result.output.split())


def test_what_one_file_shows_goes_for_the_others() -> None:
    results, topology = findings(EXAMPLES / "all_reduce.log", EXAMPLES / "node.xml")
    assert (topology["kind"], topology["severity"]) == ("topology", "nothing wrong")
    assert "machine dgx-a100: as" in " ".join(topology["evidence"])
    assert results["command"].endswith("all_reduce.log --machine dgx-a100")
    assert "the machine is not known" not in results["finding"]


def test_slow_results_are_a_fault_and_a_machine_that_is_named_goes_first() -> None:
    (results,) = findings(EXAMPLES / "all_reduce.log", "--machine", "dgx-h100")
    assert results["severity"] == "fault"
    assert results["finding"].startswith("too slow at 5 of 18 sizes: AllReduce of 1 GiB takes 4953 us")
    assert "NVLS: NVLS is off" in results["evidence"]


@pytest.mark.parametrize("nccl", ["2.28.9", "2.32.3"])
def test_a_trace_says_its_ranks(nccl: str) -> None:
    (trace,) = findings(EXAMPLES / "inspector.log", "--machine", "dgx-h100", "--nccl", nccl)
    assert trace["severity"] == "nothing wrong"
    assert trace["finding"] == f"8 of 8 calls ran as NCCL picks on 2 x dgx-h100, 8 GPUs each, NCCL {nccl}"


def test_calls_that_ran_otherwise_are_a_fault() -> None:
    (trace,) = findings(EXAMPLES / "profiler-plugin.json", "--machine", "dgx-h100", "--nodes", "1")
    assert trace["severity"] == "fault"
    assert trace["finding"].startswith("0 of 8 calls ran as NCCL picks")


def test_a_file_that_is_not_there_is_bad_input() -> None:
    result = diagnosed("nowhere.log")
    assert result.exit_code != 0
    assert "No such file" in str(result.exception)
