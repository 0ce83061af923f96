"""Calls on windows of every kind against libnccl, on one node and several: picks, channels, edges."""

from itertools import product
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.random_windows import drawn, emulated
from tuner import release
from tuner.answers.exchanges import ExchangeQuery, answers
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall, Sides, WindowFlag, Windows
from tuner.emulator.ranges import answers as answers_by_range
from tuner.emulator.request import COPY_ENGINES, NonClassicPath, Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.oracle.launches import IssuedCall
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

pytestmark = pytest.mark.live

WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
SYMMETRIC, GIN_ONLY = WindowFlag.COLL_SYMMETRIC, WindowFlag.GIN_ONLY
NODES: dict[int, dict[str, str]] = {1: {}, 2: {"NCCL_GIN_TYPE": "3"}}


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


SHARED_MEMORY = {"1": True, "-2": True, "2": True, "0": False, "-1": False, "word": None}  # of NCCL_CUMEM_ENABLE


@pytest.mark.parametrize(("machine", "nodes"), [("dgx-h100", 1), ("pcie-l40s", 2), ("dgx-1v", 1)])
@pytest.mark.parametrize("name", HERE)
def test_buffers_of_every_kind_with_and_without_memory_that_processes_share(
    name: str, machine: str, nodes: int
) -> None:
    """NCCL_CUMEM_ENABLE=0, as vLLM sets it, and 1, as SGLang does for its symmetric memory."""
    size = [1 << power for power in (12, 22, 28)]
    shape = {"nodes": nodes, "machine": machine, "gpus_per_node": 4}
    for value in SHARED_MEMORY if machine == "dgx-h100" and name in HERE[-2:] else ("0", "1"):
        settings = {"NCCL_CUMEM_ENABLE": value, "NCCL_GIN_TYPE": "0"}
        scenario = Scenario(name, environment=settings, **shape)  # type: ignore[arg-type]
        asked = [
            Request(collective, DataType.bfloat16, Op.sum, buffers=buffers)
            for buffers in Buffers
            if missing(release.load(name), buffers) is None
            for collective in (Collective.AllReduce, Collective.AllGather, Collective.Broadcast)
        ]
        report = check(scenario, asked, size)
        assert report.mismatches == (), value
        assert report.compared["channels"] == len(asked) * len(size)


def test_no_window_is_made_of_memory_that_processes_do_not_share() -> None:
    request = Request(Collective.AllReduce, DataType.bfloat16, Op.sum, buffers=Buffers.window)
    for value, shared in SHARED_MEMORY.items():
        scenario = Scenario("2.28.9", 1, machine="dgx-h100", environment={"NCCL_CUMEM_ENABLE": value})
        (path,) = Selection(scenario.communicator()).non_classic_paths(request, [1 << 20])
        assert (path is not None) is bool(shared)


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
            launched = oracle.launch_in_full([call], buffers=Buffers.window, windows=windows).kernels
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
            launched = oracle.launch_in_full([call], buffers=Buffers.window, windows=Windows(sides)).kernels
            asked = ExchangeQuery(function, [1 << 20], DataType.float32, 0, 0, Buffers.window, Windows(sides))
            (answer,) = answers(scenario, asked)
            assert answer.launch is not None
            exchanged = function is PeerCall.AllToAll and sides is Sides.both
            assert bool(answer.launch.copy_engines) == (not launched) == (copies and exchanged)


MOST_BYTES = 1 << 34


def words(launched: NonClassicPath | OracleLaunch) -> tuple[str, int, int]:
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks, launched.threads
    return f"{launched.algorithm.name}/{launched.protocol.name}", launched.channels, launched.threads


@pytest.mark.each_choice
@pytest.mark.parametrize("collective", [Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter])
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_libnccl_launches_what_the_ranges_say_on_both_sides_of_each_edge(name: str, collective: Collective) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200")
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window)
    found = answers_by_range(Selection(scenario.communicator()), request, high=MOST_BYTES).records(request)
    unit = request.unit_bytes(scenario.ranks)
    said: dict[int, tuple[str, int, int]] = {}
    for each in found:
        first, last = -(-each.from_bytes // unit) * unit, each.to_bytes // unit * unit  # of those that calls have
        said |= {size: (each.name, each.channels, each.threads) for size in (first, last) if first <= last}
    assert len(said) >= 10
    with Oracle(scenario.resolve().oracle_configuration_to_launch(), timeout_s=120) as oracle:
        launched = oracle.launch_on_any_path(request, list(said))
    assert dict(zip(said, map(words, launched), strict=True)) == said


WITH_RAILS = [name for name in WITH_WINDOWS if release.load(name).symmetric.rail]
OFFERED, NO_GIN = {"NCCL_GIN_TYPE": "3"}, {"NCCL_GIN_TYPE": "0"}
WITH_RAIL_KERNELS = (Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce)
GIN_SETTINGS = [
    {"NCCL_SYM_CTAS": "7"},
    {"NCCL_MIN_CTAS": "5", "NCCL_MAX_CTAS": "9"},
    {"NCCL_SYM_GIN_KERNELS_ENABLE": "0"},
    {"NCCL_SYM_RS_GIN_CHUNK_SIZE": "300000"},
    {"NCCL_NVLS_ENABLE": "0"},
]


def compare(scenario: Scenario, dtype: DataType = DataType.float32) -> None:
    """All three collectives on windows at sizes from a few bytes to gigabytes."""
    requests = [Request(collective, dtype, Op.sum, buffers=Buffers.window) for collective in WITH_RAIL_KERNELS]
    unit = max(request.unit_bytes(scenario.ranks) for request in requests)
    report = check(scenario, requests, [unit * max(1, 3 * 5**power // unit) for power in range(2, 14)])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 3 * 10


@pytest.mark.parametrize("name", WITH_RAILS)
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 2, 8), ("dgx-b200", 3, 2), ("dgx-a100", 2, 1)])
def test_kernels_of_rails(name: str, machine: str, nodes: int, gpus: int) -> None:
    compare(Scenario(name, nodes, machine=machine, gpus_per_node=gpus, environment=OFFERED), DataType.bfloat16)


@pytest.mark.parametrize("name", WITH_RAILS)
@pytest.mark.parametrize(
    "nodes",
    [
        ["dgx-h100:4", "dgx-h100:2"],
        ["dgx-h100:3", "dgx-h100:2"],
        ["dgx-h100:1", "dgx-h100:2"],
        ["dgx-a100:5", "oci-a100:8"],  # which merges adapters
        ["dgx-h100:4", "dgx-a100:2"],
        ["dgx-a100:4", "dgx-b200:4"],
        ["dgx-a100:4", "aws-p4d:4"],  # half as fast; in 2.29.7 each rank goes by its own
    ],
    ids=" ".join,
)
def test_nodes_that_differ(name: str, nodes: list[str]) -> None:
    compare(describe(node=nodes, nccl=name, env=OFFERED))


@pytest.mark.parametrize("name", WITH_RAILS)
def test_generations_without_nvls(name: str) -> None:
    compare(describe(node=["dgx-b200:4", "dgx-h100:2"], nccl=name, env=OFFERED | {"NCCL_NVLS_ENABLE": "0"}))


def test_gpus_of_several_kinds_within_a_node_are_refused(tmp_path: Path) -> None:
    """Symmetric kernels there go by each rank's own GPU."""
    path = tmp_path / "mixed.xml"
    path.write_text(catalogue.load("dgx-a100").topology_xml.replace('sm="80"', 'sm="100"', 1))
    request = Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window)
    with pytest.raises(BadInput, match="within a node or with NVLS"):
        Selection(Scenario("2.30.7", 1, topology=path).communicator()).non_classic_paths(request, [1 << 20])


@pytest.mark.parametrize("name", WITH_RAILS[-1:])
def test_copy_engines_want_nodes_of_as_many_ranks(name: str) -> None:
    compare(describe(node=["dgx-b200:4", "dgx-b200:2"], nccl=name, env=OFFERED | {"NCCL_CTA_POLICY": "2"}))


@pytest.mark.parametrize("name", WITH_RAILS[-1:])
@pytest.mark.parametrize("settings", GIN_SETTINGS, ids=lambda settings: next(iter(settings)))
def test_settings_between_nodes(name: str, settings: dict[str, str]) -> None:
    compare(Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=OFFERED | settings))


@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_without_gin(name: str) -> None:
    compare(Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=NO_GIN))


@pytest.mark.parametrize("name", WITH_RAILS)
def test_order_of_a_group(name: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=2, environment=OFFERED)
    report = check(scenario, sizes=[scenario.ranks << power for power in (10, 20)])
    assert report.mismatches == ()
    assert report.compared["groups"] > 50


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("2.30.7", 2, machine="aws-p5-rdma"),
        # the plugin brings its own there, or none
        Scenario("2.29.2", 2, machine="dgx-h100", environment={"NCCL_NET_PLUGIN": "hpcx"}),
    ],
    ids=["EFA", "a plugin"],
)
def test_whether_there_is_gin_has_to_be_said(scenario: Scenario) -> None:
    with pytest.raises(BadInput, match=r"whether the network lets GPUs start transfers \(GIN\) is not known"):
        Selection(scenario.communicator()).non_classic_paths(
            Request(Collective.AllGather, DataType.float32, Op.sum, buffers=Buffers.window), [1 << 20]
        )


@pytest.mark.parametrize("name", [name for name in WITH_WINDOWS if release.load(name).rules.windows_between_nodes])
def test_sockets_offer_no_gin(name: str) -> None:
    sizes = [1 << power for power in (12, 20, 28)]
    settings = {"NCCL_NET": "Socket"}
    scenario = Scenario(name, 2, machine="dgx-h100", gpus_per_node=4, environment=settings)
    report = check(
        scenario, [Request(each, DataType.float32, Op.sum, buffers=Buffers.window) for each in Collective], sizes
    )
    assert report.mismatches == ()
    assert report.compared["channels"] == len(Collective) * len(sizes)


@pytest.mark.parametrize("name", WITH_WINDOWS)
@pytest.mark.parametrize("buffers", [Buffers.window, Buffers.registered], ids=lambda each: each.name)
def test_a_host_that_nccl_takes_for_several_nodes(name: str, buffers: Buffers) -> None:
    """Its GPUs are joined inside each part, and by the network between them."""
    scenario = Scenario(name, 1, machine="dgx-h100", environment={"NCCL_P2P_DISABLE": "1"})
    assert scenario.communicator().nodes > 1
    requests = [Request(each, DataType.float32, Op.sum, buffers=buffers) for each in Collective]
    report = check(scenario, requests, [1 << power for power in (12, 20, 28)])
    assert report.mismatches == ()


FOLLOWED = [name for name in WITH_WINDOWS if release.load(name).rules.windows_between_nodes]


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize(("machine", "setting"), [("dgx-h100", {"NCCL_CROSS_NIC": "0"}), ("oci-h100", {})])
def test_networks_that_gin_is_not_for(name: str, machine: str, setting: dict[str, str]) -> None:
    """Rings that may not cross adapters, in 2.29.2 and 2.29.3, and adapters that NCCL merges, up to 2.30.4."""
    compare(Scenario(name, 2, machine=machine, gpus_per_node=4, environment=OFFERED | setting))


@pytest.mark.parametrize("name", WITH_RAILS)
@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        ("dgx-h100", {}),
        ("dgx-h100", {"NCCL_IB_DISABLE": "1"}),  # sockets, which offer none
        ("dgx-h100", {"NCCL_GIN_TYPE": ""}),
        ("gcp-a3-mega", {}),
        ("alps", {}),
    ],
    ids=str,
)
def test_whether_gin_is_offered_is_taken_from_the_network(name: str, machine: str, variables: dict[str, str]) -> None:
    """What the emulator takes the adapters to offer, libnccl is offered, too."""
    compare(Scenario(name, 2, machine=machine, environment=variables), DataType.bfloat16)
