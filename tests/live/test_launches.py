"""Launches in full against those of the live libnccl: every work structure and every operation of the network.

Many more of every release: `NCCL_TUNER_TEST_RELEASES=all pytest tests/live/test_launches.py --draw 1000 --draw-seed a`.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tuner
from tests.support.available_releases import HERE, WITH_PLUGINS
from tests.support.draws import Draws
from tests.support.plugin_tables import interface, table_of
from tests.support.random_launches import Drawn, compared, drawn, issued
from tests.support.table_launches import compared as compared_with_table
from tests.support.table_launches import rows_of, unforced
from tuner import plugin, release
from tuner.answers.tuners import with_tuner
from tuner.api import request
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol, Sides, Windows
from tuner.emulator import full_launch
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.selection import Selection
from tuner.emulator.tuner_plugin import CHUNKS_SINCE
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import launched_values
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.oracle_configuration import OracleConfiguration
from tuner.times.timemodel import features
from tuner.times.timemodel.form import nvls_chunk_bytes

pytestmark = pytest.mark.live
COMMUNICATORS, ALONE, GROUPS = 3, 20, 1
MOST_RANKS = 8  # of those on registered buffers, and of those with a table
FEW = 8  # calls alone of a communicator with a table
FORCED = 0.2  # of these on which NCCL_ALGO and NCCL_PROTO may be set


@pytest.mark.parametrize("nccl", HERE)
def test_random_launches_are_those_of_libnccl(nccl: str, draws: Draws) -> None:
    assert_equal(islice(drawn(nccl, draws.seed, ALONE, GROUPS), COMMUNICATORS * draws.times))


@pytest.mark.parametrize("nccl", WITH_PLUGINS)
def test_random_launches_with_a_table_are_those_of_libnccl(nccl: str, draws: Draws, tmp_path: Path) -> None:
    random, values, differing = draws.random(nccl), 0, list[str]()
    small = (each for each in drawn(nccl, draws.seed, FEW, GROUPS) if each.scenario.ranks <= MOST_RANKS)
    for number, forced in enumerate(islice(small, 2 * draws.times)):
        communicator = forced if random.random() < FORCED else unforced(forced)
        rows, folder = rows_of(random), tmp_path / str(number)
        folder.mkdir()
        for launch in filter(None, compared_with_table(communicator, rows, folder)):
            values += len(launch.values)
            differing += [
                f"{communicator.scenario.title}, {rows}, {what}: emulator {ours}, libnccl {theirs}"
                for what, (ours, theirs) in launch.values.items()
                if ours != theirs
            ]
    assert not differing, "\n".join(differing[:10])
    assert values > 0


def assert_equal(communicators: Iterable[Drawn]) -> None:
    values, differing = 0, []
    for communicator in communicators:
        for operations, _, both in compared(communicator):
            values += len(both)
            differing += [
                f"{communicator.scenario.title}, {operations[0]}, {what}: emulator {ours}, libnccl {theirs}"
                for what, (ours, theirs) in both.items()
                if ours != theirs
            ]
    assert not differing, "\n".join(differing[:10])
    assert values > COMMUNICATORS * ALONE * 10


@pytest.mark.each_choice
@pytest.mark.parametrize("buffers", [Buffers.registered, Buffers.graph, Buffers.window], ids=lambda each: each.name)
@pytest.mark.parametrize("nccl", HERE)
def test_random_launches_on_registered_buffers_are_those_of_libnccl(nccl: str, buffers: Buffers, draws: Draws) -> None:
    if missing(release.load(nccl), buffers) or not release.load(nccl).rules.registered:
        pytest.skip(f"NCCL {nccl} has no such buffers")
    small = (each for each in drawn(nccl, draws.seed, ALONE, GROUPS, buffers) if each.scenario.ranks <= MOST_RANKS)
    assert_equal(islice(small, COMMUNICATORS * draws.times))


SYMMETRIC = [  # calls, machine or that of each node, GPUs of each node
    ([(Collective.AllReduce, 12345678 * 4)], "dgx-h100", (4,)),
    ([(Collective.AllReduce, 4 * each) for each in (1000, 262144, 77, 5000000, 262144, 1)], "dgx-b200", (8,)),
    ([(Collective.AllGather, 8 * each) for each in (1 << 20, 1000, 1 << 22)], "dgx-h100", (8,)),
    (
        [(Collective.AllGather, 1 << 20), (Collective.ReduceScatter, 1 << 22), (Collective.AllReduce, 1 << 20)] * 9,
        "dgx-h100",
        (8,),
    ),
    ([(Collective.ReduceScatter, 1 << 24), (Collective.ReduceScatter, 1 << 18)], "dgx-h100", (4, 4)),
    ([(Collective.ReduceScatter, 3 << 23), (Collective.AllGather, 3 << 19)], "dgx-a100 dgx-h100", (4, 2)),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("case", SYMMETRIC, ids=lambda case: f"{case[1]} {case[2]}")
@pytest.mark.parametrize("nccl", [name for name in HERE if not missing(release.load(name), Buffers.window)])
def test_symmetric_kernels(nccl: str, case: tuple[list[tuple[Collective, int]], str, tuple[int, ...]]) -> None:
    calls, machine, gpus = case
    network = {"NCCL_GIN_TYPE": "3"} if len(gpus) > 1 else {}
    of_nodes = [f"{each}:{count}" for each, count in zip(cycle(machine.split()), gpus, strict=False)]
    scenario = describe(node=of_nodes, nccl=nccl, env=network)
    kinds = [Request(collective, DataType.float32, Op.sum, buffers=Buffers.window) for collective, _ in calls]
    operations = tuple(Operation(kind, size) for kind, (_, size) in zip(kinds, calls, strict=True))
    selection = Selection(scenario.resolve().view_of(1))
    communicator = Drawn(scenario, 1, selection, operations, (operations,))
    kernels = 0
    for _, ours, both in compared(communicator):
        assert {what: pair for what, pair in both.items() if pair[0] != pair[1]} == {}
        kernels += sum(kernel.symmetric is not None for kernel in ours.kernels)
    assert kernels or len(gpus) > 1


# By number of nodes, their GPUs, the adapters' speed and distance. Machine, nodes, GPUs or trays of each, what differs.
TUNED = [name for name in HERE if release.load(name).rules.nvls_chunk == "tuned_for_blackwell"]
ON_BLACKWELL: list[tuple[str, int, dict[str, Any]]] = [
    ("dgx-b200", 2, {"gpus_per_node": 4}),
    ("dgx-b200", 2, {"gpus_per_node": 5}),
    ("dgx-b200", 2, {}),
    ("dgx-b300", 2, {}),
    ("dgx-b200", 3, {}),
    ("dgx-b300", 3, {}),
    ("dgx-b200", 3, {"hardware": {"nic-gbps": "200"}}),
    ("gb200-nvl72", 2, {"trays": 2}),
    ("gb200-nvl72", 2, {"trays": 4}),
    ("aws-p6e-gb200", 2, {"trays": 3}),
    ("gb200-nvl72", 3, {"trays": 1}),
    ("gb300-nvl72", 3, {"trays": 3}),
    ("gb300-nvl72", 3, {"trays": 8}),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("named", [{}, {"NCCL_NVLS_CHUNKSIZE": "1048576"}], ids=["", "named"])
@pytest.mark.parametrize("algorithm", ["NVLS", "NVLSTree"])
@pytest.mark.parametrize("case", ON_BLACKWELL, ids=lambda case: f"{case[1]} {case[0]} {case[2]}")
@pytest.mark.parametrize("nccl", TUNED)
def test_chunks_between_nodes_on_blackwell(
    nccl: str, case: tuple[str, int, dict[str, Any]], algorithm: str, named: dict[str, str]
) -> None:
    machine, nodes, more = case
    network = {"NCCL_COLLNET_ENABLE": "1"} if algorithm == "NVLS" else {}
    environment = {"NCCL_ALGO": algorithm, **network, **named}
    scenario = Scenario(nccl, nodes, machine=machine, collnet=bool(network), environment=environment, **more)
    operations = tuple(Operation(Request(Collective.AllReduce, DataType.float32, Op.sum), 1 << n) for n in (24, 33))
    for _, ours, both in compared(Drawn(scenario, 0, Selection(scenario.resolve().view_of(0)), operations, ())):
        assert {what: pair for what, pair in both.items() if pair[0] != pair[1]} == {}
        assert {work.algorithm.name for kernel in ours.kernels for work in kernel.works} == {algorithm}


# Whom the buffers of a rank's calls are registered for, which random ones seldom are.
CASES: dict[str, list[tuple[str, tuple[int, ...], str, int, str]]] = {
    "2.23.4": [("dgx-h100", (8,), "Ring", 0, "peers"), ("dgx-h100", (8,), "NVLS", 5, "switch")],
    "2.28.9": [
        ("dgx-h100", (8,), "Tree", 3, "peers"),
        ("dgx-h100", (4, 4), "NVLSTree", 6, "switch"),
        ("dgx-h100", (8, 8), "Ring", 0, "peers network"),
        ("dgx-h100", (8, 8), "Ring", 11, "peers network"),
        ("dgx-h100", (1, 1, 1, 1), "Ring", 2, "network"),
        ("dgx-2", (2, 2), "Ring", 0, "peers network"),
        ("dgx-a100", (6, 3), "Ring", 0, "peers"),  # ranks of the other node send over another's adapter (PXN)
    ],
}


@pytest.mark.parametrize(("nccl", "case"), [(nccl, case) for nccl, cases in CASES.items() for case in cases])
def test_whom_buffers_are_registered_for(nccl: str, case: tuple[str, tuple[int, ...], str, int, str]) -> None:
    if nccl not in (*HERE, *WITH_PLUGINS):
        pytest.skip(f"no libnccl {nccl} here")
    machine, gpus, algorithm, rank, takers = case
    variables = {"NCCL_ALGO": algorithm, "NCCL_PROTO": "Simple"}
    alike = Scenario(nccl, 1, machine=machine, environment=variables)
    counted = [(each, len(list(nodes))) for each, nodes in groupby(gpus)]
    own, *others = [replace(alike, nodes=nodes, gpus_per_node=each) for each, nodes in counted]
    scenario = replace(own, others=tuple(others))
    selection = Selection(scenario.resolve().view_of(rank))
    request = Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=Buffers.registered)
    assert taken_by(Drawn(scenario, rank, selection, (Operation(request, 1 << 26),), ())) == takers


def taken_by(communicator: Drawn) -> str:
    """Whom the buffers of the only call are registered for; fails where libnccl does otherwise."""
    ((_, ours, both),) = compared(communicator)
    assert {what: pair for what, pair in both.items() if pair[0] != pair[1]} == {}
    (takers,) = {" ".join(work.registered_for) for kernel in ours.kernels for work in kernel.works}
    return takers


# Of calls that no symmetric kernel does, on so many nodes, by which buffers are in windows: sent from, received into,
# both.
RING, TREE = ("Ring", Collective.Broadcast), ("Tree", Collective.AllReduce)
OF_SIDES: dict[str, list[tuple[str, Collective, int, tuple[str | None, ...]]]] = {
    "2.27.7": [(*RING, 1, ("", "", "peers")), (*TREE, 1, ("", "peers", None))],
    "2.28.9": [(*RING, 1, ("", "", "peers")), (*TREE, 1, ("", "peers", None))],
    "2.32.3": [(*RING, 1, ("", "peers", "peers")), (*RING, 2, ("", "", "peers network"))],
}


@pytest.mark.parametrize(("nccl", "case"), [(nccl, case) for nccl, cases in OF_SIDES.items() for case in cases])
def test_which_windows_are_taken(nccl: str, case: tuple[str, Collective, int, tuple[str | None, ...]]) -> None:
    if nccl not in (*HERE, *WITH_PLUGINS):
        pytest.skip(f"no libnccl {nccl} here")
    algorithm, collective, nodes, takers = case
    variables = {"NCCL_ALGO": algorithm, "NCCL_PROTO": "Simple"} | ({"NCCL_GIN_TYPE": "3"} if nodes > 1 else {})
    scenario = Scenario(nccl, nodes, machine="dgx-h100", environment=variables)
    for sides, taken in zip((Sides.send, Sides.receive, Sides.both), takers, strict=True):
        request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window, windows=Windows(sides))
        drawn_calls = (Operation(request, 1 << 26),)
        if taken is not None:
            assert taken_by(Drawn(scenario, 3, Selection(scenario.resolve().view_of(3)), drawn_calls, ())) == taken


@pytest.mark.parametrize("nccl", [each for each in WITH_PLUGINS if interface(each) >= CHUNKS_SINCE])
def test_chunks_that_a_tuner_names_are_those_of_libnccl(nccl: str, tmp_path: Path) -> None:
    """Within a whole chunk of the protocol's buffer, in whole grains, and NCCL's own where the row says none."""
    table = table_of(
        tmp_path,
        "allreduce bytes=1M -> ring/simple chunk=64K",
        "allreduce bytes=2M -> tree/ll128 chunk=100000",
        "allreduce bytes=4M -> ring/ll chunk=1G",
        "allreduce bytes=8M -> ring/simple chunk=1G",
        "allreduce bytes=16M -> tree/simple",
        "allgather bytes=4M -> ring/simple chunk=5000",
    )
    calls = [(Collective.AllReduce, 1 << power) for power in range(20, 25)] + [(Collective.AllGather, 4 << 20)]
    described = Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=2)
    tuned = with_tuner(described, f"table:{table}")
    env = {**described.oracle_configuration().env, "NCCL_TUNER_TABLE": str(table)}
    configuration = replace(described.oracle_configuration(), env=env, plugin=plugin.path())
    selections = [Selection(each.communicator()) for each in (described, tuned)]
    found = []
    with Oracle(configuration) as oracle:
        for collective, size in calls:
            operation = Operation(Request(collective, DataType.float32, Op.sum), size)
            alone, ours = (full_launch.launch(each, [operation], lambda: full_launch.NO_HEADS) for each in selections)
            (theirs,) = oracle.launch_groups_in_full([[issued(selections[0], operation)]])
            values = launched_values.compare(ours, theirs)
            assert {what: both for what, both in values.items() if both[0] != both[1]} == {}
            found.append(ours.kernels[0].works[0].shares[0].chunk == alone.kernels[0].works[0].shares[0].chunk)
    assert not any(found[at] for at in (0, 1, 2, 5))
    with pytest.raises(BadInput, match="groups of their own"):
        full_launch.launch(selections[1], [operation] * 2, lambda: full_launch.NO_HEADS)


NVLS = {"NCCL_ALGO": "NVLS"}
# Powers of two, at some of which the chunk changes, and an eighth less and more: nearer to these the channels of a
# call have different chunks, as their shares are whole cells.
POWERS = [1 << power for power in range(20, 34)]
SIZES = sorted({size + more for size in POWERS for more in (-(size >> 3), 0, size >> 3)})


@pytest.mark.parametrize("nccl", [each for each in HERE if tuple(map(int, each.split("."))) >= (2, 23)])
@pytest.mark.parametrize(("machine", "gpus"), [("dgx-h100", 8), ("dgx-b200", 8), ("dgx-h100", 4)])
def test_chunks_of_nvls(machine: str, gpus: int, nccl: str) -> None:
    kind = request("allreduce", dtype="float16")
    selection = tuner.communicator(machine, gpus_per_node=gpus, nccl=nccl, env=NVLS).selection
    topology = catalogue.load(machine).topology_xml
    with Oracle(OracleConfiguration(topology, 1, gpus, release=nccl, env=NVLS)) as oracle:
        launched = oracle.launch(kind, SIZES)
    assert {each.algorithm for each in launched} == {Algorithm.NVLS}
    sizes = np.array([each.bytes for each in launched], np.uint64)
    calls = features.of_algo_proto(selection, kind, sizes, (Algorithm.NVLS, Protocol.Simple))
    assert [each.channels for each in launched] == calls.channels.tolist()
    own = [each.chunk_bytes for each in launched]
    assert set(own) == {16384, 32768, 65536, 131072}
    assert dict(zip(SIZES, nvls_chunk_bytes(calls).tolist(), strict=True)) == dict(zip(SIZES, own, strict=True))
