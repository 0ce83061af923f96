"""Groups of collectives without libnccl: one call is what pick says, and what is refused."""

import json

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.random_groups import F32_SUM, random_groups
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.group import Operation, Tuned, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import sizes_bytes
from tuner.scenario import Scenario

RELEASES = catalogue.load("dgx-h100").releases
AR = Request(Collective.AllReduce, DataType.float32, Op.sum)


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 8), (3, 1)])
@pytest.mark.parametrize("name", RELEASES)
def test_one_call_is_what_pick_says(name: str, nodes: int, gpus: int) -> None:
    selection = Selection(Scenario(nccl=name, machine="dgx-h100", nodes=nodes, gpus_per_node=gpus).communicator())
    for request in F32_SUM:
        sizes = sizes_bytes(request, selection.communicator.ranks)[::11]
        picks = selection.pick(request, sizes)
        for row, size in enumerate(sizes):
            (pick,) = plan(selection, [Operation(request, size)]).picks
            assert (pick.algorithm, pick.protocol) == (picks.algorithm[row], picks.protocol[row])
            assert (len(pick.channels), pick.threads) == (picks.channels[row], picks.threads[row]), (request, size)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_every_call_is_in_one_kernel_and_has_channels_of_it(name: str) -> None:
    selection = Selection(Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2).communicator())
    for operations in random_groups(selection, 12):
        group = plan(selection, operations)
        assert sorted(place for kernel in group.kernels for place in kernel.places) == list(range(len(operations)))
        assert sorted(place for choice in group.choices for place in choice.places) == list(range(len(operations)))
        for place, (pick, operation) in enumerate(zip(group.picks, operations, strict=True)):
            assert pick.choice is not None
            kernel, choice = group.kernels[pick.kernel], group.choices[pick.choice]
            assert pick.operation == operation
            assert place in kernel.places
            assert place in choice.places
            assert set(pick.channels) <= set(kernel.channels)
            assert pick.own_threads <= pick.threads == kernel.threads
            assert (pick.algorithm, pick.protocol) == (choice.algorithm, choice.protocol)


@pytest.mark.parametrize(("name", "threads"), [("2.19.3", 160), ("2.20.5", 96), ("2.21.5", 96), ("2.22.3", 160)])
def test_threads_go_by_a_tuners_channels_where_nccl_takes_these_first(name: str, threads: int) -> None:
    """8 KiB over 16 channels keep fewer than 64 threads of each busy, on one channel 128; a warp synchronises."""
    tuned = Tuned((Algorithm.Ring, Protocol.Simple), np.float32(1), 16)
    operations = [Operation(AR, 4096)] * 2
    (kernel,) = plan(selection(nccl=name, nodes=2), operations, lambda *_: tuned).kernels
    assert kernel.threads == threads


def selection(**changes: object) -> Selection:
    return Selection(Scenario(**{"nccl": "2.28.9", "machine": "dgx-h100", "nodes": 1, **changes}).communicator())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([], "a group without a collective"),
        ([Operation(AR, 6)], "no AllReduce of float32 on 8 ranks has 6 bytes; valid: multiples of 4"),
        ([Operation(Request(Collective.AllGather, DataType.float16, Op.sum), 8)], "valid: multiples of 16"),
    ],
)
def test_what_is_no_group(operations: list[Operation], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        plan(selection(), operations)


@pytest.mark.parametrize("name", [RELEASES[0], "2.28.9"])
def test_a_ring_too_small_for_a_call(name: str) -> None:
    known = release.load(name).environment.known
    variable = "NCCL_WORK_FIFO_DEPTH" if "NCCL_WORK_FIFO_DEPTH" in known else "NCCL_WORK_FIFO_BYTES"
    tiny = {variable: "2", **({} if variable.endswith("DEPTH") else {"NCCL_WORK_ARGS_BYTES": "64"})}
    with pytest.raises(BadInput, match=variable):
        plan(selection(nccl=name, environment=tiny), [Operation(AR, 1 << 30)])


GROUP = (
    "pick",
    "allreduce:25M*3,allgather:4M:bfloat16,reduce:64K:int32:max",
    "--machine",
    "dgx-h100",
    "--nodes",
    "2",
    "--gpus-per-node",
    "2",
    "--nccl",
    "2.28.9",
)


@pytest.mark.live
def test_the_command_and_its_oracle_twin_agree() -> None:
    ours = json.loads(run(*GROUP, "--json").stdout)
    theirs = json.loads(run(*GROUP, "--libnccl", "--json").stdout)
    assert [call["call"] for kernel in ours["kernels"] for call in kernel["calls"]] == [0, 1, 2, 3, 4]
    for answer in (ours, theirs):
        for kernel in answer["kernels"]:
            for call in kernel["calls"]:
                call["call"] = call["choice"] = None
        for choice in answer["choices"]:
            choice["time_us"] = None
    assert ours == theirs


def test_the_command_for_people() -> None:
    out = run(*GROUP).stdout
    assert "25 MiB" in out
    assert "numPipeOps" in out


@pytest.mark.parametrize(
    "calls", ["allreduce:", "allreduce:1M*0", "nothing:1M", "allreduce:1M:float33", "allreduce:1M*9999999", ""]
)
def test_calls_that_are_none(calls: str) -> None:
    done = run("pick", calls, "--machine", "dgx-h100", code=2)
    assert "valid" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nodes_whose_ranks_make_another_group_are_refused() -> None:
    nodes = ("--node", "dgx-h100:4", "--node", "dgx-b200:4", "--nccl", "2.28.9")
    done = run("pick", "allreduce:25M*4,allreduce:64K", *nodes, code=2)
    assert "ranks disagree: those on dgx-b200" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    alike = run("pick", "allreduce:25M*4,allreduce:64K", "--node", "dgx-h100:8", "--node", "dgx-h100:4", "--json")
    assert len(json.loads(alike.stdout)["kernels"][0]["calls"]) == 5


@pytest.mark.parametrize("name", [name for name in RELEASES if release.load(name).rules.channel_bytes != "unlimited"])
def test_the_network_goes_over_all_of_a_call_on_every_channel(name: str) -> None:
    environment = {"NCCL_COLLNET_ENABLE": "1", "NCCL_ALGO": "CollNetChain"}
    scenario = Scenario(nccl=name, machine="dgx-a100", nodes=4, gpus_per_node=2, collnet=True, environment=environment)
    group = plan(Selection(scenario.communicator()), [Operation(AR, 25 << 20)] * 5)
    assert {pick.algorithm for pick in group.picks} == {Algorithm.CollNetChain}
    used = {pick.channels for pick in group.picks}
    assert used == {group.kernels[0].channels}


LEAVES_ONE_UNDONE = [
    *(256, 4864, 512, 1792, 2560, 12032, 256, 1280, 1792, 256, 256, 2304, 8704, 256, 1280, 1536, 5120, 2816, 11264),
    *(1024, 2304, 1280, 12544, 768, 8192, 768, 12544, 11264, 768, 10240, 512, 2048, 6912),
]


def test_2_22_leaves_a_call_of_a_group_undone() -> None:
    """libnccl launches 17 blocks, none of which has the last call that is dealt out: another release does it."""
    calls = [Operation(Request(Collective.ReduceScatter, DataType.int64, Op.max), size) for size in LEAVES_ONE_UNDONE]
    for name, done in (("2.22.3", False), ("2.23.4", True)):
        selection = Selection(Scenario(nccl=name, machine="dgx-h200", nodes=4).communicator())
        if done:
            assert len(plan(selection, calls).picks) == len(calls)
        else:
            with pytest.raises(BadInput, match="of 12544 bytes out to no channel, and does not do it"):
                plan(selection, calls)
