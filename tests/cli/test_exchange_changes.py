"""``diff`` and ``diff`` of sends and receives: other channels, protocols and chunks, and no time."""

import json

import pytest

from tests.support.command_line import run

ON = ("--machine", "dgx-h100", "--nodes", "2")
NAMED = {"alltoall": "AllToAll", "send": "Send"}


def test_a_release_that_counts_channels_otherwise() -> None:
    found = json.loads(run("diff", "send", *ON, "--nccl", "2.28.9", "2.29.2", "--json").stdout)
    last = found["changes"][-1]
    assert [last[side]["channels"] for side in ("before", "after")] == [2, 4]
    for one, following in zip(found["changes"], found["changes"][1:], strict=False):
        assert one["from_bytes"] <= one["to_bytes"] < following["from_bytes"]
    out = run("diff", "send", *ON, "--nccl", "2.28.9", "2.29.2").stdout
    assert "how long either takes is not known" in out


@pytest.mark.slow
def test_more_nodes_leave_fewer_channels_for_each_peer() -> None:
    found = json.loads(run("diff", "alltoall", "nodes=8", *ON, "--nccl", "2.28.9", "--bytes", "64M", "--json").stdout)
    (at,) = found["sizes"]
    assert at["bytes"] == 64 << 20
    ways = {side: {way["network"]: way["channels"] for way in at[side]["ways"]} for side in ("before", "after")}
    assert ways["before"][True] == 2 > ways["after"][True] == 1


def test_a_variable_that_sends_do_not_go_by_changes_nothing() -> None:
    out = run("diff", "recv", "NCCL_ALGO=Ring", *ON, "--nccl", "2.28.9").stdout
    assert "every message goes the same way at every size" in out


def test_they_stand_alone() -> None:
    assert "either alone" in run("diff", "send", "allreduce", *ON, "--nccl", "2.28.9", "2.29.2", code=2).stderr
    assert "without --all-releases" in run("diff", "send", *ON, "--all-releases", code=2).stderr
    asked = run("diff", "send", "nodes=4", *ON, "--libnccl", code=2)
    assert "without --all-releases, --beyond, --libnccl" in asked.stderr


@pytest.mark.parametrize("given", [("--buffers", "window"), ("--buffers", "registered", "--in-place")])
@pytest.mark.parametrize("words", [("diff", "alltoall", "2.29.2"), ("diff", "send", "nodes=4", "--bytes", "1M")])
def test_buffers_are_of_collectives(words: tuple[str, ...], given: tuple[str, ...]) -> None:
    stderr = run(*words, *ON, "--nccl", "2.28.9", *given, code=2).stderr
    assert stderr.endswith(f"--in-place: of collectives; valid for {NAMED[words[1]]}: plain (see: pick)\n")
