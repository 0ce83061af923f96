"""Windows with any flags, and calls of which one buffer alone is in a window, against libnccl."""

from itertools import product

import pytest

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.random_windows import drawn, emulated
from tuner import release
from tuner.answers.exchanges import ExchangeQuery, answers
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall, Sides, WindowFlag, Windows
from tuner.emulator.request import COPY_ENGINES, Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.oracle.launches import IssuedCall
from tuner.scenario import Scenario

pytestmark = pytest.mark.live

WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
SYMMETRIC, GIN_ONLY = WindowFlag.COLL_SYMMETRIC, WindowFlag.GIN_ONLY
NODES = {1: {}, 2: {"NCCL_GIN_TYPE": "3"}}


def kinds(name: str) -> list[Windows]:
    """One buffer of each call in a symmetric window, and both with each other flag that the release has."""
    others: list[WindowFlag] = [
        WindowFlag.DEFAULT,
        *(WindowFlag[word] for word in release.load(name).symmetric.window_flags),
    ]
    flags: list[WindowFlag] = [flag for flag in others if flag not in (SYMMETRIC, WindowFlag.CFT_COUNTED)]
    if WindowFlag.STRICT_ORDERING in flags:
        flags.append(SYMMETRIC | WindowFlag.STRICT_ORDERING)
    one = [Windows(sides, flag) for sides in (Sides.send, Sides.receive) for flag in (SYMMETRIC, WindowFlag.DEFAULT)]
    return [*one, *(Windows(flags=flag) for flag in flags)]


def calls(name: str) -> list[Request]:
    return [
        Request(collective, DataType.bfloat16, Op.sum, buffers=Buffers.window, windows=windows)
        for collective in Collective
        for windows in kinds(name)
    ]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_windows_of_every_kind(name: str, nodes: int) -> None:
    scenario = Scenario(name, nodes, machine="dgx-h100", gpus_per_node=4, environment=NODES[nodes])
    sizes = [1 << power for power in (7, 12, 16, 19, 22, 28)]
    report = check(scenario, calls(name), sizes)
    assert report.mismatches == ()
    assert report.compared["channels"] == len(calls(name)) * len(sizes)


@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_random_calls_on_windows(name: str, draws: Draws) -> None:
    random, bypassing = draws.random(name), 0
    while bypassing < 2 * draws.times:
        scenario, request, sizes = drawn(name, random)
        if not emulated(scenario, request, sizes):
            continue
        paths = Selection(scenario.communicator()).non_classic_paths(request, sizes)
        if len(set(paths)) < 2:  # one kernel, or none, for all sizes tells little of the choice
            continue
        report = check(scenario, [request], sizes)
        assert report.mismatches == (), f"{scenario.title} {scenario.environment}"
        bypassing += 1


def test_kinds_differ() -> None:
    """Or the test above would compare the same over and over."""
    selection = Selection(Scenario("2.30.7", 1, machine="dgx-h100").communicator())
    found = set[str]()
    for call in calls("2.30.7"):
        (path,) = selection.non_classic_paths(call, 1 << 22)
        found.add(path.name if path else f"{call.collective.name} {selection.pick(call, 1 << 22).channels[0]}")
    assert {"symmetric kernel AllGather_LLMC", "symmetric kernel AllGather_STMC", "AllGather 24"} <= found
    assert {"symmetric kernel ReduceScatter_LL", "symmetric kernel ReduceScatter_LDMC"} <= found
    assert {"AllReduce 4", "AllReduce 16", "Broadcast 16", "Broadcast 22"} <= found


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (SYMMETRIC | GIN_ONLY, "cannot be combined with window capability-restriction flags"),
        (WindowFlag.CFT_COUNTED, "User requested COUNTED but the communicator does not support it"),
    ],
    ids=str,
)
def test_flags_that_nccl_refuses(flags: WindowFlag, words: str) -> None:
    scenario = Scenario("2.32.3", 1, machine="dgx-b200", gpus_per_node=2)
    request = Request(
        Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.window, windows=Windows(flags=flags)
    )
    with pytest.raises(BadInput, match="NCCL refuses"):
        Selection(scenario.communicator()).pick(request, 1 << 20)
    with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match=words):
        oracle.launch_on_any_path(request, [1 << 20])


COPIED = {"NCCL_CTA_POLICY": "2"}


@pytest.mark.parametrize("name", [name for name in WITH_WINDOWS if release.load(name).exchange.own_functions])
def test_copy_engines_reach_what_is_received(name: str) -> None:
    """Of AllToAll, Gather and Scatter: from the first release that looks at each buffer on, else both."""
    scenario = Scenario(name, 1, machine="dgx-h100", gpus_per_node=4, environment=COPIED)
    either = release.load(name).symmetric.windows_of_a_call == "any"
    with Oracle(scenario.oracle_configuration()) as oracle:
        for function, sides in product(
            (PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter), (Sides.send, Sides.receive)
        ):
            windows = Windows(sides)
            call = IssuedCall(function, DataType.float32, 1 << 16, 0)
            launched = oracle.launch_exchange([call], buffers=Buffers.window, windows=windows)
            (answer,) = answers(
                scenario, ExchangeQuery(function, [1 << 20], DataType.float32, 0, 0, Buffers.window, windows)
            )
            assert answer.launch is not None
            assert bool(answer.launch.copy_engines) == (not launched) == (either and sides is Sides.receive)


@pytest.mark.parametrize("setting", [{}, {"NCCL_CROSS_NIC": "0"}, {"NCCL_NUM_RMA_CTX": "0"}], ids=str)
@pytest.mark.parametrize("name", [name for name in WITH_WINDOWS if release.load(name).exchange.own_functions])
def test_copy_engines_between_nodes(name: str, setting: dict[str, str]) -> None:
    """AllGather and AllToAll of both windows, from the first release that copies there on, unless variables say no."""
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=NODES[2] | COPIED | setting)
    copies = release.load(name).rules.copies_between_nodes is not None and not setting
    gathers = [
        Request(Collective.AllGather, DataType.int8, Op.sum, buffers=Buffers.window, windows=windows)
        for windows in (Windows(), Windows(Sides.receive))
    ]
    (path,) = Selection(scenario.communicator()).non_classic_paths(gathers[0], 1 << 20)
    assert (path == COPY_ENGINES) == copies
    assert check(scenario, gathers, [1 << 10, 1 << 20]).mismatches == ()
    with Oracle(scenario.oracle_configuration()) as oracle:
        for function, sides in product(
            (PeerCall.AllToAll, PeerCall.Gather, PeerCall.Scatter), (Sides.both, Sides.receive)
        ):
            call = IssuedCall(function, DataType.float32, 1 << 16, 0)
            launched = oracle.launch_exchange([call], buffers=Buffers.window, windows=Windows(sides))
            asked = ExchangeQuery(function, [1 << 20], DataType.float32, 0, 0, Buffers.window, Windows(sides))
            (answer,) = answers(scenario, asked)
            assert answer.launch is not None
            exchanged = function is PeerCall.AllToAll and sides is Sides.both
            assert bool(answer.launch.copy_engines) == (not launched) == (copies and exchanged)
