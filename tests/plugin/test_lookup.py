"""The plugin's reader and lookup in C against those in Python, which are written separately and the simple way."""

import json
import random
import re
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.table_search import cost_us, find, find_cost, find_runnable
from tests.support.table_strategies import costs, decisions
from tuner.base.errors import BadInput, BadTable
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.cli.plugin.tables import compile_command, lint_command
from tuner.emulator.selection import Selection
from tuner.plugin import compile
from tuner.plugin.compile import between, edges, held_out
from tuner.plugin.dry_run import INFO, CommunicatorSize, DryRun, TunerCall
from tuner.plugin.formats import convert
from tuner.plugin.table.parse import read, write
from tuner.plugin.table.records import (
    HEADER,
    LARGEST,
    LARGEST_COUNT,
    Conditions,
    Decision,
    Table,
    TableChoice,
    pipelined_ends,
)
from tuner.scenario import Scenario

SHAPE = (len(Algorithm), len(Protocol))
NEVER_US = np.float32(3e9)
SHAPES = st.sampled_from([(2, 1), (2, 2), (3, 2), (6, 2), (16, 2), (16, 4), (24, 3)])  # ranks, nodes


def intervals(least: int, most: int, *far: int) -> st.SearchStrategy[Span]:
    # Few different ends, so that rows meet, overlap and hide each other.
    number = st.one_of(st.integers(least, most), st.sampled_from(far)) if far else st.integers(least, most)
    pair = st.tuples(number, st.one_of(st.none(), number))
    return pair.map(lambda ends: Span(ends[0], None if ends[1] is None else max(ends)))  # type: ignore[type-var]


SIZES = intervals(0, 40, 1 << 20, 1 << 32, LARGEST - 1)


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Span]:
    given = {draw(st.sampled_from(["bytes", "bytes", "bytes_per_rank"])): draw(SIZES)} if draw(st.booleans()) else {}
    for name in ("ranks", "nodes", "ranks_per_node"):
        if draw(st.integers(0, 3)) == 0:
            given[name] = draw(intervals(1, 8, 16, LARGEST_COUNT - 1))
    return given


PIPELINED = [Span(0), Span(0), Span(0, 0), Span(1, 1), Span(2), Span(3, 5)]
DECISIONS = decisions(conditions(), [None, None, None, True, False], PIPELINED)
COSTS = costs(conditions(), st.floats(2.0**-100, 2.0**100, width=32), st.integers(1, 9))
TABLES = st.builds(
    lambda rows, times: Table(tuple(rows), tuple(times)),
    st.lists(DECISIONS, max_size=25).filter(lambda rows: len(pipelined_ends(rows)) <= 16),
    st.lists(COSTS, max_size=15),
)


def interesting_sizes(rows: Iterable[Conditions], ranks: int) -> list[int]:
    ends = {end for row in rows for end in (row.bytes.low, row.bytes.high) if end is not None}
    shares = {end for row in rows for end in (row.bytes_per_rank.low, row.bytes_per_rank.high) if end is not None}
    far = ends | {share * ranks for share in shares} | {(share + 1) * ranks for share in shares}
    near = {end + step for end in far for step in (-1, 0, 1)}
    return sorted(size for size in near | {0, 20, 1 << 31, LARGEST} if 0 <= size <= LARGEST)


def expected_cells(
    table: Table, collective: Collective, size: int, cells: NDArray[np.float32], ranks: int, nodes: int, pipelined: int
) -> NDArray[np.float32]:
    """The cost table after the table's costs."""
    changed = cells.copy()
    for algorithm in Algorithm:
        for protocol in Protocol:
            cost = find_cost(table.costs, collective, algorithm, protocol, size, ranks=ranks, nodes=nodes)
            if cost is not None and cells[algorithm, protocol] >= 0:
                with np.errstate(over="ignore"):
                    changed[algorithm, protocol] = min(cost_us(cost, size, pipelined), NEVER_US)
    return changed


def with_guard(own: NDArray[np.float32], changed: NDArray[np.float32], by_row: set[AlgoProto]) -> NDArray[np.float32]:
    """The costs of ``changed`` with NCCL's factor of 1024 on Ring, where its ``own`` table has it (docs, Costs)."""
    timed = {at for at in by_row if changed[at] < NEVER_US}
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = {
            at: own[at] / changed[at] if changed[at] > 0 else NEVER_US if own[at] > 0 else np.float32(1) for at in timed
        }
    rings = [ratio[at] for at in timed if at[0] is Algorithm.Ring]
    others = [ratio[at] for at in timed if at[0] is not Algorithm.Ring]
    kept = any(changed[at] >= 0 for at in ALGO_PROTOS if at not in by_row and at[0] is not Algorithm.Ring)
    if kept or not others:
        others.append(np.float32(1))
    if not rings or not min(rings) > 64 * max(others):
        return changed
    guarded = changed.copy()
    for at in timed:
        if at[0] is Algorithm.Ring:
            guarded[at] = min(np.float32(guarded[at] * np.float32(1024)), NEVER_US)
    return guarded


def check_call(run: DryRun, table: Table, call: tuple[Collective, int, int, bool], shape: tuple[int, int]) -> None:
    (collective, size, pipelined, registered), (ranks, nodes) = call, shape
    cells = np.where(np.arange(21) % 4 == size % 4, -1, 7).astype(np.float32).reshape(SHAPE)
    row = find(table.decisions, collective, size, ranks=ranks, nodes=nodes, registered=registered, pipelined=pipelined)
    asked = TunerCall(collective, size, pipelined=pipelined, registered=registered)
    answer, rows = run.ask(asked, cells), run.rows(asked, cells)
    costed = expected_cells(table, collective, size, cells, ranks, nodes, pipelined)
    choice = next((choice for choice in row.choices if cells[choice.algo_proto] >= 0), None) if row else None
    assert rows.decision == (row.line if row and choice else None)
    assert rows.unavailable == (row.line if row and row.choices and not choice else None)
    times = {
        algo_proto: find_cost(table.costs, collective, *algo_proto, size, ranks=ranks, nodes=nodes)
        for algo_proto in ALGO_PROTOS
        if cells[algo_proto] >= 0
    }
    assert rows.costs == {algo_proto: cost.line for algo_proto, cost in times.items() if cost}
    if ranks > 8 and collective in (Collective.Reduce, Collective.ReduceScatter, Collective.AllReduce):
        costed = with_guard(cells, costed, {algo_proto for algo_proto, cost in times.items() if cost})
    if choice is None:
        assert answer.cost_us.tobytes() == costed.tobytes()
        assert answer.channels == 0
    else:
        own = costed[choice.algo_proto]
        above = max(np.nextafter(own, np.float32(np.inf)), np.finfo(np.float32).tiny)
        expected = np.where((costed >= 0) & (costed < above), above, costed)
        expected[choice.algo_proto] = own
        assert answer.cost_us.tobytes() == expected.tobytes()
        withheld = "CollNet" in choice.algorithm.name or (choice.algorithm is Algorithm.NVLS and nodes > 1)
        assert answer.channels == (0 if withheld else choice.channels or 0)
    for algorithm, protocol in [
        choice.algo_proto if choice else (Algorithm.Ring, Protocol.LL),
        (Algorithm.PAT, Protocol.LL),
    ]:
        chunk = choice.chunk_bytes if choice and choice.algo_proto == (algorithm, protocol) else None
        assert run.chunk_bytes(collective, algorithm, protocol, 77) == (chunk or 77)


def check(path: Path, shape: tuple[int, int], *, most: int = 400, seed: int = 0) -> None:
    (ranks, nodes), table = shape, read(path)
    rows = tuple(chain(table.decisions, table.costs))
    sizes = interesting_sizes(rows, ranks)
    used = sorted({row.collective for row in rows}) or [Collective.AllReduce]
    calls = [
        (c, size, pipelined, registered)
        for c in used
        for size in sizes
        for pipelined in (0, 1, 2, 5, 6)
        for registered in (False, True)
    ]
    draw = random.Random(seed)
    with DryRun(path, ranks=ranks, nodes=nodes) as run:
        assert run.log[0].level == INFO, run.log[0].text
        for call in draw.sample(calls, min(most, len(calls))):
            check_call(run, table, call, shape)


@pytest.mark.slow
@given(TABLES, SHAPES, st.integers(0, 1000))
def test_c_decides_as_python_does(
    tmp_path_factory: pytest.TempPathFactory, table: Table, shape: tuple[int, int], seed: int
) -> None:
    path = tmp_path_factory.mktemp("lookup") / "t"
    write(path, table)
    assert read(path) == table
    check(path, shape, seed=seed)


@pytest.mark.slow
def test_c_decides_as_python_does_among_thousands(tmp_path: Path) -> None:
    draw = random.Random(4)
    decisions = []
    for _ in range(3000):
        low = draw.randrange(1 << draw.randrange(1, 40))
        width = draw.randrange(1 << draw.randrange(1, 36))
        choice = TableChoice(draw.choice(list(Algorithm)), draw.choice(list(Protocol)), draw.randrange(1, 65))
        registered = draw.choice([None, None, True, False])
        decisions.append(
            Decision(draw.choice(list(Collective)), (choice,), bytes=Span(low, low + width), registered=registered)
        )
    table = Table(tuple(decisions))
    write(tmp_path / "t", table)
    check(tmp_path / "t", (8, 1), most=4000)


PIECES = st.sampled_from(
    [
        "allreduce",
        "AllGather",
        "reduce",
        " ",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\r",
        "bytes=",
        "bytes-per-rank=",
        "ranks=",
        "nodes=",
        "ranks-per-node=",
        "registered=",
        "pipelined=",
        "channels=",
        "chunk=",
        "latency-us=",
        "bandwidth-gbs=",
        "batch=",
        "yes",
        "no",
        "nccl",
        "never",
        "cost ",
        "constant ",
        "base-latency-us ",
        "link-latency-us ",
        "nvlink ",
        "NET ",
        "ll-gbs ",
        "hopper ",
        "more ",
        "..",
        "0",
        "1",
        "0.5",
        "1e3",
        "1e39",
        "1e-40",
        "5.",
        "64K",
        "4MiB",
        "65",
        str(LARGEST),
        str(LARGEST + 1),
        str(LARGEST_COUNT),
        str(LARGEST_COUNT + 1),
        "16777216T",
        "-1",
        "=",
        "->",
        " -> ",
        " | ",
        "|",
        "/",
        "ring/ll128",
        "tree/simple",
        "ring/",
        "#",
        "\u00e9",
        "\u00a0",
        "\u0085",
        "\u0661",
        "\0",
        "\f",
        "\v",
        "allreduce -> ring/ll\n",
        "reduce bytes=1..2K nodes=2 -> tree/ll channels=4\n",
        "allgather bytes-per-rank=3.. registered=no pipelined=2 -> nccl\n",
        "allreduce -> pat/simple chunk=8K | ring/ll\n",
        "cost reduce ranks=..9 -> ring/ll latency-us=1.5 bandwidth-gbs=2 batch=8\n",
        "cost reduce -> ring/ll never\n",
        "constant tree-per-channel-gbs ampere 1 24.0\n",
        "constant link-latency-us pci tree/ll 1\n",
    ]
)


def c_verdict(table: Path) -> int | None:
    """The line of the C reader's error, or None."""
    with DryRun(table, ranks=2, nodes=2) as run:
        text = run.log[0].text
    if run.log[0].level == INFO:
        return None
    found = re.search(re.escape(str(table)) + r":(\d+): ", text)
    assert found, text
    return int(found[1])


def python_verdict(table: Path) -> int | None:
    try:
        read(table)
    except BadTable as error:
        return int(str(error).removeprefix(f"{table}:").split(":")[0])
    return None


@pytest.mark.slow
@given(st.one_of(st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode()), st.binary(max_size=200)))
@example(b"allreduce -> ring/ll")
@example(b"allreduce -> ring/ll |")
@example(b"allreduce ranks-per-node=1.. -> ring/ll")
@settings(max_examples=600)
def test_c_and_python_accept_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, body: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "t"
    path.write_bytes(HEADER.encode() + b"\n" + body)
    assert c_verdict(path) == python_verdict(path)
    if c_verdict(path) is None:
        check(path, (3, 2), most=40)


MISTAKES = [
    line.strip()
    for line in """
    allreduce bytes=1 bytes-per-rank=1 -> ring/ll
    allreduce registered=1 -> ring/ll
    allreduce registered=Yes -> ring/ll
    allreduce ranks=4294967296 -> ring/ll
    allreduce ranks-per-node=0 -> ring/ll
    allreduce pipelined=1K -> ring/ll
    allreduce -> ring/ll |
    allreduce -> | ring/ll
    allreduce -> ring/ll | ring/ll
    allreduce -> nccl channels=3
    allreduce -> nccl | ring/ll
    allreduce -> ring/ll chunk=4095
    allreduce -> ring/ll chunk=2G
    cost
    Cost allreduce -> ring/ll never
    cost allreduce registered=yes -> ring/ll never
    cost allreduce -> ring/ll
    cost allreduce -> ring/ll latency-us=3
    cost allreduce -> ring/ll never never
    cost allreduce -> ring/ll batch=1 never
    cost allreduce -> ring/ll latency-us=1e39 bandwidth-gbs=1
    cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=0
    cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1e-46
    cost allreduce -> ring/ll latency-us=.5 bandwidth-gbs=1
    cost allreduce -> ring/ll latency-us=inf bandwidth-gbs=1
    cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1 batch=0
    cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1 batch=4294967296
    constant
    constant base-latency ring/ll 1
    constant base-latency-us ring/ll
    constant base-latency-us ring/ll 1e400
    constant base-latency-us ring/ll 1 2
    constant link-latency-us ring/ll 1
    constant ll-gbs kepler 1 1
    constant ll-gbs hopper 3 1
    constant LL-gbs hopper 2 1
    constant ll-gbs Hopper 2 1
    constant ll-gbs hopper MORE 1
    constant link-latency-us NVLink tree/ll 1
    """.strip().splitlines()
]


@pytest.mark.parametrize("row", MISTAKES)
def test_c_and_python_refuse_the_same(tmp_path: Path, row: str) -> None:
    path = tmp_path / "t"
    path.write_text(f"{HEADER}\nallreduce -> ring/ll\n\n{row}\n")
    assert c_verdict(path) == python_verdict(path) == 4


@pytest.mark.parametrize(
    "row",
    [
        "constant ll-gbs hopper more 1e-3",
        "constant link-latency-us nvlink Tree/LL 1",
        "cost AllReduce -> Ring/ll never",
        "cost allreduce -> ring/ll latency-us=3.4028234e38 bandwidth-gbs=1e-45 batch=4294967295",
        "allreduce pipelined=..0 ranks=..4294967295 -> ring/ll chunk=4096 | nccl",
        "allreduce -> NCCL",
    ],
)
def test_c_and_python_accept_the_same(tmp_path: Path, row: str) -> None:
    path = tmp_path / "t"
    path.write_text(f"{HEADER}\n{row}\n")
    assert c_verdict(path) is python_verdict(path) is None


def test_the_documented_tables_are_accepted_by_both(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "decision-table.md").read_text()
    blocks = [block for block in text.split("```\n") if block.startswith(HEADER)]
    assert blocks
    for block in blocks:
        (tmp_path / "t").write_text(block)
        check(tmp_path / "t", (16, 2))


# NVIDIA's CSV: rows pass on what they cannot run


NUMBERS = ["-1", "0", "1", "2", "16", "64", "65", "4294967294", "4294967295", "4294967296", str(LARGEST), "", "1 # x"]
FIELDS = (
    ["allreduce", "AllGather", "reduce", "alltoall"],
    NUMBERS,
    NUMBERS,
    ["ring", "tree", "nvls_tree", "PAT", "rings"],
    ["ll", "LL128", "simple", "l"],
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
)
CSV_ROWS = st.tuples(*(st.sampled_from(field) for field in FIELDS), st.integers(7, 10)).map(
    lambda drawn: ",".join(drawn[: drawn[-1]])
)
GOOD_CSV_ROWS = st.builds(
    lambda low, width, algorithm, protocol, channels, nodes, ranks, pipelined, registered: (
        f"allreduce,{low},{low + width},{algorithm},{protocol},{channels},{nodes},{ranks},{pipelined}, {registered}"
    ),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(["ring", "tree", "nvls", "pat"]),
    st.sampled_from(["ll", "ll128", "simple"]),
    st.sampled_from([-1, 0, 1, 9]),
    st.sampled_from([-1, -1, 2, 1]),
    st.sampled_from([-1, -1, 4]),
    st.sampled_from([-1, -1, -1, 1, 4]),
    st.sampled_from([-1, -1, 0, 1]),
)


def nvidia_verdict(path: Path) -> int | None:
    try:
        convert.read_nvidia(path.read_text(), str(path))
    except BadTable as error:
        return int(str(error).removeprefix(f"{path}:").split(":")[0])
    return None


@pytest.mark.slow
@given(st.lists(st.one_of(CSV_ROWS, GOOD_CSV_ROWS, st.just("# all"), st.just("")), min_size=1, max_size=6))
@settings(max_examples=400)
def test_c_and_python_accept_the_same_csv(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t"
    path.write_text("\n".join(["reduce,0,1,ring,ll,-1,-1,-1", *lines, ""]))
    assert c_verdict(path) == nvidia_verdict(path)


@given(st.lists(GOOD_CSV_ROWS, min_size=1, max_size=12), st.integers(0, 100))
def test_c_falls_through_where_nvidias_reader_does(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], seed: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t"
    path.write_text("\n".join([*lines, ""]))
    rows, draw = convert.read_nvidia(path.read_text(), str(path)).decisions, random.Random(seed)
    with DryRun(path, ranks=4, nodes=2) as run:
        for size in range(42):
            pipelined, registered = draw.choice([0, 1, 2, 4]), draw.random() < 0.5
            cells = np.array([draw.choice([-1, 7]) for _ in range(21)], np.float32).reshape(SHAPE)
            matching = [
                row
                for row in rows
                if find([row], row.collective, size, ranks=4, nodes=2, registered=registered, pipelined=pipelined)
            ]
            decides = next((row for row in matching if cells[row.choices[0].algo_proto] >= 0), None)
            taken = decides.choices[0] if decides else None
            call = TunerCall(Collective.AllReduce, size, pipelined=pipelined, registered=registered)
            answer, found = run.ask(call, cells), run.rows(call, cells)
            assert found.decision == (decides.line if decides else None)
            assert found.unavailable == (matching[0].line if matching and not decides else None)
            if taken is None:
                assert answer.cost_us.tobytes() == cells.tobytes()
            else:
                assert (answer.cost_us == 7).sum() == 1
                assert answer.cost_us[taken.algo_proto] == 7
            withheld = taken is not None and taken.algorithm is Algorithm.NVLS
            assert answer.channels == (0 if taken is None or withheld else taken.channels or 0)


def test_c_falls_through_hundreds_of_rows_as_the_plain_search_does(tmp_path: Path) -> None:
    draw = random.Random(14)
    lines = []
    for _ in range(1500):
        low = draw.randrange(1 << draw.randrange(1, 30))
        high = low + draw.randrange(1 << draw.randrange(1, 30))
        algorithm = draw.choice(["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"])
        protocol, pipelined = draw.choice(["ll", "ll128", "simple"]), draw.choice([-1, -1, 1, 4])
        registered = draw.choice([-1, -1, 0, 1])
        lines.append(
            f"allreduce,{low},{high},{algorithm},{protocol},-1,-1,{draw.choice([-1, 4])},{pipelined},{registered}"
        )
    path = tmp_path / "t"
    path.write_text("\n".join([*lines, ""]))
    rows = convert.read_nvidia(path.read_text(), str(path)).decisions
    sizes = interesting_sizes(rows, 4)
    decided = 0
    with DryRun(path, ranks=4, nodes=2) as run:
        for _ in range(1500):
            size, pipelined, registered = draw.choice(sizes), draw.choice([0, 1, 4]), draw.random() < 0.5
            runnable = set(draw.sample(ALGO_PROTOS, draw.choice([0, 1, 1, 2, 5, 20, 21])))
            cells = np.full(SHAPE, -1, np.float32)
            for at in runnable:
                cells[at] = 7
            row = find_runnable(
                rows,
                Collective.AllReduce,
                size,
                ranks=4,
                nodes=2,
                runnable=runnable,
                registered=registered,
                pipelined=pipelined,
            )
            call = TunerCall(Collective.AllReduce, size, pipelined=pipelined, registered=registered)
            assert run.rows(call, cells).decision == (row.line if row else None)
            answer = run.ask(call, cells).cost_us
            assert answer.argmin() >= 0
            if row:
                decided += 1
                assert {at for at in ALGO_PROTOS if answer[at] == 7} == {row.choices[0].algo_proto}
            else:
                assert answer.tobytes() == cells.tobytes()
    assert decided > 500


@pytest.mark.parametrize("later", range(1, 17))
def test_c_falls_through_in_the_last_of_any_number_of_changes(later: int, tmp_path: Path) -> None:
    """Of every so many changes the state before them is kept, of the last few, too."""
    path, most = tmp_path / "t", (1 << 64) - 1
    others = [f"allreduce,{100 * each},{100 * each + 50},ring,simple,-1,-1,-1" for each in range(1, later + 1)]
    first = [f"allreduce,0,{most},nvls,simple,-1,-1,-1", f"allreduce,0,{most},tree,ll,-1,-1,-1"]
    path.write_text("\n".join([*first, *others, ""]))
    cells = np.full(SHAPE, 7, np.float32)
    cells[Algorithm.NVLS] = -1  # the first row cannot run
    with DryRun(path, ranks=4, nodes=2) as run:
        for size in (0, 100 * later + 25, 100 * later + 75, 1 << 40):
            assert run.rows(TunerCall(Collective.AllReduce, size), cells).decision == 2


def test_rows_of_unknown_ranks_end_the_search_of_rows_that_fall_through(tmp_path: Path) -> None:
    """NCCL 2.19 does not say who asks: the row for 4 ranks may be the one, so what follows it does not decide."""
    path = tmp_path / "t"
    end = "ring,ll,-1,-1,-1\n"
    for rank_count, decision in [(-1, 2), (4, None)]:
        path.write_text(
            f"allreduce,0,9,nvls,simple,-1,-1,-1\nallreduce,0,9,tree,ll,-1,-1,{rank_count}\nallreduce,0,9,{end}"
        )
        with DryRun(path, ranks=4, nodes=2, version=1) as run:
            assert run.rows(TunerCall(Collective.AllReduce, 5), np.full(SHAPE, -1, np.float32)).decision == decision


def test_rows_that_cannot_run_cost_no_time(tmp_path: Path) -> None:
    """A search of all rows for each of them took 3 s a call."""
    path = tmp_path / "t"
    path.write_text(
        "".join(f"allreduce,0,{size},nvls,simple,-1,-1,-1\n" for size in range(2 << 20, (2 << 20) + 30_000))
    )
    cells = np.where(np.arange(21) == 4 * 3 + 2, -1, 7).astype(np.float32).reshape(SHAPE)
    with DryRun(path, ranks=4, nodes=2) as run:
        start = time.perf_counter()
        for size in range(100):
            assert run.rows(TunerCall(Collective.AllReduce, size), cells).unavailable == 1
        assert time.perf_counter() - start < 1


AR = Collective.AllReduce
TREE, RING = TableChoice(Algorithm.Tree, Protocol.LL), TableChoice(Algorithm.Ring, Protocol.Simple)
RING_LL128, NVLS = TableChoice(Algorithm.Ring, Protocol.LL128), TableChoice(Algorithm.NVLS, Protocol.Simple)
KIB, MIB = 1 << 10, 1 << 20


def rows(*choices: tuple[int, TableChoice | None], end: int | None = None) -> list[Decision]:
    """Each choice from a size on; None leaves a gap."""
    ends = [*(low - 1 for low, _ in choices[1:]), end]
    return [
        Decision(AR, (choice,), bytes=Span(low, high))
        for (low, choice), high in zip(choices, ends, strict=True)
        if choice is not None
    ]


def chosen(found: list[Decision], nodes: int) -> list[tuple[int, int | None, TableChoice]]:
    return [(row.bytes.low, row.bytes.high, row.choices[0]) for row in found if row.nodes == Span(nodes, nodes)]


def test_an_edge_is_a_power_of_the_ranks() -> None:
    known = {
        CommunicatorSize(8, 2): rows((0, TREE), (64 * KIB, RING)),
        CommunicatorSize(32, 8): rows((0, TREE), (MIB, RING)),
    }
    found = between(known)
    assert {row.nodes.low for row in found} == {3, 4, 5, 6, 7}
    assert {(row.nodes.low, row.ranks) for row in found} == {(n, Span(4 * n, 4 * n)) for n in range(3, 8)}
    assert chosen(found, 4) == [(0, 256 * KIB - 1, TREE), (256 * KIB, None, RING)]


def test_a_choice_that_one_lacks_shrinks_to_nothing() -> None:
    known = {
        CommunicatorSize(2, 2): rows((0, TREE), (64 * KIB, RING_LL128), (MIB, RING)),
        CommunicatorSize(8, 8): rows((0, TREE), (256 * KIB, RING)),
    }
    assert chosen(between(known), 4) == [
        (0, 128 * KIB - 1, TREE),
        (128 * KIB, 512 * KIB - 1, RING_LL128),
        (512 * KIB, None, RING),
    ]
    # Where rows are proven, only what both have.
    assert chosen(between(known, unequal=False), 4) == [(0, 128 * KIB - 1, TREE), (512 * KIB, None, RING)]


def test_what_is_left_to_nccl_stays_so() -> None:
    known = {
        CommunicatorSize(2, 2): rows((64 * KIB, TREE), (128 * KIB, None), (MIB, RING), end=4 * MIB - 1),
        CommunicatorSize(8, 8): rows((128 * KIB, TREE), (256 * KIB, None), (2 * MIB, RING), end=8 * MIB - 1),
    }
    (tree, ring) = chosen(between(known), 4)
    assert tree[:2] == (pytest.approx(64 * KIB * 2**0.5, abs=1), pytest.approx(128 * KIB * 2**0.5, abs=1))
    assert ring[:2] == (pytest.approx(MIB * 2**0.5, abs=1), pytest.approx(4 * MIB * 2**0.5, abs=1))
    assert [choice for _, _, choice in (tree, ring)] == [TREE, RING]


def test_ranges_of_a_few_bytes_where_times_meet_are_left_out() -> None:
    flickering = rows((0, TREE), (100_000, RING), (100_010, TREE), (100_020, RING), (100_031, TREE), (100_040, RING))
    assert edges(flickering) == [(0, (TREE,)), (100_040, (RING,))]


def test_what_cannot_be_interpolated_is_refused() -> None:
    one = rows((0, TREE))
    for known in (
        {CommunicatorSize(8, 2): one},
        {CommunicatorSize(8, 2): one, CommunicatorSize(12, 4): one},
        {CommunicatorSize(8, 2): one, CommunicatorSize(32768, 8192): one},
    ):
        with pytest.raises(BadInput, match="at least two numbers of nodes"):
            between(known)


@pytest.mark.parametrize(
    ("machine", "nccl", "nodes", "held", "agreeing", "excess"),
    [
        ("dgx-h100", "2.28.9", (2, 8), 4, 0.95, 0.005),
        ("dgx-h100", "2.22.3", (4, 32), 16, 0.98, 0.001),
        ("dgx-a100", "2.28.9", (8, 128), 32, 0.98, 0.001),
    ],
)
def test_held_out_nodes_beside_the_emulators_own_pick(
    machine: str, nccl: str, nodes: tuple[int, int], held: int, agreeing: float, excess: float
) -> None:
    def selection(count: int) -> Selection:
        return Selection(Scenario(nccl=nccl, machine=machine, nodes=count).communicator())

    known = {}
    for count in nodes:
        there = selection(count)
        known[CommunicatorSize(there.communicator.ranks, count)] = compile.decisions(there, Collective)
    found = held_out(between(known), selection(held))
    assert found.sizes > 1000
    assert found.agreeing >= agreeing
    assert found.mean_excess <= excess
    # The neighbours' own rows do worse there.
    for rows_there in known.values():
        here = selection(held).communicator
        moved = [
            Decision(
                row.collective,
                row.choices,
                bytes=row.bytes,
                ranks=Span(here.ranks, here.ranks),
                nodes=Span(held, held),
            )
            for row in rows_there
        ]
        assert held_out(moved, selection(held)).agreeing < found.agreeing


def test_compile_writes_plain_rows_and_what_they_come_from(tmp_path: Path) -> None:
    out = tmp_path / "a.table"
    words = ["allreduce", "--machine", "dgx-h100", "--nccl", "2.28.9", "--interpolate", "2,4,8", "--out", str(out)]
    done = CliRunner().invoke(compile_command, [*words, "--json"])
    assert done.exit_code == 0, done.output
    table = read(out)
    assert {row.nodes.low for row in table.decisions} == {2, 3, 4, 5, 6, 7, 8}
    assert table.provenance["machine"] == "2, 4, 8 x dgx-h100, 8 GPUs each"
    assert table.provenance["interpolated"].startswith("rows of other numbers of nodes, from those of 2, 4, 8 nodes")
    assert table.provenance["held-out-1"].startswith("3 nodes: as picked there at 86.2 % of 224 sizes")
    assert table.provenance["held-out-2"].startswith("6 nodes: as picked there at 9")
    assert CliRunner().invoke(lint_command, [str(out)]).exit_code == 0
    for wrong in ("2", "x,2", "0,2"):
        refused = CliRunner().invoke(compile_command, [*words[:-3], wrong, *words[-2:]])
        assert isinstance(refused.exception, BadInput), refused.output
    both = CliRunner().invoke(compile_command, [*words, "--nodes", "2"])
    assert isinstance(both.exception, BadInput)
    assert json.loads(done.stdout)["decisions"] == len(table.decisions)
