"""Groups on registered buffers and windows without libnccl: what aggregates, what leaves, what is refused."""

import json

import pytest

from tests.support.command_line import run
from tests.support.random_groups import random_groups
from tuner import release
from tuner.answers.mixed import GroupCall
from tuner.api import communicator
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.group import GroupPlan, Operation, plan
from tuner.emulator.request import COPY_ENGINES, Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

MIB = 1 << 20
AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter


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
    calls = [(AR, 256 * MIB)] * 3
    plain = planned(nccl, calls, Buffers.plain, environment={"NCCL_ALGO": "NVLS"})
    registered = planned(nccl, calls, Buffers.registered, environment={"NCCL_ALGO": "NVLS"})
    assert {pick.algorithm for pick in plain.picks} == {pick.algorithm for pick in registered.picks}
    assert len(registered.kernels[0].channels) < len(plain.kernels[0].channels)
    assert registered.choices == tuple(each for each in registered.choices if each.time_us == plain.choices[0].time_us)


def test_works_of_registered_calls_are_larger_so_kernels_hold_fewer() -> None:
    calls, settings = [(AR, MIB)] * 60, {"NCCL_ALGO": "NVLS"}
    inside = [
        len(planned("2.28.9", calls, buffers, environment=settings | {"NCCL_WORK_FIFO_BYTES": "16384"}).kernels)
        for buffers in (Buffers.plain, Buffers.registered, Buffers.graph)
    ]
    assert inside == [1, 3, 1]  # what a graph holds is in memory of its own


def test_windows_aggregate_whatever_the_sizes() -> None:
    group = planned("2.28.9", [(AR, 1024), (AG, 8 * MIB), (AR, 256 * MIB), (Collective.Broadcast, MIB)], Buffers.window)
    assert kernels(group)[:2] == [("AllReduce_RSxLDMC_AGxSTMC", 2, 2), ("AllGather_STMC", 1, 2)]
    assert group.kernels[2].path is None
    assert [choice.places for choice in group.choices] == [(3,)]
    assert [(pick.algorithm, pick.choice) for pick in group.picks[:3]] == [(None, None)] * 3


def test_low_latency_is_of_a_call_alone() -> None:
    """Several of a kind share a kernel that is not of low latency."""
    assert kernels(planned("2.30.7", [(AR, 1024)], Buffers.window)) == [("AllReduce_AGxLLMC_R", 1, 1)]
    both = kernels(planned("2.30.7", [(AR, 1024), (RS, 1024), (AR, 1024)], Buffers.window))
    assert both[0] == ("AllReduce_RSxLDMC_AGxSTMC", 2, 1)
    assert both[1][0] == "ReduceScatter_LL"


def test_a_symmetric_kernel_holds_what_its_arguments_hold() -> None:
    assert [calls for _, calls, _ in kernels(planned("2.28.9", [(AR, MIB)] * 120, Buffers.window))] == [56, 56, 8]
    assert [calls for _, calls, _ in kernels(planned("2.28.3", [(AR, MIB)] * 120, Buffers.window))] == [58, 58, 4]


def test_only_a_call_alone_leaves_in_2_27() -> None:
    assert planned("2.27.7", [(AR, 1024)], Buffers.window).kernels[0].path is not None
    assert planned("2.27.7", [(AR, 1024)] * 2, Buffers.window).kernels[0].path is None


def test_copy_engines_come_first_and_alone() -> None:
    calls = [(AR, MIB), (AG, 1 << 30), (AG, MIB), (AG, 1 << 31)]
    group = planned("2.30.7", calls, Buffers.window, machine="dgx-b200")
    assert [kernel.path is COPY_ENGINES for kernel in group.kernels] == [True, True, False, False]
    assert [kernel.places for kernel in group.kernels[:2]] == [(1,), (3,)]


def test_plain_buffers_may_leave_where_asked_one_by_one() -> None:
    settings = {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_PROTO": "LL"}
    group = planned("2.30.7", [(AR, 1024), (AG, 8192), (AG, 4096)], Buffers.plain, environment=settings)
    assert group.kernels[0].path is not None
    assert group.kernels[0].places == (0,)
    assert [kernel.path for kernel in group.kernels[1:]] == [None]  # several do not


def test_a_release_that_finds_no_kernel_for_several_fails() -> None:
    settings = {"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    assert kernels(planned("2.28.9", [(AR, 1024)], Buffers.window, environment=settings))[0][0] == "AllReduce_AGxLL_R"
    with pytest.raises(NoAlgorithm, match="several calls at once"):
        planned("2.28.9", [(AR, 1024)] * 2, Buffers.window, environment=settings)
    assert kernels(planned("2.30.7", [(AR, 1024)] * 2, Buffers.window, environment=settings))[0][0] is None


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
            assert planned(nccl, [(AR, MIB)], Buffers.plain, environment=settings).kernels
        else:
            with pytest.raises(BadInput, match=f"valid: {least} and more$"):
                planned(nccl, [(AR, MIB)], Buffers.plain, environment=settings)


def test_several_kinds_of_buffers_are_refused() -> None:
    selection = Selection(Scenario(nccl="2.30.7", machine="dgx-h100", nodes=1).communicator())
    mixed = [Operation(Request(AR, DataType.float32, Op.sum, buffers=each), MIB) for each in Buffers]
    with pytest.raises(BadInput, match="one kind"):
        plan(selection, mixed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nccl", "2.18.3", "--buffers", "registered"), "registers no buffers; valid: 2.19.3 and later"),
        (("--nccl", "2.26.5", "--buffers", "window"), "no symmetric windows; valid: 2.27.3 and later"),
        (("--buffers", "graph", "--env", "NCCL_CTA_POLICY=EFFICIENCY"), "valid: --buffers plain"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    done = run("pick", "allreduce:1M*2", "--machine", "dgx-h100", *words, code=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
    assert "AllToAll in a group where copy engines do it" in done.stderr
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
        side: [kernel.get("bypass_kernel") for kernel in json.loads(run(*words, *windows, side).stdout)["kernels"]]
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
    assert first["bypass_kernel"] == "symmetric kernel AllReduce_RSxLDMC_AGxSTMC"
    assert [(call["call"], call["algorithm"], call["choice"]) for call in first["calls"]] == [
        (0, None, None),
        (1, None, None),
    ]
    assert "bypass_kernel" not in second
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
    assert [(kernel.bypass_kernel is not None, len(kernel.calls)) for kernel in group.kernels] == [
        (True, 1),
        (True, 1),
        (False, 1),
    ]
    with pytest.raises(BadInput, match="unknown type"):
        communicator("dgx-h100").group([("allreduce", MIB, "float33")])
