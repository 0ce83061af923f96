"""Calls on registered buffers, and NCCL_CTA_POLICY, against libnccl: picks, channels, threads, connections."""

import contextlib
import dataclasses
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.connections import MOST_RANKS, connections, differences, drawn, marked
from tests.support.draws import Draws
from tests.support.random_windows import registering
from tuner import release
from tuner.answers.scale import CountQuery, scale
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.connect.network import ORDER
from tuner.emulator.group import Operation
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check, sizes_bytes
from tuner.scenario import Scenario
from tuner.scenario.description import Members
from tuner.scenario.p2p import network_of

REGISTERED = [Request(collective, DataType.float32, Op.sum, buffers=Buffers.registered) for collective in Collective]
SHAPES = [("dgx-h100", 1, 8), ("dgx-h100", 1, 3), ("dgx-h100", 2, 8), ("dgx-b200", 2, 2), ("dgx-a100", 1, 8)]
SETTINGS = [
    {"NCCL_ALGO": "NVLS,NVLSTree"},
    {"NCCL_ALGO": "NVLS,NVLSTree", "NCCL_MAX_CTAS": "3"},
    {"NCCL_ALGO": "NVLS,NVLSTree", "NCCL_MIN_CTAS": "7"},
    {"NCCL_ALGO": "NVLS,NVLSTree", "NCCL_NVLS_NCHANNELS": "2"},
    {"NCCL_ALGO": "NVLS,NVLSTree", "NCCL_LOCAL_REGISTER": "0"},
    {"NCCL_MAX_NCHANNELS": "20", "NCCL_PROTO": "Simple"},
]
POLICIES = ["1", "2", "default|efficiency", "7"]
IN_PLACE = [dataclasses.replace(request, in_place=True) for request in REGISTERED]
CAPTURED = [dataclasses.replace(request, buffers=Buffers.graph) for request in REGISTERED]
WINDOWS = [dataclasses.replace(request, buffers=Buffers.window) for request in REGISTERED]
WINDOW_SETTINGS = [
    {"NCCL_MAX_CTAS": "5"},
    {"NCCL_MIN_CTAS": "3"},
    {"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "16"},
    {"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "6"},
    {"NCCL_CTA_POLICY": "2"},
    {"NCCL_CTA_POLICY": "1"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_ALGO": "Ring"},
    {"NCCL_ALGO": "Ring", "NCCL_CTA_POLICY": "2"},
    {"NCCL_SYM_CTAS": "9", "NCCL_MAX_CTAS": "5", "NCCL_SYM_CE_THRESHOLD": "4097"},
    {"NCCL_SYM_CTAS": "100", "NCCL_NVLS_ENABLE": "0", "NCCL_SYM_CE_THRESHOLD": "-1"},
]
TYPES_AND_OPS = [
    (DataType.float16, Op.sum),
    (DataType.bfloat16, Op.avg),
    (DataType.float64, Op.sum),
    (DataType.int32, Op.sum),
    (DataType.float32, Op.avg),
    (DataType.float16, Op.max),
    (DataType.int8, Op.avg),
]
REGISTERS = [name for name in HERE if release.load(name).rules.registered]


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
@pytest.mark.parametrize("name", REGISTERS)
def test_registered(name: str, machine: str, nodes: int, gpus: int) -> None:
    report = check(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus), REGISTERED)
    assert report.mismatches == ()
    assert report.compared["channels"] >= 5 * 60


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_random_communicators(name: str, draws: Draws) -> None:
    """All collectives that the variables leave an algorithm, registered and in CUDA graphs, out of place and in place.

    Some are refused: BadInput.
    """
    random, every = draws.random(f"registered {name}"), CAPTURED + (REGISTERED if name in REGISTERS else [])
    for _ in range(draws.times):
        scenario = registering(name, random)
        selection, requests = Selection(scenario.communicator()), list[Request]()
        for request in [*every, *(dataclasses.replace(request, in_place=True) for request in every)]:
            with contextlib.suppress(BadInput):
                if selection.usable(request):
                    selection.pick(request, sizes_bytes(request, selection.communicator.ranks))
                    requests.append(request)
        report = check(scenario, requests)
        assert report.mismatches == (), f"{scenario.title} {scenario.environment}"
        assert report.compared["channels"] >= len(requests)


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES[:3])
@pytest.mark.parametrize("name", REGISTERS)
def test_captured(name: str, machine: str, nodes: int, gpus: int) -> None:
    report = check(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus), CAPTURED, [3 << 22, 3 << 26])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 5 * 2


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", REGISTERS)
def test_settings(name: str, settings: dict[str, str]) -> None:
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, environment=settings)
    selection = Selection(scenario.communicator())
    report = check(scenario, [request for request in REGISTERED if selection.usable(request)])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 60


TWENTY_CHANNELS = {
    "NCCL_MIN_NCHANNELS": "20", "NCCL_MAX_NCHANNELS": "20", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"
}  # fmt: skip
CAP = "cap_17_to_24_channels_at_16"


@pytest.mark.parametrize("name", REGISTERS)
def test_seventeen_to_twenty_four_channels(name: str) -> None:
    """Become 16 where all peers are direct ones: of eight GPUs of dgx-1v, some reach others over a third."""
    every = Scenario(nccl=name, machine="dgx-1v", nodes=1, gpus_per_node=4, environment=TWENTY_CHANNELS)
    over_a_third = dataclasses.replace(every, gpus_per_node=8)
    capped = CAP in release.load(name).rules.registered
    over_a_gpu = capped and release.load(name).registration.peers == "connected"
    expected = (16 if capped else 20, 16 if over_a_gpu else 20)
    for scenario, channels in zip((every, over_a_third), expected, strict=True):
        assert Selection(scenario.communicator()).pick(REGISTERED[Collective.Broadcast], 1 << 30).channels == channels
        report = check(scenario, [*REGISTERED, *IN_PLACE, *CAPTURED])
        assert report.mismatches == ()
        assert report.compared["channels"] >= 60


@pytest.mark.parametrize("setting", [{}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_P2P_DISABLE": "1"}], ids=str)
@pytest.mark.parametrize("name", [name for name in REGISTERS if CAP in release.load(name).rules.registered])
def test_seventeen_to_twenty_four_channels_without_peer_to_peer(name: str, setting: dict[str, str]) -> None:
    """Stay, as PCIe of these nodes joins no two GPUs of two sockets."""
    scenario = Scenario(nccl=name, machine="pcie-l40s-no-p2p", nodes=1, environment=TWENTY_CHANNELS | setting)
    assert Selection(scenario.communicator()).pick(REGISTERED[Collective.Broadcast], 1 << 30).channels == 20
    report = check(scenario, [REGISTERED[Collective.Broadcast], CAPTURED[Collective.AllReduce]])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 100


@pytest.mark.parametrize("name", HERE)
def test_captured_and_in_place(name: str) -> None:
    """On NVLS both are as out of place, where the release registers what is captured."""
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1)
    requests = [*CAPTURED, *IN_PLACE] if name in REGISTERS else CAPTURED
    requests += [dataclasses.replace(request, in_place=True) for request in CAPTURED]
    report = check(scenario, requests)
    assert report.mismatches == ()
    assert report.compared["channels"] >= 10 * 60


@pytest.mark.parametrize(
    ("buffers", "in_place", "setting", "channels"),
    [
        (Buffers.plain, True, {}, 20),
        (Buffers.registered, True, {}, 20),
        (Buffers.graph, False, {}, 16),
        (Buffers.graph, True, {}, 20),
        (Buffers.graph, False, {"NCCL_GRAPH_REGISTER": "0"}, 20),
        (Buffers.graph, False, {"NCCL_LOCAL_REGISTER": "0"}, 16),
    ],
)
def test_what_is_captured_or_in_place_has_channels_of_its_own(
    buffers: Buffers, in_place: bool, setting: dict[str, str], channels: int
) -> None:
    """Or the tests above would compare what plain buffers get."""
    environment = TWENTY_CHANNELS | setting
    scenario = Scenario(nccl="2.28.9", machine="dgx-1v", nodes=1, gpus_per_node=4, environment=environment)
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=buffers, in_place=in_place)
    assert Selection(scenario.communicator()).pick(request, 1 << 30).channels == channels
    assert check(scenario, [request], [1 << 30]).mismatches == ()


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "setting", "collective", "as_buffers"),
    [
        ("dgx-h100", 1, 8, {}, Collective.AllReduce, Buffers.plain),  # NVLS
        ("dgx-h100", 1, 8, {}, Collective.AllGather, Buffers.plain),  # 24 channels of rings
        ("dgx-1v", 1, 4, TWENTY_CHANNELS, Collective.Broadcast, Buffers.plain),
        ("dgx-h100", 4, 1, {}, Collective.AllGather, Buffers.graph),  # the network
    ],
)
@pytest.mark.parametrize("name", REGISTERS)
def test_captured_memory_of_cuda_malloc_is_registered_with_the_network_alone(
    name: str,
    machine: str,
    nodes: int,
    gpus: int,
    setting: dict[str, str],
    collective: Collective,
    as_buffers: Buffers,
) -> None:
    """PyTorch's: no other process maps it and no multicast binds it, so that over NVLink it is as plain buffers are."""
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=setting)
    selection, sizes = Selection(scenario.communicator()), [1 << 26, 1 << 30]
    asked = scenario.oracle_configuration()
    with Oracle(dataclasses.replace(asked, env={**asked.env, "NCCL_TUNER_SIM_MEMORY": "cudaMalloc"})) as oracle:
        launched = [each.channels for each in oracle.launch(CAPTURED[collective], sizes)]
    expected = dataclasses.replace(CAPTURED[collective], buffers=as_buffers)
    assert launched == [selection.pick(expected, size).channels for size in sizes]


def test_captured_memory_of_cuda_malloc_differs_from_what_nccl_registers() -> None:
    """Or the test above would compare what is the same anyway."""
    for machine, nodes, collective, channels in (
        ("dgx-h100", 1, Collective.AllReduce, (4, 16)),
        ("dgx-h100", 1, Collective.AllGather, (16, 24)),
        ("dgx-h100", 4, Collective.AllGather, (1, 4)),
    ):
        scenario = Scenario(nccl="2.30.7", machine=machine, nodes=nodes, gpus_per_node=1 if nodes > 1 else 8)
        selection = Selection(scenario.communicator())
        plain = dataclasses.replace(CAPTURED[collective], buffers=Buffers.plain)
        found = tuple(selection.pick(each, 1 << 30).channels for each in (CAPTURED[collective], plain))
        assert found == channels


@pytest.mark.each_choice
@pytest.mark.parametrize(("nodes", "gpus", "per_process"), [(1, 8, 2), (1, 8, 8), (2, 4, 3)])
@pytest.mark.parametrize("name", HERE)
def test_several_gpus_per_process(name: str, nodes: int, gpus: int, per_process: int) -> None:
    network = {"NCCL_GIN_TYPE": "3"} if nodes > 1 else {}
    scenario = Scenario(
        nccl=name,
        machine="dgx-h100",
        nodes=nodes,
        gpus_per_node=gpus,
        gpus_per_process=per_process,
        environment=network,
    )
    requests = [*CAPTURED, *REGISTERED] if name in REGISTERS else CAPTURED
    windows = WINDOWS if release.load(name).rules.non_classic_path != "classic_path_only" else []
    sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 28]
    # Apart: a communicator that has had windows knows more, of which the order of calls on other buffers depends.
    reports = [check(scenario, each, sizes) for each in (requests, windows) if each]
    assert [report.mismatches for report in reports] == [()] * len(reports)
    assert reports[0].compared["channels"] >= 25


def test_nvls_takes_no_registered_buffers_of_processes_with_several_gpus() -> None:
    """Or the test above would compare what processes of one GPU get; refused where that is not emulated."""
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1)
    together = dataclasses.replace(scenario, gpus_per_process=2)
    channels = [
        Selection(each.communicator()).pick(REGISTERED[Collective.AllReduce], 1 << 28).channels[0]
        for each in (scenario, together)
    ]
    assert channels == [4, 16]
    efficient = dataclasses.replace(together, environment={"NCCL_CTA_POLICY": "1"})
    with pytest.raises(BadInput, match="if a process has several GPUs"):
        Selection(efficient.communicator()).pick(REGISTERED[Collective.AllGather], 1 << 20)
    merged = {"NCCL_NET_MERGE_LEVEL": "SYS"}
    with pytest.raises(BadInput, match="for the first rank of a process"):
        dataclasses.replace(together, nodes=2, environment=merged).communicator()
    with pytest.raises(BadInput, match="not with ranks= or ranks_per_gpu="):
        dataclasses.replace(together, nccl="2.32.3", gpus_per_node=2, ranks_per_gpu=2).communicator()


KEPT = (Collective.AllGather, Collective.Broadcast)
REACHES = {"dgx-h100": "PXB", "pcie-l40s": "PHB", "a100-4x-1nic": "SYS", "gh200-4x": "P2C"}  # the adapter, in 2.28.9


@pytest.mark.each_choice
@pytest.mark.parametrize("machine", REACHES)
@pytest.mark.parametrize("name", REGISTERS)
def test_lone_ranks(name: str, machine: str) -> None:
    report = check(Scenario(nccl=name, machine=machine, nodes=2, gpus_per_node=1), REGISTERED)
    assert report.mismatches == ()
    assert report.compared["channels"] >= 5 * 60


@pytest.mark.parametrize("gpu_direct", [True, False])
@pytest.mark.parametrize("name", ["2.27.7", "2.28.9"])
def test_adapters_of_the_processor(name: str, gpu_direct: bool, tmp_path: Path) -> None:
    """A path over C2C and PCIe does not tell whether the adapter reads the GPU's memory."""
    scenario = _grace(tmp_path, name, [gpu_direct] * 4)
    channels = Selection(scenario.communicator()).pick(REGISTERED[Collective.AllGather], 1 << 30).channels
    assert (channels == 1) == gpu_direct
    report = check(scenario, [REGISTERED[collective] for collective in KEPT])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 2 * 60


@pytest.mark.parametrize("gpu_direct", [[True, False, True, True], [False, True, True, True]], ids=str)
def test_adapters_of_which_only_some_read_gpu_memory(gpu_direct: list[bool], tmp_path: Path) -> None:
    """What counts are those of the ring."""
    scenario = _grace(tmp_path, "2.28.9", gpu_direct)
    report = check(scenario, [REGISTERED[collective] for collective in KEPT])
    assert report.mismatches == ()
    assert report.compared["channels"] >= 2 * 60


@pytest.mark.each_choice
@pytest.mark.parametrize("machine", ["pcie-l40s", "gh200-4x", "dgx-h100"])
@pytest.mark.parametrize("name", ["2.27.7", "2.28.9", "2.32.3"])
def test_variables_of_gpu_direct(name: str, machine: str) -> None:
    """They decide whether adapters take the buffers, by adapter."""
    channels = set[int]()
    for variable in ("NCCL_NET_GDR_LEVEL=SYS", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_NET_GDR_READ=0", "NCCL_NET_GDR_C2C=0"):
        scenario = Scenario(
            nccl=name, machine=machine, nodes=2, gpus_per_node=1, environment=dict([variable.split("=")])
        )
        report = check(scenario, [REGISTERED[collective] for collective in KEPT])
        assert report.mismatches == ()
        assert report.compared["channels"] >= 2 * 60
        pick = Selection(scenario.communicator()).pick(REGISTERED[Collective.AllGather], 1 << 30)
        channels.add(int(pick.channels[0]))
    assert len(channels) > 1


def _grace(folder: Path, name: str, gpu_direct: list[bool]) -> Scenario:
    able = iter(gpu_direct)
    xml = re.sub(
        r'(<net [^>]*)gdr="1"', lambda match: f'{match[1]}gdr="{next(able):d}"', catalogue.load("gh200-4x").topology_xml
    )
    file = folder / "topology.xml"
    file.write_text(xml)
    return Scenario(nccl=name, topology=file, nodes=2, gpus_per_node=1)


@pytest.mark.each_choice
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", HERE)
def test_policy(name: str, policy: str) -> None:
    """Releases that do not know it take no notice."""
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, environment={"NCCL_CTA_POLICY": policy})
    requests = [ALL_COLLECTIVES[2], *(REGISTERED[2:4] if name in REGISTERS else ())]
    report = check(scenario, requests)
    assert report.mismatches == ()
    assert report.compared["picks"] >= len(requests) * 40


def test_policy_moves_picks() -> None:
    """Or the test above would compare nothing."""
    request = REGISTERED[Collective.ReduceScatter]
    settings: list[dict[str, str]] = [{}, {"NCCL_CTA_POLICY": "1"}]
    cases = [Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1, environment=environment) for environment in settings]
    picks = [Selection(scenario.communicator()).pick(request, 1 << 26) for scenario in cases]
    assert picks[0].algorithm != picks[1].algorithm
    assert picks[0].time_us == picks[1].time_us


LEAVES = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
WINDOW_SHAPES = [("dgx-h100", 8), ("dgx-h100", 5), ("dgx-h100", 2), ("dgx-b200", 8), ("dgx-a100", 4)]


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "gpus"), WINDOW_SHAPES)
@pytest.mark.parametrize("name", LEAVES)
def test_windows(name: str, machine: str, gpus: int) -> None:
    report = check(Scenario(nccl=name, machine=machine, nodes=1, gpus_per_node=gpus), WINDOWS)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 5 * 60


NOT_ALL_BY_NVLINK = [("pcie-l40s", 4), ("pcie-l40s-no-p2p", 8), ("dgx-1v", 8), ("pcie-rtxpro6000", 2), ("dgx-1v", 3)]


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", [{}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_CTA_POLICY": "ZERO"}], ids=str)
@pytest.mark.parametrize(("machine", "gpus"), NOT_ALL_BY_NVLINK)
@pytest.mark.parametrize("name", LEAVES)
def test_windows_of_gpus_without_nvlink(name: str, machine: str, gpus: int, settings: dict[str, str]) -> None:
    report = check(Scenario(nccl=name, machine=machine, nodes=1, gpus_per_node=gpus, environment=settings), WINDOWS)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 5 * 60


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", WINDOW_SETTINGS, ids=str)
@pytest.mark.parametrize("name", LEAVES)
def test_settings_of_windows(name: str, settings: dict[str, str]) -> None:
    scenario = Scenario(nccl=name, machine="dgx-b200", nodes=1, gpus_per_node=4, environment=settings)
    report = check(scenario, [request for request in WINDOWS[2:] if Selection(scenario.communicator()).usable(request)])
    assert report.mismatches == ()
    assert report.compared["picks"] >= 3 * 60


@pytest.mark.parametrize("name", LEAVES)
def test_types_on_windows(name: str) -> None:
    reduced = (Collective.AllReduce, Collective.ReduceScatter)
    requests = [Request(c, dtype, op, buffers=Buffers.window) for dtype, op in TYPES_AND_OPS for c in reduced]
    scenario, missing = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=4), []
    for request in requests:
        try:
            Selection(scenario.communicator()).non_classic_paths(request, 1 << 20)
        except NoAlgorithm:
            missing.append(request)
    for request in missing:
        with Oracle(scenario.oracle_configuration()) as oracle, pytest.raises(OracleFailed, match="unknown red op"):
            oracle.launch_on_any_path(request, [1 << 20])
    requests = [request for request in requests if request not in missing]
    report = check(scenario, requests)
    assert report.mismatches == ()
    assert report.compared["picks"] >= 60 * len(requests)
    assert len(requests) >= 2 * len(TYPES_AND_OPS) - 2


def test_windows_leave() -> None:
    """Or the tests above would compare the classic path, and none of the kernels that copy in bulk."""
    without_switch = Scenario(nccl="2.32.3", machine="dgx-b200", nodes=1, environment={"NCCL_NVLS_ENABLE": "0"})
    bulk = Selection(without_switch.communicator()).non_classic_paths(WINDOWS[Collective.AllReduce], 1 << 30)[0]
    assert bulk is not None
    assert bulk.kernel == "AllReduce_RSxTmaLD_AGxTmaST"
    blackwell = Selection(Scenario(nccl="2.30.7", machine="dgx-b200", nodes=1).communicator())
    kernels = [
        non_classic and non_classic.kernel
        for non_classic in blackwell.non_classic_paths(WINDOWS[Collective.AllGather], [1 << 10, 1 << 20, 1 << 30])
    ]
    assert kernels == ["AllGather_LLMC", "AllGather_STMC", None]
    assert blackwell.non_classic_paths(WINDOWS[Collective.Broadcast], 1 << 20) == [None]
    with pytest.raises(BadInput, match="leaves the classic path for symmetric kernel"):
        blackwell.pick(WINDOWS[Collective.AllReduce], 1 << 20)
    with pytest.raises(BadInput, match="several nodes"):  # over EFA, of which it is not known whether it has GIN
        Selection(Scenario(nccl="2.30.7", machine="aws-p6-b200", nodes=2).communicator()).non_classic_paths(
            WINDOWS[4], 8
        )


def test_a_release_that_registers_nothing_says_so() -> None:
    selection = Selection(Scenario(nccl="2.18.3", machine="dgx-h100", nodes=1).communicator())
    with pytest.raises(BadInput, match=r"NCCL 2\.18\.3 registers no buffers"):
        selection.pick(REGISTERED[0], 1 << 20)


# Rules that tell buffers apart here
ALONE = {"one_for_one_rank_per_node_with_gdr", "near_adapters_for_one_rank_per_node_with_gdr"}


@pytest.mark.parametrize("name", [name for name in REGISTERS if ALONE & {*release.load(name).rules.registered}])
def test_a_group_after_registered_buffers_has_plain_ones(name: str) -> None:
    request = Request(Collective.Broadcast, DataType.float32, Op.sum)
    call = Operation(request, 64 << 20)
    with Oracle(Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=1).oracle_configuration()) as oracle:
        before = oracle.launch_group([call])
        (registered,) = oracle.launch(replace(request, buffers=Buffers.registered), [call.bytes])
        after = oracle.launch_group([call])
    assert before.kernels == after.kernels
    assert registered.channels != before.kernels[0].channels


HAVE_KERNELS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
SIZES = [3 << 12, 3 << 20, 3 << 26]  # that 3 and 6 ranks share
MOST_NODES = 2


def words(launched: NonClassicPath | OracleLaunch) -> tuple[str, int, int]:
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks, launched.threads
    return f"{launched.algorithm.name}/{launched.protocol.name}", launched.channels, launched.threads


@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("name", HAVE_KERNELS)
def test_libnccl_launches_what_scale_says(name: str, buffers: Buffers) -> None:
    scenario = Scenario(name, 1, machine="dgx-h100", gpus_per_node=3, environment={"NCCL_GIN_TYPE": "3"})
    request = Request(Collective.ReduceScatter, DataType.float32, Op.sum, buffers=buffers)
    found = scale(scenario, [request], SIZES, CountQuery(high=MOST_NODES, every=True)).ranges
    for nodes in range(1, MOST_NODES + 1):
        said = [one for one in found if one.first.count <= nodes <= one.last.count]
        with Oracle(scenario.with_nodes(nodes).resolve().oracle_configuration_to_launch()) as oracle:
            launched = oracle.launch_on_any_path(request, SIZES)
        for own, each in zip(said, launched, strict=True):
            assert (own.name, own.channels, own.threads) == words(each), (nodes, own.bytes)


WITH_NETWORK = [name for name in HERE if release.load(name).registration.network != "never"]
AT_ONCE = {"NCCL_RUNTIME_CONNECT": "0"}


@pytest.mark.parametrize("nccl", WITH_NETWORK)
def test_marks_are_what_nccl_says_of_rings_and_of_all_algorithms(nccl: str) -> None:
    """Rings of this machine keep to the GPUs that adapters are near, and trees of two ranks do not."""
    for settings in ({}, AT_ONCE):
        environment = {"NCCL_CROSS_NIC": "1", **settings}
        scenario = Scenario(nccl, 3, machine="aws-p4d", gpus_per_node=3, environment=environment)
        ours = [network_of(scenario.resolve(), rank, ORDER if settings else ()) for rank in range(scenario.ranks)]
        noted = marked(scenario.oracle_configuration())
        assert [(use.direct, use.relayed) for use in ours] == [(rank.direct, rank.relayed) for rank in noted]
        assert [use.relayed for use in ours].count(True) == (2 if settings else 0)


@pytest.mark.parametrize("nccl", WITH_NETWORK[-1:])
@pytest.mark.parametrize("ranks", [(3, 10), (0, 1, 8, 13)])
def test_nodes_of_a_part_differ_in_which_adapters_are_near(nccl: str, ranks: tuple[int, ...]) -> None:
    scenario = Scenario(nccl, 2, machine="dgx-b200", members=Members(ranks, shares=False, by="split"))
    ours = [network_of(scenario.resolve(), rank) for rank in range(len(ranks))]
    noted = marked(scenario.oracle_configuration())
    assert [(use.direct, use.relayed) for use in ours] == [(rank.direct, rank.relayed) for rank in noted]


@pytest.mark.parametrize("nccl", WITH_NETWORK[-1:])
def test_ranks_that_connect_note_what_is_emulated(nccl: str, draws: Draws) -> None:
    most = 4 if draws.times == 1 else MOST_RANKS
    small = (each for each in drawn(nccl, draws.seed, 100 * draws.times) if each[0].ranks <= most)
    for scenario, how in islice(small, draws.times):
        found, ranks, _ = differences(scenario, how)
        assert not found, f"{scenario.title} {scenario.environment} {how}"
        assert ranks > 1


def test_releases_that_note_nothing_are_refused() -> None:
    nccl = next(name for name in HERE if name not in WITH_NETWORK)
    old = Scenario(nccl, 2, machine="dgx-h100", gpus_per_node=1).oracle_configuration()
    for asked in (marked, lambda configuration: connections(configuration, [])):
        with pytest.raises(BadInput, match=r"valid: 2\.24\.3 and later"):
            asked(old)
