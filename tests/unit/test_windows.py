"""Windows of every kind and registered buffers: how they are said, what is refused, and how kernels use them."""

import json
import random
import re
from contextlib import nullcontext

import pytest

import nccl_tuner
from tests.support.command_line import run
from tuner import api
from tuner.api import request
from tuner.base.errors import BadInput
from tuner.base.names import (
    SYMMETRIC,
    Algorithm,
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
from tuner.emulator.full_launch import dealt, parts
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric_variables
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
    with pytest.raises(BadInput, match="only apply with buffers= window"):
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
    (answer,) = json.loads(run("pick", *call, "--bytes", "4M").stdout)["picks"]
    assert answer["pick"]["bypass"] == kernel
    explained = json.loads(run("explain", *call, "--bytes", "4M").stdout)
    assert [each["kernel"] for each in explained["kernels"]] == ["AllGather_LLMC", "AllGather_LL"]
    ranges = json.loads(run("edges", *call, "--from", "1M").stdout)["ranges"]
    assert ranges[0]["bypass"] == kernel
    assert ranges[-1]["algorithm"] == "Ring"
    plain = json.loads(run("edges", *call, "--window-flags", "default").stdout)["ranges"]
    assert {each["algorithm"] for each in plain} == {"Ring"}
    (compared,) = json.loads(run("diff", *call, "nccl=2.31.2", "--bytes", "4M").stdout)["comparisons"]
    assert [compared["sizes"][0][side].get("bypass") for side in ("before", "after")] == [kernel, None]
    changes = json.loads(run("diff", *call, "2.31.2").stdout)["comparisons"][0]["changes"]
    assert changes[0]["before"]["bypass"] == kernel
    refused = run("pick", "allgather", "--machine", "dgx-h100", "--windows", "send", code=2).stderr
    assert "--windows and --window-flags only apply with --buffers window" in refused


@pytest.mark.parametrize(
    ("nccl", "flags", "words"),
    [
        ("2.28.9", STRICT, "NCCL 2.28.9 has no NCCL_WIN_STRICT_ORDERING: use 2.29.7 or later"),
        ("2.31.2", WindowFlag.GIN_ONLY, "NCCL 2.31.2 has no NCCL_WIN_GIN_ONLY: use 2.32.3 or later"),
        (
            "2.32.3",
            WindowFlag.GIN_ONLY | STRICT,
            "NCCL refuses the window flags coll-symmetric,strict-ordering,gin-only together",
        ),
        ("2.32.3", WindowFlag.CFT_COUNTED, "which ones support it is not known"),
    ],
)
def test_flags_that_are_refused(nccl: str, flags: WindowFlag, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        path(Collective.AllReduce, Windows(flags=flags), nccl=nccl)


def test_in_place_both_buffers_are_one() -> None:
    communicator = nccl_tuner.communicator("dgx-h100", nccl="2.30.7")
    with pytest.raises(BadInput, match="a call in place has one buffer"):
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
    """As libnccl does: tests/live/test_symmetric_kernels.py."""
    scenario = Scenario(nccl, nodes, machine="dgx-b200", environment={"NCCL_WORK_ARGS_BYTES": "400"})
    selection, call = Selection(scenario.communicator()), request(collective, buffers=kind)
    refused = pytest.raises(BadInput, match="NCCL_WORK_ARGS_BYTES=400, even if it launches no symmetric kernel")
    with refused if aborts else nullcontext():
        assert selection.non_classic_paths(call, [1 << 20])


@pytest.mark.parametrize(("variable", "taken"), [(None, False), ("", True), ("^AllGather_LL", True)])
def test_a_list_of_kernels_lets_those_that_copy_in_bulk_take_little(variable: str | None, taken: bool) -> None:
    """As libnccl does: tests/live/test_symmetric_kernels.py."""
    settings = {} if variable is None else {"NCCL_SYM_KERNEL": variable}
    scenario = Scenario("2.32.3", 1, machine="dgx-b200", gpus_per_node=4, environment=settings)
    call = request("allgather", buffers="window")
    found = [choice.kernel for choice in weighed(scenario.communicator(), call, 8192)]
    assert ("AllGather_TmaSTMC" in found) is taken


@pytest.mark.parametrize(
    ("name", "buffers", "since"),
    [
        ("2.18.1", Buffers.window, "2.27.3"),
        ("2.26.2", Buffers.window, "2.27.3"),
        ("2.18.3", Buffers.registered, "2.19.3"),
    ],
)
def test_a_release_without_such_buffers_names_the_first_that_has_them(name: str, buffers: Buffers, since: str) -> None:
    selection = Selection(Scenario(name, 1, "dgx-h100").communicator())
    with pytest.raises(BadInput, match=f"valid: {since} and later"):
        selection.check_buffers(buffers)


@pytest.mark.parametrize(("name", "captured"), [("2.21.5", 4), ("2.22.3", 16), ("2.23.4", 16), ("2.24.3", 4)])
def test_two_releases_do_not_register_what_is_captured(name: str, captured: int) -> None:
    selection = Selection(Scenario(name, machine="dgx-h100", nodes=1).communicator())
    for buffers, channels in ((Buffers.plain, 16), (Buffers.registered, 4), (Buffers.graph, captured)):
        request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=buffers)
        pick = selection.pick(request, 64 << 20)
        assert (pick.algorithm, pick.channels) == (Algorithm.NVLS, channels), buffers


CELL = 256  # elements of float32


@pytest.mark.parametrize("seed", range(40))
def test_blocks_move_every_element_once(seed: int) -> None:
    draw = random.Random(seed)
    counts = [int(2 ** draw.uniform(0, draw.choice((4, 12, 24)))) for _ in range(draw.randint(1, 12))]
    cells = sum(-(-count // CELL) for count in counts)
    share = -(-cells // draw.randint(1, 64))
    blocks = -(-cells // share)
    ends, together = dealt(counts, CELL, blocks, last=True)
    made = list(parts(counts, CELL, ends))
    assert len(made) == blocks
    assert len(together) == len(counts)
    for call, count in enumerate(counts):
        own = [part for block in made for part in block.parts if part.work == call]
        assert [part.offset for part in own] == [sum(each.count for each in own[:at]) for at in range(len(own))]
        assert sum(part.count for part in own) == count
        assert all(part.offset % CELL == 0 for part in own)


def test_a_call_behind_another_shares_no_block() -> None:
    """Blocks that do a call together begin with the first that has nothing else."""
    ends, together = dealt([1000, 262144, 77], CELL, 3, last=False)
    assert [call for call, _ in ends] == [1, 1, 2]
    assert together == [(0, 1), (1, 2), (2, 1)]  # the second begins on block 0, and ends a cell before the third
    assert dealt([1000, 262144, 77 * CELL], CELL, 3, last=True)[1] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize(("last", "blocks"), [(True, 2), (False, 1)])
def test_the_last_block_counts_where_nothing_follows(last: bool, blocks: int) -> None:
    assert dealt([CELL * 7, CELL * 20], CELL, 3, last)[1][0] == (0, 1)
    assert dealt([CELL * 12], CELL, 2, True)[1] == [(0, 2)]
    assert dealt([CELL * 15], CELL, 2, last)[1] == [(0, 2)]  # of 8 cells each one is left
    assert dealt([CELL * 13, CELL], CELL, 2, last) == ([(0, 35289), (1, 65536)], [(0, 2), (1, 1)])
    assert dealt([CELL * 21], CELL, 4, last)[1] == [(0, 3 + blocks - 1)]


def test_the_command_says_what_blocks_do() -> None:
    words = "pick", "allreduce", "--machine", "dgx-b200", "--nccl", "2.30.7", "--buffers", "window", "--bytes", "1M"
    (answer,) = json.loads(run(*words, "--launch", "--json").stdout)["picks"]
    (kernel,) = answer["launch"]["kernels"]
    assert kernel["name"] == "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32"
    assert [block["parts"] for block in kernel["symmetric"]["blocks"]] == [
        [{"work": 0, "offset": 0, "count": 131072}],
        [{"work": 0, "offset": 131072, "count": 131072}],
    ]
    out = run(*words, "--launch").stdout
    assert "call 0: 262144 elements of float32, blocks 0-1 together" in out
    assert "does not tell each block its part" in run(*words[:5], "2.27.7", *words[6:], "--launch").stdout


APART, ALL, NONE = "dgx-1v", "pcie-l40s", "pcie-l40s-no-p2p"  # of some GPUs far apart, peer-to-peer of all, of some
KERNEL, COPIES, ALGORITHM = "symmetric kernel AllGather_ST", "copy engines", None


def taken(machine: str, nccl: str, **described: object) -> tuple[bool, str | None]:
    """Whether there is symmetric memory, and what takes an AllGather of 1 MiB on windows."""
    communicator = api.communicator(machine, nodes=1, nccl=nccl, **described)  # type: ignore[arg-type]
    (path,) = communicator.selection.non_classic_paths(api.request("allgather", buffers="window"), [1 << 20])
    return symmetric_variables.supported(communicator.selection.communicator), None if path is None else path.name


@pytest.mark.parametrize(
    ("nccl", "joined", "far"),
    [
        ("2.27.7", (True, KERNEL), (False, ALGORITHM)),
        ("2.28.3", (True, KERNEL), (False, ALGORITHM)),
        ("2.28.9", (True, KERNEL), (True, KERNEL)),
        ("2.29.2", (True, ALGORITHM), (True, ALGORITHM)),
        ("2.32.3", (True, ALGORITHM), (True, ALGORITHM)),
    ],
)
def test_without_nvlink_between_all_gpus(
    nccl: str, joined: tuple[bool, str | None], far: tuple[bool, str | None]
) -> None:
    """By peer-to-peer within NCCL_P2P_LEVEL, from 2.28.7 on by CUDA's; kernels from 2.29 on want NVLink."""
    assert taken(ALL, nccl) == joined
    assert taken(APART, nccl) == far
    assert taken(NONE, nccl) == (False, ALGORITHM)


@pytest.mark.parametrize(("nccl", "level", "expected"), [("2.28.3", "NVL", False), ("2.28.9", "NVL", True)])
def test_the_level_of_peer_to_peer(nccl: str, level: str, expected: bool) -> None:
    assert taken(ALL, nccl, env={"NCCL_P2P_LEVEL": level, "NCCL_NET_DISABLE_INTRA": "1"})[0] is expected


@pytest.mark.parametrize("machine", [ALL, APART])
def test_copy_engines_need_no_nvlink(machine: str) -> None:
    assert taken(machine, "2.30.7", env={"NCCL_CTA_POLICY": "ZERO"}) == (True, COPIES)


def test_denied_peer_to_peer_may_be_ignored() -> None:
    assert taken(NONE, "2.28.9", env={"NCCL_IGNORE_DISABLED_P2P": "2"})[0]
    assert not taken(NONE, "2.28.9", env={"NCCL_IGNORE_DISABLED_P2P": "1"})[0]


def test_small_arguments_matter_in_2_28_3_where_there_is_symmetric_memory() -> None:
    words = "pick", "allreduce", "--nccl", "2.28.3", "--nodes", "1", "--env", "NCCL_WORK_ARGS_BYTES=400", "--bytes", "8"
    assert "even if it launches no symmetric kernel" in run(*words, "--machine", ALL, code=2).stderr
    assert "Ring/LL" in run(*words, "--machine", NONE).stdout
