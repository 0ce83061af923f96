"""The tuner that is asked where the table has no row, in the real libraries."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.support import next_tuner
from tests.support.available_releases import HERE
from tuner import plugin, release
from tuner.base.errors import OracleFailed
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection, of_picks
from tuner.emulator.tuner_plugin import ChunkQuestion, TunerAnswers, TunerQuestion
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.plugin import loading
from tuner.plugin.asked import FileTuner
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

LOADING = [name for name in HERE if release.load(name).plugin is not None]
SIZES = [1 << power for power in range(10, 31, 2)]
EXAMPLE = os.environ.get("NCCL_TUNER_TEST_NEXT")  # a tuner of somebody else, and what it reads from the environment

Launches = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_tuner.build(tmp_path_factory.mktemp("next") / "libother.so")


def launches(name: str, file: Path | None, **env: str) -> tuple[Launches, list[str]]:
    """What is launched for every collective and size, and NCCL's log."""
    env |= {key: value for key, value in os.environ.items() if key.startswith("NCCL_TUNER_CONFIG") and EXAMPLE}
    topology = catalogue.load("dgx-h100").topology_xml
    with Oracle(OracleConfiguration(topology, 2, 2, name, env, plugin=file)) as asked:
        found: Launches = [
            (collective, size, each.algorithm, each.protocol, each.channels, each.threads, each.kernel)
            for collective in Collective
            for size, each in zip(
                SIZES, asked.launch(Request(collective, DataType.float32, Op.sum), SIZES), strict=True
            )
        ]
        return found, asked.log_lines()


def table_of(folder: Path, *rows: str) -> str:
    path = folder / "t"
    path.write_text("\n".join(["nccl-tuner-table 1", *rows, ""]))
    return str(path)


@pytest.mark.parametrize("name", LOADING)
def test_without_rows_launches_are_the_others_and_with_rows_ours(name: str, other: Path, tmp_path: Path) -> None:
    alone, _ = launches(name, other)
    none, _ = launches(name, None)
    assert alone != none
    for env in ({}, {"NCCL_TUNER_TABLE": table_of(tmp_path)}):
        chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), **env)
        assert chained == alone
        version = loading.interface(release.load(name)).version
        assert any(
            f'the tuner "next" is asked where the table has no row (ncclTunerPlugin_v{version}' in line for line in log
        )
    assert launches(name, plugin.path(), NCCL_TUNER_NEXT="none")[0] == none
    rows = table_of(tmp_path, "allreduce bytes=1M..16M -> tree/simple", "allgather bytes=..1M -> ring/ll")
    ours, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT="none", NCCL_TUNER_TABLE=rows)
    both, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), NCCL_TUNER_TABLE=rows)
    for of_both, of_ours, of_other in zip(both, ours, alone, strict=True):
        collective, size = of_both[:2]
        in_row = (collective is Collective.AllReduce and 1 << 20 <= size <= 1 << 24) or (
            collective is Collective.AllGather and size <= 1 << 20
        )
        assert of_both == (of_ours if in_row else of_other)


class NextTuner:
    """What :mod:`tests.support.next_tuner` answers, as the emulator asks it."""

    title = "next"
    settings: Mapping[str, str] = MappingProxyType({})

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        if question.request.collective is not Collective.AllReduce:
            return TunerAnswers.none(len(question.nbytes))
        return TunerAnswers(np.where(question.nbytes >= 1 << 20, 5, 0), np.full(len(question.nbytes), 3))

    def breaks(self, communicator: Comm, request: Request) -> Sequence[int]:
        return [1 << 20]

    def may_flicker(self, communicator: Comm, request: Request) -> bool:
        return False

    def ignored_by(self, release: str) -> str | None:
        return None

    def why_not(self, communicator: Comm) -> str | None:
        return None

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        return 4242

    def chunks_follow_choices(self, communicator: Comm) -> bool:
        return False


@pytest.mark.parametrize("name", LOADING)
def test_the_chain_answers_as_emulated(name: str, other: Path, tmp_path: Path) -> None:
    """Where the table writes nothing the other tuner decides; a row that leaves the call to NCCL is no such place."""
    rows = (
        "allreduce bytes=..16K -> nccl",
        "allreduce bytes=64K..256K -> nvls/simple | nccl",
        "allreduce bytes=1M -> nvls/simple",
        "allreduce bytes=4M..16M -> tree/simple channels=5",
        "allgather -> ring/ll",
    )
    file = Path(table_of(tmp_path, *rows))
    alone = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2)
    chained = replace(alone, tuner=FileTuner("table", file, NextTuner()))
    selections = [Selection(each.communicator()) for each in (alone, chained)]
    launched, _ = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other), NCCL_TUNER_TABLE=str(file))
    differing, by_nccl = [], 0
    for collective, size, algorithm, protocol, channels, threads, _ in launched:
        theirs = (algorithm.name, protocol.name, channels, threads)
        request = Request(collective, DataType.float32, Op.sum)
        picks = [of_picks(each.pick(request, size))[0] for each in selections]
        ours = [(pick.algorithm, pick.protocol, pick.channels, pick.threads) for pick in picks]
        by_nccl += ours[0] == ours[1]
        differing += [(collective, size, ours[1], theirs)] if ours[1] != theirs else []
    assert not differing
    assert 0 < by_nccl < len(launched)


@pytest.mark.parametrize("name", LOADING)
def test_calls_that_fail_there_are_never_that_of_nccl(name: str, tmp_path: Path) -> None:
    other = next_tuner.build(tmp_path / "libother.so", fail_call=3)
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other))
    assert chained == launches(name, None)[0]
    warnings = [line for line in log if "NCCL WARN TUNER" in line]
    assert warnings
    assert all("a call of the tuner that is asked where the table has no row failed" in line for line in warnings)


@pytest.mark.parametrize("name", LOADING)
def test_an_init_that_fails_there_is_said_and_nothing_else(name: str, tmp_path: Path) -> None:
    """The oracle takes no communicator that warned; that NCCL completed it is in the log."""
    other = next_tuner.build(tmp_path / "libother.so", fail_init=1)
    with pytest.raises(OracleFailed, match=r"NCCL warned \d times while initialising.*failed to start \(3\)") as raised:
        launches(name, plugin.path(), NCCL_TUNER_NEXT=str(other))
    assert "Init COMPLETE" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("name", LOADING)
def test_the_default_is_the_tuner_in_the_library_of_the_network_plugin(name: str) -> None:
    none, _ = launches(name, None)
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT="")
    assert chained == none, "the oracle's own records and changes nothing"
    found = [line for line in log if 'the tuner "nccl-tuner recorder" is asked where the table has no row' in line]
    # The oracle's library has versions 3 to 6.
    assert bool(found) == (loading.interface(release.load(name)).version >= 3)


@pytest.mark.skipif(EXAMPLE is None, reason="NCCL_TUNER_TEST_NEXT names no tuner")
@pytest.mark.parametrize("name", LOADING)
def test_a_tuner_of_somebody_else(name: str) -> None:
    assert EXAMPLE is not None
    if loading.interface(release.load(name)).version < 3:
        pytest.skip("interfaces this old are of other sources")
    alone, _ = launches(name, Path(EXAMPLE))
    chained, log = launches(name, plugin.path(), NCCL_TUNER_NEXT=EXAMPLE)
    assert chained == alone
    assert [line for line in log if "is asked where the table has no row" in line]
