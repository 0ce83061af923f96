"""``group`` with sends and receives: the words for them, a file of them, and what is printed."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run

ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def test_neighbours_of_a_ring() -> None:
    answer = json.loads(run("pick", "send@+1:1M,recv@-1:1M", *ON, "--rank", "15", "--json").stdout)
    (kernel,) = answer["kernels"]
    assert {(each["peer"], each["sends"], each["network"]) for each in kernel["transfers"]} == {
        (0, True, True),
        (14, False, False),
    }
    assert answer["rank"] == 15
    assert kernel["function"] == "ncclDevKernel_SendRecv"


def test_beside_a_collective_they_share_its_kernel() -> None:
    answer = json.loads(run("pick", "allreduce:4M,alltoall:64M", *ON, "--json").stdout)
    (kernel,) = answer["kernels"]
    assert len(kernel["calls"]) == len(answer["choices"]) == 1
    assert sum(each["bytes"] for each in kernel["transfers"] if each["sends"]) == 64 << 20
    out = run("pick", "allreduce:4M,alltoall:64M", *ON).stdout
    assert "NCCL has no time model of sends and receives" in out
    assert "p2p channels: 16, per peer: 2" in out


def test_functions_that_a_release_lacks_are_sends_and_receives() -> None:
    before = json.loads(run("pick", "scatter@3:1M", *ON[:4], "--nccl", "2.22.3", "--rank", "3", "--json").stdout)
    transfers = [each for kernel in before["kernels"] for each in kernel["transfers"]]
    assert sum(each["sends"] for each in transfers) == 16
    assert [each["peer"] for each in transfers if not each["sends"]] == [3]


def test_broadcasts_from_several_roots_are_one_call_from_2_29_2_on() -> None:
    words = "pick", "broadcast@0:1M,broadcast@3:64K,broadcast@3:4K", *ON[:4]
    before, after = (json.loads(run(*words, "--nccl", each, "--json").stdout) for each in ("2.28.9", "2.29.2"))
    assert [len(kernel["calls"]) for kernel in before["kernels"]] == [3]
    assert len(before["choices"]) > len(after["choices"]) == 0
    assert [len(kernel["calls"]) for kernel in after["kernels"]] == [2, 1]
    assert {kernel["function"] for kernel in after["kernels"]} == {"ncclDevKernel_AllGatherV_RING_LL"}
    assert "AllGatherV" in run(*words, "--nccl", "2.29.2").stdout
    apart = "--nccl", "2.29.2", "--env", "NCCL_ALLGATHERV_ENABLE=0"
    assert [len(kernel["calls"]) for kernel in json.loads(run(*words, *apart, "--json").stdout)["kernels"]] == [3]
    assert (
        "into one call, which is not computed here: give them one root"
        in run(*words, *apart[:2], "--launch", code=2).stderr
    )
    assert json.loads(run(*words, *apart, "--launch", "--json").stdout)["launch"]["kernels"]


def test_a_file_has_the_same_calls(tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    file.write_text(json.dumps([{"call": "send", "peer": "+1", "bytes": "1M", "type": "bfloat16", "times": 3}]))
    assert run("pick", f"@{file}", *ON, "--json").stdout == run("pick", "send@+1:1M:bfloat16*3", *ON, "--json").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("send:1M",), "needs a peer, as in send@3:1M"),
        (("allreduce@1:1M",), "AllReduce takes no peer"),
        (("send@16:1M",), "Send with rank 16: valid are ranks 0 to 15"),
        (("send@0:1M",), "sends itself 1 messages and receives 0"),
        (("send@1:1M", "--rank", "16"), "rank 16 is not in the communicator: valid are 0 to 15"),
        (("allreduce:1M", "--rank", "1"), "a group of collectives takes --rank 0 only"),
        (("send@1:1M", "--tuner", "none"), "NCCL asks no tuner plugin about these"),
        (("@/nowhere.json",), "/nowhere.json"),
        (("broadcast@16:1M",), "root 16 is no rank of the communicator: valid are 0 to 15"),
        (("allreduce:1M*10001",), "a group has at most 10000 calls"),
        ((f"send@{'9' * 5000}:1M",), "expected a rank"),
        ((f"send@1:{'9' * 5000}",), "size with 5000 digits"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(words: tuple[str, ...], said: str) -> None:
    assert said in run("pick", *words, *ON, code=2).stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("[" * 100_000, "not JSON"),
        ("[]", "name at least one call"),
        ('[{"call": "send", "peer": 1, "bytes": 8, "times": "x"}]', "object 1: times 'x': expected a whole number"),
        ('[{"call": "send", "peer": 1, "bytes": 8, "times": 0}]', "object 1: times 0: expected"),
        ('[{"call": "send", "peer": 1, "bytes": 8, "times": 1e300}]', "object 1: times 1e+300: expected"),
        ('[{"call": "send", "peer": 1, "bytes": 8, "times": 10000000000000}]', "1 to 10000"),
        (
            '[{"call": "send", "peer": 1, "bytes": 8}, {"call": "send", "peer": 1, "bytes": 8, "times": 10000}]',
            "at most 10000 calls",
        ),
    ],
)
def test_what_a_file_cannot_have_is_said_in_a_line(rows: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    file.write_text(rows)
    error = run("pick", f"@{file}", *ON, code=2).stderr
    assert str(file) in error
    assert said in error
    assert len(error.splitlines()) == 1


ON_BOTH = ("--machine", "dgx-h100", "--nodes", "2")
NAMED = {"alltoall": "AllToAll", "send": "Send"}


def test_a_release_that_counts_channels_otherwise() -> None:
    (found,) = json.loads(run("diff", "send", *ON_BOTH, "--nccl", "2.28.9", "2.29.2", "--json").stdout)["comparisons"]
    last = found["changes"][-1]
    assert [last[side]["channels"] for side in ("before", "after")] == [2, 4]
    for one, following in zip(found["changes"], found["changes"][1:], strict=False):
        assert one["from_bytes"] <= one["to_bytes"] < following["from_bytes"]
    out = run("diff", "send", *ON_BOTH, "--nccl", "2.28.9", "2.29.2").stdout
    assert "so it is not known which side is faster" in out


@pytest.mark.slow
def test_more_nodes_leave_fewer_channels_for_each_peer() -> None:
    (found,) = json.loads(
        run("diff", "alltoall", "nodes=8", *ON_BOTH, "--nccl", "2.28.9", "--bytes", "64M", "--json").stdout
    )["comparisons"]
    (at,) = found["sizes"]
    assert at["bytes"] == 64 << 20
    ways = {side: {way["network"]: way["channels"] for way in at[side]["ways"]} for side in ("before", "after")}
    assert ways["before"][True] == 2 > ways["after"][True] == 1


def test_a_variable_that_sends_do_not_go_by_changes_nothing() -> None:
    out = run("diff", "recv", "NCCL_ALGO=Ring", *ON_BOTH, "--nccl", "2.28.9").stdout
    assert "every message is sent in the same way at every size" in out


def test_they_stand_alone() -> None:
    assert (
        "use a command for each"
        in run("diff", "send", "allreduce", *ON_BOTH, "--nccl", "2.28.9", "2.29.2", code=2).stderr
    )
    assert "remove --all-releases" in run("diff", "send", *ON_BOTH, "--all-releases", code=2).stderr
    asked = run("diff", "send", "nodes=4", *ON_BOTH, "--libnccl", code=2)
    assert "remove --all-releases, --beyond, --libnccl" in asked.stderr


@pytest.mark.parametrize("given", [("--buffers", "window"), ("--buffers", "registered", "--in-place")])
@pytest.mark.parametrize("words", [("diff", "alltoall", "2.29.2"), ("diff", "send", "nodes=4", "--bytes", "1M")])
def test_buffers_are_of_collectives(words: tuple[str, ...], given: tuple[str, ...]) -> None:
    stderr = run(*words, *ON_BOTH, "--nccl", "2.28.9", *given, code=2).stderr
    assert stderr.endswith(f"only apply to collectives here: remove them for {NAMED[words[1]]} ('pick' takes them)\n")
