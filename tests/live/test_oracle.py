"""The real libnccl on simulated GPUs: its numbers are its own, and every way it can fail is reported."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support import prepared_children
from tests.support.available_releases import HERE
from tuner.base import children
from tuner.base.errors import BadInput, BadTopology, OracleFailed, OracleUnavailable
from tuner.base.names import Algorithm, Collective, DataType, Op, Pattern, Protocol
from tuner.cli import everything
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.machine.gpus import PeerToPeer
from tuner.oracle import answers, hardware, library, process
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.messages import GpuMessage
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

RELEASE = "2.28.9"
SIZES = [4 << shift for shift in range(33)]  # 4 B to 16 GiB
AR, AG, RS = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
F32 = DataType.float32


@pytest.fixture(scope="session", autouse=True)
def nccl() -> library.Library:
    """Fetched where it is missing: a fresh machine has the package index and an empty cache."""
    try:
        return library.find(RELEASE)
    except OracleUnavailable:
        return library.fetch(RELEASE)


def configuration(machine: str = "dgx-h100", nodes: int = 1, gpus: int = 8, **changes: object) -> OracleConfiguration:
    given = {"release": RELEASE, "env": {}, **changes}
    return OracleConfiguration(catalogue.load(machine).topology_xml, nodes, gpus, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def one_node(nccl: library.Library) -> Iterator[Oracle]:
    with Oracle(configuration()) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def two_nodes(nccl: library.Library) -> Iterator[Oracle]:
    with Oracle(configuration(nodes=2)) as oracle:
        yield oracle


def reachable(oracle: Oracle, collective: Collective) -> list[int]:
    return sorted({oracle.reachable(collective, F32, size)[1] for size in SIZES})


# --- what is read out of NCCL's memory is what NCCL prints ---

GRAPH_LINE = re.compile(
    r"\[0\] NCCL INFO Pattern (\d+), crossNic (\d+), nChannels (\d+), bw ([\d.]+)/([\d.]+), "
    r"type (\w+)/(\w+), sameChannels (\d+)"
)


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus"),
    [("dgx-h100", 1, 8), ("dgx-h100", 2, 8), ("dgx-h100", 4, 1), ("dgx-a100", 1, 4), ("dgx-a100", 2, 8)],
)
def test_graphs_are_those_in_the_log(machine: str, nodes: int, gpus: int) -> None:
    with Oracle(configuration(machine, nodes, gpus)) as oracle:
        assert Pattern.Ring in read_graphs(oracle)
        assert read_graphs(oracle) == printed_graphs(oracle)


def printed_graphs(oracle: Oracle) -> dict[int, tuple[object, ...]]:
    printed: dict[int, tuple[object, ...]] = {}
    for match in GRAPH_LINE.finditer("\n".join(oracle.log_lines())):
        pattern, cross, channels, intra, inter, type_intra, type_inter, same = match.groups()
        types = type_intra, type_inter
        printed[int(pattern)] = (int(cross), int(channels), float(intra), float(inter), *types, int(same))
    return printed


def read_graphs(oracle: Oracle) -> dict[int, tuple[object, ...]]:
    return {
        graph.pattern: (
            graph.cross_nic,
            graph.channels,
            graph.bw_intra_gbs,
            graph.bw_inter_gbs,
            graph.type_intra,
            graph.type_inter,
            graph.same_channels,
        )
        for graph in oracle.graphs.values()
        if graph.channels
    }


def test_graph_dump_is_the_same_search(two_nodes: Oracle) -> None:
    text = two_nodes.graph_xml()
    assert text is not None
    ring = re.search(r'<graph id="0" pattern="4" crossnic="2" nchannels="(\d+)" speedintra="([\d.]+)"', text)
    assert ring is not None
    assert int(ring[1]) == two_nodes.graphs[Algorithm.Ring].channels
    assert float(ring[2]) == two_nodes.graphs[Algorithm.Ring].bw_intra_gbs


def test_tables_are_those_in_the_log(two_nodes: Oracle) -> None:
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in two_nodes.log_lines():
        if match := re.search(r"\[0\] NCCL INFO +(\w+) \|((?: +[\d.]+/ *[\d.]+ \|)+)", line):
            rows.setdefault(match[1], []).extend(re.findall(r"([\d.]+)/ *([\d.]+)", match[2]))
    assert set(rows) == {collective.name for collective in Collective}
    for name, cells in rows.items():
        latency = two_nodes.tables.latency_us[Collective[name]].ravel()
        bandwidth = two_nodes.tables.bandwidth_gbs[Collective[name]].ravel()
        assert cells == [(f"{lat:.1f}", f"{bw:.1f}") for lat, bw in zip(latency, bandwidth, strict=True)]
    assert two_nodes.tables.latency_us.any()


def test_max_threads_and_thresholds_are_those_in_the_log(two_nodes: Oracle) -> None:
    threads: list[int] = []
    for line in two_nodes.log_lines():
        if "[0] NCCL INFO  Max NThreads" in line:
            threads += map(int, re.findall(r" (\d+) \|", line))
    assert threads == two_nodes.tables.max_threads.ravel().tolist()
    printed = next(line for line in two_nodes.log_lines() if "threadThresholds" in line)
    tree, ring = re.findall(r"(\d+)/(\d+)/(\d+)", printed)[:2]
    assert [tree, ring] == [tuple(map(str, row)) for row in two_nodes.tables.thread_thresholds_bytes[:2]]


@pytest.mark.parametrize("release_name", [RELEASE, "2.32.3"])
def test_the_command_table_prints_the_lines_of_the_log(release_name: str) -> None:
    """From 2.31 on without threads, -1 where an algorithm lacks a collective, and with what NCCL_ALGO excludes."""
    description = Scenario(nccl=release_name, machine="dgx-h100", nodes=2, environment={"NCCL_ALGO": "ring"})
    with Oracle(description.oracle_configuration()) as oracle:
        said = [line.partition(" NCCL INFO ")[2] for line in oracle.log_lines() if "[0] NCCL INFO" in line]
    logged = [line.rstrip() for line in said if re.match(r" *(Algorithm|Protocol|Max NThreads|[A-Z]\w+) +\|", line)]
    words = ["table", "--machine", "dgx-h100", "--nodes", "2", "--nccl", release_name, "--env", "NCCL_ALGO=ring"]
    printed = CliRunner().invoke(everything, words).stdout
    assert [line.rstrip() for line in printed.splitlines()] == logged[: len(printed.splitlines())]
    assert len(logged) >= 18


def test_channel_counts_are_those_in_the_log(two_nodes: Oracle) -> None:
    printed = next(line for line in two_nodes.log_lines() if "coll channels" in line)
    counts = [int(number) for number in re.findall(r"(\d+) (?:coll|nvls|p2p) channels(?:,|$)", printed)]
    facts = two_nodes.facts
    assert counts == [facts.n_channels, facts.nvls_channels, facts.p2p_channels]


def test_facts_of_two_nodes(two_nodes: Oracle, nccl: library.Library) -> None:
    expected = {
        "release": RELEASE,
        "library_sha256": nccl.sha256,
        "n_ranks": 16,
        "n_nodes": 2,
        "local_ranks": 8,
        "min_comp_cap": 90,
        "max_comp_cap": 90,
        "cpu_arch": 1,
        "cpu_vendor": 1,
        "nvls_support": 1,
        "nvls_channels": 16,
        "collnet": 0,
        "one_rank_per_node": False,
    }
    assert {name: getattr(two_nodes.facts, name) for name in expected} == expected


# --- what is launched ---

DEVICE_NAMES = {Collective.Reduce: "Reduce", AR: "AllReduce", RS: "ReduceScatter"}


@pytest.mark.parametrize("collective", Collective)
def test_every_size_launches(two_nodes: Oracle, collective: Collective) -> None:
    sizes = reachable(two_nodes, collective)
    launched = two_nodes.launch(Request(collective, F32, Op.sum), sizes)
    assert [each.bytes for each in launched] == sizes
    for each in launched:
        name = f"{DEVICE_NAMES[collective]}_Sum_f32" if collective in DEVICE_NAMES else collective.name
        # Only some algorithms and protocols have kernels of their own; the others run inside one of those.
        assert re.fullmatch(rf"ncclDevKernel_{name}_(RING|TREE)_LL", each.kernel)
        assert (each.channel_lo, each.channel_hi) == (0, each.channels - 1)
        assert each.threads % 32 == 0
        assert each.threads <= 640
    assert launched[-1].bytes >= 16 << 30
    assert {each.channels for each in launched} > {1}


def test_a_specialised_kernel_is_the_pick(two_nodes: Oracle) -> None:
    (each,) = two_nodes.launch(Request(AR, F32, Op.sum), [1024])
    assert (each.algorithm, each.protocol, each.kernel) == (
        Algorithm.Tree,
        Protocol.LL,
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL",
    )


def test_nvls_tree_on_two_hopper_nodes_and_nvls_on_one(two_nodes: Oracle, one_node: Oracle) -> None:
    assert two_nodes.launch(Request(AR, F32, Op.sum), [1 << 30])[0].algorithm == Algorithm.NVLSTree
    assert one_node.launch(Request(AR, F32, Op.sum), [1 << 30])[0].algorithm == Algorithm.NVLS
    assert one_node.launch(Request(AR, F32, Op.prod), [1 << 30])[0].algorithm == Algorithm.Ring


def test_pat_on_one_gpu_per_node() -> None:
    with Oracle(configuration(nodes=8, gpus=1)) as oracle:
        assert oracle.facts.one_rank_per_node is True
        launched = oracle.launch(Request(AG, F32, Op.sum), [256 << 10])
    assert launched[0].algorithm == Algorithm.PAT


def test_no_nvls_on_ampere() -> None:
    with Oracle(configuration("dgx-a100")) as oracle:
        assert oracle.facts.nvls_support == 0
        assert (oracle.costs(Request(AR, F32, Op.sum), [1 << 30])[0, Algorithm.NVLS] == -1).all()


def test_coll_net_where_it_is_enabled() -> None:
    with Oracle(configuration("dgx-a100", 2, network_reduces=True, env={"NCCL_COLLNET_ENABLE": "1"})) as oracle:
        assert oracle.facts.collnet == 1
        assert oracle.graphs[Algorithm.CollNetDirect].channels > 0
        assert oracle.launch(Request(AR, F32, Op.sum), [1 << 30])[0].algorithm == Algorithm.CollNetDirect
        assert oracle.launch(Request(AR, F32, Op.sum), [1 << 30])[0].channels == oracle.facts.n_channels


def test_the_environment_reaches_nccl() -> None:
    with Oracle(
        configuration(nodes=2, env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_MAX_CTAS": "4"})
    ) as oracle:
        picks = {(e.algorithm, e.protocol) for e in oracle.launch(Request(AR, F32, Op.sum), [1024, 1 << 20, 1 << 30])}
        assert picks == {(Algorithm.Ring, Protocol.Simple)}
        assert oracle.launch(Request(AR, F32, Op.sum), [1 << 30])[0].channels == 4


def test_calls_in_one_group_share_a_kernel(two_nodes: Oracle) -> None:
    sizes = [1 << 20, 4 << 20, 1 << 10, 64 << 20]
    group = two_nodes.launch_group([Operation(Request(AR, F32, Op.sum), size) for size in sizes])
    (kernel,) = group.kernels
    assert sorted(each.nbytes(16) for each in kernel.operations) == sorted(sizes)  # type: ignore[type-var]
    together = {each.nbytes(16): each for each in kernel.operations}
    alone = two_nodes.launch(Request(AR, F32, Op.sum), sizes)
    assert [together[each.bytes].algorithm for each in alone] == [each.algorithm for each in alone]
    # Together they share the channels that the largest would have alone.
    assert len(together[1 << 20].channels) < alone[0].channels
    assert [question.bytes for question in group.questions] == [1 << 10, 1 << 20, 4 << 20, 64 << 20]
    assert two_nodes.launch(Request(AR, F32, Op.sum), sizes) == alone, "a group leaves nothing behind"


def test_a_group_of_nothing_is_refused(two_nodes: Oracle) -> None:
    with pytest.raises(BadInput, match="a group without a collective"):
        two_nodes.launch_group([])


# --- what is asked ---


@pytest.mark.parametrize("collective", Collective)
def test_the_winner_is_the_cheapest_cell_and_what_is_launched(two_nodes: Oracle, collective: Collective) -> None:
    sizes = reachable(two_nodes, collective)
    asked = two_nodes.ask(Request(collective, F32, Op.sum), sizes)
    launched = two_nodes.launch(Request(collective, F32, Op.sum), sizes)
    assert asked.before_us.shape == (len(sizes), len(Algorithm), len(Protocol))
    assert asked.before_us.dtype == np.float32
    assert (asked.before_us == asked.after_us).all(), "the recorder changes nothing"
    assert (asked.channels == 0).all()
    for table, winner_us, each in zip(asked.before_us, asked.winner_us, launched, strict=True):
        assert table[each.algorithm, each.protocol] == winner_us
        assert winner_us == table[table != -1].min()
        assert np.float32(each.time_us) == winner_us
    assert (asked.before_us == -1).any()


def test_asking_leaves_nothing_behind(two_nodes: Oracle) -> None:
    """A simulated group's tasks are never launched; they must not count as operations of the next group."""
    first = two_nodes.ask(Request(AR, F32, Op.sum), [1 << 20])
    many = two_nodes.ask(Request(AR, F32, Op.sum), [1 << 20] * 100)
    assert set(many.pipe_ops.tolist()) == {1}
    assert (many.before_us == first.before_us).all()
    assert len(two_nodes.launch(Request(AR, F32, Op.sum), [1 << 20])) == 1


def test_the_recorder_changes_no_launch(tmp_path: Path, one_node: Oracle) -> None:
    idle = compiled(tmp_path, "return 0;")
    with Oracle(configuration(plugin=idle)) as bare:
        for collective in Collective:
            sizes = reachable(bare, collective)
            without = bare.launch(Request(collective, F32, Op.sum), sizes)
            recorded = one_node.launch(Request(collective, F32, Op.sum), sizes)
            assert all(each.time_us is None for each in without)
            assert [key(each) for each in without] == [key(each) for each in recorded]
        with pytest.raises(BadInput, match="record_plugin"):
            bare.costs(Request(AR, F32, Op.sum), [4])


def key(each: OracleLaunch) -> tuple[object, ...]:
    return each.bytes, each.algorithm, each.protocol, each.channels, each.threads, each.kernel


# --- other releases ---


@pytest.mark.parametrize("name", HERE)
def test_every_release_that_is_here_answers_alike(name: str) -> None:
    """Log, memory, launches and costs agree with each other, whichever way a release lets them be had."""
    with Oracle(configuration(nodes=2, release=name)) as oracle:
        assert oracle.facts.release == name
        assert oracle.facts.n_ranks == 16
        assert read_graphs(oracle) == printed_graphs(oracle)
        for collective in (AR, AG, RS):
            sizes = reachable(oracle, collective)[::6]
            asked = oracle.ask(Request(collective, F32, Op.sum), sizes)
            assert set(asked.pipe_ops.tolist()) == {1}
            launched = oracle.launch(Request(collective, F32, Op.sum), sizes)
            for table, winner_us, each in zip(asked.before_us, asked.winner_us, launched, strict=True):
                assert winner_us == table[each.algorithm, each.protocol] == table[table >= 0].min()
                assert np.float32(each.time_us) == winner_us
                assert each.kernel.startswith(("ncclDevKernel_", "ncclKernel_"))


@pytest.mark.parametrize("name", HERE)
def test_launches_without_end(name: str) -> None:
    """Up to 2.21 work goes through a ring of 65536 entries that a kernel would empty; 24 of them a launch here."""
    with Oracle(configuration("dgx-a100", gpus=4, release=name), timeout_s=60) as oracle:
        launched = oracle.launch(Request(AR, F32, Op.sum), [1 << 30] * 3000)
        assert {(each.algorithm, each.channels) for each in launched} == {(Algorithm.Ring, 24)}


# --- other tuner plugins ---

PLUGIN = """
#include <stddef.h>
static int init(size_t ranks, size_t nodes, void *log, void **context) { *context = NULL; return 0; }
static int ask(void *context, int collective, size_t bytes, int ops, float *table, int algorithms, int protocols,
               int registered, int *channels) { %s }
static int end(void *context) { return 0; }
struct { const char *name; void *init, *ask, *end; } ncclTunerPlugin_v4 = {"test plugin", init, ask, end};
"""
PREFER_TREE_LL = "if (collective == 4) { table[0] = 0.0f; table[2] = -1.0f; *channels = 3; } return 0;"


def compiled(folder: Path, body: str, source: str = PLUGIN) -> Path:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    code, target = folder / "plugin.c", folder / "plugin.so"
    code.write_text(source % body if "%s" in source else source)
    subprocess.run([compiler, "-w", "-shared", "-fPIC", str(code), "-o", str(target)], check=True)
    return target


def test_nccl_loads_the_given_plugin(tmp_path: Path) -> None:
    with Oracle(configuration(plugin=compiled(tmp_path, PREFER_TREE_LL))) as oracle:
        (each,) = oracle.launch(Request(AR, F32, Op.sum), [1 << 30])
        assert (each.algorithm, each.protocol, each.channels) == (Algorithm.Tree, Protocol.LL, 3)


def test_the_table_before_and_after_a_plugin(tmp_path: Path, one_node: Oracle) -> None:
    plugin = compiled(tmp_path, PREFER_TREE_LL)
    sizes = [1 << 20, 1 << 30]
    with Oracle(configuration(plugin=plugin, record_plugin=True)) as oracle:
        asked = oracle.ask(Request(AR, F32, Op.sum), sizes)
        launched = oracle.launch(Request(AR, F32, Op.sum), sizes)
        other = oracle.ask(Request(AG, F32, Op.sum), sizes)
    assert (asked.before_us == one_node.costs(Request(AR, F32, Op.sum), sizes)).all()
    changed = np.argwhere(asked.before_us != asked.after_us).tolist()
    assert changed == [[0, 0, 0], [0, 0, 2], [1, 0, 0], [1, 0, 2]]
    assert asked.channels.tolist() == [3, 3]
    assert asked.winner_us.tolist() == [0, 0]
    assert {(each.algorithm, each.protocol, each.channels) for each in launched} == {(0, 0, 3)}
    assert (other.before_us == other.after_us).all()


def test_a_plugin_nccl_does_not_take(tmp_path: Path) -> None:
    stranger = compiled(tmp_path, "", "int nothing_of_a_tuner;")
    with pytest.raises(OracleFailed, match="did not load tuner plugin"):
        Oracle(configuration(plugin=stranger))


def test_a_plugin_that_cannot_be_wrapped(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    with pytest.raises(OracleFailed, match="cannot load tuner plugin"):
        Oracle(configuration(plugin=broken, record_plugin=True))


def test_a_plugin_that_crashes_takes_only_the_child(tmp_path: Path) -> None:
    plugin = compiled(tmp_path, "return *(volatile int *)0;")
    complaint = r"was killed by SIGSEGV while launching 1 AllReduce of float32 with tuner plugin \S+plugin\.so"
    with Oracle(configuration(plugin=plugin)) as oracle, pytest.raises(OracleFailed, match=complaint):
        oracle.launch(Request(AR, F32, Op.sum), [4])


def test_an_error_of_nccl_is_reported(tmp_path: Path) -> None:
    plugin = compiled(tmp_path, "return 3;")
    complaint = r"at 4 bytes NCCL returned 3 \(internal error"
    with Oracle(configuration(plugin=plugin)) as oracle, pytest.raises(OracleFailed, match=complaint):
        oracle.launch(Request(AR, F32, Op.sum), [4])


# --- the child ---


def test_a_crash_is_reported() -> None:
    with Oracle(configuration(gpus=2)) as oracle:
        os.kill(oracle.pid, signal.SIGSEGV)
        with pytest.raises(OracleFailed) as caught:
            oracle.launch(Request(AR, F32, Op.sum), [4])
        message = str(caught.value)
        assert "was killed by SIGSEGV while launching 1 AllReduce of float32" in message
        assert "NCCL's last lines:" in message
        assert "\n" not in message
        assert oracle.facts.n_ranks == 2, "what was read before stays"


def test_a_hang_is_reported_and_ended() -> None:
    with Oracle(configuration(gpus=2), timeout_s=60) as oracle:
        oracle.timeout_s = 0.5
        os.kill(oracle.pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(OracleFailed, match=r"did not answer within 0\.5 s \(timeout=\)"):
            oracle.launch(Request(AR, F32, Op.sum), [4])
        assert time.monotonic() - start < 30, "it is this request's limit that counts"
        assert not alive(oracle.pid)


def test_too_little_time_to_start() -> None:
    with pytest.raises(OracleFailed, match=r"did not answer within 0\.01 s \(timeout=\) while initialising 8 ranks"):
        Oracle(configuration(), timeout_s=0.01)


def test_closing_ends_the_child() -> None:
    oracle = Oracle(configuration(gpus=2))
    assert alive(oracle.pid)
    oracle.close()
    assert not alive(oracle.pid)
    oracle.close()
    assert oracle.tables.latency_us.any()


def alive(pid: int) -> bool:
    """A process that ended and that its new parent never waits for, as in many containers, is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


ORPHAN = """
import sys
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration
from tuner.machine import catalogue as machines
from tuner import release
oracle = Oracle(OracleConfiguration(machines.load("dgx-h100").topology_xml, 1, 2, sys.argv[1], {}))
print(oracle.pid, flush=True)
import time; time.sleep(60)
"""


def test_a_killed_parent_leaves_no_child() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, RELEASE], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_oracles_side_by_side(one_node: Oracle) -> None:
    picks: list[object] = []

    def ask() -> None:
        with Oracle(configuration()) as oracle:
            picks.append([key(each) for each in oracle.launch(Request(AR, F32, Op.sum), SIZES)])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert picks == [[key(each) for each in one_node.launch(Request(AR, F32, Op.sum), SIZES)]] * 3


def test_nothing_of_the_callers_environment_leaks(monkeypatch: pytest.MonkeyPatch, one_node: Oracle) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "1")
    monkeypatch.setenv("NCCL_TOPO_FILE", "/nonexistent")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/nonexistent/log")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(children, "start", prepared_children.as_users_do)
    with Oracle(configuration()) as oracle:
        environment = Path(f"/proc/{oracle.pid}/environ").read_bytes().decode().split("\0")
        assert {variable.split("=")[0] for variable in environment if variable.startswith("NCCL_")} == (
            process.OWN_VARIABLES - {"NCCL_CUDA_PATH", "NCCL_CONF_FILE", "NCCL_TOPO_DUMP_FILE"} | {"NCCL_TUNER_NEXT"}
        )
        assert not [variable for variable in environment if variable.startswith("CUDA_")]
        assert (oracle.costs(Request(AR, F32, Op.sum), SIZES) == one_node.costs(Request(AR, F32, Op.sum), SIZES)).all()


# --- setups that cannot be ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"nodes": 0}, "0 nodes of 8 GPUs"),
        ({"gpus": 9}, "gpus_per_node is 9: valid are 1 to 8"),
        ({"nodes": 65}, "at most 512"),
        ({"env": {"NCCL_TOPO_FILE": "x"}}, "NCCL_TOPO_FILE cannot be set"),
        ({"env": {"PATH": "x"}}, r"PATH: only NCCL_\* variables"),
        ({"plugin": Path("/nonexistent.so")}, "tuner plugin /nonexistent.so does not exist"),
        ({"release": "2.28"}, "is not a release"),
    ],
    ids=["no nodes", "too many gpus", "too many ranks", "own variable", "other variable", "no plugin", "release"],
)
def test_bad_setups(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Oracle(configuration(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topology", "complaint"),
    [
        ("<system", "topology is not XML"),
        ("<system><cpu/></system>", "has no <gpu> element"),
        ('<system><cpu><pci busid="0000:01:00.0"><gpu dev="0"/></pci></cpu></system>', "compute capability in sm="),
        (
            '<system><cpu><pci busid="0000:01:00.0"><gpu dev="0" sm="90"/></pci></cpu></system>',
            "has no <net> element, which a communicator of 2 nodes needs",
        ),
    ],
    ids=["not xml", "no gpu", "no sm", "no net"],
)
def test_bad_topologies(topology: str, complaint: str) -> None:
    with pytest.raises(BadTopology, match=complaint):
        Oracle(OracleConfiguration(topology, 2, 1, RELEASE, {}))


def test_memory_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.oracle.start._available_bytes", lambda: 100 << 20)
    with pytest.raises(BadInput, match="this machine has 100 MB available, enough for 2 ranks"):
        Oracle(configuration())


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.oracle.process.platform.machine", lambda: "ppc64le")
    with pytest.raises(OracleUnavailable, match="Linux on x86_64 and aarch64 only; this is linux ppc64le"):
        process.check_platform()


def test_sizes_no_count_reaches(two_nodes: Oracle) -> None:
    with pytest.raises(BadInput, match="no AllGather of float32 on 16 ranks has 1000 bytes; nearest: 960, 1024"):
        two_nodes.launch(Request(AG, F32, Op.sum), [1000])
    with pytest.raises(BadInput, match=r"has 3 bytes; nearest: 4$"):
        two_nodes.costs(Request(AR, F32, Op.sum), [3])
    with pytest.raises(BadInput, match="more than a simulated buffer holds"):
        two_nodes.costs(Request(AR, F32, Op.sum), [1 << 60])
    assert two_nodes.launch(Request(AR, F32, Op.sum), []) == []
    assert two_nodes.costs(Request(AR, F32, Op.sum), []).shape == (0, len(Algorithm), len(Protocol))


def test_one_rank_has_nothing_to_choose() -> None:
    with Oracle(configuration(gpus=1)) as oracle:
        assert oracle.facts.n_ranks == 1
        with pytest.raises(BadInput, match="with one rank there is nothing to choose"):
            oracle.launch(Request(AR, F32, Op.sum), [4])


# --- readers ---


def test_hardware_of_a_topology() -> None:
    read = hardware.read(Host(catalogue.load("dgx-h100").topology_xml, 3), nodes=2)
    assert [gpu.compute_capability for gpu in read.gpus] == [90, 90, 90]
    assert len({gpu.bus_id for gpu in read.gpus}) == 3
    assert len(read.nets) >= 8
    assert read.multicast
    assert not hardware.read(Host(catalogue.load("dgx-a100").topology_xml, 3), nodes=2).multicast
    assert not hardware.read(Host(catalogue.load("gh200-4x").topology_xml, 3), nodes=2).multicast  # no switch


def test_gpus_and_nets_are_taken_in_their_order() -> None:
    xml = """<system><cpu>
      <pci busid="0000:02:00.0"><gpu dev="1" sm="80"/></pci> <pci busid="0000:01:00.0"><gpu dev="0" sm="90"/></pci>
      <nic><net name="b" dev="1" speed="100000" guid="0x1f" gdr="0"/><net name="a" dev="0" latency="1.5"/></nic>
    </cpu></system>"""
    read = hardware.read(Host(xml, 1), network_reduces=True)
    assert read.gpus == (GpuMessage("0000:01:00.0", 90, peer_group=0),)
    assert [(net.name, net.speed_mbps, net.guid, net.gdr, net.latency_us) for net in read.nets] == [
        ("a", 10000, 2, 1, 1.5),
        ("b", 100000, 31, 0, 0.0),
    ]
    assert read.coll_nets == 2
    assert hardware.read(Host(xml, 1)).coll_nets == 0


@pytest.mark.parametrize(
    ("allowed", "groups"),
    [
        (PeerToPeer.all, [0, 0, 0, 0, 0]),
        (PeerToPeer.within_sockets, [0, 0, 0, 0, 1]),
        (PeerToPeer.none, [0, 1, 2, 3, 4]),
    ],
)
def test_peers_are_the_gpus_of_a_socket_or_all_or_none(allowed: PeerToPeer, groups: list[int]) -> None:
    xml = catalogue.load("dgx-h100").topology_xml
    read = hardware.read(Host(xml, 5, allowed))
    assert [gpu.peer_group for gpu in read.gpus] == groups


def test_a_cpu_without_vendor_gets_one_before_this_computers_is_put_in() -> None:
    arm = '<system version="1">\n  <cpu numaid="0" arch="arm64">'
    there = 'vendor="GenuineIntel" familyid="0" modelid="0" affinity="ffffffff"'
    given = f'<system version="1">\n  <cpu {there} numaid="0" arch="arm64">'
    assert hardware.for_x86(arm) == given
    assert hardware.for_x86(given) == given
    x86 = catalogue.load("dgx-a100").topology_xml
    assert hardware.for_x86(x86) == x86


def test_choices_in_logs() -> None:
    planned = b"x [0] NCCL INFO AllReduce: 67108864 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}\n"
    picked = b"x [0] NCCL INFO 1048576 Bytes -> Algo 5 proto 2 time 54.932159\n"
    allreduce = answers.TunedChoice(67108864, Algorithm.NVLSTree, Protocol.Simple, 0, 15, AR)
    assert answers.choices(planned) == [allreduce]
    assert answers.choices(picked) == [answers.TunedChoice(1048576, Algorithm.NVLSTree, Protocol.Simple, None, None)]
    assert answers.choices(picked + planned) == answers.choices(planned)
    assert answers.algorithm("COLLNET_DIRECT") == Algorithm.CollNetDirect
    with pytest.raises(OracleFailed, match="does not know: XYZ"):
        answers.algorithm("XYZ")
