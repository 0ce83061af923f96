"""The plugin with a table, for groups and where symmetric kernels may take calls, against libnccl that loads it."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

from tests.support.available_releases import HERE, WITH_PLUGINS
from tests.support.draws import Draws
from tests.support.plugin_tables import interface, table_of
from tests.support.random_groups import random_groups
from tests.support.random_windows import drawn
from tests.support.tables_on_windows import differing as calls_differing
from tuner import plugin, release
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import compare
from tuner.plugin.asked import FileTuner, opened
from tuner.scenario import Scenario

EMULATED = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 2]
KIB = 1 << 10
KINDS = tuple(Collective)
AR = Request(Collective.AllReduce, DataType.float32, Op.sum)
TABLES = [
    ["allreduce -> ring/simple channels=2"],
    ["allreduce bytes=..512K -> ring/simple channels=2", "allreduce bytes=..2M -> ring/simple channels=3"],
    ["allreduce bytes=1M.. -> tree/simple channels=5", "allgather -> ring/simple channels=3", "broadcast -> ring/ll"],
    ["reducescatter bytes=..1M -> ring/ll channels=1", "allreduce bytes=64K..16M -> ring/ll channels=7"],
]


def machine(nccl: str) -> Scenario:
    return Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=2)


def differing(scenario: Scenario, table: Path, groups: list[list[Operation]]) -> list[object]:
    selection = Selection(scenario.communicator())
    found: list[object] = []
    described = scenario.oracle_configuration()
    env = {**described.env, "NCCL_TUNER_TABLE": str(table)}
    configuration = replace(described, env=env, plugin=plugin.path())
    with Oracle(configuration) as oracle, opened(table, selection) as asked:
        for number, operations in enumerate(groups):
            values = compare(selection, oracle, plan(selection, operations, asked))
            kernels = {where: both for where, both in values.items() if where.startswith("kernel")}
            assert len(kernels) >= 2 * len(operations)
            found += [(number, where, both) for where, both in kernels.items() if both[0] != both[1]]
    return found


@pytest.mark.parametrize("nccl", EMULATED)
def test_channels_bind_each_operation(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, *TABLES[0])
    operations = [Operation(AR, 512 * KIB)] * 4
    selection = Selection(machine(nccl).communicator())
    with opened(table, selection) as asked:
        group = plan(selection, operations, asked)
    assert [len(kernel.channels) for kernel in group.kernels] == [8]
    assert {len(pick.channels) for pick in group.picks} == {2}
    assert differing(machine(nccl), table, [operations]) == []


@pytest.mark.parametrize("nccl", EMULATED)
def test_threads_at_sizes_too_small_for_a_rows_channels(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll128 channels=16", "allgather -> ring/simple channels=3")
    gather = Request(Collective.AllGather, DataType.float32, Op.sum)
    groups = [[Operation(kind, size * KIB)] * 3 for kind in (AR, gather) for size in (1, 8, 64, 512)]
    assert differing(machine(nccl), table, groups) == []


@pytest.mark.parametrize("gpus", [4, 8])
@pytest.mark.parametrize("nccl", [nccl for nccl in ("2.30.7", "2.31.2", "2.32.3") if nccl in EMULATED])
def test_rows_that_name_pat_with_several_ranks_per_node(nccl: str, gpus: int, tmp_path: Path) -> None:
    """From 2.31 on NCCL marks PAT there as without a time, and runs it when told; before, it cannot."""
    table = table_of(tmp_path, "allgather -> pat/simple", "reducescatter bytes=..1M -> pat/simple channels=3 | ring/ll")
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=gpus)
    kinds = [Request(each, DataType.float32, Op.sum) for each in (Collective.AllGather, Collective.ReduceScatter)]
    groups = [[Operation(kind, size)] for kind in kinds for size in (1 * KIB, 64 * KIB, 3 * 512 * KIB, 16384 * KIB)]
    selection = Selection(scenario.communicator())
    with opened(table, selection) as asked:
        picked = {plan(selection, group, asked).picks[0].algorithm for group in groups[:2]}
    assert (picked == {Algorithm.PAT}) == (nccl != "2.30.7")
    assert differing(scenario, table, groups) == []


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", TABLES, ids=range(len(TABLES)))
@pytest.mark.parametrize("nccl", EMULATED)
def test_groups_of_all_kinds_and_sizes(nccl: str, rows: list[str], tmp_path: Path) -> None:
    groups = list(random_groups(Selection(machine(nccl).communicator()), 24))
    sizes = [64 * KIB << place % 6 for place in range(12)]
    groups += [[Operation(AR, size) for size in sizes[:count]] for count in (2, 5, 12)]
    assert differing(machine(nccl), table_of(tmp_path, *rows), groups) == []


@pytest.mark.each_choice
@pytest.mark.parametrize(("name", "nodes", "gpus"), [("dgx-h100", 2, 2), ("dgx-h100", 1, 8), ("dgx-a100", 2, 4)])
@pytest.mark.parametrize("nccl", WITH_PLUGINS)
def test_single_calls(nccl: str, name: str, nodes: int, gpus: int, tmp_path: Path) -> None:
    """Also channels beyond those that there are, and rows whose choice cannot run."""
    draw = Random(f"{nccl} {name}")
    rows = []
    for kind, interval in product(KINDS, ("..16K", "32K..1M", "2M..")):
        choice = draw.choice(["ring/ll", "ring/ll128", "ring/simple", "tree/ll", "tree/simple", "nvls/simple"])
        channels = draw.choice([0, 1, 3, 8, 16, 24, 32])
        rows.append(f"{kind.name.lower()} bytes={interval} -> {choice}" + f" channels={channels}" * (channels > 0))
    table = table_of(tmp_path, *rows)
    alone = Scenario(nccl=nccl, machine=name, nodes=nodes, gpus_per_node=gpus)
    selection = Selection(replace(alone, tuner=FileTuner("table", table)).communicator())
    configuration = alone.oracle_configuration()
    env = {**configuration.env, "NCCL_TUNER_TABLE": str(table)}
    with Oracle(replace(configuration, env=env, plugin=plugin.path())) as oracle:
        for kind in KINDS:
            request = Request(kind, DataType.float32, Op.sum)
            unit = request.unit_bytes(nodes * gpus)
            sizes = [size // unit * unit for size in (320, 10000, 16384, 1 << 17, 1 << 20, 5000000, 1 << 28)]
            picks = selection.pick(request, sizes)
            emulated = zip(picks.algorithm, picks.protocol, picks.channels, picks.threads, strict=True)
            launched = [
                (one.algorithm, one.protocol, one.channels, one.threads) for one in oracle.launch(request, sizes)
            ]
            assert list(emulated) == launched, rows


def test_releases_that_ask_in_another_way_are_refused(tmp_path: Path) -> None:
    selection = Selection(machine("2.20.5").communicator())
    refused = pytest.raises(BadInput, match=r"groups with a table are not emulated for NCCL .*: use 2\.21 or later")
    with opened(table_of(tmp_path, *TABLES[0]), selection) as asked, refused:
        plan(selection, [Operation(AR, 512 * KIB)], asked)


WITH_WINDOWS = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
TAKE_PLAIN_BUFFERS = [name for name in WITH_WINDOWS if release.load(name).rules.symmetric_low_latency]
WITHOUT_WINDOWS = {"NCCL_SYM_NOWIN_ENABLE": "1"}
SIZES = [1 << 10, 15504, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28]
ROWS = [  # Ring/LL where NCCL takes another protocol, and the other way round; 2.31 asks with no operations as well
    "allreduce bytes=..4K -> ring/simple channels=2",
    "allreduce bytes=64M..64M pipelined=0 -> ring/ll channels=3",
    "allgather bytes=..4000 -> ring/ll",
    "allreduce bytes=256M.. -> ring/ll channels=3",
    "allgather bytes=16K.. -> ring/simple",
]


@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_windows(name: str, collective: Collective, tmp_path: Path) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200", gpus_per_node=4)
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window)
    says, found = calls_differing(scenario, request, SIZES, tmp_path, ROWS)
    assert found == []
    low_latency_is_the_tuners = "low_latency" in release.load(name).rules.non_classic_path
    assert bool(says["changed"]) == low_latency_is_the_tuners
    assert says["no say"] == len(SIZES) - says["its choice"] - says["its protocol"]


@pytest.mark.parametrize("collective", [Collective.AllReduce, Collective.AllGather])
@pytest.mark.parametrize("name", TAKE_PLAIN_BUFFERS)
def test_plain_buffers(name: str, collective: Collective, tmp_path: Path) -> None:
    scenario = Scenario(name, 1, machine="dgx-b200", gpus_per_node=4, environment=WITHOUT_WINDOWS)
    says, found = calls_differing(scenario, Request(collective, DataType.float32, Op.sum), SIZES, tmp_path, ROWS)
    assert found == []
    assert says["no say"] == 0
    assert says["changed"] >= 2
    assert says["its choice"] > 0
    if collective is Collective.AllReduce:  # the table's AllGather is LL nowhere
        assert says["its protocol"] > 0


CHOICES = [
    f"{algorithm.name.lower()}/{protocol.name.lower()}"
    for algorithm in (Algorithm.Ring, Algorithm.Tree, Algorithm.NVLS)
    for protocol in Protocol
]


def rows(draw: Random) -> list[str]:
    """Rows of a table for any collective, some for one number of operations that NCCL counts together."""
    made = []
    for _ in range(draw.randint(1, 4)):
        low, high = sorted(int(2 ** draw.uniform(3, 33)) for _ in range(2))
        sizes = draw.choice(("", f"bytes={low}..{high}", f"bytes=..{high}", f"bytes={low}.."))
        collective = draw.choice(("allreduce", "allgather", "reducescatter"))
        pipelined = draw.choice(("", "", "", "pipelined=0", "pipelined=1"))
        choices, channels = " | ".join(draw.sample(CHOICES, 2)), draw.choice(("", "", "channels=2", "channels=5"))
        made.append(" ".join(f"{collective} {sizes} {pipelined} -> {choices} {channels}".split()))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_random_tables(name: str, draws: Draws, tmp_path: Path) -> None:
    random, number, bypassing = draws.random(f"tables {name}"), 0, 0
    while bypassing < draws.times:
        scenario, request, sizes = drawn(name, random)
        table = rows(random)
        if request.buffers is not Buffers.window:  # registered ones: test_buffers.py
            request = replace(request, buffers=Buffers.plain)
            scenario = replace(scenario, environment={**(scenario.environment or {}), **WITHOUT_WINDOWS})
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            says, found = calls_differing(scenario, request, sizes[::4], folder, table)
        except (BadInput, NoAlgorithm):
            continue
        assert found == [], f"{scenario.title} {scenario.environment} {table}"
        bypassing += says["no say"] + says["its protocol"] > 0
