"""Other releases pick as 2.28.9 does, in libnccl: its times compiled to rows of costs, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.available_releases import HERE
from tuner import plugin, release
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import sizes_bytes
from tuner.plugin import compile, loading
from tuner.plugin.table import parse
from tuner.plugin.table.records import Table
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

MODEL = "2.28.9"
LOADING = [name for name in HERE if release.load(name).plugin is not None]
RECORDING = [name for name in LOADING if loading.interface(release.load(name)).version >= 3]
SHAPES = [("dgx-h100", 2, 2), ("dgx-h100", 1, 4), ("dgx-h100", 8, 1), ("dgx-b200", 2, 2)]  # 8 x 1: PAT
NEVER_US = np.float32(3e9)


def scenario(name: str, machine: str, nodes: int, gpus: int) -> Scenario:
    return Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}-{shape[1]}x{shape[2]}")
def shape(request: pytest.FixtureRequest) -> tuple[str, int, int]:
    given: tuple[str, int, int] = request.param
    return given


@pytest.fixture(scope="module")
def model(shape: tuple[str, int, int]) -> Selection:
    return Selection(scenario(MODEL, *shape).communicator())


@pytest.fixture(scope="module")
def table(model: Selection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "as-2.28.9.table"
    parse.write(path, Table(costs=tuple(compile.costs(model, Collective))))
    return path


def oracle(name: str, shape: tuple[str, int, int], table: Path, recorded: bool = False) -> Oracle:
    machine, nodes, gpus = shape
    env = {"NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_UNCHECKED": "1"}
    xml = catalogue.load(machine).topology_xml
    return Oracle(OracleConfiguration(xml, nodes, gpus, name, env, plugin=plugin.path(), record_plugin=recorded))


def sizes_of(model: Selection, collective: Collective) -> list[int]:
    """Around every size at which 2.28.9 changes its mind, and some 40 others."""
    ranks = model.communicator.ranks
    request = compile.request(collective)
    step = 4 * (ranks if request.spreads else 1)
    edges = [
        row.bytes.low // step * step + more * step
        for row in compile.decisions(model, [collective])
        for more in (-1, 0, 1)
    ]
    every = sizes_bytes(request, ranks)
    return sorted({*every[:: max(1, len(every) // 40)], *(size for size in edges if size >= step)})


def cells_of(
    asked: NDArray[np.float32], model: Selection, collective: Collective, sizes: list[int]
) -> Iterator[tuple[Algorithm, Protocol, NDArray[np.float32], NDArray[np.float32]]]:
    """Of each cell that this libnccl does not ignore: what the plugin left, and what 2.28.9 computes."""
    expected = model.cost_table(compile.request(collective), sizes)
    for algorithm, protocol in np.ndindex(asked.shape[1:]):
        yield Algorithm(algorithm), Protocol(protocol), asked[:, algorithm, protocol], expected[:, algorithm, protocol]


@pytest.mark.each_choice
@pytest.mark.parametrize("name", LOADING)
def test_it_launches_what_the_model_picks(
    name: str, shape: tuple[str, int, int], model: Selection, table: Path
) -> None:
    """But for what the release cannot run there, and for ties, which 2.31 and later decide the other way round."""
    if name not in catalogue.load(shape[0]).releases:
        pytest.skip(f"no graphs of {shape[0]} captured for {name}")
    runs = Selection(scenario(name, *shape).communicator())
    same = 0
    with oracle(name, shape, table) as library:
        for collective in Collective:
            request, sizes = compile.request(collective), sizes_of(model, collective)
            costs_us, picks = model.cost_table(request, sizes), model.pick(request, sizes)
            # Without cells NCCL runs what is named, LL128 too where it would not have allowed it.
            missing = {
                algo_proto
                for algo_proto in runs.excluded(request)
                if name in RECORDING or algo_proto[1] is not Protocol.LL128
            }
            possible_us = costs_us.copy()
            for algo_proto in missing:
                possible_us[:, *algo_proto] = -1
            wanted, _ = runs.pick_by(possible_us)
            for at, launched in enumerate(library.launch(Request(collective, DataType.float32, Op.sum), sizes)):
                where = f"{collective.name} {sizes[at]} B"
                algo_proto = launched.algorithm, launched.protocol
                models = Algorithm(picks.algorithm[at]), Protocol(picks.protocol[at])
                assert algo_proto == ALGO_PROTOS[wanted[at]], where
                assert (
                    algo_proto == models or models in missing or costs_us[at, *algo_proto] == costs_us[at, *models]
                ), where
                same += algo_proto == models
    assert same >= 5 * 40


@pytest.mark.each_choice
@pytest.mark.parametrize("name", RECORDING)
def test_its_cells_are_the_models(name: str, shape: tuple[str, int, int], model: Selection, table: Path) -> None:
    if name not in catalogue.load(shape[0]).releases:
        pytest.skip(f"no graphs of {shape[0]} captured for {name}")
    compared = 0
    with oracle(name, shape, table, recorded=True) as library:
        for collective in Collective:
            sizes = sizes_of(model, collective)
            asked = library.ask(Request(collective, DataType.float32, Op.sum), sizes)
            for algorithm, protocol, left, expected in cells_of(asked.after_us, model, collective, sizes):
                ignored = asked.before_us[:, algorithm, protocol] < 0
                assert (left[ignored] == asked.before_us[ignored, algorithm, protocol]).all()
                wanted = np.where(expected < 0, NEVER_US, expected)[~ignored]
                where = f"{collective.name} {algorithm.name}/{protocol.name}"
                assert left[~ignored].tobytes() == wanted.astype(np.float32).tobytes(), where
                compared += wanted.size
            picks = model.pick(compile.request(collective), sizes)
            known = picks.algorithm < asked.before_us.shape[1]  # up to 2.22 there is no PAT
            runs = known & (asked.before_us[np.arange(len(sizes)), picks.algorithm * known, picks.protocol] >= 0)
            assert asked.winner_us[runs].tobytes() == picks.time_us[runs].tobytes(), "ncclGroupSimulateEnd's time"
    assert compared >= 5 * 40 * 3


@pytest.mark.parametrize("name", [name for name in ("2.28.9", "2.32.3") if name in HERE])
def test_eight_bit_sums_keep_nccls_guard(name: str, tmp_path: Path) -> None:
    """From 2.24 on NCCL holds Ring back for them on more than 8 ranks; no table knows the type."""
    model = Selection(scenario(MODEL, "dgx-h100", 2, 8).communicator())
    path = tmp_path / "as-2.28.9.table"
    parse.write(path, Table(costs=tuple(compile.costs(model, [Collective.AllReduce]))))
    sizes = [1 << power for power in range(10, 33, 2)]
    assert len(sizes) == 12
    xml = catalogue.load("dgx-h100").topology_xml
    with (
        Oracle(OracleConfiguration(xml, 2, 8, name, {})) as bare,
        Oracle(OracleConfiguration(xml, 2, 8, name, {"NCCL_TUNER_TABLE": str(path)}, plugin=plugin.path())) as loaded,
    ):
        for dtype in (DataType.float8e4m3, DataType.float8e5m2, DataType.bfloat16):
            asked = Request(Collective.AllReduce, dtype, Op.sum)
            own = [(launched.algorithm, launched.protocol) for launched in bare.launch(asked, sizes)]
            assert [(launched.algorithm, launched.protocol) for launched in loaded.launch(asked, sizes)] == own
            assert dtype is DataType.bfloat16 or Algorithm.Ring not in {algorithm for algorithm, _ in own}
