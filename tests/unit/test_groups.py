"""Groups of collectives without libnccl: what is chosen together, what leaves, and what is refused."""

import json

import numpy as np
import pytest

from tests.support.command_line import assert_refused, run
from tests.support.random_groups import F32_SUM, random_groups
from tuner import release
from tuner.answers.mixed import GroupCall
from tuner.api import communicator
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.group import GroupPlan, Operation, Tuned, plan
from tuner.emulator.request import COPY_ENGINES, Request
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
        ([Operation(AR, 6)], "AllReduce of float32 on 8 ranks cannot have 6 bytes: valid are multiples of 4"),
        ([Operation(Request(Collective.AllGather, DataType.float16, Op.sum), 8)], "valid are multiples of 16"),
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
    assert "valid" in done.stderr or "is not of the form CALL" in done.stderr
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
            with pytest.raises(BadInput, match="of 12544 bytes to no channel, and does not do it"):
                plan(selection, calls)


MIB = 1 << 20
ALL_REDUCE, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter


def planned(
    nccl: str, calls: list[tuple[Collective, int]], buffers: Buffers, op: Op = Op.sum, **described: object
) -> GroupPlan:
    given = {"machine": "dgx-h100", "nodes": 1, **described}
    selection = Selection(Scenario(nccl=nccl, **given).communicator())  # type: ignore[arg-type]
    requests = [Request(each, DataType.float32, op, buffers=buffers) for each, _ in calls]
    return plan(selection, [Operation(request, size) for request, (_, size) in zip(requests, calls, strict=True)])


def kernels(group: GroupPlan) -> list[tuple[str | None, int, int]]:
    """Name off the classic path, calls and blocks of each kernel."""
    return [(kernel.path and kernel.path.kernel, len(kernel.places), len(kernel.channels)) for kernel in group.kernels]


@pytest.mark.parametrize("nccl", ["2.19.3", "2.21.5", "2.28.9", "2.32.3"])
def test_the_switch_needs_few_channels_for_each_call(nccl: str) -> None:
    calls = [(ALL_REDUCE, 256 * MIB)] * 3
    plain = planned(nccl, calls, Buffers.plain, environment={"NCCL_ALGO": "NVLS"})
    registered = planned(nccl, calls, Buffers.registered, environment={"NCCL_ALGO": "NVLS"})
    assert {pick.algorithm for pick in plain.picks} == {pick.algorithm for pick in registered.picks}
    assert len(registered.kernels[0].channels) < len(plain.kernels[0].channels)
    assert registered.choices == tuple(each for each in registered.choices if each.time_us == plain.choices[0].time_us)


def test_works_of_registered_calls_are_larger_so_kernels_hold_fewer() -> None:
    calls, settings = [(ALL_REDUCE, MIB)] * 60, {"NCCL_ALGO": "NVLS"}
    inside = [
        len(planned("2.28.9", calls, buffers, environment=settings | {"NCCL_WORK_FIFO_BYTES": "16384"}).kernels)
        for buffers in (Buffers.plain, Buffers.registered, Buffers.graph)
    ]
    assert inside == [1, 3, 1]  # what a graph holds is in memory of its own


def test_windows_aggregate_whatever_the_sizes() -> None:
    group = planned(
        "2.28.9",
        [(ALL_REDUCE, 1024), (AG, 8 * MIB), (ALL_REDUCE, 256 * MIB), (Collective.Broadcast, MIB)],
        Buffers.window,
    )
    assert kernels(group)[:2] == [("AllReduce_RSxLDMC_AGxSTMC", 2, 2), ("AllGather_STMC", 1, 2)]
    assert group.kernels[2].path is None
    assert [choice.places for choice in group.choices] == [(3,)]
    assert [(pick.algorithm, pick.choice) for pick in group.picks[:3]] == [(None, None)] * 3


def test_low_latency_is_of_a_call_alone() -> None:
    """Several of a kind share a kernel that is not of low latency."""
    assert kernels(planned("2.30.7", [(ALL_REDUCE, 1024)], Buffers.window)) == [("AllReduce_AGxLLMC_R", 1, 1)]
    both = kernels(planned("2.30.7", [(ALL_REDUCE, 1024), (RS, 1024), (ALL_REDUCE, 1024)], Buffers.window))
    assert both[0] == ("AllReduce_RSxLDMC_AGxSTMC", 2, 1)
    assert both[1][0] == "ReduceScatter_LL"


def test_a_symmetric_kernel_holds_what_its_arguments_hold() -> None:
    assert [calls for _, calls, _ in kernels(planned("2.28.9", [(ALL_REDUCE, MIB)] * 120, Buffers.window))] == [
        56,
        56,
        8,
    ]
    assert [calls for _, calls, _ in kernels(planned("2.28.3", [(ALL_REDUCE, MIB)] * 120, Buffers.window))] == [
        58,
        58,
        4,
    ]


def test_only_a_call_alone_leaves_in_2_27() -> None:
    assert planned("2.27.7", [(ALL_REDUCE, 1024)], Buffers.window).kernels[0].path is not None
    assert planned("2.27.7", [(ALL_REDUCE, 1024)] * 2, Buffers.window).kernels[0].path is None


def test_copy_engines_come_first_and_alone() -> None:
    calls = [(ALL_REDUCE, MIB), (AG, 1 << 30), (AG, MIB), (AG, 1 << 31)]
    group = planned("2.30.7", calls, Buffers.window, machine="dgx-b200")
    assert [kernel.path is COPY_ENGINES for kernel in group.kernels] == [True, True, False, False]
    assert [kernel.places for kernel in group.kernels[:2]] == [(1,), (3,)]


def test_plain_buffers_may_leave_where_asked_one_by_one() -> None:
    settings = {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"}
    group = planned("2.30.7", [(ALL_REDUCE, 1024), (AG, 8192), (AG, 4096)], Buffers.plain, environment=settings)
    assert group.kernels[0].path is not None
    assert group.kernels[0].places == (0,)
    assert [kernel.path for kernel in group.kernels[1:]] == [None]  # several do not


def test_a_release_that_finds_no_kernel_for_several_fails() -> None:
    settings = {"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    assert (
        kernels(planned("2.28.9", [(ALL_REDUCE, 1024)], Buffers.window, environment=settings))[0][0]
        == "AllReduce_AGxLL_R"
    )
    with pytest.raises(NoAlgorithm, match="finds no symmetric kernel for calls that it set aside"):
        planned("2.28.9", [(ALL_REDUCE, 1024)] * 2, Buffers.window, environment=settings)
    assert kernels(planned("2.30.7", [(ALL_REDUCE, 1024)] * 2, Buffers.window, environment=settings))[0][0] is None


@pytest.mark.parametrize("name", release.names())
def test_every_call_is_in_one_kernel(name: str) -> None:
    selection = Selection(Scenario(nccl=name, machine="dgx-b200", nodes=1, gpus_per_node=4).communicator())
    for buffers in Buffers:
        try:
            selection.check_buffers(buffers)
        except BadInput:
            continue
        for operations in random_groups(selection, 2, most=12, on=(buffers, True)):
            operations = [each for each in operations if each.request.op is not Op.avg] or operations[:1]
            group = plan(selection, operations)
            assert sorted(place for kernel in group.kernels for place in kernel.places) == list(range(len(operations)))
            classic = {place for kernel in group.kernels if kernel.path is None for place in kernel.places}
            assert sorted(place for choice in group.choices for place in choice.places) == sorted(classic)


@pytest.mark.parametrize(("nccl", "least"), [("2.30.7", 624), ("2.32.3", 656)])
def test_arguments_have_to_hold_a_symmetric_call_even_where_none_is_made(nccl: str, least: int) -> None:
    for size, fits in ((least - 1, False), (least, True)):
        settings = {"NCCL_WORK_ARGS_BYTES": str(size)}
        assert planned(nccl, [(Collective.Reduce, MIB)], Buffers.plain, environment=settings).kernels
        if fits:
            assert planned(nccl, [(ALL_REDUCE, MIB)], Buffers.plain, environment=settings).kernels
        else:
            with pytest.raises(BadInput, match=f"set {least} or more$"):
                planned(nccl, [(ALL_REDUCE, MIB)], Buffers.plain, environment=settings)


def test_several_kinds_of_buffers_are_refused() -> None:
    selection = Selection(Scenario(nccl="2.30.7", machine="dgx-h100", nodes=1).communicator())
    mixed = [Operation(Request(ALL_REDUCE, DataType.float32, Op.sum, buffers=each), MIB) for each in Buffers]
    with pytest.raises(BadInput, match="one kind"):
        plan(selection, mixed)


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--nccl", "2.18.3", "--buffers", "registered"), "registers no buffers; valid: 2.19.3 and later", 1),
        (("--nccl", "2.26.5", "--buffers", "window"), "no symmetric windows; valid: 2.27.3 and later", 1),
        (("--buffers", "graph", "--env", "NCCL_CTA_POLICY=EFFICIENCY"), "valid: --buffers plain", 2),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, code: int) -> None:
    """What NCCL itself does not have ends with 1."""
    assert_refused(("pick", "allreduce:1M*2", "--machine", "dgx-h100", *words), said, code)


def beside_a_send(calls: str, *words: str) -> list[tuple[str, int, int]]:
    """Function, collectives and messages of each kernel."""
    words = "--machine", "dgx-h100", "--json", *words
    kernels = json.loads(run("pick", f"{calls},send@1:1M", *words).stdout)["kernels"]
    return [(kernel["function"], len(kernel["calls"]), len(kernel["transfers"])) for kernel in kernels]


def test_messages_join_no_symmetric_kernel() -> None:
    symmetric = "symmetric kernel AllReduce_RSxLDMC_AGxSTMC", 1, 0
    words = "--nccl", "2.30.7", "--buffers", "window"
    assert beside_a_send("allreduce:1M", *words) == [symmetric, ("ncclDevKernel_SendRecv", 0, 1)]
    assert beside_a_send("allreduce:1M,broadcast:1M", *words) == [symmetric, ("ncclDevKernel_Broadcast_RING_LL", 1, 1)]
    assert "symmetric kernel" in run("pick", "allreduce:1M,send@1:1M", "--machine", "dgx-h100", *words).stdout


def test_messages_keep_2_27_from_symmetric_kernels() -> None:
    words = "--nccl", "2.27.7", "--buffers", "window"
    assert "symmetric" in run("pick", "allreduce:1M", "--machine", "dgx-h100", *words).stdout
    assert [kernel[1:] for kernel in beside_a_send("allreduce:1M", *words)] == [(1, 1)]


def test_copied_calls_in_a_group_with_sends_are_refused() -> None:
    words = "--machine", "dgx-h100", "--nccl", "2.30.7", "--buffers", "window", "--env", "NCCL_CTA_POLICY=ZERO"
    done = run("pick", "alltoall:1M,send@1:1M", *words, code=2)
    assert "copy engines execute AllToAll" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("nccl", "small"),
    [("2.21.5", ("NCCL_WORK_FIFO_DEPTH=16",)), ("2.28.9", ("NCCL_WORK_FIFO_BYTES=512", "NCCL_WORK_ARGS_BYTES=800"))],
)
def test_a_kernel_in_a_graph_holds_all_messages(nccl: str, small: tuple[str, ...]) -> None:
    calls = ",".join(f"send@{peer}:64M,recv@{peer}:64M" for peer in range(1, 32))
    settings = [word for each in small for word in ("--env", each)]
    words = "--machine", "dgx-h100", "--nodes", "4", "--nccl", nccl, "--json", *settings
    kernels = [
        len(json.loads(run("pick", calls, *words, "--buffers", buffers).stdout)["kernels"])
        for buffers in ("plain", "registered", "graph")
    ]
    assert kernels[2] == 1
    assert kernels[0] == kernels[1] > 1


def test_one_buffer_in_a_window() -> None:
    words = "pick", "allgather:64M*2,reducescatter:64M*2", "--machine", "dgx-h100", "--nccl", "2.30.7", "--json"
    sides = {
        side: [kernel.get("bypass") for kernel in json.loads(run(*words, *windows, side).stdout)["kernels"]]
        for windows in [("--buffers", "window", "--windows")]
        for side in ("send", "receive")
    }
    assert sides["send"][0] == "symmetric kernel ReduceScatter_LDMC"
    assert sides["receive"][0] == "symmetric kernel AllGather_STMC"


@pytest.mark.parametrize(("nccl", "first"), [("2.30.7", 0), ("2.32.3", 2)])
def test_any_window_lets_later_releases_order_gathers_between_nodes(nccl: str, first: int) -> None:
    """With GIN: they come back behind the others once NCCL has noted that its GPUs multicast."""
    words = "--machine", "dgx-h100", "--nodes", "2", "--env", "NCCL_GIN_TYPE=3", "--nccl", nccl, "--json"
    calls = "allgather:4K,allgather:4M,reduce:4K"
    kernels = json.loads(run("pick", calls, *words, "--buffers", "window", "--window-flags", "default").stdout)
    assert kernels["kernels"][0]["calls"][0]["call"] == first


def test_what_the_network_offers_orders_calls_on_plain_buffers() -> None:
    """NCCL's own network offers GIN by default; of EFA it is not known, which a note says."""

    def kernels(*words: str) -> list[object]:
        ran = run("pick", "reducescatter:4M,reducescatter:16M", "--nccl", "2.32.3", *words)
        made: list[object] = json.loads(ran.stdout)["kernels"]
        return made

    adapters = ("--json", "--machine", "dgx-h100", "--nodes", "2")
    offered, without = (kernels(*adapters, "--env", f"NCCL_GIN_TYPE={kind}") for kind in (3, 0))
    assert kernels(*adapters) == offered != without
    efa = run("pick", "reducescatter:4M*2", "--machine", "p5.48xlarge", "--nodes", "4", "--nccl", "2.32.3")
    assert "as if the network did not let GPUs start transfers (GIN)" in " ".join(efa.stderr.split())


def test_the_command() -> None:
    words = (
        "pick",
        "allreduce:25M*2,broadcast:1M",
        "--machine",
        "dgx-h100",
        "--nccl",
        "2.30.7",
        "--buffers",
        "window",
    )
    answer = json.loads(run(*words, "--json").stdout)
    first, second = answer["kernels"]
    assert first["bypass"] == "symmetric kernel AllReduce_RSxLDMC_AGxSTMC"
    assert [(call["call"], call["algorithm"], call["choice"]) for call in first["calls"]] == [
        (0, None, None),
        (1, None, None),
    ]
    assert "bypass" not in second
    out = run(*words).stdout
    assert "symmetric kernel AllReduce_RSxLDMC_AGxSTMC" in out
    assert "share its blocks" in out


def test_python_has_the_same() -> None:
    calls: list[GroupCall] = [
        ("allreduce", 25 * MIB),
        ("allreduce", MIB, "bfloat16"),
        ("reduce", 4096, "int32", "max"),
    ]
    group = communicator("dgx-h100", nccl="2.30.7").group(calls, buffers="window")
    assert [(kernel.bypass is not None, len(kernel.calls)) for kernel in group.kernels] == [
        (True, 1),
        (True, 1),
        (False, 1),
    ]
    with pytest.raises(BadInput, match="unknown type"):
        communicator("dgx-h100").group([("allreduce", MIB, "float33")])
