"""Picks that are looked up against those of the model, which test_golden.py holds against libnccl: bit for bit."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden_files as recorded
from tests.support.operations import calls_of
from tests.support.programs import ROOT, compiler
from tests.support.programs import compiled as compiled_program
from tuner import communicator
from tuner.api import Communicator, estimate
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Collective, DataType, Op
from tuner.emulator import compiled
from tuner.emulator.compiled import CompiledSelection, PickTable
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.scenario import Scenario

ALL_REDUCE = Request(Collective.AllReduce, DataType.float32, Op.sum)
COLUMNS = ("algorithm", "protocol", "channels", "threads", "time_us")
DRAWN = 20_000


def drawn(seed: int, count: int = DRAWN) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Sizes of 1 B to 1 TiB, as many in each power of two."""
    return np.exp2(np.random.default_rng(seed).uniform(0, 40, count)).astype(np.int64)


def differing(found: Picks, model: Picks) -> list[str]:
    return [name for name in COLUMNS if not np.array_equal(getattr(found, name), getattr(model, name))]


def around(table: PickTable) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The sizes at which ranges begin, and those beside them."""
    starts = table.from_bytes[1:-1]
    return np.concatenate([starts - np.uint64(1), starts, starts + np.uint64(1)])


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize(
    ("nccl", "machine"), [(nccl, machine) for machine in recorded.machines() for nccl in recorded.releases(machine)]
)
def test_tables_say_what_the_model_says(nccl: str, machine: str, collective: Collective) -> None:
    request, made = Request(collective, DataType.float32, Op.sum), 0
    for scenario in recorded.cases(nccl, machine, recorded.shapes(machine)):
        own = scenario.communicator()
        table = CompiledSelection(own).pick_table(request)
        if table is None:
            continue
        made += 1
        sizes = np.concatenate([drawn(made).astype(np.uint64), around(table)])
        sizes = sizes[sizes < table.from_bytes[-1]]
        found, _ = table.look_up(sizes)
        answered = found.channels > 0
        assert answered.mean() > 0.5
        model = Selection(own).pick(request, sizes)
        differ = [name for name in COLUMNS if (getattr(found, name) != getattr(model, name))[answered].any()]
        assert not differ, f"{scenario.title}: {differ}"
    assert made


@pytest.fixture(scope="module")
def two_nodes() -> CompiledSelection:
    return CompiledSelection(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2).communicator())


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_library", lambda: None)


def test_numpy_finds_what_c_finds(two_nodes: CompiledSelection, by_numpy: None) -> None:
    in_c = two_nodes.pick_table(ALL_REDUCE)
    assert in_c is not None
    in_numpy = PickTable(in_c.from_bytes, in_c.rows)
    sizes = np.concatenate([drawn(3).astype(np.uint64), around(in_c), np.array([1 << 40, 1 << 41], np.uint64)])
    (first, unanswered), (second, also) = in_c.look_up(sizes), in_numpy.look_up(sizes)
    assert unanswered == also == np.count_nonzero(sizes > 1 << 40) > 0
    there = first.channels > 0
    assert all(np.array_equal(getattr(first, name)[there], getattr(second, name)[there]) for name in COLUMNS)


def test_c_was_built() -> None:
    assert compiled._library() is not None


def test_sizes_beyond_the_table_are_the_models(two_nodes: CompiledSelection) -> None:
    assert two_nodes.pick_table(ALL_REDUCE) is not None
    sizes = np.array([1, 1 << 40, 1 << 41, 3 << 40], np.uint64)
    assert not differing(two_nodes.pick(ALL_REDUCE, sizes), two_nodes.model_pick(ALL_REDUCE, sizes))
    with pytest.raises(NoAlgorithm, match="every candidate is that slow"):
        two_nodes.pick(ALL_REDUCE, [1, 1 << 60])


def test_a_latency_that_fades_is_the_models() -> None:
    """From 2.32.3 on one Blackwell node, Ring/Simple's latency changes with every size of a range."""
    selection = CompiledSelection(Scenario(nccl="2.32.3", machine="dgx-b200", nodes=1).communicator())
    request = Request(Collective.AllGather, DataType.float32, Op.sum)
    table = selection.pick_table(request)
    assert table is not None
    assert 0 < np.count_nonzero(table.rows["channels"] == 0) < 5
    sizes = drawn(4)
    assert table.look_up(sizes.view(np.uint64))[1] > 100
    assert not differing(selection.pick(request, sizes), selection.model_pick(request, sizes.view(np.uint64)))


@pytest.mark.parametrize(
    ("env", "buffers", "nodes", "has_one"),
    [
        ({}, "plain", 1, True),
        ({}, "window", 1, False),
        ({}, "registered", 2, True),  # on one node its channels change at half a million sizes
        ({"NCCL_CTA_POLICY": "1"}, "registered", 1, False),
    ],
)
def test_what_no_table_can_say_has_none(env: dict[str, str], buffers: str, nodes: int, has_one: bool) -> None:
    """Calls on windows may bypass the algorithms; NCCL_CTA_POLICY moves gathers of registered buffers to NVLS."""
    asked = communicator("dgx-h100", nodes=nodes, nccl="2.28.9", env=env)
    assert (asked.compiled("allgather", buffers=buffers) is not None) is has_one


def test_a_penalty_is_the_models() -> None:
    """Rings of more than 8 ranks lose eight-bit floats; the time is then no latency and bytes over a bandwidth."""
    asked = communicator("dgx-h100", nodes=2, nccl="2.28.9", env={"NCCL_ALGO": "ring"})
    table = asked.compiled("allreduce", dtype="float8e4m3")
    assert table is None or not table.rows["channels"].any()
    picks = asked.pick("allreduce", drawn(5, 100) >> 12 | 1, dtype="float8e4m3")
    model = asked.selection.model_pick(picks.request, picks.bytes)
    assert not differing(picks, model)


@pytest.fixture(scope="module")
def asked_often() -> Communicator:
    made = communicator("dgx-h100", nodes=2, nccl="2.28.9")
    for _ in range(40):
        made.pick("allreduce", 1 << 20)
    return made


@pytest.mark.parametrize("size", [1, 2, 1000, 1 << 20, (1 << 40) - 1, 1 << 40, (1 << 40) + 1, 1 << 41])
def test_one_size_gets_what_an_array_gets(asked_often: Communicator, size: int) -> None:
    one, model = (
        asked_often.pick("allreduce", size),
        asked_often.selection.model_pick(ALL_REDUCE, np.array([size], np.uint64)),
    )
    assert not differing(one, model)
    assert one.bytes.tolist() == [size]
    assert [each.dtype for each in (one.bytes, one.channels, one.threads)] == [np.uint64, np.int64, np.int64]
    assert estimate("allreduce", size, asked_often) == float(model.time_us[0])


@pytest.mark.parametrize("size", [0, -1, (1 << 62) + 1, True, 1.5])
def test_what_is_no_size_is_refused_as_before(asked_often: Communicator, size: Any) -> None:
    with pytest.raises(BadInput, match="sizes"):
        asked_often.pick("allreduce", size)


def test_another_type_has_a_table_of_its_own(asked_often: Communicator) -> None:
    for _ in range(40):
        picks = asked_often.pick("allreduce", 1 << 20, dtype="float16", op="avg")
    assert picks.request == Request(Collective.AllReduce, DataType.float16, Op.avg)
    with pytest.raises(BadInput, match="unknown dtyp"):
        asked_often.pick("allreduce", 1 << 20, dtyp="float16")  # type: ignore[call-overload]


def test_calls_that_a_look_up_takes(asked_often: Communicator) -> None:
    assert calls_of(lambda: asked_often.pick("allreduce", 1 << 20)) < 20
    assert calls_of(lambda: estimate("allreduce", 1 << 20, asked_often)) < 15
    few, many = drawn(6, 1_000), drawn(6, 1_000_000)
    assert calls_of(lambda: asked_often.pick("allreduce", many)) == calls_of(lambda: asked_often.pick("allreduce", few))


def test_bytes_that_a_pick_keeps(asked_often: Communicator) -> None:
    picks = asked_often.pick("allreduce", drawn(7))
    kept = (picks.algorithm, picks.protocol, picks.time_us, picks._channels, picks._threads)
    assert sum(each.nbytes for each in kept) == 10 * DRAWN


# As PickTable hands it over: the table that a program of C looks random sizes up in, count by count.
LOOKING_UP = """
#include <stdio.h>
#include <stdlib.h>
#include "lookup.h"
int main(int argc, char **argv) {
    FILE *file = fopen(argv[1], "rb");
    uint64_t head[2];
    if (argc != 2 || !file || fread(head, 8, 2, file) != 2) return 1;
    uint64_t ranges = head[0], count = head[1], *from = malloc((ranges + 1) * 8), *sizes = malloc(count * 8);
    struct pick_row *rows = malloc(ranges * sizeof *rows);
    uint32_t *buckets = malloc(PICK_BUCKETS * 4);
    if (fread(from, 8, ranges + 1, file) != ranges + 1 || fread(rows, sizeof *rows, ranges, file) != ranges) return 1;
    if (fread(buckets, 4, PICK_BUCKETS, file) != PICK_BUCKETS || fread(sizes, 8, count, file) != count) return 1;
    struct pick_table table = {from, rows, buckets, ranges};
    return nccl_tuner_pick(&table, sizes, count, malloc(count), malloc(count), malloc(4 * count), malloc(2 * count),
                           malloc(2 * count)) != 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind here")
def test_instructions_of_a_look_up(two_nodes: CompiledSelection, tmp_path: Path) -> None:
    table = two_nodes.pick_table(ALL_REDUCE)
    assert table is not None
    sizes = drawn(8).view(np.uint64)
    head = np.array([len(table.rows), len(sizes)], np.uint64)
    parts = head, table.from_bytes, table.rows, compiled._buckets(table.from_bytes), sizes
    (tmp_path / "table").write_bytes(b"".join(part.tobytes() for part in parts))
    picks = ROOT / "csrc" / "picks"
    words: list[str | Path] = ["-std=c11", "-O3", "-g", "-I", picks, picks / "lookup.c"]
    program = compiled_program(compiler(), words, text=LOOKING_UP)
    tool = ["valgrind", "--tool=callgrind", "--toggle-collect=nccl_tuner_pick", f"--callgrind-out-file={tmp_path}/out"]
    said = subprocess.run([*tool, program, tmp_path / "table"], capture_output=True, text=True, check=True).stderr
    collected = re.search(r"Collected : (\d+)", said)
    assert collected
    assert int(collected[1]) / len(sizes) < 60  # 47
