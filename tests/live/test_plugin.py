"""The plugin in the real libnccl, in a release of each version of the interface: what it changes, what it leaves.

The cases are those in which users were let down by other plugins.
"""

import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.available_releases import BUILDS, HERE, WITH_PLUGINS
from tests.support.command_line import run
from tests.support.plugin_tables import interface, table_of
from tuner import plugin, release
from tuner.base.errors import OracleFailed
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall
from tuner.plugin import loading, trial
from tuner.plugin.table.records import HEADER
from tuner.plugin.table.values import close
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

AR, AG = Collective.AllReduce, Collective.AllGather
RING_LL, RING_SIMPLE = (Algorithm.Ring, Protocol.LL), (Algorithm.Ring, Protocol.Simple)
TREE_LL, TREE_SIMPLE = (Algorithm.Tree, Protocol.LL), (Algorithm.Tree, Protocol.Simple)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [16, 64, 4 * KIB, 64 * KIB - 16, 64 * KIB, MIB, 4 * MIB, 4 * MIB + 16, 64 * MIB, 8 * GIB]


WITH_CELLS = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 3]
WITHOUT_CELLS = [nccl for nccl in WITH_PLUGINS if interface(nccl) < 3]
TOLD_OF_BUFFERS = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 4]
WITH_CHUNKS = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 6]
each = partial(pytest.mark.parametrize, "nccl")


@contextmanager
def communicator(
    nccl: str, *, nodes: int = 2, gpus: int = 2, recorded: bool = False, machine: str = "dgx-h100", **env: str
) -> Iterator[Oracle]:
    """libnccl with our plugin; ``recorded`` inside the one that keeps cost tables. ``env`` names the table."""
    topology = catalogue.load(machine).topology_xml
    configuration = OracleConfiguration(topology, nodes, gpus, nccl, env, plugin=plugin.path(), record_plugin=recorded)
    with Oracle(configuration) as oracle:
        yield oracle


@contextmanager
def with_table(table: Path, nccl: str, **others: object) -> Iterator[Oracle]:
    with communicator(nccl, NCCL_TUNER_TABLE=str(table), **others) as oracle:  # type: ignore[arg-type]
        yield oracle


@contextmanager
def alone(nccl: str, *, nodes: int = 2, gpus: int = 2, **env: str) -> Iterator[Oracle]:
    """libnccl without any tuner plugin."""
    topology = catalogue.load("dgx-h100").topology_xml
    with Oracle(OracleConfiguration(topology, nodes, gpus, nccl, env, without_tuner=True)) as oracle:
        yield oracle


def launch(
    oracle: Oracle,
    sizes: Sequence[int],
    collective: Collective = AR,
    buffers: Buffers = Buffers.plain,
    captured: bool = False,
) -> list[OracleLaunch]:
    launched = oracle.launch(Request(collective, DataType.float32, Op.sum, buffers=buffers), sizes, captured)
    return [dataclasses.replace(each, time_us=None) for each in launched]  # known only where recorded


def choices(launched: Iterable[OracleLaunch]) -> list[tuple[Algorithm, Protocol]]:
    return [(each.algorithm, each.protocol) for each in launched]


def channels(launched: Iterable[OracleLaunch]) -> list[int]:
    return [each.channels for each in launched]


def said(oracle: Oracle, level: str = "INFO") -> list[str]:
    """What the plugin said in NCCL's log, but for its build."""
    lines = [line.partition(" TUNER/nccl-tuner: ") for line in oracle.log_lines()]
    said_there = [text for start, found, text in lines if found and start.endswith(f"NCCL {level}")]
    return [text for text in said_there if not text.startswith("build ")]


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


@pytest.fixture(scope="module")
def pods() -> Iterator[dict[str, Oracle]]:
    """Two nodes of two GPUs without a plugin, by release, opened when first asked for."""
    opened: dict[str, Oracle] = {}
    yield opened
    for oracle in opened.values():
        oracle.close()


@pytest.fixture
def bare(nccl: str, pods: dict[str, Oracle]) -> Oracle:
    if nccl not in pods:
        topology = catalogue.load("dgx-h100").topology_xml
        pods[nccl] = Oracle(OracleConfiguration(topology, 2, 2, nccl, {}, without_tuner=True))
    return pods[nccl]


@pytest.fixture
def warnings_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle takes any warning of NCCL's for a failed start; here they are what is tested."""
    monkeypatch.setattr(Oracle, "_check_log", lambda oracle: None)


# Decisions


@each(WITH_PLUGINS)
def test_a_row_shows_in_the_launched_kernel_and_nothing_else_does(nccl: str, tmp_path: Path, bare: Oracle) -> None:
    shape = "" if interface(nccl) == 1 else "ranks=4 nodes=2 ranks-per-node=2 "
    table = table_of(
        tmp_path,
        f"allreduce bytes=64K..4M {shape}-> ring/simple channels=1",
        "reduce bytes=1G.. -> ring/ll",
    )
    with with_table(table, nccl) as oracle:
        launched, expected = launch(oracle, SIZES), launch(bare, SIZES)
        assert launch(oracle, SIZES[:-1], Collective.Reduce) == launch(bare, SIZES[:-1], Collective.Reduce)
        assert launch(oracle, SIZES, AG) == launch(bare, SIZES, AG)
        lines = said(oracle)
    inside = [64 * KIB <= size <= 4 * MIB for size in SIZES]
    assert [one for one, held in zip(launched, inside, strict=True) if not held] == [
        one for one, held in zip(expected, inside, strict=True) if not held
    ]
    taken = [one for one, held in zip(launched, inside, strict=True) if held]
    assert choices(taken) == [RING_SIMPLE] * 3
    assert choices(one for one, held in zip(expected, inside, strict=True) if held) != [RING_SIMPLE] * 3
    if interface(nccl) > 1:  # 2.19 would start any number of channels that it is told
        assert channels(taken) == [1] * 3
    hashed = hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    assert lines[0].startswith(f"table {table} (sha256 {hashed}): 2 rows, 2 of them for ")


@each(WITH_CELLS)
def test_cells_outside_are_the_same_bits_and_the_pick_keeps_its_time(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=64K..4M -> pat/ll | ring/simple channels=1")
    outside, inside = [64, 64 * KIB - 64, 4 * MIB + 64, 8 * GIB], [64 * KIB, MIB, 4 * MIB]
    topology = catalogue.load("dgx-h100").topology_xml
    with (
        with_table(table, nccl, recorded=True) as oracle,
        Oracle(OracleConfiguration(topology, 2, 2, nccl, {})) as recorder,
    ):
        for collective in Collective:
            expected = recorder.ask(Request(collective, DataType.float32, Op.sum), outside)
            asked = oracle.ask(Request(collective, DataType.float32, Op.sum), outside)
            assert same_bits(asked.after_us, expected.before_us)
            assert same_bits(asked.winner_us, expected.winner_us)
            assert not asked.channels.any()
        expected = recorder.ask(Request(AR, DataType.float32, Op.sum), inside)
        asked = oracle.ask(Request(AR, DataType.float32, Op.sum), inside)
    assert same_bits(asked.before_us, expected.before_us)
    own = asked.before_us[:, Algorithm.Ring, Protocol.Simple]
    assert (own > expected.winner_us).all(), "the test is of a choice that is not NCCL's own"
    assert same_bits(asked.winner_us, own)
    assert ((asked.after_us == -1) == (asked.before_us == -1)).all()
    assert asked.channels.tolist() == [1, 1, 1]


@each(WITH_PLUGINS)
def test_channels_stay_nccls_where_a_row_has_none(nccl: str, tmp_path: Path) -> None:
    one_list = release.load(nccl).rules.grammar == "one_list" or interface(nccl) < 4
    algo, proto = ("ring", "simple") if one_list else ("allreduce:ring", "allreduce:simple")
    with with_table(table_of(tmp_path, "allreduce -> ring/simple"), nccl) as oracle:
        launched = launch(oracle, SIZES)
    with alone(nccl, NCCL_ALGO=algo, NCCL_PROTO=proto) as env:
        assert launched == launch(env, SIZES)
    assert len({one.channels for one in launched}) > 1


@pytest.mark.each_choice
@each(WITH_CELLS)
@pytest.mark.parametrize(
    "row", ["pat/simple channels=1", "nvls/ll channels=1", "collnetchain/simple channels=1", "nvlstree/ll128"]
)
def test_nccl_keeps_its_choice_where_a_row_cannot_be(nccl: str, tmp_path: Path, row: str, bare: Oracle) -> None:
    with with_table(table_of(tmp_path, f"allreduce -> {row}"), nccl) as oracle:
        assert launch(oracle, SIZES) == launch(bare, SIZES)


@each(WITHOUT_CELLS)
@pytest.mark.parametrize(
    "row", ["nvls/simple", "nvls/ll", "pat/simple", "collnetchain/simple", "tree/ll128", "nvlstree/ll"]
)
def test_where_nccl_hands_over_no_cells_what_may_not_run_is_left(
    nccl: str, tmp_path: Path, row: str, bare: Oracle
) -> None:
    with with_table(table_of(tmp_path, f"allreduce -> {row} channels=1"), nccl) as oracle:
        assert launch(oracle, SIZES) == launch(bare, SIZES)


@each(WITHOUT_CELLS)
def test_unchecked_ll128_runs(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce ranks=4 -> tree/ll128 channels=2")
    with with_table(table, nccl, NCCL_TUNER_UNCHECKED="1") as oracle:
        launched = launch(oracle, [MIB, 64 * MIB])
    assert choices(launched) == [(Algorithm.Tree, Protocol.LL128)] * 2
    assert channels(launched) == [2, 2]


@each(WITH_PLUGINS)
def test_no_more_channels_than_there_are(nccl: str, tmp_path: Path, bare: Oracle) -> None:
    table = table_of(tmp_path, "allreduce -> ring/simple channels=64")
    with with_table(table, nccl) as oracle:
        most = int(oracle.facts.n_channels)
        assert channels(launch(oracle, [4 * GIB])) <= [most]
        assert choices(launch(oracle, [4 * GIB])) == [RING_SIMPLE]


@each(WITH_PLUGINS)
def test_nvls_on_one_node(nccl: str, tmp_path: Path) -> None:
    rows = [f"allreduce{'' if interface(nccl) == 1 else ' nodes=1'} -> nvls/simple | ring/ll"]
    with with_table(table_of(tmp_path, *rows), nccl, nodes=1, gpus=4) as oracle:
        expected = RING_LL if interface(nccl) == 1 else (Algorithm.NVLS, Protocol.Simple)  # 2.19: on how many nodes?
        assert choices(launch(oracle, [KIB, 16 * MIB])) == [expected] * 2


# What let users down elsewhere


@each(WITH_PLUGINS)
def test_sizes_past_4_gib(nccl: str, tmp_path: Path, bare: Oracle) -> None:
    sizes = [4 * GIB - 4, 4 * GIB, 8 * GIB, 8 * GIB + 4]
    with with_table(table_of(tmp_path, "allreduce bytes=4G..8G -> tree/ll"), nccl) as oracle:
        launched = launch(oracle, sizes)
    expected = launch(bare, sizes)
    assert [launched[0], launched[3]] == [expected[0], expected[3]]
    assert choices(launched[1:3]) == [TREE_LL, TREE_LL]
    assert choices(expected[1:3]) != [TREE_LL, TREE_LL]


@each(WITH_PLUGINS)
def test_nvidias_csv_and_channels_of_minus_1(nccl: str, tmp_path: Path, bare: Oracle) -> None:
    csv = table_of(tmp_path, "# by hand", "allreduce,65536,4194304,tree,simple,-1,-1,-1", header=None)
    with communicator(nccl, NCCL_TUNER_CONFIG_FILE=str(csv)) as oracle:
        launched = launch(oracle, SIZES)
    expected = launch(bare, SIZES)
    inside = [64 * KIB <= size <= 4 * MIB for size in SIZES]
    assert [one for one, held in zip(launched, inside, strict=True) if not held] == [
        one for one, held in zip(expected, inside, strict=True) if not held
    ]
    with alone(nccl, NCCL_ALGO="tree", NCCL_PROTO="simple") as env:
        taken = [one for one, held in zip(launched, inside, strict=True) if held]
        assert taken == launch(env, [64 * KIB, MIB, 4 * MIB])


@each(WITH_PLUGINS)
def test_a_relative_path(nccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, "allreduce -> tree/simple")
    monkeypatch.chdir(tmp_path)
    with communicator(nccl, NCCL_TUNER_TABLE="test.table", nodes=1) as oracle:
        assert said(oracle)[0].startswith(f"table {table} (sha256 ")
        assert choices(launch(oracle, [MIB])) == [TREE_SIMPLE]


BAD = {
    "a mistake": (
        f"{HEADER}\nallreduce -> ring/ll channels=1\nallreduce -> ring/l\n",
        ":3: unknown protocol 'l' (valid: ",
    ),
    "empty": ("", ":1: empty: "),
    "another release": (
        close(f"{HEADER}\n# nccl: 2.17.1\nallreduce -> ring/ll channels=1\n", 1),
        " is for NCCL '2.17.1', and this is 2.",
    ),
    "missing": (None, ": No such file or directory; there is no table (NCCL_TUNER_TABLE="),
}


@pytest.mark.each_choice
@each(WITH_PLUGINS)
@pytest.mark.usefixtures("warnings_allowed")
@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD)
def test_a_bad_table_is_reported_and_changes_nothing(
    nccl: str, tmp_path: Path, bare: Oracle, content: str | None, reason: str
) -> None:
    table = tmp_path / "%s%n.table"
    if content is not None:
        table.write_text(content)
    with with_table(Path(str(table).replace("%", "%%")), nccl) as oracle:
        assert launch(oracle, SIZES) == launch(bare, SIZES)
        warnings = said(oracle, "WARN")
    assert len(warnings) == 4, "one from each rank"
    assert all(warning.startswith(f"{table}{reason}") for warning in warnings)


ABORT_ON_ANY_FAILED_INIT = {"2.24.3", "2.25.1"}  # these free something twice, whichever plugin's init fails


@pytest.mark.each_choice
@each(WITH_PLUGINS)
@pytest.mark.usefixtures("warnings_allowed")
@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD)
def test_strict_fails_the_communicator(nccl: str, tmp_path: Path, content: str | None, reason: str) -> None:
    table = tmp_path / "bad.table"
    if content is not None:
        table.write_text(content)
    # "Invalid usage", or an internal error of a rank that another one left alone.
    failed = "killed by SIGABRT" if nccl in ABORT_ON_ANY_FAILED_INIT else r"ncclCommInitRank of rank \d returned [53] "
    with pytest.raises(OracleFailed, match=failed), with_table(table, nccl, NCCL_TUNER_STRICT="1", nodes=1):
        pass


@each(WITH_PLUGINS)
def test_without_a_table_nothing_changes(nccl: str, bare: Oracle) -> None:
    with communicator(nccl) as oracle:
        for collective in Collective:
            assert launch(oracle, SIZES, collective) == launch(bare, SIZES, collective)
        assert set(said(oracle)) == {"NCCL_TUNER_TABLE is not set: every choice is NCCL's own"}


@each(WITH_PLUGINS)
def test_nccls_own_variables(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=..1M -> ring/ll channels=2", "allreduce -> tree/ll")
    with with_table(table, nccl, nodes=1, gpus=4, NCCL_ALGO="Tree") as oracle:
        launched, lines = launch(oracle, [MIB, 2 * MIB]), said(oracle)
    with alone(nccl, nodes=1, gpus=4, NCCL_ALGO="Tree") as env:
        expected = launch(env, [MIB, 2 * MIB])
    assert launched[0] == expected[0], "a Ring that NCCL_ALGO forbids has no effect"
    if interface(nccl) < 3:
        assert launched[1] == expected[1]
        assert (
            "NCCL_ALGO=Tree is set, and this NCCL does not say what it leaves out: every choice is NCCL's own" in lines
        )
    else:
        assert choices(launched[1:]) == [TREE_LL]
        assert "NCCL_ALGO=Tree is set: what it leaves out stays out, the table decides among the rest" in lines


@each(WITH_PLUGINS)
def test_one_rank(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/simple channels=2")
    with with_table(table, nccl, nodes=1, gpus=1) as oracle:
        assert ": 1 row, 1 of them for " in said(oracle)[0]


@each(WITH_PLUGINS)
def test_one_rank_a_node(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allgather -> ring/simple", "allreduce -> nvlstree/simple | tree/simple")
    with with_table(table, nccl, gpus=1) as oracle:
        assert choices(launch(oracle, [64, MIB], AG)) == [RING_SIMPLE] * 2
        assert choices(launch(oracle, [64, MIB])) == [TREE_SIMPLE] * 2


@each(TOLD_OF_BUFFERS)
def test_registered_buffers_in_a_cuda_graph(nccl: str, tmp_path: Path) -> None:
    table = table_of(
        tmp_path, "allreduce registered=yes bytes=..1M -> tree/simple", "allreduce registered=no -> ring/ll"
    )
    with with_table(table, nccl, nodes=1) as oracle:
        assert choices(launch(oracle, [KIB, MIB], captured=True)) == [TREE_SIMPLE] * 2
        assert choices(launch(oracle, [KIB, MIB])) == [RING_LL] * 2
        beyond = launch(oracle, [2 * MIB], captured=True)
    with alone(nccl, nodes=1) as env:
        assert beyond == launch(env, [2 * MIB], captured=True)


@each(TOLD_OF_BUFFERS)
def test_registered_buffers(nccl: str, tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce registered=yes -> tree/simple", "allreduce registered=no -> ring/ll")
    with with_table(table, nccl, nodes=1) as oracle:
        assert choices(launch(oracle, [KIB, MIB], buffers=Buffers.registered)) == [TREE_SIMPLE] * 2
        assert choices(launch(oracle, [KIB, MIB])) == [RING_LL] * 2


# Chunks and constants


@each(WITH_CHUNKS)
def test_chunk_sizes(nccl: str, tmp_path: Path) -> None:
    """NCCL says in its log when a chunk is larger than a buffer: the way to see that it was asked and obeyed."""
    table = table_of(tmp_path, "allreduce bytes=1M.. -> ring/simple chunk=1G", "allreduce -> ring/simple chunk=64K")
    with with_table(table, nccl, nodes=1) as oracle:
        launch(oracle, [KIB])
        assert not [line for line in oracle.log_lines() if "tuner chunk size" in line]
        launch(oracle, [4 * MIB])
        clamped = [line for line in oracle.log_lines() if "tuner chunk size 1073741824 exceeds buffer max" in line]
        assert clamped


CONSTANTS = ("constant base-latency-us ring/ll 100000", "constant base-latency-us ring/ll128 100000")


@each(WITH_CELLS)
def test_constants(nccl: str, tmp_path: Path) -> None:
    sizes = [8, KIB]
    with alone(nccl, nodes=1) as env:
        own = choices(launch(env, sizes, AG))
    assert {algorithm for algorithm, protocol in own} == {Algorithm.Ring}
    keeps = loading.interface(release.load(nccl)).keeps_constants
    for allowed in "01":
        changed = keeps and allowed == "1"
        if interface(nccl) < 5 and allowed == "1":
            continue  # a warning, see test_plugin_versions
        with with_table(table_of(tmp_path, *CONSTANTS), nccl, nodes=1, NCCL_TUNER_CONSTANTS=allowed) as oracle:
            assert (choices(launch(oracle, sizes, AG)) != own) == changed


# NVLink domains


@each([nccl for nccl in WITH_PLUGINS if loading.interface(release.load(nccl)).says_domains])
def test_nccl_has_as_many_nvlink_domains_as_nodes(nccl: str, tmp_path: Path) -> None:
    """The emulator's dry run says them so, too."""
    rows = {1: "tree/simple", 2: "ring/simple channels=2", 3: "tree/ll"}
    table = table_of(tmp_path, *(f"allreduce nvlink-domains={domains} -> {row}" for domains, row in rows.items()))
    expected = {2: (*RING_SIMPLE, 2), 3: TREE_LL}
    for nodes, choice in expected.items():
        with with_table(table, nccl, nodes=nodes) as oracle:
            (launched,) = oracle.launch(Request(AR, DataType.float32, Op.sum), [MIB])
            assert (launched.algorithm, launched.protocol, launched.channels)[: len(choice)] == choice
            assert not any("NVLink domains" in line for line in oracle.log_lines())
        selection = Selection(Scenario(nccl=nccl, machine="dgx-h100", nodes=nodes, gpus_per_node=2).communicator())
        (tried,) = trial.run(table, selection, Request(AR, DataType.float32, Op.sum), [MIB]).sizes
        assert tried.decision == nodes + 1
        assert tried.picked is not None
        assert (tried.picked.algorithm, tried.picked.protocol) == choice[:2]


HASH = re.compile(r"TUNER/nccl-tuner: table \S+ \(sha256 ([0-9a-f]{12})\)")
RANKS = 16


@contextmanager
def replaced(table: Path) -> Iterator[None]:
    """Another thread writes other tables in its place, one after the other, each by an atomic rename."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            channels = number % 64 + 1
            rows = [f"allreduce -> ring/ll channels={channels}"] * (number % 99 + 1)  # one without any is refused
            following = table_of(table.parent, *rows)
            following.rename(table)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("nccl", ["2.21.5", "2.23.4", "2.28.9"])
def test_all_ranks_go_by_one_content(nccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Oracle, "_check_log", lambda oracle: None)  # that the file has changed is a warning
    table = tmp_path / "pod.table"
    table_of(tmp_path, "allreduce -> ring/ll").rename(table)
    env = {"NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_STRICT": "1"}
    topology = catalogue.load("dgx-h100").topology_xml
    with replaced(table):
        for _ in range(3):
            configuration = OracleConfiguration(topology, 2, 8, nccl, env, plugin=plugin.path())
            with Oracle(configuration) as oracle:
                read = HASH.findall("\n".join(oracle.log_lines()))
            assert len(read) == RANKS
            assert len(set(read)) == 1


ROWS = """nccl-tuner-table 1
allreduce bytes=64K..4M ranks=16 nodes=2 -> ring/ll128 channels=8 | tree/ll128
allreduce bytes=128K..1M -> tree/simple
allreduce bytes=8G.. -> nvls/simple
allgather ranks=8 -> ring/ll
allgather bytes-per-rank=..32K -> nccl
cost allreduce bytes=..1K -> ring/ll latency-us=20 bandwidth-gbs=1
"""
EFFECTS = {
    2: "decides",
    3: "no call reaches it",
    4: "cannot run here",
    5: "for other communicators",
    6: "leaves it to NCCL",
    7: "gives times",
}
ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl")


def rows_of(table: Path, nccl: str, code: int) -> list[dict[str, object]]:
    said = json.loads(run("plugin", "lint", "--libnccl", str(table), *ON, nccl, "--json", code=code).stdout)
    rows: list[dict[str, object]] = said["rows"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("nccl", [name for name in ("2.22.3", "2.28.9", "2.32.3") if name in WITH_PLUGINS])
def test_every_row_is_seen_or_said_to_have_no_effect(tmp_path: Path, nccl: str) -> None:
    table = tmp_path / "t"
    table.write_text(ROWS)
    rows = rows_of(table, nccl, code=1)
    assert {row["line"]: row["effect"] for row in rows} == EFFECTS
    after = rows[0]["after"]
    assert isinstance(after, dict)
    assert (after["algorithm"], after["protocol"], after["channels"]) == ("Ring", "LL128", 8)


@pytest.mark.slow
def test_a_table_whose_rows_all_take_effect(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=..1M -> ring/simple channels=2\nreduce -> ring/ll\n")
    done = run("plugin", "lint", "--libnccl", str(table), *ON, "2.28.9")
    assert done.stdout.startswith("every row for this communicator takes effect: 2 of 2 rows were tried\n")
    assert "Ring/Simple x1" in done.stdout


def test_an_exported_table_is_not_ignored_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TUNER_TABLE", str(tmp_path / "t"))
    said = run("pick", "--libnccl", "allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "8").stderr
    assert (
        "note: NCCL_TUNER_TABLE is set, but libnccl is asked without a tuner plugin, so that no table is loaded; "
        "`nccl-tuner plugin lint --libnccl` does" in said
    )


UNMATCHED_SIZES = [*(64 << shift for shift in range(0, 28, 2)), (1 << 20) + 64, 3 << 20, 5 << 26]
UNMATCHED_ROWS = [
    "allreduce nodes=99 -> tree/simple channels=3",
    "allreduce ranks=3 bytes=1M.. -> ring/ll",
    "allgather bytes=7 -> ring/ll",
    "broadcast pipelined=77 -> ring/ll",
    "cost allreduce ranks=3 -> ring/ll never",
    "cost reducescatter nodes=99 -> ring/simple latency-us=0 bandwidth-gbs=900",
]
STEPS = 8  # of a buffer: NCCL_STEPS
CHUNKS_SINCE = 6  # version of the tuner interface
FP8_SINCE = 4  # version of the tuner interface: both came with 2.24


def asked(nccl: str) -> int:
    """The version of the tuner interface; 0 for a release that asks no tuner."""
    known = release.load(nccl)
    return loading.interface(known).version if known.plugin else 0


def requests(nccl: str) -> list[Request]:
    dtypes = [DataType.float32, DataType.bfloat16]
    if asked(nccl) >= FP8_SINCE:
        dtypes += [DataType.float8e4m3, DataType.float8e5m2]
    return [Request(collective, dtype, Op.sum) for collective in Collective for dtype in dtypes]


def launched(configuration: OracleConfiguration, asking: list[Request]) -> list[OracleLaunch]:
    with Oracle(configuration, timeout_s=600) as oracle:
        return [each for request in asking for each in oracle.launch(request, UNMATCHED_SIZES)]


@pytest.mark.each_choice
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-b200"])
@pytest.mark.parametrize(("nccl", "build"), [*((nccl, library.BUILD) for nccl in HERE), *BUILDS])
def test_nothing_changes(nccl: str, build: str, machine: str, tmp_path: Path) -> None:
    """Two nodes of eight GPUs: more ranks than those from which on NCCL guards sums of 8-bit floats."""
    if not asked(nccl):
        pytest.skip(f"{nccl} asks no tuner plugin")
    own = Scenario(nccl, 2, machine=machine, build=build).oracle_configuration()
    table = {"NCCL_TUNER_TABLE": str(table_of(tmp_path, *UNMATCHED_ROWS))}
    given = replace(own, plugin=plugin.path(), env={**own.env, **table})
    asking = requests(nccl)
    alone = launched(replace(own, without_tuner=True), asking)
    assert len(alone) == len(asking) * len(UNMATCHED_SIZES) >= 170
    changed = [was for was, now in zip(alone, launched(given, asking), strict=True) if was != now]
    assert changed == []


def chunks_bytes(configuration: OracleConfiguration, operations: list[Operation]) -> list[list[int]]:
    """Of each call, those of the network's operations."""
    calls = [[IssuedCall(each.request.collective, each.request.dtype, each.bytes // 4)] for each in operations]
    with Oracle(configuration) as oracle:
        return [each.operations["chunkSize"].tolist() for each in oracle.launch_groups_in_full(calls)]


@pytest.mark.parametrize("nccl", [name for name in WITH_PLUGINS if asked(name) >= CHUNKS_SINCE])
def test_chunks_stay_where_no_row_says_any(nccl: str, tmp_path: Path) -> None:
    """NCCL cuts what a tuner answers to a step of the buffer, even its own size; NVLSTree's chunks may be larger."""
    env = {"NCCL_BUFFSIZE": "65536", "NCCL_ALGO": "NVLSTree"}
    own = Scenario(nccl, 2, machine="dgx-h100", environment=env).oracle_configuration()

    def with_table(*rows: str) -> OracleConfiguration:
        table = {"NCCL_TUNER_TABLE": str(table_of(tmp_path, *rows))}
        return replace(own, plugin=plugin.path(), env={**own.env, **table})

    operations = [
        Operation(Request(Collective.AllReduce, DataType.float32, Op.sum), size) for size in UNMATCHED_SIZES[8:]
    ]
    alone = chunks_bytes(replace(own, without_tuner=True), operations)
    assert max(map(max, alone)) > 65536 // STEPS
    assert chunks_bytes(own, operations) == alone, "the recorder"
    assert chunks_bytes(with_table(*UNMATCHED_ROWS, "allreduce ranks=16 -> nvlstree/simple"), operations) == alone
    said = chunks_bytes(with_table("allreduce -> nvlstree/simple chunk=4K"), operations)
    assert {size for of_call in said for size in of_call} == {4096}


SAYS_INTERFACE = [name for name in WITH_PLUGINS if interface(name) >= 5]  # those before name the tuner alone


@pytest.mark.parametrize("nccl", SAYS_INTERFACE)
def test_libnccl_takes_the_newest_interface_that_it_knows(nccl: str) -> None:
    """Not version 7, which 2.32.6 looks up first."""
    configuration = Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=2).oracle_configuration()
    with Oracle(replace(configuration, plugin=plugin.path(), record_plugin=False)) as oracle:
        said = [line for line in oracle.log_lines() if "nccl-tuner (v" in line]
    assert said
    assert all(f"nccl-tuner (v{interface(nccl)})" in line for line in said)


@each(WITH_PLUGINS)
def test_a_call_counts_once_however_often_nccl_asks_about_it(nccl: str, tmp_path: Path) -> None:
    """From 2.31 on NCCL asks three times, the first time with nothing to choose from.

    2.20 and 2.21 ask twice in the same words, about the calls of a group and then about each of them.
    """
    table = table_of(tmp_path, "allreduce bytes=4K -> ring/ll", "allreduce bytes=1M -> collnetchain/simple")
    live = tmp_path / "live"
    live.mkdir()
    with with_table(table, nccl, NCCL_TUNER_LIVE=str(live), NCCL_TUNER_UNCHECKED="1") as oracle:
        launch(oracle, [4 * KIB, 4 * KIB, MIB, 64 * KIB])
        launch(oracle, [4 * KIB], AG)
        answer = json.loads(run("plugin", "stats", str(live), "--json").stdout)
    asked = [rank for rank in answer["ranks"] if rank["calls"]]
    times = 1 if interface(nccl) >= 3 else 2
    assert [rank["calls"] for rank in asked] == [5 * times]  # this process launches on rank 0 alone
    assert (asked[0]["decided"], asked[0]["could_not_run"]) == ({"2": 2 * times}, {"3": times})
