"""Windows of every kind: how they are said, what is refused, and which buffers kernels and registration need."""

import json
import re
from contextlib import nullcontext

import pytest

import nccl_tuner
from tests.support.command_line import run
from tuner.api import request
from tuner.base.errors import BadInput
from tuner.base.names import (
    SYMMETRIC,
    Buffers,
    Collective,
    DataType,
    Op,
    Sides,
    WindowFlag,
    Windows,
    flag_words,
    flags_of,
)
from tuner.emulator.request import Request
from tuner.emulator.rules.symmetric import weighed
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

STRICT = WindowFlag.COLL_SYMMETRIC | WindowFlag.STRICT_ORDERING


def path(collective: Collective, windows: Windows, size: int = 1 << 22, nccl: str = "2.30.7", nodes: int = 1) -> str:
    """The symmetric kernel, or what the classic path takes with its channels; between nodes with GIN."""
    environment = {} if nodes == 1 else {"NCCL_GIN_TYPE": "3"}
    scenario = Scenario(nccl, nodes, machine="dgx-h100", environment=environment)
    selection = Selection(scenario.communicator())
    call = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window, windows=windows)
    (found,) = selection.non_classic_paths(call, size)
    if found is not None:
        return found.name.removeprefix("symmetric kernel ")
    pick = selection.pick(call, size)
    return f"{pick.combinations[0]} x{pick.channels[0]}"


def test_words_of_flags() -> None:
    for words, flags in (("default", WindowFlag.DEFAULT), ("coll-symmetric,strict-ordering", STRICT)):
        assert flags_of(words) == flags
        assert flag_words(flags) == words
    assert flags_of("NCCL_WIN_COLL_SYMMETRIC, Strict_Ordering") == STRICT
    with pytest.raises(BadInput, match=r"unknown window flag 'strict'.*strict-ordering"):
        flags_of("strict")


def test_python_words() -> None:
    assert request("allgather", buffers="window").windows == SYMMETRIC
    call = request("allgather", buffers="window", windows="send", window_flags=["strict-ordering"])
    assert call.windows == Windows(Sides.send, WindowFlag.STRICT_ORDERING)
    assert call.title == "AllGather, float32, window buffers of send, strict-ordering"
    with pytest.raises(BadInput, match="need `buffers` window"):
        request("allgather", buffers="registered", windows="send")
    with pytest.raises(BadInput, match="unknown windows 'left'; valid: send, receive, both"):
        request("allgather", buffers="window", windows="left")


def test_each_verb_takes_them() -> None:
    call = (
        "allgather",
        "--machine",
        "dgx-h100",
        "--nccl",
        "2.30.7",
        "--buffers",
        "window",
        "--windows",
        "send",
        "--json",
    )
    kernel = "symmetric kernel AllGather_LLMC"
    (answer,) = json.loads(run("pick", *call, "--bytes", "4M").stdout)
    assert answer["pick"]["leaves_for"] == kernel
    explained = json.loads(run("explain", *call, "--bytes", "4M").stdout)
    assert [each["kernel"] for each in explained["kernels"]] == ["AllGather_LLMC", "AllGather_LL"]
    ranges = json.loads(run("edges", *call, "--from", "1M").stdout)
    assert ranges[0]["leaves_for"] == kernel
    assert ranges[-1]["algorithm"] == "Ring"
    plain = json.loads(run("edges", *call, "--window-flags", "default").stdout)
    assert {each["algorithm"] for each in plain} == {"Ring"}
    compared = json.loads(run("diff", *call, "nccl=2.31.2", "--bytes", "4M").stdout)
    assert [compared["sizes"][0][side].get("leaves_for") for side in ("before", "after")] == [kernel, None]
    changes = json.loads(run("diff", *call, "2.31.2").stdout)
    assert changes[0]["before"]["leaves_for"] == kernel
    refused = run("pick", "allgather", "--machine", "dgx-h100", "--windows", "send", code=2).stderr
    assert "--windows and --window-flags need --buffers window" in refused


@pytest.mark.parametrize(
    ("nccl", "flags", "words"),
    [
        ("2.28.9", STRICT, "NCCL 2.28.9 has no NCCL_WIN_STRICT_ORDERING; valid: 2.29.7 and later"),
        ("2.31.2", WindowFlag.GIN_ONLY, "NCCL 2.31.2 has no NCCL_WIN_GIN_ONLY; valid: 2.32.3 and later"),
        ("2.32.3", WindowFlag.GIN_ONLY | STRICT, "NCCL refuses these two together; valid: one of them"),
        ("2.32.3", WindowFlag.CFT_COUNTED, "which do is not known; valid: without"),
    ],
)
def test_flags_that_are_refused(nccl: str, flags: WindowFlag, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        path(Collective.AllReduce, Windows(flags=flags), nccl=nccl)


def test_in_place_both_buffers_are_one() -> None:
    communicator = nccl_tuner.communicator("dgx-h100", nccl="2.30.7")
    with pytest.raises(BadInput, match="in place both buffers are one"):
        communicator.pick("allreduce", 8, buffers="window", windows="send", in_place=True)


def test_kernels_that_are_not_of_low_latency_need_what_they_reach() -> None:
    send, receive = Windows(Sides.send), Windows(Sides.receive)
    kinds = [path(Collective.AllGather, windows) for windows in (send, receive)]
    assert kinds == ["AllGather_LLMC", "AllGather_STMC"]
    kinds = [path(Collective.ReduceScatter, windows) for windows in (send, receive)]
    assert kinds == ["ReduceScatter_LDMC", "ReduceScatter_LL"]
    assert path(Collective.AllReduce, send, 1 << 10) == "AllReduce_AGxLLMC_R"
    assert path(Collective.AllReduce, send) == path(Collective.AllReduce, Windows(Sides.receive)) == "14 x16"


def test_older_releases_need_both() -> None:
    assert path(Collective.AllGather, Windows(Sides.receive), nccl="2.28.9") == "3 x24"
    assert path(Collective.AllGather, SYMMETRIC, nccl="2.28.9") == "AllGather_STMC"


def test_registration_follows_the_buffer() -> None:
    """Without symmetric windows: NVLS of AllReduce takes both, a node's ring from 2.29.2 on what is received into."""
    default = WindowFlag.DEFAULT
    assert path(Collective.AllReduce, Windows(flags=default)) == "14 x4"
    assert path(Collective.AllReduce, Windows(Sides.send, default)) == "14 x16"
    for nccl, channels in (("2.28.9", 24), ("2.29.2", 16)):
        found = path(Collective.Broadcast, Windows(Sides.receive, default), 1 << 28, nccl=nccl)
        assert found == f"5 x{channels}"


def test_between_nodes_reducescatter_takes_what_is_sent() -> None:
    assert path(Collective.ReduceScatter, Windows(Sides.send), nodes=2) == "ReduceScatter_RailA2A_LsaLDMC"
    assert path(Collective.ReduceScatter, Windows(Sides.receive), nodes=2).startswith("4 x")
    assert path(Collective.AllGather, Windows(Sides.receive), nodes=2).startswith("4 x")


@pytest.mark.parametrize(
    ("nccl", "machine", "crossing", "made"),
    [
        ("2.29.2", "dgx-h100", "0", False),
        ("2.29.2", "dgx-h100", "2", True),
        ("2.29.7", "dgx-h100", "0", True),
        ("2.29.7", "oci-h100", "2", False),
        ("2.30.7", "oci-h100", "2", True),
    ],
)
def test_gin_is_not_for_every_network(nccl: str, machine: str, crossing: str, made: bool) -> None:
    """oci-h100 has adapters that NCCL merges."""
    variables = {"NCCL_GIN_TYPE": "3", "NCCL_CROSS_NIC": crossing}
    selection = Selection(Scenario(nccl, 2, machine=machine, environment=variables).communicator())
    call = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window)
    assert (selection.non_classic_paths(call, 1 << 20) != [None]) == made


@pytest.mark.parametrize(
    ("nccl", "nodes", "collective", "kind", "aborts"),
    [
        ("2.27.7", 1, "allreduce", "window", False),
        ("2.28.3", 1, "broadcast", "plain", True),
        ("2.28.3", 2, "broadcast", "plain", False),
        ("2.28.9", 1, "allreduce", "plain", False),
        ("2.28.9", 1, "allreduce", "window", True),
        ("2.28.9", 1, "broadcast", "window", False),
        ("2.30.7", 1, "allreduce", "plain", True),
        ("2.30.7", 1, "allreduce", "registered", True),
        ("2.30.7", 1, "broadcast", "plain", False),
        ("2.30.7", 2, "allreduce", "plain", False),
    ],
)
def test_nccl_aborts_without_room_for_the_arguments_of_a_symmetric_kernel(
    nccl: str, nodes: int, collective: str, kind: str, aborts: bool
) -> None:
    """As libnccl does: tests/live/test_symmetric_variables.py."""
    scenario = Scenario(nccl, nodes, machine="dgx-b200", environment={"NCCL_WORK_ARGS_BYTES": "400"})
    selection, call = Selection(scenario.communicator()), request(collective, buffers=kind)
    refused = pytest.raises(BadInput, match="NCCL_WORK_ARGS_BYTES=400: too small for a symmetric kernel")
    with refused if aborts else nullcontext():
        assert selection.non_classic_paths(call, [1 << 20])


@pytest.mark.parametrize(("variable", "taken"), [(None, False), ("", True), ("^AllGather_LL", True)])
def test_a_list_of_kernels_lets_those_that_copy_in_bulk_take_little(variable: str | None, taken: bool) -> None:
    """As libnccl does: tests/live/test_symmetric_variables.py."""
    settings = {} if variable is None else {"NCCL_SYM_KERNEL": variable}
    scenario = Scenario("2.32.3", 1, machine="dgx-b200", gpus_per_node=4, environment=settings)
    call = request("allgather", buffers="window")
    found = [choice.kernel for choice in weighed(scenario.communicator(), call, 8192)]
    assert ("AllGather_TmaSTMC" in found) is taken
