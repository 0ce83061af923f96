"""What NCCL makes of a tuner's answer, release by release: negative times, NaN, ties, cells that NCCL ignores.

Each tuner is asked behind this project's plugin, whose dry run has to say what the real library then runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support import planted_tuners
from tests.support.available_releases import WITH_PLUGINS
from tests.support.plugin_tables import interface, table_of
from tuner import plugin, release
from tuner.base.errors import NoAlgorithm, OracleFailed
from tuner.base.names import AlgoProto, Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.plugin.asked import FileTuner, opened
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

WITH_CELLS = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 3]
KIB = 1 << 10
AR = Request(Collective.AllReduce, DataType.float32, Op.sum)
SIMPLE = Protocol.Simple
ALL = "for (int i = 0; i < algorithms * protocols; i++) us[i] = "
# A size for each answer, and what runs: up to 2.30, from 2.31 on; None is NCCL's own choice. Two nodes of dgx-h100.
ANSWERS: dict[str, tuple[AlgoProto | None, AlgoProto | None]] = {
    "CELL(0, 2) = -1": (None, (Algorithm.Tree, SIMPLE)),
    "CELL(0, 2) = -7; CELL(1, 1) = -9": (None, (Algorithm.Ring, Protocol.LL128)),
    "CELL(1, 0) = CELL(1, 1) = CELL(1, 2) = NAN": ((Algorithm.Tree, Protocol.LL), (Algorithm.Tree, Protocol.LL)),
    "CELL(0, 2) = CELL(1, 2) = 0": ((Algorithm.Tree, SIMPLE), (Algorithm.Ring, SIMPLE)),
    "CELL(0, 2) = INFINITY; CELL(1, 1) = 0": ((Algorithm.Ring, Protocol.LL128), (Algorithm.Ring, Protocol.LL128)),
    "CELL(0, 1) = NAN; CELL(0, 2) = -0.0": ((Algorithm.Tree, SIMPLE), (Algorithm.Tree, SIMPLE)),
}
SIZES = [4 * KIB + 64 * at for at in range(len(ANSWERS))]


def newest(nccl: str) -> bool:
    return tuple(map(int, nccl.split("."))) >= (2, 31)


def both(
    tmp_path: Path, nccl: str, ask: str, sizes: list[int], env: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[tuple[AlgoProto, float]], list[tuple[AlgoProto, float]], list[AlgoProto]]:
    """Choice and time by libnccl and by the dry run, and NCCL's own choice, of each size."""
    other = planted_tuners.build(tmp_path / "other.so", ask)
    table = table_of(tmp_path, "reduce -> ring/ll")
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=2, environment=dict(env))
    selection = Selection(scenario.communicator())
    settings = {"NCCL_TUNER_NEXT": str(other)}
    topology, variables = scenario.oracle_configuration().topology, {**env, **settings, "NCCL_TUNER_TABLE": str(table)}
    configuration = OracleConfiguration(topology, 2, 2, nccl, variables, plugin=plugin.path(), record_plugin=True)
    with Oracle(configuration) as oracle:
        ran = [((each.algorithm, each.protocol), each.time_us) for each in oracle.launch(AR, sizes)]
    said = []
    with opened(table, selection, settings) as asked:
        for size in sizes:
            answer = asked.answer(asked.call(AR, size), selection.cost_table(AR, [size])[0])
            assert answer is not None
            said.append((answer.algo_proto, float(answer.time_us)))
    assert all(time_us is not None for _, time_us in ran)
    return ran, said, selection.pick(AR, sizes).algo_protos()  # type: ignore[return-value]


@pytest.mark.parametrize("nccl", WITH_CELLS)
def test_negative_times_nan_and_ties(nccl: str, tmp_path: Path) -> None:
    ask = " else ".join(f"if (bytes == {size}) {{ {how}; }}" for size, how in zip(SIZES, ANSWERS, strict=True))
    ran, said, own = both(tmp_path, nccl, ask, SIZES)
    assert ran == said
    wanted = [answer[newest(nccl)] or alone for answer, alone in zip(ANSWERS.values(), own, strict=True)]
    assert [algo_proto for algo_proto, _ in ran] == wanted


@pytest.mark.parametrize("nccl", WITH_CELLS)
def test_a_time_in_a_cell_that_nccl_algo_excludes(nccl: str, tmp_path: Path) -> None:
    """It comes back to life up to 2.30, and stays excluded from 2.31 on."""
    ran, said, own = both(tmp_path, nccl, "CELL(0, 0) = 0", [4 * KIB], {"NCCL_ALGO": "Ring"})
    assert ran == said
    assert [each for each, _ in ran] == (own if newest(nccl) else [(Algorithm.Tree, Protocol.LL)])
    assert own[0][0] is Algorithm.Ring


@pytest.mark.parametrize("value", ["-1", "NAN"])
@pytest.mark.parametrize("nccl", [nccl for nccl in ("2.30.7", "2.31.2", "2.32.3") if nccl in WITH_CELLS])
def test_a_tuner_that_writes_the_same_everywhere(nccl: str, value: str, tmp_path: Path) -> None:
    """An internal error where it excludes; -1 from 2.31 on runs the last cell that NCCL does not ignore."""
    if value == "-1" and newest(nccl):
        ran, said, _ = both(tmp_path, nccl, ALL + value, [4 * KIB])
        assert ran == said == [((Algorithm.NVLSTree, SIMPLE), -1.0)]
        return
    with pytest.raises(OracleFailed, match="internal error"):
        both(tmp_path, nccl, ALL + value, [4 * KIB])
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=2)
    selection = Selection(scenario.communicator())
    settings = {"NCCL_TUNER_NEXT": str(tmp_path / "other.so")}
    with (
        opened(table_of(tmp_path, "reduce -> ring/ll"), selection, settings) as asked,
        pytest.raises(NoAlgorithm, match="internal error"),
    ):
        asked.answer(asked.call(AR, 4 * KIB), selection.cost_table(AR, [4 * KIB])[0])


@pytest.mark.parametrize("nccl", WITH_CELLS)
def test_a_number_of_channels_for_small_calls(nccl: str, tmp_path: Path) -> None:
    """Up to 2.30 it replaces NCCL's own number, which is smaller for small calls; from 2.31 on it only limits that."""
    scenario, sizes = Scenario(nccl=nccl, machine="dgx-h100", nodes=1), [4 * KIB, 64 * KIB, KIB * KIB]
    lib = planted_tuners.build(tmp_path / "tuner.so", "*channels = 3")
    configuration = OracleConfiguration(scenario.oracle_configuration().topology, 1, 8, nccl, {}, plugin=lib)
    with Oracle(configuration) as oracle:
        ran = [(each.algorithm, each.protocol, each.channels) for each in oracle.launch(AR, sizes)]
    own = Selection(scenario.communicator()).pick(AR, sizes)
    tuner = FileTuner("table", table_of(tmp_path, *_rows(own.algo_protos(), sizes)))
    tuned = Selection(replace(scenario, tuner=tuner).communicator()).pick(AR, sizes)
    assert ran == [(*algo_proto, count) for algo_proto, count in zip(tuned.algo_protos(), tuned.channels, strict=True)]
    assert own.channels[0] == 1
    if newest(nccl):
        assert ran[0][2] == 1
    assert ran[0][2] == {"2.22.3": 3, "2.28.9": 2}.get(nccl, ran[0][2])


def _rows(choices: list[AlgoProto], sizes: list[int]) -> list[str]:
    named = [f"{algorithm.name}/{protocol.name}".lower() for algorithm, protocol in choices]
    return [f"allreduce bytes={size} -> {name} channels=3" for size, name in zip(sizes, named, strict=True)]


def test_every_release_says_what_a_negative_time_means() -> None:
    """Of those with tuner plugins: one change, with 2.31."""
    said = {name: release.load(name).plugin for name in release.names()}
    for name, how in said.items():
        assert how is None or (how.negative_excludes, how.revives) == (2 * (not newest(name),))
