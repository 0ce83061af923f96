"""NCCL's logs: of every release, as libnccl prints them here and as others' machines printed them, whole and broken."""

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.available_releases import HERE, WITH_PLUGINS
from tests.support.command_line import run
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Op
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.machine import catalogue, gpus
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check_log import LogComparison, compare
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.scenario.logs import choice, importer, node_facts, reader
from tuner.scenario.logs.imported import Imported, LogAdditions
from tuner.scenario.logs.lines import in_record, split_lines

CASES = Path(__file__).parents[3] / "shared" / "cases"
SIZES = [1 << 8, 1 << 13, 1 << 17, 1 << 20, 1 << 24, 1 << 28]
PRINTING_CHOICES = [
    name
    for name in release.names()
    if name in {*HERE, *WITH_PLUGINS} and release.names().index(name) >= release.names().index("2.20.5")
]
SAYING_NODES = [name for name in HERE if release.names().index(name) >= release.names().index("2.20.5")]
COMP_CAPS = {"dgx-a100": 80, "dgx-h100": 90, "dgx-b200": 100}


@cache
def oracle_log(
    name: str, machine: str, nodes: int, gpus: int, settings: tuple[tuple[str, str], ...] = ()
) -> tuple[str, ...]:
    """The lines libnccl prints here: every collective where a choice names its own, else AllReduce only."""
    scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=dict(settings))
    with Oracle(scenario.oracle_configuration()) as oracle:
        oracle.launch(Request(Collective.AllReduce, DataType.float32, Op.sum), SIZES)
        named = any(" Bytes -> Algo " in line and "AllReduce: " in line for line in oracle.log_lines())
        if named and not settings:
            for collective in (Collective.Broadcast, Collective.AllGather, Collective.ReduceScatter):
                oracle.launch(Request(collective, DataType.float32, Op.sum), [size * 63 // 64 * 64 for size in SIZES])
        return tuple(oracle.log_lines())


def given(machine: str, **facts: object) -> LogAdditions:
    return LogAdditions(comp_caps=(COMP_CAPS[machine],), collective=Collective.AllReduce, **facts)  # type: ignore[arg-type]


def imported(text: Sequence[str], facts: LogAdditions) -> Imported:
    return importer.of(reader.parse(split_lines(text)), facts)


def check(text: Sequence[str], facts: LogAdditions) -> LogComparison:
    return compare(imported(text, facts))


SHAPES: list[tuple[str, int, int, dict[str, str]]] = [
    ("dgx-h100", 2, 8, {}),
    ("dgx-a100", 2, 2, {}),
    ("dgx-b200", 1, 4, {}),
    ("dgx-b200", 2, 2, {}),
    ("dgx-h100", 3, 1, {}),
    ("dgx-a100", 1, 8, {}),
    ("dgx-h100", 2, 2, {"NCCL_MAX_NCHANNELS": "3"}),
    ("dgx-h100", 2, 2, {"NCCL_ALGO": "Tree"}),
    ("dgx-h100", 1, 4, {"NCCL_NVLS_ENABLE": "0", "NCCL_MIN_NCHANNELS": "24"}),
    ("dgx-a100", 2, 2, {"NCCL_PROTO": "^LL", "NCCL_NTHREADS": "256", "NCCL_THREAD_THRESHOLDS": "16 32 128 4 2 1"}),
]


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize(("machine", "nodes", "gpus", "settings"), SHAPES, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_what_libnccl_prints_here(name: str, machine: str, nodes: int, gpus: int, settings: dict[str, str]) -> None:
    if name not in catalogue.load(machine).releases:
        pytest.skip(f"no graphs of {machine} captured for {name}")
    text = oracle_log(name, machine, nodes, gpus, tuple(settings.items()))
    read = imported(text, given(machine))
    compared = compare(read)
    assert compared.report.mismatches == ()
    assert compared.not_compared == ()
    assert read.release == name
    assert read.ranks == nodes * gpus
    assert [len(node.ranks) for node in read.nodes] == [gpus] * nodes
    assert settings.items() <= read.environment.items()
    assert compared.report.compared["table"] >= 5 * 18
    assert compared.report.compared["thread thresholds"] == 8
    assert compared.report.compared["channels"] == 2
    assert [missing for missing in read.missing if "choices" not in missing] == []
    assert bool(read.choices) == any(" Bytes -> Algo " in line for line in text)
    assert compared.report.compared.get("choices", 0) == len(read.choices)


def shared(scenario: str, file: str) -> Path:
    path = CASES / scenario / file
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path


REAL = [
    (
        "2xA100-pcie-nvlink-nccl2.27.7",
        "raw/nccl.log",
        LogAdditions(),
        {"table": 105, "max threads": 21, "thread thresholds": 8, "channels": 2, "choices": 11},
    ),
    (
        "2xA100-pcie-nvlink-nccl2.27.7",
        "raw/nccl-fault.log",
        LogAdditions(),
        {"table": 105, "max threads": 21, "thread thresholds": 8, "channels": 2, "choices": 11},
    ),
    # 2.26.6 has no wheel; its tuning, search and enqueue files are those of 2.26.5
    (
        "2x2xV100-2nodes-roce-nccl2.26.6",
        "EXTRACT.txt",
        LogAdditions(
            release="2.26.5", comp_caps=(70,), cpu_arch="x86_64", cpu_vendor="GenuineIntel", net_latency_us=0.0
        ),
        {"table": 105, "max threads": 21, "thread thresholds": 8, "channels": 2, "choices": 25},
    ),
    (
        "8xV100-8nodes-socket-nccl2.18.1",
        "EXTRACT.txt",
        LogAdditions(comp_caps=(70,)),
        {"table": 54, "max threads": 18, "thread thresholds": 8, "channels": 2},
    ),
]


@pytest.mark.parametrize(("scenario", "file", "facts", "counts"), REAL, ids=[f"{r[0]}/{r[1]}" for r in REAL])
def test_what_real_machines_printed(scenario: str, file: str, facts: LogAdditions, counts: dict[str, int]) -> None:
    read = importer.read(shared(scenario, file), facts)
    compared = compare(read)
    assert compared.report.mismatches == ()
    assert compared.report.compared == counts
    assert compared.not_compared == ()


def test_the_nodes_of_a_real_run_differ() -> None:
    """Rank 0's node found faster graphs than the other; all ranks tune with the slower."""
    scenario, file, facts, _ = REAL[2]
    read = importer.read(shared(scenario, file), facts)
    ours, theirs = (node.graphs for node in read.nodes)
    assert ours is not None
    assert theirs is not None
    assert (ours["tree"].bw_intra_gbs, theirs["tree"].bw_intra_gbs) == (4.0, float(np.float32(2.4)))
    same = LogAdditions(
        release="2.26.5", comp_caps=(70,), cpu_arch="x86_64", cpu_vendor="GenuineIntel", net_latency_us=0.0, graphs=ours
    )
    assert compare(importer.read(shared(scenario, file), same)).report.mismatches != ()


def test_a_real_log_of_a_release_that_is_not_emulated() -> None:
    """2.12.12: the choices are read, with their times; nothing is emulated."""
    path = shared("32x3090-4nodes-ib-nccl2.12.12", "CHOICES-with-model-time.txt")
    read = importer.read(path, LogAdditions(release="2.12.12", collective=Collective.AllReduce))
    assert not read.emulated
    assert len(read.choices) == 25
    assert (read.choices[0].bytes, read.choices[0].algorithm, read.choices[0].time_us) == (64, "Tree", "49.675526")
    with pytest.raises(BadInput, match=r"NCCL 2\.12\.12 is not emulated.*valid: 2\.18\.1.*shows no communicator"):
        compare(read)


FORMATS = {
    "64 Bytes -> Algo 0 proto 0 time 49.675526":  # 2.20 to 2.22
    choice.PrintedChoice(64, "0", "0", None, None, None, "49.675526"),
    "Broadcast: 65536 Bytes -> Algo 1 proto 0 time 19.080410":  # 2.23
    choice.PrintedChoice(65536, "1", "0", "Broadcast", None, None, "19.080410"),
    "AllReduce: 8 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={1..15}":  # 2.24 to 2.30
    choice.PrintedChoice(8, "NVLS_TREE", "SIMPLE", "AllReduce", 1, 15, None),
    "AllGather: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4":  # 2.31 and later
    choice.PrintedChoice(8, "RING", "LL", "AllGather", 0, 0, None),
    "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..": None,
    "64 Bytes -> Algo 0 proto 0 time 49.67": None,
}


@pytest.mark.parametrize("line", FORMATS)
def test_choice_lines_of_every_release(line: str) -> None:
    assert choice.printed(line) == FORMATS[line]


SMALL = ("2.28.9", "dgx-h100", 2, 2)
SMALL_GIVEN = given("dgx-h100")


@pytest.fixture
def small() -> list[str]:
    return list(oracle_log(*SMALL))


def where_differs(text: Sequence[str]) -> list[tuple[str, str, object, object]]:
    return [(m.what, m.where, m.emulator, m.libnccl) for m in check(text, SMALL_GIVEN).report.mismatches]


CHANGES = {
    "  AllReduce |    18.0/  16.6 |": (
        "  AllReduce |    18.0/  16.7 |",
        ("table", "AllReduce Tree/LL", "18.0/16.6", "18.0/16.7"),
    ),
    "threadThresholds 8/8/64 | 32/": ("threadThresholds 8/8/64 | 33/", ("thread thresholds", "Ring/LL", "32", "33")),
    "16 nvls channels": ("17 nvls channels", ("channels", "nvls channels", "16", "17")),
    " Max NThreads |            512 |            640 |            512 |            512": (
        " Max NThreads |            512 |            640 |            512 |            256",
        ("max threads", "Ring/LL", "512", "256"),
    ),
}


@pytest.mark.live
@pytest.mark.parametrize("old", CHANGES)
def test_one_other_number_is_one_mismatch_with_both_values(small: list[str], old: str) -> None:
    new, mismatch = CHANGES[old]
    assert sum(old in line for line in small) >= 1
    assert where_differs(small) == []
    assert where_differs([line.replace(old, new) for line in small]) == [mismatch]


@pytest.mark.live
def test_a_table_that_a_variable_emptied_says_so(small: list[str]) -> None:
    off = [line.replace("18.0/  16.6 |", "18.0/   0.0 |") for line in small]
    (note,) = (note for note in check(off, SMALL_GIVEN).notes if "has Tree/LL off" in note)
    assert "say with which it ran" in note
    assert not any(" off, as NCCL_ALGO" in note for note in check(small, SMALL_GIVEN).notes)


@pytest.mark.live
def test_another_choice_is_a_mismatch(small: list[str]) -> None:
    at = next(index for index, line in enumerate(small) if "AllReduce: 256 Bytes" in line)
    for old, new in (("proto LL", "proto SIMPLE"), ("={0..0}", "={0..1}"), ("256 Bytes", "1048576 Bytes")):
        changed = [*small[:at], small[at].replace(old, new), *small[at + 1 :]]
        ((what, where, ours, theirs),) = where_differs(changed)
        assert what == "choices"
        assert where.startswith("AllReduce float32 sum")
        assert ours != theirs


@pytest.mark.live
def test_times_are_compared_to_the_last_printed_digit() -> None:
    names = [name for name in ("2.20.5", "2.21.5", "2.22.3", "2.23.4") if library.cached(name).is_file()]
    if not names:
        pytest.skip("no release that prints times is here")
    (name, *_) = names
    text = list(oracle_log(name, "dgx-h100", 2, 2))
    at = next(index for index, line in enumerate(text) if " Bytes -> Algo " in line)
    digit = text[at].rstrip()[-1]
    text[at] = text[at].rstrip()[:-1] + ("1" if digit == "0" else "0")
    assert [m.what for m in check(text, SMALL_GIVEN).report.mismatches] == ["choices"]


# Broken logs


def threads_of(text: Sequence[str]) -> dict[int, str]:
    """The thread of each rank."""
    found = (re.search(r":(\d+) \[.* comm \S+ rank (\d+) nRanks", line) for line in text)
    return {int(match[2]): match[1] for match in found if match}


def facts_of(read: Imported) -> tuple[object, ...]:
    return (
        read.release,
        read.communicator,
        read.ranks,
        read.nodes,
        read.table,
        read.thresholds,
        read.coll_channels,
        read.nvls_channels,
        read.choices,
        read.environment,
    )


@pytest.mark.live
def test_lines_of_ranks_in_any_order(small: list[str]) -> None:
    """Threads write into one file: each thread's own lines stay in order, all others may change."""
    whole = facts_of(imported(small, SMALL_GIVEN))
    by_thread: dict[str, list[str]] = {}
    for line in small:
        by_thread.setdefault(line.split(" [")[0], []).append(line)
    for seed in range(5):
        order = [thread for thread, of_thread in by_thread.items() for _ in of_thread]
        random.Random(seed).shuffle(order)
        left = {thread: iter(of_thread) for thread, of_thread in by_thread.items()}
        mixed = [next(left[thread]) for thread in order]
        assert mixed != small
        assert facts_of(imported(mixed, SMALL_GIVEN)) == whole


PREFIXES = {
    "launcher": "[rank3]: ",
    "time": "[2026-11-21 00:29:28] ",
    "clock that looks like a thread": "12:34:56 [0] ",
    "kubernetes": "2026-11-21T00:29:28.123456789Z stdout F ",
    "slurm": "14: ",
    "colour": "\x1b[36m(worker pid=7)\x1b[0m ",
    "another line before": "    16777216       4194304     float     sum      -1",
}


@pytest.mark.live
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("end", ["", "\r", "\x1b[0m"], ids=["", "CR", "colour"])
def test_prefixes_and_ends(small: list[str], prefix: str, end: str) -> None:
    changed = [prefix + line + end if index % 3 else line + end for index, line in enumerate(small)]
    assert facts_of(imported(changed, SMALL_GIVEN)) == facts_of(imported(small, SMALL_GIVEN))


@pytest.mark.live
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_stands_on_stdout_behind_a_launchers_tag(small: list[str], prefix: str) -> None:
    device = "#  Rank  {0} Group  0 Pid  1 on vm device  {0} [0000:1b:00] NVIDIA H100 80GB HBM3"
    logged = [line for line in small if "NCCL version" not in line]
    tagged = [prefix + line for line in [*map(device.format, range(4)), "NCCL version 2.28.9+cuda12.9", *logged]]
    read = imported(tagged, LogAdditions(collective=Collective.AllReduce))
    assert (read.release, [node.comp_caps for node in read.nodes]) == ("2.28.9", [(90, 90)] * 2)


@pytest.mark.live
def test_the_function_before_nccl(small: list[str]) -> None:
    changed = [line.replace("] NCCL INFO", "] ncclTopoTuneModel, 482 NCCL INFO") for line in small]
    assert facts_of(imported(changed, SMALL_GIVEN)) == facts_of(imported(small, SMALL_GIVEN))


@pytest.mark.live
def test_other_output_between_the_lines(small: list[str]) -> None:
    noise = ["", "step 1 loss 2.3", "128 Bytes -> Algo 1 proto 0 time 1.000000", "AllReduce |  1.0/ 2.0 |", "\0\0"]
    changed = [part for line in small for part in (line, random.Random(line).choice(noise))]
    assert facts_of(imported(changed, SMALL_GIVEN)) == facts_of(imported(small, SMALL_GIVEN))


@pytest.mark.live
def test_a_log_cut_anywhere(small: list[str], tmp_path: Path) -> None:
    """What is left is read and agrees, or what is missing is named; a number that lost digits is not read."""
    whole = "\n".join(small) + "\n"
    file = tmp_path / "cut.log"
    compared, refused = 0, 0
    positions = set(random.Random(1).sample(range(len(whole)), 40))
    for line in ("threadThresholds", "coll channels", "AllReduce: 268435456 Bytes"):
        start = whole.index(line)
        positions |= set(range(start, whole.index("\n", start), 2))
    for at in sorted(positions):
        file.write_text(whole[:at])
        try:
            read = importer.read(file, SMALL_GIVEN)
        except BadInput:
            assert "NCCL version" not in whole[:at]  # nothing of interest yet
            continue
        assert read.missing or "\n" in whole[at - 1 : at + 1]  # between two lines nothing shows that it is cut
        if read.needed:
            refused += 1
            continue
        report = compare(read).report
        assert report.mismatches == (), at
        compared += sum(report.compared.values()) > 0
    assert compared >= 10
    assert refused >= 10


@pytest.mark.live
def test_a_line_cut_inside_names_the_lost_cells(small: list[str]) -> None:
    at = next(index for index, line in enumerate(small) if "   AllReduce |" in line)
    changed = [*small[:at], small[at][: small[at].index("16.6") + 40], *small[at + 1 :]]
    read = imported(changed, SMALL_GIVEN)
    assert read.missing == ("in the table 6 cells of AllReduce of Tree, Ring, CollNetDirect",)
    compared = compare(read)
    assert compared.report.mismatches == ()
    assert compared.report.compared["table"] == 105 - 6


LOST = {
    "Algorithm   |                    CollNetChain": "'Algorithm' of CollNetChain, NVLS, NVLSTree",
    "   Broadcast |": "the table Broadcast of Tree, Ring, CollNetDirect",
    "Max NThreads": None,
    "threadThresholds": "thread thresholds",
    "coll channels": "channel counts",
    "Bytes -> Algo": "choices",
    " |": "the tuning table",
}


@pytest.mark.live
@pytest.mark.parametrize("lost", LOST)
def test_lost_lines_are_named_and_the_rest_agrees(small: list[str], lost: str) -> None:
    read = imported([line for line in small if lost not in line], SMALL_GIVEN)
    assert LOST[lost] is None or LOST[lost] in " ".join(read.missing)
    report = compare(read).report
    assert report.mismatches == ()
    assert report.compared["channels" if lost != "coll channels" else "table"] > 0


@pytest.mark.live
def test_the_table_without_its_last_part(small: list[str]) -> None:
    start = next(index for index, line in enumerate(small) if "   PAT   " in line)
    changed = [line for index, line in enumerate(small) if index < start or "|" not in line]
    assert "the table's part with PAT" in imported(changed, SMALL_GIVEN).missing


NEEDED = {
    "Pattern 4": "the ring graph",
    "Pattern 1|Pattern 3": "the tree graph",
    r"CPU/0-\d \(": "the CPU",
    "NCCL version": "the release",
    "Using network": "latency",
    "nNodes|localRanks|: NET": "the number of nodes",
}


@pytest.mark.live
@pytest.mark.parametrize("lost", NEEDED)
def test_needed_facts_are_named_and_can_be_given(small: list[str], lost: str) -> None:
    text = [line for line in small if not re.search(lost, line)]
    read = imported(text, SMALL_GIVEN)
    assert NEEDED[lost] in " ".join(read.needed)
    with pytest.raises(BadInput, match=NEEDED[lost]):
        compare(read)
    assert len(read.choices) == len(imported(small, SMALL_GIVEN).choices)
    whole = imported(small, SMALL_GIVEN).nodes[0].graphs
    facts = LogAdditions(
        comp_caps=(90,),
        release="2.28.9",
        cpu_arch="x86_64",
        cpu_vendor="GenuineIntel",
        net_latency_us=0.0,
        graphs=whole,
        nodes=2,
    )
    if "nNodes" not in lost:  # nothing gives the ranks of a node
        assert check(text, facts).report.mismatches == ()


def test_a_number_of_nodes_that_no_line_says_is_unknown(tmp_path: Path) -> None:
    line = "vm:1:{0} [{0}] NCCL INFO comm 0x{0}a rank {0} nranks 2 cudaDev {0} commId 0xb - Init COMPLETE\n"
    log = tmp_path / "nccl.log"
    log.write_text(line.format(0) + line.format(1))
    assert "2 ranks on ? nodes" in run("log", str(log)).stdout
    assert json.loads(run("log", str(log), "--json").stdout)["node_count"] is None


# As 2.18 and 2.27 write it: alone on stdout, or in a line of the log.
RCCL = ("RCCL version 2.18.3+hip6.0 HEAD:1a2b3c4+", "vm:1:1 [0] NCCL INFO RCCL version : 2.27.7-HEAD:1a2b3c4")


@pytest.mark.live
@pytest.mark.parametrize("version", RCCL)
def test_a_log_of_rccl_is_refused(small: list[str], tmp_path: Path, version: str) -> None:
    log = tmp_path / "rccl.log"
    log.write_text("\n".join([version, *(line for line in small if "NCCL version" not in line)]) + "\n")
    for command in (("log",), ("log", "--check")):
        refused = run(*command, str(log), "--nccl", "2.28.9", "--comp-cap", "9.0", code=2)
        assert re.fullmatch(r"nccl-tuner: the log comes from RCCL 2\.[\d.]+\S+, AMD's library, .*\n", refused.stderr)


@pytest.mark.live
def test_the_compute_capability_is_asked_for(small: list[str]) -> None:
    with pytest.raises(BadInput, match=r"^the log: needed: the GPUs' compute capability: comp_cap="):
        check(small, LogAdditions())
    per_rank = check(small, LogAdditions(comp_caps=(90, 90, 90, 90)))
    assert per_rank.report.mismatches == ()
    with pytest.raises(BadInput, match="2 values for 4 ranks"):
        check(small, LogAdditions(comp_caps=(90, 90)))
    by_topology = check(small, LogAdditions(topology=catalogue.load("dgx-h100").topology))
    assert by_topology.report.mismatches == ()
    device = "#  Rank  {rank} Group  0 Pid  1 on vm device  {rank} [0000:1b:00] NVIDIA H100 80GB HBM3"
    listed = [device.format(rank=rank) for rank in range(4)]
    assert check([*listed, *small], LogAdditions()).report.mismatches == ()


@pytest.mark.live
def test_hosts_are_nodes(small: list[str]) -> None:
    """The same log written by four processes on two hosts."""
    ranks = {thread: rank for rank, thread in threads_of(small).items()}

    def moved(line: str) -> str:
        host, pid, rest = line.split(":", 2)
        rank = ranks.get(rest.split()[0], 0)
        return f"{'ab'[rank // 2]}-{host}:{int(pid) + rank}:{rest}"

    text = [moved(line) for line in small]
    later = sorted(text, key=lambda line: line.startswith("a"))  # the second host's lines first
    for order in (text, later):
        read = imported(order, SMALL_GIVEN)
        assert [node.ranks for node in read.nodes] == [(0, 1), (2, 3)]
        assert compare(read).report.mismatches == ()
    swapped = [re.sub(r" rank ([12]) n", lambda m: f" rank {3 - int(m[1])} n", line) for line in text]
    assert [node.ranks for node in imported(swapped, SMALL_GIVEN).nodes] == [(0, 2), (1, 3)]


@pytest.mark.live
def test_only_rank_0_in_the_log(small: list[str]) -> None:
    threads = threads_of(small)
    others = rf":({threads[1]}|{threads[2]}|{threads[3]}) \["
    text = [line for line in small if "NCCL version" in line or not re.search(others, line)]  # any rank may print that
    read = imported(text, SMALL_GIVEN)
    assert "1 of 2 nodes are not in the log" in " ".join(read.notes)
    assert compare(read).report.mismatches == ()


@pytest.mark.live
def test_several_communicators(small: list[str]) -> None:
    other = list(oracle_log("2.28.9", "dgx-h100", 3, 1))
    other = [re.sub(r"^(\w+):(\d+):(\d+)", r"\1:\g<2>7:\g<3>7", line) for line in other]
    mixed = [line for pair in zip(small, other, strict=False) for line in pair]
    longer = small if len(small) > len(other) else other
    mixed += longer[min(len(small), len(other)) :]
    read = imported(mixed, SMALL_GIVEN)
    assert [ranks for _, ranks in sorted(read.communicators, key=lambda c: c[1] or 0)] == [3, 4]
    assert facts_of(read) == facts_of(imported(small, SMALL_GIVEN))
    for name, ranks in read.communicators:
        chosen = imported(mixed, given("dgx-h100", communicator=name))
        assert chosen.ranks == ranks
        report = compare(chosen).report
        assert report.mismatches == ()
        assert report.compared["choices"] >= 18
    with pytest.raises(BadInput, match=r"no communicator '0x1'.*valid: 0x"):
        imported(mixed, given("dgx-h100", communicator="0x1"))


@pytest.mark.live
def test_a_communicator_made_again(small: list[str]) -> None:
    """The same threads and addresses; lines of the end of one are no other communicator."""
    end = f"vm:1:1 [0] NCCL INFO comm {root_of(small)} rank 0 nranks 4 cudaDev 0 busId 1b000 - Destroy COMPLETE"
    assert len(imported([*small, end], SMALL_GIVEN).communicators) == 1
    again = [re.sub(r"commId 0x\w+", "commId 0xabc", line) for line in small]
    twice = [*small, end, *again, end]
    assert len(imported(twice, SMALL_GIVEN).communicators) == 2
    assert facts_of(imported(twice, SMALL_GIVEN))[3:8] == facts_of(imported(small, SMALL_GIVEN))[3:8]
    assert compare(imported(twice, given("dgx-h100", communicator="0xabc"))).report.compared["table"] == 105


CALL = (
    "{name}: opCount 0 sendbuff 0x1 recvbuff 0x2 count {count} datatype {dtype} op 0 root 0 comm {comm} "
    "[nranks=4] stream 0x3"
)


def with_calls(text: Sequence[str], comm: str, dtype: DataType = DataType.float32, times: int = 1) -> list[str]:
    """The log with the lines of the COLL subsystem before each choice."""
    changed = []
    for line in text:
        if match := re.search(r"(.*NCCL INFO )(\w+): (\d+) Bytes -> Algo", line):
            count = int(match[3]) // dtype.size_bytes
            call = CALL.format(name=match[2], count=count, dtype=int(dtype), comm=comm)
            changed += [match[1] + call] * times
        changed.append(line)
    return changed


def root_of(text: Sequence[str]) -> str:
    return next(m[1] for line in text if (m := re.search(r"comm (0x\w+) rank 0 nRanks", line)))


@pytest.mark.live
def test_calls_say_types(small: list[str]) -> None:
    read = imported(with_calls(small, root_of(small), DataType.float16), SMALL_GIVEN)
    assert {made.dtype for made in read.choices} == {DataType.float16}


@pytest.mark.live
def test_a_group_of_which_a_line_is_missing_is_not_compared(small: list[str]) -> None:
    grouped = check(with_calls(small, root_of(small), times=2), SMALL_GIVEN)
    assert "choices" not in grouped.report.compared
    assert "one group, of which lines are missing" in grouped.not_compared[0]


AR, AG, BC = (
    Request(each, DataType.float32, Op.sum)
    for each in (Collective.AllReduce, Collective.AllGather, Collective.Broadcast)
)
GROUPS: tuple[tuple[Operation, ...], ...] = (
    (Operation(AR, 25 << 20),) * 2,
    (Operation(AR, 1 << 10),) * 3,
    (Operation(AR, 1 << 10), Operation(AG, 64 << 20), Operation(AR, 256 << 20)),
    (Operation(AR, 1 << 20), Operation(BC, 1 << 20), Operation(AR, 3 << 20), Operation(AG, 1 << 14)),
)


@cache
def log_of_groups(name: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The lines before any call, and those of each group."""
    with Oracle(Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=8).oracle_configuration()) as oracle:
        head, parts = tuple(oracle.log_lines()), list[tuple[str, ...]]()
        for group in GROUPS:
            before = len(oracle.log_lines())
            oracle.launch_group(group)
            parts.append(tuple(oracle.log_lines()[before:]))
        return head, tuple(parts)


def shown_calls(group: Sequence[Operation], lines: Sequence[str], comm: str) -> list[str]:
    """A group's lines behind those of the COLL subsystem."""
    prefix = next(line.partition("NCCL INFO")[0] for line in lines if " Bytes -> Algo " in line)
    called = list[str]()
    for each in group:
        parts = 8 if each.request.collective is Collective.AllGather else 1
        count = each.bytes // 4 // parts
        text = CALL.format(name=each.request.collective.name, count=count, dtype=int(each.request.dtype), comm=comm)
        called.append(f"{prefix}NCCL INFO {text}".replace("nranks=4", "nranks=8"))
    return [*called, *lines]


GROUPED_GIVEN = LogAdditions(comp_caps=(90,))


@pytest.mark.live
@pytest.mark.parametrize("name", PRINTING_CHOICES)
def test_calls_of_one_group_are_compared_as_a_group(name: str) -> None:
    head, parts = log_of_groups(name)
    comm = root_of(head)
    shown = [line for group, lines in zip(GROUPS, parts, strict=True) for line in shown_calls(group, lines, comm)]
    compared = check([*head, *shown], GROUPED_GIVEN)
    assert compared.report.mismatches == ()
    assert not any("group" in each for each in compared.not_compared)
    printed = sum(" Bytes -> Algo " in line for line in shown)
    assert compared.report.compared["choices"] == printed
    for at in [at for at, line in enumerate(shown) if " Bytes -> Algo " in line]:
        changed = re.sub(r"(proto )(\d)", lambda m: f"{m[1]}{(int(m[2]) + 1) % 3}", shown[at])
        changed = re.sub(r"\.\.(\d+)}", lambda m: f"..{int(m[1]) + 1}}}", changed)
        assert changed != shown[at]
        wrong = check([*head, *shown[:at], changed, *shown[at + 1 :]], GROUPED_GIVEN).report.mismatches
        assert [each.what for each in wrong] == ["choices"]


@pytest.mark.live
@pytest.mark.parametrize("name", [each for each in PRINTING_CHOICES if tuple(map(int, each.split(".")))[:2] >= (2, 23)])
def test_groups_without_their_calls_are_told_by_channels(name: str) -> None:
    """The issue's: two AllReduces of 25 MiB, logged as channels 0..7 and 8..15."""
    head, parts = log_of_groups(name)
    shown = [line for lines in parts for line in lines]
    compared = check([*head, *shown], GROUPED_GIVEN)
    assert compared.report.mismatches == ()
    assert compared.report.compared["choices"] == sum(" Bytes -> Algo " in line for line in shown)
    if "={8..15}" in parts[0][-1]:
        wrong = [line.replace("={8..15}", "={8..14}") for line in shown]
        assert [each.what for each in check([*head, *wrong], GROUPED_GIVEN).report.mismatches] == ["choices"]
        lost = [line for line in shown if "={0..7}" not in line]
        assert "whose lines are missing" in " ".join(check([*head, *lost], GROUPED_GIVEN).not_compared)


@pytest.mark.live
def test_two_communicators_of_one_process(small: list[str]) -> None:
    """Only the COLL subsystem says which of them a choice is of."""
    threads = threads_of(small).values()
    again = [re.sub(r":(\d+) \[", lambda m: f":{m[1]}{'9' * (m[1] in threads)} [", line) for line in small]
    again = [re.sub(r"(comm(Id)? 0x\w+)", r"\1f", line) for line in again]
    read = imported([*small, *again], SMALL_GIVEN)
    assert len(read.communicators) == 2
    assert read.choices == ()
    assert "may be another communicator's" in " ".join(read.notes)
    separated = imported([*with_calls(small, root_of(small)), *with_calls(again, root_of(again))], SMALL_GIVEN)
    assert len(separated.choices) == len(imported(small, SMALL_GIVEN).choices)
    assert {made.count for made in separated.choices} == {1}
    assert compare(separated).report.mismatches == ()


@pytest.mark.live
def test_settings_of_the_program_count_like_variables(small: list[str]) -> None:
    at = next(index for index, line in enumerate(small) if "- Init START" in line)
    prefix = small[at].split("NCCL INFO")[0]
    changed = [*small[: at + 1], f"{prefix}NCCL INFO Comm config Max CTAs set to 5", *small[at + 1 :]]
    assert imported(changed, SMALL_GIVEN).environment["NCCL_MAX_CTAS"] == "5"
    assert ("channels", "coll channels", "5", "8") in where_differs(changed)


@pytest.mark.live
def test_an_unknown_release(small: list[str]) -> None:
    text = [line.replace("NCCL version 2.28.9", "NCCL version 2.99.1") for line in small]
    read = imported(text, SMALL_GIVEN)
    assert not read.emulated
    assert read.table == imported(small, SMALL_GIVEN).table
    with pytest.raises(BadInput, match=r"NCCL 2\.99\.1 is not emulated; nccl= takes another, .*; valid: 2\.18\.1"):
        compare(read)
    assert check(text, given("dgx-h100", release="2.28.9")).report.mismatches == ()


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize("nodes", [["8", "4"], ["4", "8"], ["2", "1"]], ids=str)
@pytest.mark.parametrize("name", SAYING_NODES)
def test_nodes_of_different_sizes(name: str, nodes: list[str], tmp_path: Path) -> None:
    """From 2.31 on PAT is printed as -1 where NVLS has no head for each rank."""
    file = tmp_path / "dgx-h100.xml"
    file.write_text(catalogue.load("dgx-h100").topology_xml)
    scenario = describe(node=[f"{file}:{gpus}" for gpus in nodes], nccl=name)
    with Oracle(scenario.oracle_configuration()) as oracle:
        compared = check(oracle.log_lines(), given("dgx-h100"))
    assert compared.report.mismatches == ()
    assert compared.report.compared["table"] >= 5 * 18


def test_a_bandwidth_is_the_float_that_a_search_finds() -> None:
    for speed in (48.0, 40.0, 30.0, 24.0, 17.5, 2.4, 1.2, 0.24, 0.12):
        for parts in (1, 2, 3, 6, 7, 32):
            part = np.float32(speed) / np.float32(parts)
            assert node_facts.bandwidth_gbs(f"{part:f}") == (float(part), True)
    value, sure = node_facts.bandwidth_gbs("1.234567")
    assert (value, sure) == (float(np.float32(1.234567)), False)


@pytest.mark.parametrize(
    ("name", "comp_cap"),
    [
        ("NVIDIA A100 80GB PCIe", 80),
        ("NVIDIA A100-SXM4-40GB", 80),
        ("Tesla V100-SXM2-16GB", 70),
        ("NVIDIA H200", 90),
        ("NVIDIA GeForce RTX 3090", 86),
        ("NVIDIA B300 SXM6 AC", 103),
        ("NVIDIA H100 80GB HBM3", 90),
        ("NVIDIA L20", 89),
        ("NVIDIA GB10", 121),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 120),
        ("NVIDIA RTX 6000 Ada Generation", 89),
        ("Quadro RTX 8000", 75),
        ("Fantasy", None),
    ],
)
def test_product_names(name: str, comp_cap: int | None) -> None:
    assert gpus.capability_of_product(name) == comp_cap


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("NVIDIA H800", {"H800 SXM5"}),
        ("NVIDIA H800 PCIe", set()),
        ("NVIDIA H100 80GB HBM3", {"H100 SXM5"}),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", set()),
        ("NVIDIA H100 PCIe", set()),
        ("NVIDIA H100 NVL", set()),
        ("NVIDIA H200", {"H200 SXM5"}),
        ("NVIDIA H200 NVL", set()),
        ("NVIDIA H20", set()),
        ("NVIDIA H20-3e", set()),
        ("NVIDIA GH200 480GB", {"GH200"}),
        ("NVIDIA A100-SXM4-40GB", {"A100 SXM4"}),
        ("A100 SXM", {"A100 SXM4"}),
        ("NVIDIA A100-SXM-64GB", set()),
        ("NVIDIA A100-PCIE-40GB", set()),
        ("NVIDIA A100 80GB PCIe", set()),
        ("NVIDIA A800-SXM4-80GB", set()),
        ("NVIDIA B200", {"B200"}),
        ("NVIDIA GB200", {"GB200"}),
        ("NVIDIA B300 SXM6 AC", {"B300"}),
        ("Tesla V100-SXM2-16GB", {"V100 SXM2"}),
        ("Tesla V100-SXM3-32GB", {"V100 SXM3"}),
        ("Tesla V100-PCIE-32GB", set()),
        ("Tesla V100-DGXS-32GB", set()),
        ("NVIDIA L40", set()),
        ("NVIDIA L40S", {"L40S"}),
        ("NVIDIA RTX A6000", {"RTX A6000"}),
        ("NVIDIA RTX 6000 Ada Generation", set()),
        ("NVIDIA GeForce RTX 4090", set()),
        ("NVIDIA GeForce RTX 5090", set()),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", {"RTX PRO 6000 Blackwell Server Edition"}),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", set()),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", set()),
    ],
)
def test_models_of_the_catalogue_that_a_product_may_be(name: str, models: set[str]) -> None:
    of_machines = {catalogue.load(machine).gpu for machine in catalogue.names()}
    assert {model for model in of_machines if gpus.is_product(name, model)} == models


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM-64GB", "a100-sxm-64gb"),
        ("Tesla V100-DGXS-32GB", "v100-dgxs"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-bridged"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
    ],
)
def test_products_are_the_models_of_their_form(name: str, model: str) -> None:
    assert gpus.is_product(name, model)


# The command line


@pytest.fixture
def small_file(small: list[str], tmp_path: Path) -> str:
    file = tmp_path / "nccl.log"
    file.write_text("\n".join(small) + "\n")
    return str(file)


@pytest.mark.live
def test_import_log_prints_everything_as_json(small_file: str, small: list[str]) -> None:
    read = json.loads(run("log", small_file, "--json").stdout)
    assert read["release"] == "2.28.9"
    assert read["ranks"] == 4
    assert len(read["table"]) == 105
    assert {algo_proto["algorithm"] for algo_proto in read["table"]} == {algorithm.name for algorithm in Algorithm}
    assert read["nodes"][0]["graphs"]["ring"]["pattern"] == "Ring"
    assert read["needed"] == ["the GPUs' compute capability: --comp-cap, --topology, or nccl-tests' list of devices"]
    assert sum(made["count"] for made in read["choices"]) == sum(" Bytes -> Algo " in line for line in small)
    summary = run("log", small_file).stdout
    assert "NCCL 2.28.9: 4 ranks on 2 nodes" in summary
    assert "needed: the GPUs' compute capability" in summary


@pytest.mark.live
def test_check_log_exit_codes(small_file: str) -> None:
    agreed = json.loads(run("log", "--check", small_file, "--comp-cap", "9.0", "--json").stdout)
    assert agreed["matched"] == agreed["compared"]
    assert agreed["compared"]["choices"] == 24
    other = run("log", "--check", small_file, "--comp-cap", "8.0", code=1)
    assert re.search(r"MISMATCH table AllReduce Tree/LL: emulator \S+, log 18.0/16.6", other.stdout)
    assert "--comp-cap" in run("log", "--check", small_file, code=2).stderr


@pytest.mark.live
def test_a_log_without_anything_to_compare_is_not_judged(small: list[str], tmp_path: Path) -> None:
    """The search's lines describe a communicator; tables, threads, channels and choices are what is compared."""
    compared = re.compile(r"Channel \d+/\d+ :|AllReduce|Broadcast|Reduce|AllGather|hreads|coll channels|Algo|\|")
    log = tmp_path / "graphs.log"
    log.write_text("\n".join(line for line in small if not compared.search(line)) + "\n")
    done = run("log", "--check", str(log), "--comp-cap", "9.0", code=3)
    assert done.stderr.startswith("nccl-tuner: cannot be judged: nothing to compare: ")


@pytest.mark.live
def test_import_log_with_dumps(small_file: str, tmp_path: Path) -> None:
    topology = tmp_path / "topology.xml"
    topology.write_text(catalogue.load("dgx-h100").topology_xml)
    run("log", "--check", small_file, "--topology", str(topology))


BAD = {
    "empty": (b"", "empty"),
    "blank": (b"\n \r\n", "empty"),
    "binary": (bytes(range(256)) * 40 + b"\n", "no line of NCCL's"),
    "other text": (b"hello\nworld\n", "no line of NCCL's"),
}


@pytest.mark.parametrize("verb", [("log",), ("log", "--check")], ids=" ".join)
@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_log(tmp_path: Path, kind: str, verb: tuple[str, ...]) -> None:
    content, hint = BAD[kind]
    file = tmp_path / "bad.log"
    file.write_bytes(content)
    done = run(*verb, str(file), code=2)
    assert len(done.stderr.splitlines()) == 1
    assert hint in done.stderr


def test_no_file(tmp_path: Path) -> None:
    assert "No such file" in run("log", str(tmp_path / "none.log"), code=2).stderr
    assert "directory" in run("log", str(tmp_path), code=2).stderr


@pytest.mark.live
@pytest.mark.parametrize("option", [("--comp-cap", "x"), ("--comp-cap", "9000"), ("--nodes", "0"), ("--env", "A")])
def test_bad_options(small_file: str, option: tuple[str, str]) -> None:
    done = run("log", "--check", small_file, *option, code=2)
    assert len(done.stderr.splitlines()) == 1
    assert option[0] in done.stderr


def test_a_log_without_a_communicator_says_so_at_once(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("h:1:1 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n", "utf-8")
    shown = run("log", str(log)).stdout
    assert shown.startswith("NCCL 2.19.3: the log shows no communicator being made")
    assert "?" not in shown
    said = run("pick", "allreduce", "--log", str(log), code=2).stderr
    assert "shows no communicator: give a log of NCCL_DEBUG=INFO with" in said
    assert "--machine NAME and --nodes N" in said


def test_nodes_that_no_line_shows_are_one_row_and_a_fault_comes_before_what_is_expected(tmp_path: Path) -> None:
    text = (CASES / "8xV100-8nodes-socket-nccl2.18.1" / "EXTRACT.txt").read_text("utf-8") if CASES.is_dir() else ""
    if not text:
        pytest.skip("the collected cases are not here")
    (tmp_path / "nccl.log").write_text(text, "utf-8")
    shown = run("log", str(tmp_path / "nccl.log")).stdout
    assert shown.startswith("log: IP sockets, not InfiniBand or RoCE")
    assert shown.index("log, as expected: 2 channels") > 0
    assert shown.count("7 not shown") == shown.count("not shown") == 1


@pytest.mark.parametrize("line", ["12", "null", "[1]", '"NCCL INFO"', '{"log": 12}'])
def test_json_that_is_no_record_of_a_line_stays_as_it_is(line: str) -> None:
    assert in_record(line) == line


def test_a_log_of_no_nodes_says_what_it_lacks(tmp_path: Path) -> None:
    """Every number of it is 0, as a damaged one may have it."""
    log = re.sub(r"\d+", "0", (Path(__file__).parents[2] / "docs" / "examples" / "nccl.log").read_text("utf-8"))
    (tmp_path / "x.log").write_text(log, "utf-8")
    assert (
        "does not say how many ranks there were"
        in run("accept", str(tmp_path / "x.log"), "--machine", "dgx-h100", code=2).stderr
    )
