"""Orders of additions and schedules from the emulated launch, against those of the works of the real libnccl."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from numpy.random import Generator

from tests.support import ordered_calls, scheduled_numbers
from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.tables_on_windows import observed
from tuner import release
from tuner.answers.alone import Alone, calls_alone, pat_not_read
from tuner.answers.order import BY_SIZE, NOT_CLAIMED, SAME, OrderRange, of_calls, order_ranges
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.emulator.connect import Connected, summarize
from tuner.emulator.launches import ChannelShare, Sharing, Work
from tuner.emulator.request import Request
from tuner.emulator.steps.schedule import schedule
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall, LaunchInFull
from tuner.scenario import Scenario

pytestmark = pytest.mark.live


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_adds_as_claimed(nccl: str, draws: Draws) -> None:
    random, differences = draws.generator(nccl), list[str | None]()
    for _ in range(draws.times):
        scenario, calls = ordered_calls.drawn_calls(random, nccl, 4)
        with Oracle(scenario.oracle_configuration()) as oracle:
            theirs = oracle.connected()
            differences += [ordered_calls.compare_with_libnccl(random, oracle, theirs, call) for call in calls]
    assert len(differences) >= draws.times
    assert [each for each in differences if each is not None] == []


WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
NO_SWITCH = {"NCCL_NVLS_ENABLE": "0"}
ENDS = (None, 1 << 26)


def half(collective: Collective, buffers: Buffers = Buffers.window, op: Op = Op.sum) -> Request:
    return Request(collective, DataType.bfloat16, op, buffers=buffers)


def ranges(nccl: str, request: Request, **environment: str) -> tuple[Scenario, list[OrderRange]]:
    scenario = Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=4, environment=environment)
    return scenario, order_ranges(scenario, request, ENDS)


def as_of_single_calls(scenario: Scenario, request: Request, found: list[OrderRange]) -> None:
    """Each range says of its first and of its last size what a call of it says."""
    unit = request.unit_bytes(scenario.ranks)
    for each in found:
        for call in of_calls(scenario, request, [each.from_bytes, each.to_bytes // unit * unit]):
            assert call.pick in each.picks
            assert (call.not_claimed is not None) == (each.order == NOT_CLAIMED)
            if each.order == SAME:
                assert {one.term for one in call.classes} == {*each.terms}
                assert (call.sums_in or request.dtype) == (each.sums_in or request.dtype)


def test_kernels_that_add_in_a_fixed_order_have_one_range() -> None:
    scenario, found = ranges("2.28.9", half(Collective.ReduceScatter), **NO_SWITCH)
    assert [(each.order, each.picks, each.sums_in) for each in found] == [
        (SAME, ("symmetric kernel ReduceScatter_LL",), DataType.float32),
        (SAME, ("symmetric kernel ReduceScatter_LD",), DataType.float32),
    ]
    assert [len(each.terms) for each in found] == [1, 4]
    as_of_single_calls(scenario, half(Collective.ReduceScatter), found)


def test_ranges_of_one_order_whose_sums_are_kept_in_another_type_are_two() -> None:
    """Two ranks have one order, but a symmetric kernel keeps sums of 16 bits in float32."""
    scenario = Scenario("2.30.7", 1, machine="dgx-h100", gpus_per_node=2, environment={"NCCL_SYM_NOWIN_ENABLE": "1"})
    request = half(Collective.AllReduce, Buffers.plain)
    found = order_ranges(scenario, request, ENDS)
    assert [(each.order, each.terms, each.sums_in) for each in found] == [
        (SAME, ((0, 1),), DataType.float32),
        (SAME, ((0, 1),), None),
    ]
    as_of_single_calls(scenario, request, found)


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window])
def test_calls_on_the_classic_path(buffers: Buffers) -> None:
    request = half(Collective.AllReduce, buffers, Op.prod)
    scenario, found = ranges("2.28.9", request, NCCL_PROTO="LL")
    assert [each.order for each in found] == [BY_SIZE]
    as_of_single_calls(scenario, request, found)


@pytest.mark.live
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_libnccl_runs_the_kernels_of_each_range(name: str) -> None:
    request = half(Collective.ReduceScatter)
    scenario, found = ranges(name, request, **NO_SWITCH)
    unit = request.unit_bytes(scenario.ranks)
    ends = [(size, each) for each in found for size in (each.from_bytes, each.to_bytes // unit * unit)]
    assert len(ends) >= 4
    with Oracle(scenario.resolve().oracle_configuration_to_launch()) as oracle:
        real = oracle.launch_on_any_path(request, [size for size, _ in ends])
    for launched, (_, each) in zip(real, ends, strict=True):
        assert observed(launched)[0] in each.picks


OF_ALL = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
ALGORITHMS = (Algorithm.NVLS, Algorithm.NVLSTree, *COLLNET, Algorithm.PAT)


def drawn_calls(random: Generator, nccl: str, calls: int) -> tuple[Scenario, list[Alone]]:
    """A communicator whose variables leave one of these algorithms, and calls on it."""
    while True:
        algorithm = Algorithm(random.choice([int(each) for each in ALGORITHMS]))
        environment = {"NCCL_ALGO": algorithm.name}
        nodes, gpus = int(random.choice([1, 2, 3])), None
        if algorithm in COLLNET or (algorithm is Algorithm.NVLS and nodes > 1):
            environment["NCCL_COLLNET_ENABLE"] = "1"
        if algorithm is Algorithm.PAT:
            nodes, gpus = int(random.integers(2, 12)), 1
        machine = "dgx-a100" if algorithm in COLLNET and random.random() < 0.5 else "dgx-h100"
        found: list[Alone] = []
        try:
            scenario = Scenario(nccl, nodes, machine=machine, environment=environment, gpus_per_node=gpus, collnet=True)
            for _ in range(calls):
                found += _drawn_call(random, scenario)
        except NoAlgorithm:
            continue
        if found:
            return scenario, found


def _drawn_call(random: Generator, scenario: Scenario) -> Iterator[Alone]:
    collective = Collective(random.choice([int(each) for each in OF_ALL]))
    if (scenario.environment or {})["NCCL_ALGO"] in ("NVLSTree", "CollNetChain"):
        collective = Collective.AllReduce
    request = Request(collective, DataType.float32, Op.sum)
    unit = request.unit_bytes(scenario.ranks)
    size = max(1, int(2 ** random.uniform(2, 20)) // unit) * unit
    (call,) = calls_alone(scenario, request, [size])
    if isinstance(call, Alone) and call.work.algorithm in ALGORITHMS and not pat_not_read(call):
        yield call


def work_of(launched: LaunchInFull, work: Work) -> Work:
    """The work that libnccl handed its kernel: where channels take turns, of chunks that they share."""
    if work.sharing is Sharing.ranges:
        return ordered_calls.work_of(launched, work)
    (kernel,) = launched.kernels
    found = {channel: batches[0].works[0] for channel, batches in sorted(kernel.works.channels.items())}
    first = next(iter(found.values()))
    names = ("collnet.count", "collnet.chunkCount")
    if names[0] not in first:  # up to 2.21; up to 2.19 the last chunk is all that are short
        names = "count", "chunkCount" if "chunkCount" in first else "lastChunkSize"
    shares = [
        ChannelShare(channel, turn, 0, struct[names[0]], struct[names[1]], None, work.shares[0].proxy)
        for turn, (channel, struct) in enumerate(found.items())
    ]
    return replace(work, count=first[names[0]], shares=tuple(shares))


def compare_with_libnccl(random: Generator, oracle: Oracle, theirs: Connected, call: Alone) -> str | None:
    """The call's schedule against that of libnccl's work on its channels, which is carried out; what differs."""
    count = call.bytes // call.request.unit_bytes(call.ranks)
    issued = IssuedCall(call.request.collective, call.request.dtype, count, 0, call.request.op)
    across = summarize(theirs)
    own, other = schedule(call.work, call.across), schedule(work_of(oracle.launch_in_full([issued]), call.work), across)
    for rank in range(call.ranks):
        if list(own.steps(rank)) != list(other.steps(rank)):
            return f"{call.title}: rank {rank}"
    try:
        collective = call.request.collective
        scheduled_numbers.of_collective(random, other, collective, call.work.count, across.ranks_of_nodes)
    except AssertionError as error:
        return f"{call.title}: {error}"
    return None


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_launches_has_the_same_schedule(nccl: str, draws: Draws) -> None:
    random, differences = draws.generator(nccl), list[str | None]()
    for _ in range(draws.times):
        scenario, calls = drawn_calls(random, nccl, 2)
        with Oracle(scenario.oracle_configuration()) as oracle:
            theirs = oracle.connected()
            differences += [compare_with_libnccl(random, oracle, theirs, call) for call in calls]
    assert len(differences) >= draws.times
    assert [each for each in differences if each is not None] == []
