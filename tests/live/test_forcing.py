"""Forcing call by call in one communicator of the real libnccl, in a release of each version of the interface."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.available_releases import WITH_PLUGINS
from tuner import plugin, release
from tuner.base.errors import BadInput, BadTable, OracleFailed
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.plugin import loading
from tuner.plugin.dry_run import DryRun, TunerCall
from tuner.plugin.forcing import Forcing, forced
from tuner.scenario.oracle_configuration import OracleConfiguration

AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
RING, TREE = Algorithm.Ring, Algorithm.Tree
KIB, MIB = 1 << 10, 1 << 20
SIZES = [256, 64 * KIB, MIB, 64 * MIB]
SAFE = [(a, p) for a in (RING, TREE) for p in (Protocol.LL, Protocol.Simple)]
CHECKED = [*SAFE, (RING, Protocol.LL128), (TREE, Protocol.LL128), (Algorithm.NVLSTree, Protocol.Simple)]


class ForcingDryRun(DryRun):
    """A communicator of the forcing plugin, asked without NCCL."""

    _module = "_force"


def interface(nccl: str) -> int:
    return loading.interface(release.load(nccl)).version


def configuration(nccl: str, **env: str) -> OracleConfiguration:
    topology = catalogue.load("dgx-h100").topology_xml
    return OracleConfiguration(topology, 2, 2, nccl, env, plugin=plugin.forcing_path())


def launch(oracle: Oracle, collective: Collective = AR, sizes: list[int] = SIZES) -> list[OracleLaunch]:
    return oracle.launch(Request(collective, DataType.float32, Op.sum), sizes)


def choices(launched: list[OracleLaunch]) -> set[tuple[Algorithm, Protocol]]:
    return {(one.algorithm, one.protocol) for one in launched}


@pytest.fixture(params=WITH_PLUGINS)
def oracle(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    with Oracle(configuration(request.param)) as oracle:
        yield oracle


def test_every_call_takes_what_is_forced_then(oracle: Oracle) -> None:
    version = interface(oracle.configuration.release)
    own = launch(oracle)
    for algorithm, protocol in [*SAFE, *reversed(SAFE)] if version < 3 else [*CHECKED, *reversed(CHECKED)]:
        oracle.use_table(forced(AR, algorithm, protocol))
        there = {algo_proto[:2] for algo_proto in oracle.seen().costs_us}
        launched = launch(oracle)
        seen = oracle.seen()
        if (algorithm, protocol) in there:
            assert choices(launched) == {(algorithm, protocol)}
            assert seen.calls == seen.decided >= len(SIZES)  # 2.19 to 2.21 may ask twice about one call
        else:
            assert launched == own
            assert (seen.decided, seen.unavailable) == (0, seen.calls)
            assert seen.calls >= len(SIZES)
    oracle.use_table(None)
    assert launch(oracle) == own
    assert oracle.seen().calls == 0


def test_channels_are_forced_too(oracle: Oracle) -> None:
    if interface(oracle.configuration.release) == 1:
        pytest.skip("2.19 would start any number of channels that it is told, so the plugin passes none on")
    for channels in (1, 2, 4, 1):
        oracle.use_table(forced(AR, RING, Protocol.Simple, channels))
        launched = launch(oracle, sizes=[64 * MIB])
        assert [(one.algorithm, one.channels) for one in launched] == [(RING, channels)]


def test_what_cannot_run_is_left_and_reported(oracle: Oracle) -> None:
    own = launch(oracle)
    oracle.use_table(forced(AR, Algorithm.PAT, Protocol.Simple))
    assert launch(oracle) == own
    seen = oracle.seen()
    assert (seen.decided, seen.unavailable) == (0, seen.calls)
    assert seen.calls >= len(SIZES)
    assert (seen.collective, seen.bytes) == (AR, SIZES[-1])
    assert (Algorithm.PAT, Protocol.Simple) not in {algo_proto[:2] for algo_proto in seen.costs_us}


def test_other_collectives_stay_nccls(oracle: Oracle) -> None:
    own = launch(oracle, AG)
    oracle.use_table(forced(AR, TREE, Protocol.LL))
    assert launch(oracle, AG) == own
    assert oracle.seen().unavailable == 0


def test_a_whole_table_and_none_in_turn(oracle: Oracle) -> None:
    own = launch(oracle)
    table = "nccl-tuner-table 1\nallreduce bytes=..64K -> tree/simple\nallreduce bytes=1M.. -> ring/ll\n"
    for _ in range(2):
        oracle.use_table(table)
        assert [(one.algorithm, one.protocol) for one in launch(oracle)] == [
            (TREE, Protocol.Simple),
            (TREE, Protocol.Simple),
            (RING, Protocol.LL),
            (RING, Protocol.LL),
        ]
        oracle.use_table(None)
        assert launch(oracle) == own


def test_a_bad_table_leaves_the_one_before(oracle: Oracle) -> None:
    oracle.use_table(forced(AR, TREE, Protocol.Simple))
    with pytest.raises(OracleFailed, match=r"table: 2: unknown protocol 'l' \(valid: LL, LL128, Simple\)"):
        oracle.use_table("nccl-tuner-table 1\nallreduce -> ring/l\n")
    assert choices(launch(oracle)) == {(TREE, Protocol.Simple)}


def test_the_costs_seen_are_those_nccl_hands_over() -> None:
    nccl = next(name for name in reversed(WITH_PLUGINS) if interface(name) >= 3)
    topology = catalogue.load("dgx-h100").topology_xml
    with Oracle(configuration(nccl)) as oracle, Oracle(OracleConfiguration(topology, 2, 2, nccl, {})) as recorder:
        for collective in (AR, AG, RS):
            expected = recorder.costs(Request(collective, DataType.float32, Op.sum), [MIB])[0]
            launch(oracle, collective, [MIB])
            cells = [(Algorithm(a), Protocol(p), float(us)) for (a, p), us in np.ndenumerate(expected) if us != -1]
            assert list(oracle.seen().costs_us) == cells


def test_only_the_forcing_plugin_takes_tables() -> None:
    topology = catalogue.load("dgx-h100").topology_xml
    with (
        Oracle(OracleConfiguration(topology, 1, 2, WITH_PLUGINS[-1], {}, plugin=plugin.path())) as oracle,
        pytest.raises(BadInput, match=r"^setting a table needs the forcing plugin: plugin=.*libnccl_tuner_force\.so$"),
    ):
        oracle.use_table(None)


TABLE = """nccl-tuner-table 1
cost allreduce -> tree/ll latency-us=1 bandwidth-gbs=1
allreduce bytes=..64K ranks=4 -> pat/ll | tree/simple channels=3 chunk=64K
allreduce bytes=64K.. nodes=2 -> nvls/simple | ring/ll
allgather -> ring/simple channels=2
"""


@pytest.mark.parametrize("version", range(3, 8))
def test_it_decides_as_the_plugin_does(tmp_path: Path, version: int) -> None:
    """Communicators that were there before the table, and those that came after it."""
    (tmp_path / "test.table").write_text(TABLE)
    cells = np.random.default_rng(version).uniform(1, 100, (7, 3))
    cells[[4, 6]] = -1  # NVLS and PAT are ignored
    forcing = Forcing()
    options: dict[str, Any] = {"ranks": 4, "nodes": 2, "version": version}
    with (
        DryRun(tmp_path / "test.table", **options) as expected,
        ForcingDryRun(None, **options) as before,
    ):
        forcing.use_table(TABLE)
        with ForcingDryRun(None, **options) as after:
            for collective in Collective:
                for size in (1, 65536, 65537, 1 << 30):
                    answer = expected.ask(TunerCall(collective, size), cells)
                    for each in (
                        before.ask(TunerCall(collective, size), cells),
                        after.ask(TunerCall(collective, size), cells),
                    ):
                        assert each.cost_us.tobytes() == answer.cost_us.tobytes()
                        assert each.channels == answer.channels
            asked = forcing.seen().calls
            assert asked == 2 * len(Collective) * 4
        forcing.use_table(None)
        left = before.ask(TunerCall(AR, 64), cells)
        assert (left.cost_us == cells.astype(np.float32)).all()
        assert forcing.seen().calls == 0


def test_nccl_finds_the_object_of_the_process_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 2.19 to 2.27 need it, which do not take every path; LD_LIBRARY_PATH of a running process cannot be set."""
    script = """
import ctypes
from tuner.plugin.dry_run import DryRun
from tuner.plugin.forcing import Forcing
by_path = Forcing()
by_name = ctypes.CDLL(by_path.path.name)
assert ctypes.CDLL(str(by_path.path))._handle == by_name._handle
print(by_name.ncclTunerPlugin_v2 is not None)
"""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert ran.stdout == "True\n"


def test_without_nccl_nothing_was_seen_and_a_mistake_is_said() -> None:
    forcing = Forcing()
    forcing.use_table(forced(AR, RING, Protocol.LL))
    assert forcing.seen().calls == 0
    with pytest.raises(BadTable, match=r"^table: 1: "):
        forcing.use_table("something else\n")
    forcing.use_table(None)
