"""The plugin behind every version of NCCL's interface: ranked choices, costs, constants, chunk sizes, CSV, settings."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import next_tuner, programs
from tuner import plugin
from tuner.base.errors import BadTable
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.dry_run import INFO, WARN, CommunicatorSize, DryRun, PluginRefused, TunerCall
from tuner.plugin.table.parse import from_text, read, to_text
from tuner.plugin.table.records import Decision, Table, TableChoice
from tuner.plugin.table.values import Comments, close

HEADER = "nccl-tuner-table 1"
AR, AG = Collective.AllReduce, Collective.AllGather
RING_LL, RING_SIMPLE = (Algorithm.Ring, Protocol.LL), (Algorithm.Ring, Protocol.Simple)
TREE_LL, NVLS = (Algorithm.Tree, Protocol.LL), (Algorithm.NVLS, Protocol.Simple)
VERSIONS_WITH_CELLS = (3, 4, 5, 6, 7)


def cells(**times_us: float) -> NDArray[np.float32]:
    """A cost table in which only the cells given, such as ``Ring_LL128=5``, are not ignored."""
    table = np.full((len(Algorithm), len(Protocol)), -1.0, np.float32)
    for name, time_us in times_us.items():
        algorithm, protocol = name.split("_")
        table[Algorithm[algorithm], Protocol[protocol]] = time_us
    return table


TYPICAL = cells(Tree_LL=9, Tree_LL128=8, Tree_Simple=30, Ring_LL=40, Ring_LL128=20, Ring_Simple=25, NVLS_Simple=10)


def picked(cost_us: NDArray[np.float32]) -> tuple[Algorithm, Protocol]:
    usable = np.where(cost_us >= 0, cost_us, np.inf)
    algorithm, protocol = np.unravel_index(usable.argmin(), usable.shape)
    return Algorithm(int(algorithm)), Protocol(int(protocol))


def table_of(folder: Path, *rows: str, header: str | None = HEADER) -> Path:
    path = folder / "t"
    path.write_text("\n".join([*([header] if header else []), *rows, ""]))
    return path


def whole(path: Path) -> Path:
    """The table with the last line that shows that all of it is there."""
    text = path.read_text()
    path.write_text(close(text, sum(" -> " in line for line in text.splitlines())))
    return path


def said(run: DryRun, level: int = INFO) -> list[str]:
    return [line.text.removeprefix("TUNER/nccl-tuner: ") for line in run.log if line.level == level]


def opened(table: Path, version: int = 6, ranks: int = 16, nodes: int = 2, **env: str) -> DryRun:
    return DryRun(table, ranks=ranks, nodes=nodes, version=version, env=env)


# Every version decides the same


@pytest.mark.parametrize("version", VERSIONS_WITH_CELLS)
def test_every_version_with_cells_decides(tmp_path: Path, version: int) -> None:
    table = table_of(tmp_path, "allreduce bytes=64K..1M ranks=16 -> ring/simple channels=5", "reduce -> tree/ll")
    with opened(table, version) as run:
        answer = run.ask(TunerCall(AR, 1 << 20), TYPICAL)
        beyond = run.ask(TunerCall(AR, (1 << 20) + 1), TYPICAL, channels=7)
    assert picked(answer.cost_us) == RING_SIMPLE
    assert answer.cost_us[RING_SIMPLE] == 25
    assert answer.channels == 5
    assert beyond.cost_us.tobytes() == TYPICAL.tobytes()
    assert beyond.channels == 7


def test_v2_names_the_choice(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=64K..1M ranks=16 -> ring/simple channels=5", "broadcast -> ring/ll")
    with opened(table, 2) as run:
        assert run.name(TunerCall(AR, 1 << 20)) == (RING_SIMPLE, 5)
        assert run.name(TunerCall(AR, (1 << 20) + 1)) == (None, 0)
        assert run.name(TunerCall(Collective.Broadcast, 5)) == (RING_LL, 0)
        assert run.name(TunerCall(Collective.Reduce, 5)) == (None, 0)
        assert run.name(TunerCall(99, 5)) == (None, 0)
    assert said(run)[-1].startswith("5 calls: 2 decided by the table")


def test_v1_names_the_choice_but_no_channels(tmp_path: Path) -> None:
    with opened(table_of(tmp_path, "allreduce bytes=64K..1M -> ring/simple channels=5"), 1) as run:
        assert run.name(TunerCall(AR, 1 << 20)) == (RING_SIMPLE, 0)
        assert run.name(TunerCall(AR, 5)) == (None, 0)
    assert ": 1 row, 1 of them for every communicator" in said(run)[0]


RUNS_FOR_CERTAIN = {  # collective, nvls, nodes: what 2.19 to 2.21 run on any machine
    (AR, False, 2): {"Tree/LL", "Tree/Simple", "Ring/LL", "Ring/Simple"},
    (AR, True, 2): {"Tree/LL", "Tree/Simple", "Ring/LL", "Ring/Simple", "NVLSTree/Simple"},
    (AR, True, 1): {"Tree/LL", "Tree/Simple", "Ring/LL", "Ring/Simple", "NVLS/Simple"},
    (AG, True, 1): {"Ring/LL", "Ring/Simple", "NVLS/Simple"},
    (AG, False, 1): {"Ring/LL", "Ring/Simple"},
    (AG, True, 2): {"Ring/LL", "Ring/Simple"},
    (Collective.Reduce, True, 1): {"Ring/LL", "Ring/Simple"},
}


@pytest.mark.parametrize(("collective", "nvls", "nodes"), RUNS_FOR_CERTAIN)
def test_without_cells_only_what_certainly_runs_is_named(
    tmp_path: Path, collective: Collective, nvls: bool, nodes: int
) -> None:
    named = set()
    for algorithm in Algorithm:
        for protocol in Protocol:
            pair = f"{algorithm.name}/{protocol.name}"
            with opened(table_of(tmp_path, f"{collective.name} -> {pair}"), 2, nodes=nodes) as run:
                choice, _ = run.name(TunerCall(collective, 1 << 20, nvls=nvls, collnet=True))
            assert choice in (None, (algorithm, protocol))
            named |= {pair} if choice else set()
    assert named == RUNS_FOR_CERTAIN[collective, nvls, nodes]


@pytest.mark.parametrize("nodes", [1, 2])
def test_v1_does_not_know_on_how_many_nodes_nvls_would_run(tmp_path: Path, nodes: int) -> None:
    row = f"allreduce -> {'nvls' if nodes == 1 else 'nvlstree'}/simple"
    with opened(table_of(tmp_path, row), 1, nodes=nodes) as run:
        assert run.name(TunerCall(AR, 1 << 20, nvls=True)) == (None, 0)


def test_unchecked_names_what_the_table_says(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=..9 -> collnetchain/simple", "allreduce -> tree/ll128 channels=3")
    with opened(table, 2, NCCL_TUNER_UNCHECKED="1") as run:
        assert run.name(TunerCall(AR, 10)) == ((Algorithm.Tree, Protocol.LL128), 3)
        assert run.name(TunerCall(AR, 5, collnet=True)) == ((Algorithm.CollNetChain, Protocol.Simple), 0)
        assert run.name(TunerCall(AR, 5)) == (None, 0), "a communicator without CollNet"


@pytest.mark.parametrize("variable", ["NCCL_ALGO", "NCCL_PROTO"])
@pytest.mark.parametrize("version", range(1, 8))
def test_the_log_says_who_wins_beside_nccls_own_variables(tmp_path: Path, variable: str, version: int) -> None:
    table = table_of(tmp_path, "allreduce -> ring/simple")
    with DryRun(table, ranks=16, nodes=2, version=version, env={variable: "Tree"}) as run:
        if version < 3:
            assert run.name(TunerCall(AR, 5)) == (None, 0)
            assert said(run)[-1].startswith(
                f"{variable}=Tree is set, and this NCCL does not say what it leaves out: "
            ) or (said(run)[-2].startswith(f"{variable}=Tree is set, and this NCCL does not say what it leaves out: "))
            return
        masked = run.ask(TunerCall(AR, 5), cells(Tree_LL=9))
        assert said(run)[-1] == (
            f"{variable}=Tree is set: what it leaves out stays out, the table decides among the rest"
        )
    assert masked.cost_us.tobytes() == cells(Tree_LL=9).tobytes()


def test_unchecked_wins_over_nccls_own_variables_where_they_mask_no_cells(tmp_path: Path) -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_TUNER_UNCHECKED": "1"}
    with DryRun(table_of(tmp_path, "allreduce -> ring/simple"), ranks=16, nodes=2, version=2, env=env) as run:
        assert run.name(TunerCall(AR, 5)) == (RING_SIMPLE, 0)
    assert "NCCL_ALGO=Tree is set: where the table has a row, the row wins" in said(run)


# v1: one table for the process


def test_v1_leaves_rows_that_ask_for_a_communicator_to_nccl(tmp_path: Path) -> None:
    rows = (
        "allreduce bytes=..99 ranks=16 -> tree/ll",
        "allgather bytes-per-rank=4 -> ring/simple",
        "allreduce -> ring/ll",
    )
    with opened(table_of(tmp_path, *rows, "allgather -> ring/ll"), 1) as run:
        assert run.name(TunerCall(AR, 99)) == (None, 0), (
            "not the row below: that would be another choice than asked for"
        )
        assert run.name(TunerCall(AR, 100)) == (RING_LL, 0)
        assert run.name(TunerCall(AG, 5)) == (None, 0)
    assert any(text.startswith("2 rows ask for ranks or nodes, and this NCCL does not say") for text in said(run))


def test_v1_unchecked_takes_all_communicators_for_alike(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=..99 ranks=16 -> tree/ll channels=2", "allreduce ranks=8 -> ring/ll")
    with opened(table, 1, NCCL_TUNER_UNCHECKED="1") as first, opened(table, 1, NCCL_TUNER_UNCHECKED="1") as second:
        assert first.name(TunerCall(AR, 9)) == second.name(TunerCall(AR, 9)) == (TREE_LL, 2)
        with opened(table, 1, ranks=8, nodes=1, NCCL_TUNER_UNCHECKED="1") as other:
            assert other.name(TunerCall(AR, 9)) == first.name(TunerCall(AR, 9)) == (None, 0)
        assert "a communicator of 8 ranks on 1 nodes beside one of 16 on 2" in said(other, WARN)[0]
    with opened(table, 1, ranks=8, nodes=1, NCCL_TUNER_UNCHECKED="1") as later:
        assert later.name(TunerCall(AR, 9)) == (RING_LL, 0), "the next first communicator reads the table anew"


def test_v1_closes_with_its_last_communicator(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    first, second = opened(table, 1), opened(table, 1)
    first.close()
    assert second.name(TunerCall(AR, 5)) == (RING_LL, 0)
    second.close()
    assert first.log[-1].text.endswith(
        "1 calls: 1 decided by the table, 0 with its costs, 0 matched a row that NCCL cannot run here"
    )
    assert not any("table" in line for line in said(second)), "what is said of the table goes to whoever opened it"


# Ranked choices


def test_the_first_choice_that_nccl_can_run_is_taken(tmp_path: Path) -> None:
    row = "allreduce -> pat/simple channels=1 | nvls/simple channels=2 | ring/ll channels=3 chunk=8K | tree/ll"
    with opened(table_of(tmp_path, row), nodes=1) as run:
        for cost_us, expected, channels in [
            (TYPICAL, NVLS, 2),
            (cells(Ring_LL=9, Tree_LL=3), RING_LL, 3),
            (cells(Tree_LL=9, Ring_Simple=3), TREE_LL, 0),
            (cells(Ring_Simple=3, Tree_Simple=9), RING_SIMPLE, 0),
        ]:
            answer = run.ask(TunerCall(AR, 5), cost_us)
            assert picked(answer.cost_us) == expected
            assert answer.channels == channels
    assert said(run)[-1].startswith("4 calls: 3 decided by the table, 0 with its costs, 1 matched")


def test_nccl_keeps_its_choice_and_hides_the_rows_below(tmp_path: Path) -> None:
    rows = (
        "allreduce bytes=10..20 -> nccl",
        "allreduce bytes=30..40 -> nvls/simple | nccl",
        "allreduce -> ring/ll channels=2",
    )
    with opened(table_of(tmp_path, *rows)) as run:
        for size, channels in {9: 2, 10: 0, 20: 0, 21: 2, 30: 0, 40: 0, 41: 2}.items():
            answer = run.ask(TunerCall(AR, size), cells(Tree_LL=3, Ring_LL=9), channels=0)
            assert (picked(answer.cost_us), answer.channels) == ((RING_LL, 2) if channels else (TREE_LL, 0))


# Conditions


def channels_at(run: DryRun, size: int, pipelined: int = 1, registered: bool = False) -> int:
    return run.ask(TunerCall(AR, size, pipelined=pipelined, registered=registered), TYPICAL).channels


def test_bytes_per_rank(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes-per-rank=2..3 -> ring/ll channels=1", "allreduce -> ring/ll channels=2")
    with opened(table, ranks=3, nodes=1) as run:
        assert [channels_at(run, size) for size in (5, 6, 11, 12)] == [2, 1, 1, 2]
    largest = 2**64 - 1
    with opened(table_of(tmp_path, f"allreduce bytes-per-rank={largest // 3}.. -> ring/ll channels=1"), ranks=3) as run:
        assert channels_at(run, largest) == 1
    with opened(
        table_of(tmp_path, f"allreduce bytes-per-rank={largest // 3 + 1}.. -> ring/ll channels=1"), ranks=3
    ) as run:
        assert channels_at(run, largest) == 0
    with opened(table_of(tmp_path, f"allreduce bytes-per-rank=..{largest // 3} -> ring/ll channels=1"), ranks=3) as run:
        assert channels_at(run, largest) == 1


@pytest.mark.parametrize(
    ("ranks", "nodes", "matches"), [(16, 2, True), (8, 1, True), (12, 2, False), (17, 2, False), (9, 1, False)]
)
def test_ranks_per_node(tmp_path: Path, ranks: int, nodes: int, matches: bool) -> None:
    with opened(
        table_of(tmp_path, "allreduce ranks-per-node=7..8 -> ring/ll channels=1"), ranks=ranks, nodes=nodes
    ) as run:
        assert channels_at(run, 5) == int(matches)


def test_registered_buffers(tmp_path: Path) -> None:
    rows = (
        "allreduce registered=yes bytes=..9 -> ring/ll channels=1",
        "allreduce registered=no -> ring/ll channels=2",
        "allreduce -> ring/ll channels=3",
    )
    with opened(table_of(tmp_path, *rows)) as run:
        assert [channels_at(run, size, registered=True) for size in (9, 10)] == [1, 3]
        assert [channels_at(run, size) for size in (9, 10)] == [2, 2]
    with opened(table_of(tmp_path, *rows), 3) as run:
        answer = run.ask(TunerCall(AR, 5), TYPICAL)
        assert answer.channels == 2, "before 2.24 NCCL says nothing of them"


def test_pipelined_operations(tmp_path: Path) -> None:
    rows = (
        "allreduce pipelined=..0 -> ring/ll channels=1",
        "allreduce pipelined=4..7 bytes=..9 -> ring/ll channels=2",
        "allreduce pipelined=4294967295 -> ring/ll channels=3",
        "allreduce pipelined=6.. -> ring/ll channels=4",
    )
    with opened(table_of(tmp_path, *rows)) as run:
        assert [channels_at(run, 9, count) for count in (-1, 0, 1, 3, 4, 6, 7, 8, 2**31 - 1)] == [
            1,
            1,
            0,
            0,
            2,
            2,
            2,
            4,
            4,
        ]
        assert [channels_at(run, 10, count) for count in (0, 5, 6)] == [1, 0, 4]


def test_too_many_classes_of_pipelined_operations(tmp_path: Path) -> None:
    good = [f"allreduce pipelined={count} -> ring/ll" for count in range(1, 16)]  # ends 1 to 16
    with opened(table_of(tmp_path, *good)) as run:
        assert "15 rows" in said(run)[0]
    with opened(table_of(tmp_path, *good, "reduce pipelined=20.. -> ring/ll")) as run:
        assert said(run, WARN)[0].endswith(
            ":17: more than 16 different ends of 'pipelined' in the table; the whole table is ignored"
        )


# Costs


def test_costs_replace_nccls_times(tmp_path: Path) -> None:
    rows = (
        "cost allreduce bytes=..9 ranks=16 -> ring/ll latency-us=6.6 bandwidth-gbs=0.1 batch=1",
        "cost allreduce -> ring/ll latency-us=1.25 bandwidth-gbs=0.3 batch=8",
        "cost allreduce -> tree/ll128 never",
        "cost allreduce -> nvlstree/simple latency-us=1e-1 bandwidth-gbs=1e3",
        "cost allreduce ranks=8 -> tree/ll latency-us=0 bandwidth-gbs=1",
    )
    with opened(table_of(tmp_path, *rows)) as run:
        for size, count, latency, bandwidth in [
            (9, 1, 6.6, 0.1),
            (9, 3, 6.6 * 3, 0.1),
            (1000, 1, 1.25, 0.3),
            (1000, 17, 3.75, 0.3),
        ]:
            answer = run.ask(TunerCall(AR, size, pipelined=count), TYPICAL)
            expected = TYPICAL.copy()
            batches = np.float32(round(latency / (6.6 if size == 9 else 1.25)))
            base = np.float32(6.6 if size == 9 else 1.25)
            expected[RING_LL] = base * batches + np.float32(size) / (np.float32(1000) * np.float32(bandwidth))
            expected[Algorithm.Tree, Protocol.LL128] = 3e9
            assert answer.cost_us.tobytes() == expected.tobytes()
            assert answer.channels == 0
        assert run.ask(TunerCall(Collective.Reduce, 5), TYPICAL).cost_us.tobytes() == TYPICAL.tobytes()
    assert said(run)[-1].startswith("5 calls: 0 decided by the table, 4 with its costs, 0 matched")


def test_a_decision_stands_above_costs_and_reports_their_time(tmp_path: Path) -> None:
    rows = ("cost allreduce -> ring/ll latency-us=50 bandwidth-gbs=1", "allreduce -> ring/ll")
    with opened(table_of(tmp_path, *rows)) as run:
        answer = run.ask(TunerCall(AR, 1000), TYPICAL)
    assert picked(answer.cost_us) == RING_LL
    assert answer.cost_us[RING_LL] == 51


def test_v2_picks_by_the_costs(tmp_path: Path) -> None:
    rows = (
        "cost allreduce -> ring/ll latency-us=5 bandwidth-gbs=1",
        "cost allreduce -> ring/simple latency-us=10 bandwidth-gbs=100",
        "cost allreduce -> nvlstree/simple latency-us=1 bandwidth-gbs=1000",
        "cost allreduce -> ring/ll128 latency-us=0 bandwidth-gbs=1000",
        "cost allreduce bytes=2G.. -> ring/simple never",
        "cost allreduce bytes=2G.. -> ring/ll never",
    )
    with opened(table_of(tmp_path, *reversed(rows)), 2) as run:
        assert run.name(TunerCall(AR, 1000))[0] == RING_LL
        assert run.name(TunerCall(AR, 1 << 20))[0] == RING_SIMPLE
        assert run.name(TunerCall(AR, 1 << 20, nvls=True))[0] == (Algorithm.NVLSTree, Protocol.Simple)
        assert run.name(TunerCall(AG, 1 << 20))[0] is None


# Constants

CONSTANTS = {
    "base-latency-us tree/ll 1.5": 0,
    "base-latency-us PAT/Simple 2": 20,
    "link-latency-us nvlink tree/ll 3": 21,
    "link-latency-us net nvlstree/simple 20.9": 21 + 42 + 17,
    "ll-gbs volta 1 39.0": 84,
    "ring-ll128-per-channel-gbs hopper 2 36.7": 96 + 7,
    "tree-ll128-per-channel-gbs blackwell more 20": 108 + 11,
    "tree-per-channel-gbs ampere more 1e1": 120 + 5,
    "nvlstree-per-channel-gbs blackwell more 43.8": 143,
}


def among_five_generations(number: int) -> int:
    """Where version 7 has what version 5 has at a place: three numbers more after the twelve of each cap."""
    return number if number < 84 else number + (number - 84) // 12 * 3


@pytest.mark.parametrize("version", range(1, 8))
@pytest.mark.parametrize("allowed", ["", "0", "1"])
def test_constants_are_set_where_they_are_handed_over_and_allowed(tmp_path: Path, version: int, allowed: str) -> None:
    table = table_of(tmp_path, *(f"constant {text}" for text in CONSTANTS))
    with opened(table, version, NCCL_TUNER_CONSTANTS=allowed) as run:
        expected = np.zeros(144 if version < 7 else 159)
        if allowed == "1" and version >= 5:
            places = CONSTANTS.values() if version < 7 else map(among_five_generations, CONSTANTS.values())
            expected[list(places)] = [float(text.split()[-1]) for text in CONSTANTS]
            assert "9 constants of NCCL's model set" in said(run)
        elif allowed == "1":
            assert "9 constants stay NCCL's own: this NCCL hands none to a tuner (2.28 and later do)" in said(run, WARN)
        else:
            assert "9 constants stay NCCL's own (NCCL_TUNER_CONSTANTS=1 sets them)" in said(run)
        assert (run.constants == expected).all()


# What NCCL 2.32.6 does with a tuner: the newest version that the object has, from v7 down to v2; constants with five
# rows in each cap, of which the fifth, Rubin's, is handed on as it is. The layouts are written down here once more.
LOADER = r"""
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
struct domains { int domains, least, most; };
struct constants { double base[7][3], hardware[3][7][3], caps[5][5][3]; };
struct tuner {
    const char *name;
    int (*init)(void **, uint64_t, size_t, size_t, void *, struct domains *, struct constants *);
    int (*ask)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*end)(void *);
    int (*chunk)(void *, int, size_t, int, int, int, size_t *);
};
static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    putchar('\n');
    (void)level, (void)flags, (void)file, (void)line;
}
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    struct tuner *tuner = NULL;
    int version = 8;
    while (library && !tuner && --version >= 2) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
        tuner = dlsym(library, symbol);
    }
    if (count != 2 || version != 7) return 2;
    /* The constants end where memory that nobody may touch begins. */
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + page, page, PROT_NONE)) return 3;
    struct constants *constants = (struct constants *)(memory + page - sizeof *constants);
    double *numbers = (double *)constants;
    for (int i = 0; i < 159; i++) numbers[i] = 1000 + i;
    struct domains domains = {2, 8, 8};
    void *context = NULL;
    if (tuner->init(&context, 7, 16, 2, say, &domains, constants)) return 4;
    float costs[7][3] = {{9, 8, 30}, {40, 20, 25}};
    int channels = 0;
    size_t chunk = 77;
    if (tuner->ask(context, 4, 1 << 20, 1, (float **)costs, 7, 3, 0, &channels)) return 5;
    if (tuner->chunk && tuner->chunk(context, 4, 1 << 20, 1, 2, channels, &chunk)) return 6;
    printf("%s v%d channels %d chunk %zu", tuner->name, version, channels, chunk);
    printf(" costs %g below %d\n", costs[1][2], costs[1][2] < costs[0][1] && costs[1][2] < costs[0][0]);
    for (int i = 0; i < 159; i++)
        if (numbers[i] != 1000 + i) printf("%d = %g\n", i, numbers[i]);
    return tuner->end(context);
}
"""


def loaded_as_newest_nccl(table: Path, **env: str) -> list[str]:
    loader = programs.compiled(programs.compiler(), ["-w"], text=LOADER)
    variables = {"NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_NEXT": "none", **env}
    ran = subprocess.run([loader, plugin.path()], env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    return ran.stdout.splitlines()


def test_a_loader_like_that_of_nccl_2_32_6(tmp_path: Path) -> None:
    rows = ["constant tree-per-channel-gbs ampere more 1e1", "constant nvlstree-per-channel-gbs blackwell more 43.8"]
    table = table_of(tmp_path, *rows, "allreduce -> ring/simple channels=5 chunk=4096")
    lines = loaded_as_newest_nccl(table, NCCL_TUNER_CONSTANTS="1")
    assert "nccl-tuner v7 channels 5 chunk 4096 costs 25 below 1" in lines
    changed = [line for line in lines if " = " in line and "NCCL" not in line]
    assert changed == [f"{129 + 5} = 10", f"{144 + 11} = 43.8"]


@pytest.mark.parametrize("version", range(5, 8))
def test_the_next_tuner_gets_the_constants_that_it_knows(tmp_path: Path, version: int) -> None:
    other = next_tuner.build(tmp_path / "other.so", [version], constants=7)
    lines = loaded_as_newest_nccl(table_of(tmp_path, "broadcast -> ring/ll"), NCCL_TUNER_NEXT=str(other))
    numbers = (re.fullmatch(r"(\d+) = (\S+)", line) for line in lines)
    changed = {int(number[1]): float(number[2]) for number in numbers if number}
    known = set(range(159)) if version == 7 else set(map(among_five_generations, range(144)))
    assert changed == {place: 1007 + place for place in known}


# Chunk sizes


def test_chunks_follow_the_last_decision(tmp_path: Path) -> None:
    rows = (
        "allreduce bytes=..9 -> ring/ll chunk=64K",
        "allreduce bytes=10..19 -> nvls/simple chunk=1M | ring/ll",
        "allgather -> ring/simple chunk=4K",
    )
    with opened(table_of(tmp_path, *rows)) as run:
        assert run.chunk_bytes(AR, *RING_LL, 12345) == 12345, "nothing was decided yet"
        run.ask(TunerCall(AR, 9), TYPICAL)
        run.ask(TunerCall(AG, 9), TYPICAL)
        assert run.chunk_bytes(AR, *RING_LL, 12345) == 64 << 10
        assert run.chunk_bytes(AR, *RING_LL, 12345) == 64 << 10, "every channel of it"
        assert run.chunk_bytes(AR, *RING_SIMPLE, 12345) == 12345, "NCCL runs something else"
        assert run.chunk_bytes(AG, *RING_SIMPLE, 12345) == 4 << 10
        run.ask(TunerCall(AR, 10), TYPICAL)
        assert run.chunk_bytes(AR, *NVLS, 12345) == 1 << 20
        run.ask(TunerCall(AR, 10), cells(Ring_LL=4))
        assert run.chunk_bytes(AR, *RING_LL, 12345) == 12345
        run.ask(TunerCall(AR, 9), TYPICAL)
        run.ask(TunerCall(AR, 20), TYPICAL)
        assert run.chunk_bytes(AR, *RING_LL, 12345) == 12345, "no row holds what came last"
        for number in (-1, 5, 99):
            assert run.chunk_bytes(number, *RING_LL, 12345) == 12345


# NVIDIA's CSV


def test_nvidias_csv_is_read_through_either_variable(tmp_path: Path) -> None:
    csv = table_of(
        tmp_path,
        "# collective,min,max",
        "",
        "allreduce,0,65536,tree,simple,2,1,-1,-1,1",
        "reduce , 0, 9 ,ring,ll,-1,-1,16",
        "allreduce,0,4294967295,nvls_tree,simple,-1,2,16,1,0 # all",
        "allreduce,0,4294967295,ring,ll128,0,-1,-1,4",
        header=None,
    )
    for run in (opened(csv), DryRun(None, ranks=16, nodes=2, env={"NCCL_TUNER_CONFIG_FILE": str(csv)})):
        with run:
            assert ": 4 rows, 3 of them for 16 ranks on 2 nodes" in said(run)[0]
            cost_us = cells(NVLSTree_Simple=9, Ring_LL128=9, Tree_Simple=3)
            assert picked(run.ask(TunerCall(AR, 5), cost_us).cost_us) == (Algorithm.NVLSTree, Protocol.Simple)
            assert picked(run.ask(TunerCall(AR, 5, registered=True), cost_us).cost_us) == (
                Algorithm.Tree,
                Protocol.Simple,
            )
            four = run.ask(TunerCall(AR, 5, pipelined=4), cost_us, channels=9)
            assert picked(four.cost_us) == (Algorithm.Ring, Protocol.LL128)
            assert four.channels == 9
            beyond = run.ask(TunerCall(AR, 1 << 32), cost_us, channels=9)
            assert beyond.cost_us.tobytes() == cost_us.tobytes()
            assert beyond.channels == 9
    with opened(csv, nodes=1) as run:
        registered = run.ask(TunerCall(AR, 65536, registered=True), cells(Tree_Simple=9, Ring_LL=1))
        assert (picked(registered.cost_us), registered.channels) == ((Algorithm.Tree, Protocol.Simple), 2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("allreduce,0,1,ring,ll,2,1", "7 fields, not 8 to 10"),
        ("allreduce,0,1,ring,ll,2,1,1,1,1,1", "11 fields, not 8 to 10"),
        ("alltoall,0,1,ring,ll,2,1,1", "unknown collective 'alltoall'"),
        ("allreduce,0,1,rings,ll,2,1,1", "unknown algorithm 'rings' (valid: tree, ring, collnet_direct"),
        ("allreduce,0,1,ring,l,2,1,1", "unknown protocol 'l' (valid: ll, ll128, simple)"),
        ("allreduce,0,1,ring,ll,65,1,1", "channels '65' is neither -1 nor a number from 0 to 64"),
        ("allreduce,0,1,ring,ll,,1,1", "channels '' is neither -1"),
        ("allreduce,x,1,ring,ll,2,1,1", "'x' is not a number of bytes"),
        ("allreduce,0,64K,ring,ll,2,1,1", "'64K' is not a number of bytes"),
        ("allreduce,5,1,ring,ll,2,1,1", "min_bytes is above max_bytes"),
        ("allreduce,0,1,ring,ll,2,-2,1", "nNodes '-2' is neither -1"),
        ("allreduce,0,1,ring,ll,2,1,1x", "nRanks '1x' is neither -1"),
        ("allreduce,0,1,ring,ll,2,0,1", "nNodes '0' is neither -1 nor a number from 1 to"),
        ("allreduce,-1,1,ring,ll,2,0,1", "'-1' is not a number of bytes"),
        ("allreduce,0,1,ring,ll,2,1,1,1,2", "regBuff '2' is neither -1 nor a number from 0 to 1"),
    ],
)
def test_what_nvidias_reader_hides_is_said(tmp_path: Path, row: str, reason: str) -> None:
    with opened(table_of(tmp_path, "allreduce,0,1,ring,ll,2,-1,-1", "", row, header=None)) as run:
        (warning,) = said(run, WARN)
        answer = run.ask(TunerCall(AR, 1), TYPICAL)
    assert f"/t:3: {reason}" in warning
    assert warning.endswith("; the whole table is ignored")
    assert answer.cost_us.tobytes() == TYPICAL.tobytes()


def test_our_variable_wins_over_nvidias(tmp_path: Path) -> None:
    with opened(table_of(tmp_path, "allreduce -> ring/ll"), NCCL_TUNER_CONFIG_FILE="/other.conf") as run:
        assert said(run)[0] == "NCCL_TUNER_TABLE is set: NCCL_TUNER_CONFIG_FILE=/other.conf is not read"
        assert "1 row" in said(run)[1]


# Settings


BAD = {"a mistake": "nccl-tuner-table 1\nallreduce -> ring\n", "empty": "", "missing": None}


@pytest.mark.parametrize("version", range(1, 8))
@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_strict_fails_the_communicator(tmp_path: Path, version: int, content: str | None) -> None:
    table = tmp_path / "t"
    if content is not None:
        table.write_text(content)
    with opened(table, version) as run:
        assert len(said(run, WARN)) == 1
    with pytest.raises(PluginRefused, match=r"^the plugin's init returned 5: TUNER/nccl-tuner: .*/t"):
        opened(table, version, NCCL_TUNER_STRICT="1")


STRICT = "NCCL_TUNER_STRICT"
HASHES = "NCCL_TUNER_TABLE_SHA256"


@pytest.mark.parametrize("version", range(1, 8))
def test_strict_takes_a_good_table_and_refuses_none(tmp_path: Path, version: int) -> None:
    with opened(whole(table_of(tmp_path, "allreduce -> ring/ll")), version, NCCL_TUNER_STRICT="1") as run:
        assert not said(run, WARN)
    with pytest.raises(PluginRefused, match="NCCL_TUNER_STRICT is set, and NCCL_TUNER_TABLE is not: there is no table"):
        DryRun(None, ranks=16, nodes=2, version=version, env={STRICT: "1"})


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "True", "YES", " on "])
def test_words_that_make_it_strict(tmp_path: Path, word: str) -> None:
    with pytest.raises(PluginRefused, match="No such file"):
        opened(tmp_path / "missing", NCCL_TUNER_STRICT=word)


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "FALSE", ""])
def test_words_that_do_not(tmp_path: Path, word: str) -> None:
    with opened(tmp_path / "missing", NCCL_TUNER_STRICT=word) as run:
        assert len(said(run, WARN)) == 1


def test_strict_of_another_word_fails_the_communicator(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    with pytest.raises(PluginRefused, match="NCCL_TUNER_STRICT=maybe is taken for 1"):
        opened(table, NCCL_TUNER_STRICT="maybe")


def test_another_setting_of_no_known_word_is_named(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    with opened(table, NCCL_TUNER_CONSTANTS="2") as run:
        assert said(run, WARN) == ["NCCL_TUNER_CONSTANTS=2 is taken for 0 (valid: 0, 1, false, true, no, yes, off, on)"]
    with pytest.raises(PluginRefused, match="NCCL_TUNER_CONSTANTS=2"):
        opened(table, NCCL_TUNER_CONSTANTS="2", NCCL_TUNER_STRICT="1")


# Which content may be used, and how often it is read


@pytest.mark.parametrize("version", range(1, 8))
def test_a_hash_pins_the_content(tmp_path: Path, version: int) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    right, wrong = hashlib.sha256(table.read_bytes()).hexdigest(), "0" * 64
    for hashes in (right, right.upper(), f"{wrong},{right}", f" {wrong} , {right} "):
        with opened(table, version, NCCL_TUNER_TABLE_SHA256=hashes, NCCL_TUNER_STRICT="1") as run:
            assert not said(run, WARN)
    with opened(table, version, NCCL_TUNER_TABLE_SHA256=wrong) as run:
        assert said(run, WARN) == [f"{table}: its sha256 {right} is not in {HASHES}; the whole table is ignored"]
        assert not any("rows" in line for line in said(run))
    with pytest.raises(PluginRefused, match=f"its sha256 {right} is not in"):
        opened(table, version, NCCL_TUNER_TABLE_SHA256=wrong, NCCL_TUNER_STRICT="1")


@pytest.mark.parametrize(
    "hashes", ["", " ", "abe57b12bfdd", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + ",", ",", "0" * 63 + "\xe4"]
)
def test_a_pin_that_is_no_hash(tmp_path: Path, hashes: str) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    with opened(table, NCCL_TUNER_TABLE_SHA256=hashes) as run:
        assert len(said(run, WARN)) == 2  # the word, and that the table is ignored
    with pytest.raises(PluginRefused, match="is not the 64 hexadecimal digits that sha256sum prints"):
        opened(table, NCCL_TUNER_TABLE_SHA256=hashes, NCCL_TUNER_STRICT="1")


@pytest.mark.parametrize("version", range(1, 8))
def test_a_table_is_read_once_while_a_process_has_communicators(tmp_path: Path, version: int) -> None:
    table = whole(table_of(tmp_path, "allreduce -> ring/ll"))
    before = hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    changed = [f"{table} has changed since this process read it: what was read then stays"]
    with opened(tmp_path / "other", version):  # keeps what the process has read, as NCCL does
        with opened(table, version) as run:
            assert version == 1 or not said(run, WARN)
        for content in ("nccl-tuner-table 1\nallreduce -> tree/ll\n", "nonsense", None):
            (tmp_path / "next").write_text(content or "")
            (tmp_path / "next").replace(table)
            if content is None:
                table.unlink()
            with opened(table, version, NCCL_TUNER_STRICT="1") as run:
                assert version == 1 or said(run, WARN) == changed
                assert version == 1 or before in said(run)[0]
    if content is None:
        with pytest.raises(PluginRefused, match="No such file"):
            opened(table, version, NCCL_TUNER_STRICT="1")


def test_a_missing_file_stays_missing_for_the_process(tmp_path: Path) -> None:
    table = tmp_path / "test.table"
    with opened(table):
        table.write_text("nccl-tuner-table 1\nallreduce -> ring/ll\n")
        with opened(table) as run:
            assert said(run, WARN) == [
                f"{table} has changed since this process read it: what was read then stays",
                f"{table}: No such file or directory; there is no table (NCCL_TUNER_TABLE={table})",
            ]


def test_the_same_content_written_again_is_no_change(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce -> ring/ll")
    with opened(table):
        content = table.read_bytes()
        (tmp_path / "next").write_bytes(content)
        (tmp_path / "next").replace(table)
        with opened(table) as run:
            assert not said(run, WARN)


@pytest.mark.parametrize("version", range(2, 8))
def test_the_commid_stands_beside_the_hash(tmp_path: Path, version: int) -> None:
    with opened(table_of(tmp_path, "allreduce -> ring/ll"), version) as run:
        assert said(run)[0].endswith(", commId 0x1" if version >= 5 else "on 2 nodes")


# The right table for the machine


def expanded(path: str, version: int = 6, ranks: int = 16, nodes: int = 2) -> list[str]:
    with DryRun(None, ranks=ranks, nodes=nodes, version=version, env={"NCCL_TUNER_TABLE": path}) as run:
        return said(run) + said(run, WARN)


def test_a_path_says_nodes_and_ranks_per_node(tmp_path: Path) -> None:
    (tmp_path / "2x8%.table").write_text(f"{HEADER}\nallreduce -> ring/ll\n")
    for version in range(2, 8):
        assert f"table {tmp_path}/2x8%.table (" in expanded(f"{tmp_path}/%nx%l%%.table", version)[0]
    assert "this NCCL does not say which communicator asks; there is no table" in expanded("/x/%n", 1)[0]
    assert "the nodes have different numbers of ranks" in expanded("/x/%l", ranks=15)[0]
    assert "%g: the process has no NVML" in expanded("/x/%g")[0]
    for path in ("/x/%h", "/x/%"):
        assert "an unknown word after % (valid: %g GPU, %n nodes, %l ranks per node, %%)" in expanded(path)[0]
    assert "File name too long" in expanded("/" + "x" * 5000)[0]


@pytest.mark.parametrize("version", range(2, 8))
def test_a_row_for_nvlink_domains_is_nccls_where_they_are_not_known(tmp_path: Path, version: int) -> None:
    table = table_of(
        tmp_path, "allreduce nvlink-domains=2 -> ring/ll", "cost reduce nvlink-domains=..3 -> ring/ll never"
    )
    with opened(table, version) as run:
        assert "2 rows ask for NVLink domains, and this NCCL does not say how many there are" in said(run)[1]
    assert read(table).decisions[0].nvlink_domains == Span(2, 2)
    assert from_text(to_text(read(table))).decisions == read(table).decisions


@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_row_for_nvlink_domains_is_for_those(tmp_path: Path, version: int) -> None:
    table = table_of(tmp_path, "allreduce nvlink-domains=2..3 -> ring/simple", "allreduce nvlink-domains=4 -> nccl")
    (row, other) = read(table).decisions
    for domains in range(1, 6):
        size = CommunicatorSize(ranks=16, nodes=2, nvlink_domains=domains)
        with DryRun.of(table, size, version=version) as run:
            rows = run.rows(TunerCall(Collective.AllReduce, 1 << 20), TYPICAL)
            assert "2 rows ask" not in "".join(said(run))
        where = {"ranks": 16, "nodes": 2, "nvlink_domains": domains}
        assert row.match(Collective.AllReduce, 1 << 20, **where) == (rows.decision == row.line) == (domains in (2, 3))
        assert other.match(Collective.AllReduce, 1 << 20, **where) == (domains == 4)


NVML = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)index; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    const char *gpu = device ? SECOND : "NVIDIA H100 80GB HBM3";
    for (unsigned i = 0; i < length && (name[i] = gpu[i]); i++) {
    }
    return 0;
}
"""
ASK = """
import ctypes, sys
from tuner.plugin.dry_run import DryRun, PluginRefused
ctypes.CDLL(sys.argv[1])
strict = {"NCCL_TUNER_STRICT": "1"} if sys.argv[3:] else {}
try:
    with DryRun(None, ranks=16, nodes=2, env={"NCCL_TUNER_TABLE": sys.argv[2], **strict}) as run:
        print(*(line.text for line in run.log), sep="\\n")
except PluginRefused as refused:
    print("refused", refused)
"""


@pytest.mark.slow
def test_nvml_names_the_gpus(tmp_path: Path) -> None:
    def ask(second: str, *words: str) -> str:
        (tmp_path / "nvml.c").write_text(NVML)
        library = tmp_path / "libnvidia-ml.so.1"
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", f'-DSECOND="{second}"']
        subprocess.run(["cc", *flags, tmp_path / "nvml.c", "-o", library], check=True)
        command = [sys.executable, "-c", ASK, str(library), *words]
        return str(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    h100 = "NVIDIA H100 80GB HBM3"
    table = tmp_path / "nvidia-h100-80gb-hbm3.table"
    table.write_text(close(f"{HEADER}\n# gpus: b200, H100 80gb\nallreduce -> ring/ll\n", 1))
    assert f"table {table} (" in ask(h100, f"{tmp_path}/%g.table", "strict")
    assert "%g: the process has no NVML that gives" in ask("NVIDIA T400", f"{tmp_path}/%g.table")
    table.write_text(close(f"{HEADER}\n# gpus: b200, A100\nallreduce -> ring/ll\n", 1))
    reason = f"is for GPUs 'b200, A100', and this node has '{h100}'"
    answer = ask(h100, str(table))
    assert f"{reason}: it is used all the same" in answer
    assert "1 row, 1 of them" in answer
    assert reason in ask(h100, str(table), "strict")
    assert ask(h100, str(table), "strict").startswith("refused")
    table.write_text(f"{HEADER}\n# gpus: 100, 80G, HBM\nallreduce -> ring/ll\n")
    assert "is for GPUs '100, 80G, HBM'" in ask(h100, str(table)), "whole words"
    table.write_text(f"{HEADER}\nallreduce -> ring/ll\n# gpus: 80GB hbm3\n# gpus: A100\n")
    assert "is for GPUs" not in ask(h100, str(table)), "the first one, wherever it stands"
    assert reason not in ask("NVIDIA T400", str(table), "strict"), "GPUs of several names: not known"


# Tables that are cut

RING_16, RING_32 = (
    Decision(Collective.AllReduce, (TableChoice(Algorithm.Ring, Protocol.LL, channels=each),)) for each in (16, 32)
)


def test_no_table_that_was_cut_is_used(tmp_path: Path) -> None:
    rows = tuple(
        Decision(Collective.AllReduce, (TableChoice(Algorithm.Ring, Protocol.LL, channels=16),)) for _ in range(5)
    )
    whole = to_text(Table(rows, provenance={"by": "hand"})).encode()
    assert re.search(rb"\n# rows: 5 sha256 [0-9a-f]{64}\n$", whole)
    table = tmp_path / "test.table"
    taken = []
    for length in range(len(whole) + 1):
        table.write_bytes(whole[:length])
        with opened(table) as run:
            if not said(run, WARN):
                taken.append(length)
    # Of the header alone nothing is decided; all rows are there where only the comment that says it again is not.
    without_last = whole.rindex(b"# rows")
    assert taken == [len(HEADER) + 1, without_last, len(whole)]
    for length in taken[:-1]:
        table.write_bytes(whole[:length])
        with pytest.raises(PluginRefused, match="has no row" if length < without_last else "does not show that it is"):
            opened(table, NCCL_TUNER_STRICT="1")
    table.write_bytes(whole)
    opened(table, NCCL_TUNER_STRICT="1").close()


def test_no_half_of_two_tables_is_used(tmp_path: Path) -> None:
    """A file that is rewritten in place at equal length: every mixture of the two."""
    one, two = (to_text(Table((decision,), provenance={"by": "hand"})).encode() for decision in (RING_16, RING_32))
    assert len(one) == len(two)
    table = tmp_path / "test.table"
    for length in range(1, len(one)):
        if (mixed := two[:length] + one[length:]) not in (one, two):
            table.write_bytes(mixed)
            with pytest.raises(PluginRefused, match=r"another sha256|is not '# rows|does not show"):
                opened(table, NCCL_TUNER_STRICT="1")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nccl-tuner-table 1\nallreduce -> ring/ll channels=1", "2: the last line does not end"),
        ("nccl-tuner-table 1\nallreduce -> ring/ll\n# by", "3: the last line does not end"),
        ("allreduce,0,65536,ring,ll,2,2,16\nallreduce,0,6553,tree,ll,2,2,1", "2: the last line does not end"),
        ("nccl-tuner-table 1\n# rows: 2\nallreduce -> ring/ll\n", "2: 2 rows are announced, and there are 1"),
        ("nccl-tuner-table 1\nallreduce -> ring/ll\n#rows:  0 \r\n", "3: 0 rows are announced, and there are 1"),
        ("# rows: 2\nallreduce,0,65536,ring,ll,2,2,16\n", "1: 2 rows are announced, and there are 1"),
        ("nccl-tuner-table 1\n# rows: 2\n# rows: 3\n", "3: 3 rows are announced here, and 2 in line 2"),
        ("nccl-tuner-table 1\n# rows: 2\n# rows: 1\n", "3: 1 row is announced here, and 2 in line 2"),
        ("nccl-tuner-table 1\n# rows: 1\n", "2: 1 row is announced, and there are 0"),
    ],
)
def test_what_shows_that_a_table_was_cut(tmp_path: Path, content: str, reason: str) -> None:
    table = tmp_path / "test.table"
    table.write_bytes(content.encode())
    with opened(table) as run:
        assert len(said(run, WARN)) == 1
        assert said(run, WARN)[0].startswith(f"{table}:{reason}")
    if content.startswith(HEADER):
        with pytest.raises(BadTable, match=re.escape(reason)):
            read(table)


def test_a_comment_about_rows_that_announces_none(tmp_path: Path) -> None:
    content = f"{HEADER}\n# rows 3\n# arrows: 2\nallreduce -> ring/ll # rows: 9\n # rows: 8\n"
    table = tmp_path / "test.table"
    table.write_text(content)
    with opened(table) as run:
        assert not said(run, WARN)
    assert len(read(table).decisions) == 1


@pytest.mark.parametrize(
    "comment",
    [
        "# rows: -9",
        "# Rows: 1",
        "# rows: 1 rows",
        "#rows:",
        "# rows: 1 sha256",
        f"# rows: 1 sha256 {'0' * 64} 1",
        "# rows: 1e1",
    ],
)
def test_a_mark_that_is_none_does_not_switch_it_off(tmp_path: Path, comment: str) -> None:
    table = tmp_path / "test.table"
    table.write_text(f"{HEADER}\nallreduce -> ring/ll\n{comment}\n")
    with opened(table) as run:
        assert said(run, WARN)[0].startswith(f"{table}:3: '{comment[:20]}")
    with pytest.raises(BadTable, match=r":3: .* is not '# rows: N' or '# rows: N sha256 HASH'"):
        read(table)


def test_nothing_follows_the_line_with_the_hash(tmp_path: Path) -> None:
    table = whole(table_of(tmp_path, "allreduce -> ring/ll"))
    table.write_text(table.read_text() + "# by: hand\n")
    with opened(table) as run:
        assert "t:4: something follows the line with the hash" in said(run, WARN)[0]
    with pytest.raises(BadTable, match=":4: something follows"):
        read(table)


# What a table is for, checked when it is loaded

DAY_S = 24 * 60 * 60


def valid_s(line: bytes) -> tuple[int | None, int | None]:
    """As the reader in Python has it."""
    comments = Comments(line)
    comments.take(1, line)
    return comments.valid_s


NOVEMBER_S = 1793491200  # 2026-11-01


@pytest.mark.parametrize(
    ("days", "job_s", "used"),
    [
        ("2026-11-01..2026-11-02", NOVEMBER_S - 1, False),
        ("2026-11-01..2026-11-02", NOVEMBER_S, True),
        ("2026-11-01..2026-11-02", NOVEMBER_S + 2 * DAY_S - 1, True),
        ("2026-11-01..2026-11-02", NOVEMBER_S + 2 * DAY_S, False),
        ("..2026-10-31", NOVEMBER_S, False),
        ("2026-11-01..", 1 << 40, True),
    ],
)
def test_a_table_is_used_by_jobs_of_its_days(tmp_path: Path, days: str, job_s: int, used: bool) -> None:
    table = whole(table_of(tmp_path, f"# valid: {days}", "allreduce -> ring/ll"))
    with opened(table, NCCL_TUNER_JOB_TIME=str(job_s)) as run:
        assert any("is not valid for a job that began" in line for line in said(run, WARN)) == (not used)
        assert any("1 row" in line for line in said(run)) == used
    with opened(table) as run:
        assert "which is not checked: NCCL_TUNER_JOB_TIME does not say" in said(run, WARN)[0]
        assert any("1 row" in line for line in said(run))
    with pytest.raises(PluginRefused, match="NCCL_TUNER_JOB_TIME does not say when"):
        opened(table, NCCL_TUNER_STRICT="1")
    low, high = valid_s(f"# valid: {days}".encode())
    assert ((low is None or low <= job_s) and (high is None or job_s <= high)) == used


@pytest.mark.parametrize(
    "days", ["", "..", "2026-11-01", "2026-11-02..2026-11-01", "2026-13-01..", "1.11.2026..", "2026-1-01..", "soon"]
)
def test_days_that_are_none(tmp_path: Path, days: str) -> None:
    table = table_of(tmp_path, f"# valid: {days}", "allreduce -> ring/ll")
    with opened(table) as run:
        assert "is not DAY..DAY" in said(run, WARN)[0]
    with pytest.raises(BadTable, match=r"is not DAY\.\.DAY"):
        read(table)


@pytest.mark.parametrize(
    ("lines", "off"),
    [
        ([], False),
        (["off 1000"], True),
        (["off 1001"], False),
        (["off 900 # a regression", "on 1000"], False),
        (["# none yet", "off 900", "on 1001"], True),
    ],
)
def test_the_switch_is_read_by_when_the_job_began(tmp_path: Path, lines: list[str], off: bool) -> None:
    """Never by a clock, so that all ranks of a job agree whenever they look."""
    switch = tmp_path / "switch"
    switch.write_text("".join(f"{line}\n" for line in lines))
    table = whole(table_of(tmp_path, "allreduce -> ring/ll"))
    given = {"NCCL_TUNER_SWITCH": str(switch), "NCCL_TUNER_JOB_TIME": "1000", "NCCL_TUNER_STRICT": "1"}
    with opened(table, 6, 16, 2, **given) as run:
        assert not said(run, WARN)
        assert any("is off since" in line for line in said(run)) == off
        assert any("1 row" in line for line in said(run)) == (not off)


@pytest.mark.parametrize(
    ("content", "job", "reason"),
    [
        (None, "1000", "No such file"),
        ("of 9\n", "1000", "line 1 is not 'off SECONDS' or 'on SECONDS'"),
        ("off 9\non 8\n", "1000", "line 2 is not"),
        ("off 9 10\n", "1000", "line 1 is not"),
        ("off 9\n", "", "NCCL_TUNER_JOB_TIME does not say when the job began"),
    ],
)
def test_a_switch_that_cannot_be_agreed_on_is_refused(
    tmp_path: Path, content: str | None, job: str, reason: str
) -> None:
    switch = tmp_path / "switch"
    if content is not None:
        switch.write_text(content)
    table = whole(table_of(tmp_path, "allreduce -> ring/ll"))
    given = {"NCCL_TUNER_SWITCH": str(switch), "NCCL_TUNER_JOB_TIME": job}
    with opened(table, 6, 16, 2, **given) as run:
        assert reason in said(run, WARN)[0]
        assert not any("rows" in line for line in said(run))
    with pytest.raises(PluginRefused, match=re.escape(reason)):
        opened(table, 6, 16, 2, **given, NCCL_TUNER_STRICT="1")


def test_a_line_of_the_switch_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "switch").write_text("off 900\non 9")
    given = {"NCCL_TUNER_SWITCH": str(tmp_path / "switch"), "NCCL_TUNER_JOB_TIME": "1000"}
    with opened(table_of(tmp_path, "allreduce -> ring/ll"), 6, 16, 2, **given) as run:
        assert any("is off since 900" in line for line in said(run))


def test_a_table_that_is_not_used_is_said_on_standard_error_where_nccl_says_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from tuner.plugin.dry_run import DryRun\n"
        "runs = [DryRun(sys.argv[1], ranks=16, nodes=2, env={'NCCL_DEBUG': sys.argv[2]}) for _ in range(3)]\n"
        "[run.close() for run in runs]"
    )
    for level, lines in (("VERSION", 1), ("", 1), ("WARN", 0)):
        command = [sys.executable, "-c", code, str(tmp_path / "missing"), level]
        said_there = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
        assert [line.startswith(f"nccl-tuner: {tmp_path}/missing: No such file") for line in said_there] == [
            True
        ] * lines


# Mistakes in the rows of this version


def lines(mistakes: Mapping[str, str]) -> Iterable[object]:
    return [pytest.param(row, reason, id=row) for row, reason in mistakes.items()]


@pytest.mark.parametrize(
    ("row", "reason"),
    lines(
        {
            "allreduce bytes=1 bytes-per-rank=1 -> ring/ll": "'bytes' and 'bytes-per-rank' in one row",
            "allreduce registered=1 -> ring/ll": "registered=1 is neither yes nor no",
            "allreduce ranks=4294967296 -> ring/ll": "'4294967296' is past the largest number, 4294967295",
            "allreduce pipelined=1K -> ring/ll": "'1K' is not a number",
            "allreduce -> ring/ll |": "'' is not algorithm/protocol",
            "allreduce -> ring/ll | ring/ll": "'ring/ll' twice",
            "allreduce -> ring/ll | RING/LL": "'RING/LL' twice",
            "allreduce -> nccl channels=3": "'channels=3' after nccl, which ends a row",
            "allreduce -> nccl | ring/ll": "'|' after nccl, which ends a row",
            "allreduce -> ring/ll|tree/ll": "unknown protocol 'll|tree/ll'",
            "allreduce -> ring/ll chunk=4095": "chunk=4095 is not a size from 4K to 1G",
            "allreduce -> ring/ll chunk=2G": "chunk=2G is not a size from 4K to 1G",
            "allreduce -> ring/ll latency-us=3": "unknown key 'latency-us'",
            "cost": "unknown collective ''",
            "cost allreduce registered=yes -> ring/ll never": "unknown key 'registered'",
            "cost allreduce pipelined=1 -> ring/ll never": "unknown key 'pipelined'",
            "cost allreduce -> ring/ll": "a cost needs latency-us and bandwidth-gbs, or never",
            "cost allreduce -> ring/ll latency-us=3": "a cost needs latency-us and bandwidth-gbs, or never",
            "cost allreduce -> ring/ll never never": "'never' beside never",
            "cost allreduce -> ring/ll never batch=1": "'batch=1' beside never",
            "cost allreduce -> ring/ll batch=1 never": "'never' is not key=value",
            "cost allreduce -> ring/ll latency-us=-1 bandwidth-gbs=1": "latency-us=-1 is not a number of at least 0",
            "cost allreduce -> ring/ll latency-us=1e39 bandwidth-gbs=1": "latency-us=1e39 is not a number",
            "cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=0": "bandwidth-gbs=0 is not a number above 0",
            "cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1e-46": "bandwidth-gbs=1e-46 is not a number above 0",
            "cost allreduce -> ring/ll latency-us=1,5 bandwidth-gbs=1": "latency-us=1,5 is not a number",
            "cost allreduce -> ring/ll latency-us=.5 bandwidth-gbs=1": "latency-us=.5 is not a number",
            "cost allreduce -> ring/ll latency-us=5. bandwidth-gbs=1": "latency-us=5. is not a number",
            "cost allreduce -> ring/ll latency-us=1e bandwidth-gbs=1": "latency-us=1e is not a number",
            "cost allreduce -> ring/ll latency-us=nan bandwidth-gbs=1": "latency-us=nan is not a number",
            "cost allreduce -> ring/ll latency-us=0x1 bandwidth-gbs=1": "latency-us=0x1 is not a number",
            f"cost allreduce -> ring/ll latency-us={'1' * 70} bandwidth-gbs=1": f"latency-us={'1' * 44}... is",
            "cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1 batch=0": "batch=0 is not a number from 1",
            "cost allreduce -> ring/ll latency-us=1 latency-us=1 bandwidth-gbs=1": "'latency-us' twice",
            "constant": "unknown constant ''",
            "constant base-latency ring/ll 1": "unknown constant 'base-latency'",
            "constant base-latency-us ring/ll": "'' is not a number of at least 0",
            "constant base-latency-us ring/ll -1": "'-1' is not a number of at least 0",
            "constant base-latency-us ring/ll 1e400": "'1e400' is not a number of at least 0",
            "constant base-latency-us ring/ll 1 2": "'2' after the constant's value",
            "constant base-latency-us rang/ll 1": "unknown algorithm 'rang'",
            "constant link-latency-us ring/ll 1": "unknown link 'ring/ll' (valid: nvlink, pci, net)",
            "constant ll-gbs kepler 1 1": "unknown generation 'kepler' (valid: volta, ampere, hopper, blackwell)",
            "constant ll-gbs hopper 3 1": "unknown number of nodes '3' (valid: 1, 2, more)",
            "constant LL-gbs hopper 2 1": "unknown constant 'LL-gbs'",
        }
    ),
)
def test_refuses(tmp_path: Path, row: str, reason: str) -> None:
    with opened(table_of(tmp_path, "allreduce -> ring/ll", row)) as run:
        (warning,) = said(run, WARN)
        assert run.ask(TunerCall(AR, 5), TYPICAL).cost_us.tobytes() == TYPICAL.tobytes()
    assert f"/t:3: {reason}" in warning


def test_a_constant_may_be_set_once(tmp_path: Path) -> None:
    rows = ("constant ll-gbs hopper 2 1", "constant ll-gbs hopper more 1", "constant ll-gbs hopper 2 3")
    with opened(table_of(tmp_path, *rows)) as run:
        assert "/t:4: this ll-gbs twice; " in said(run, WARN)[0]
