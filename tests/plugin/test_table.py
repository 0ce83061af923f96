"""Decision tables in Python: the format both ways, and which row is found (docs/decision-table.md)."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.table_search import cost_us, find, find_cost
from tests.support.table_strategies import costs, decisions
from tuner.base.errors import BadTable
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.table.parse import from_text, read, to_text, write
from tuner.plugin.table.records import (
    ANY_BYTES,
    CAPS,
    GENERATIONS,
    HEADER,
    LARGEST,
    LARGEST_COUNT,
    LINKS,
    MOST_PIPELINED_ENDS,
    SCALES,
    ConstantRow,
    CostLine,
    CostRow,
    Decision,
    Table,
    TableChoice,
    pipelined_ends,
)

AR, AG = Collective.AllReduce, Collective.AllGather
RING = TableChoice(Algorithm.Ring, Protocol.LL128)
TREE = TableChoice(Algorithm.Tree, Protocol.Simple)


def rows(*lines: str) -> Table:
    return from_text("\n".join([HEADER, *lines, ""]))


def decision(line: str) -> Decision:
    (only,) = rows(line).decisions
    return only


# What a row says

GOOD = {
    "allreduce -> ring/ll128": Decision(AR, (RING,)),
    "AllReduce -> RING/LL128 | Tree/simple": Decision(AR, (RING, TREE)),
    "allreduce -> nccl": Decision(AR, ()),
    "allreduce -> ring/ll128 | NCCL": Decision(AR, (RING,)),
    "allreduce -> ring/ll128 channels=8 chunk=128K | tree/simple chunk=4096": Decision(
        AR, (TableChoice(*RING.algo_proto, 8, 128 << 10), TableChoice(*TREE.algo_proto, None, 4096))
    ),
    "allreduce bytes=64K..4M -> nccl": Decision(AR, (), bytes=Span(64 << 10, 4 << 20)),
    f"allreduce bytes=5..{LARGEST} -> nccl": Decision(AR, (), bytes=Span(5)),
    "allgather bytes-per-rank=..32K -> nccl": Decision(AG, (), bytes_per_rank=Span(0, 32 << 10)),
    f"allreduce ranks=16 nodes=2..{LARGEST_COUNT} -> nccl": Decision(AR, (), ranks=Span(16, 16), nodes=Span(2)),
    "allreduce ranks-per-node=1.. -> nccl": Decision(AR, (), ranks_per_node=Span(1)),
    "allreduce registered=yes -> nccl": Decision(AR, (), registered=True),
    "allreduce registered=no pipelined=0 -> nccl": Decision(AR, (), registered=False, pipelined=Span(0, 0)),
    "allreduce pipelined=2.. bytes=1 -> nccl # why": Decision(AR, (), bytes=Span(1, 1), pipelined=Span(2)),
}


@pytest.mark.parametrize(("line", "expected"), GOOD.items(), ids=GOOD)
def test_reads(line: str, expected: Decision) -> None:
    assert rows(line).decisions == (expected,)


def test_reads_costs() -> None:
    table = rows(
        "cost allreduce bytes=..1M nodes=2 -> ring/ll latency-us=12.25 bandwidth-gbs=1e-3 batch=8",
        "cost AllGather bytes-per-rank=1K.. -> PAT/Simple bandwidth-gbs=3 latency-us=0",
        "cost allreduce ranks-per-node=8 ranks=16 -> tree/ll never",
    )
    assert table.costs == (
        CostRow(AR, Algorithm.Ring, Protocol.LL, CostLine(12.25, 1e-3, 8), bytes=Span(0, 1 << 20), nodes=Span(2, 2)),
        CostRow(AG, Algorithm.PAT, Protocol.Simple, CostLine(0, 3), bytes_per_rank=Span(1024)),
        CostRow(AR, Algorithm.Tree, Protocol.LL, None, ranks=Span(16, 16), ranks_per_node=Span(8, 8)),
    )


def test_reads_constants() -> None:
    table = rows(
        "constant base-latency-us Ring/LL 6.6",
        "constant link-latency-us net ring/ll 0",
        "constant link-latency-us pci ring/ll 1",
        "constant ring-ll128-per-channel-gbs hopper more 36.7",
    )
    assert table.constants == (
        ConstantRow(("base-latency-us", "ring/ll"), 6.6),
        ConstantRow(("link-latency-us", "net", "ring/ll"), 0),
        ConstantRow(("link-latency-us", "pci", "ring/ll"), 1),
        ConstantRow(("ring-ll128-per-channel-gbs", "hopper", "more"), 36.7),
    )


def test_knows_the_line_of_every_row() -> None:
    cost, constant = "cost reduce -> ring/ll never", "constant ll-gbs volta 1 3"
    table = rows("# x", "allreduce -> nccl", "", cost, constant, "reduce -> nccl")
    assert [row.line for row in table.decisions] == [3, 7]
    assert [*(cost.line for cost in table.costs), *(constant.line for constant in table.constants)] == [5, 6]


def test_provenance_is_what_follows_the_header_directly() -> None:
    head = ["# key: not yet", HEADER + " # nor: this", "# machine: dgx-h100", "#by: hand: twice ", "# machine: other"]
    expected = {"machine": "dgx-h100", "by": "hand: twice"}
    for end in ("#", "", "# prose, not a key: no", "# url:x", "allreduce -> nccl"):
        table = from_text("\n".join([*head, end, "# late: 1", ""]))
        assert table.provenance == expected
    assert from_text("\r\n".join([*head, ""])).provenance == expected


BAD = {
    "list that goes on after nccl": ("allreduce -> nccl | ring/ll", "'nccl' takes no settings, and nothing"),
    "nccl with channels": ("allreduce -> nccl channels=3", "'nccl' takes no settings"),
    "combination twice": ("allreduce -> ring/ll | tree/ll | Ring/LL channels=3", "'Ring/LL' twice"),
    "empty choice": ("allreduce -> ring/ll | | tree/ll", "'' is not algorithm/protocol"),
    "list that ends with a bar": ("allreduce -> ring/ll |", "'' is not algorithm/protocol"),
    "bar without blanks": ("allreduce -> ring/ll|tree/ll", "unknown protocol 'll|tree/ll'"),
    "both sizes": ("allreduce bytes=1 bytes-per-rank=1 -> nccl", "'bytes' and 'bytes-per-rank' in one row"),
    "both sizes, every one": ("allreduce bytes=0.. bytes-per-rank=0.. -> nccl", "'bytes' and 'bytes-per-rank'"),
    "unknown condition": ("allreduce size=1 -> nccl", "unknown key 'size' (valid before '->': bytes, bytes-per-rank, "),
    "unknown setting": ("allreduce -> ring/ll threads=1", "unknown key 'threads' (valid after '->': channels, chunk)"),
    "chunk before": ("allreduce chunk=4K -> ring/ll", "unknown key 'chunk'"),
    "ranks past 32 bits": ("allreduce ranks=4294967296 -> nccl", "'4294967296' is past the largest number, 4294967295"),
    "no ranks per node": ("allreduce ranks-per-node=0 -> nccl", "'0': at least 1"),
    "registered maybe": ("allreduce registered=Yes -> nccl", "registered=Yes is neither yes nor no"),
    "small chunk": ("allreduce -> ring/ll chunk=4095", "chunk=4095 is not a number of bytes from 4K to 1G"),
    "large chunk": ("allreduce -> ring/ll chunk=1025M", "chunk=1025M is not a number"),
    "cost of nothing": ("cost", "unknown collective ''"),
    "cost without an arrow": ("cost allreduce ring/ll never", "no '->'"),
    "cost without a choice": ("cost allreduce ->", "'' is not algorithm/protocol"),
    "cost of two": ("cost allreduce -> ring/ll | tree/ll never", "'|' is not key=value"),
    "cost without a time": ("cost allreduce -> ring/ll", "no latency-us"),
    "cost without bandwidth": ("cost allreduce -> ring/ll latency-us=1", "no bandwidth-gbs"),
    "never and more": ("cost allreduce -> ring/ll never latency-us=1", "'never' is not key=value"),
    "cost by registration": ("cost allreduce registered=no -> ring/ll never", "unknown key 'registered'"),
    "cost by operations": ("cost allreduce pipelined=1 -> ring/ll never", "unknown key 'pipelined'"),
    "no bandwidth": ("cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=0", "bandwidth-gbs '0' is not above 0"),
    "none in float32": ("cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1e-60", "is not above 0"),
    "past float32": ("cost allreduce -> ring/ll latency-us=1e39 bandwidth-gbs=1", "past the largest float"),
    "no batch": ("cost allreduce -> ring/ll latency-us=1 bandwidth-gbs=1 batch=0", "batch=0 is not a number from 1 to"),
    **{
        f"no number: {number}": (f"constant base-latency-us ring/ll {number}", f"'{number}' is not a finite decimal")
        for number in ("-1", "+1", "nan", "inf", "1e999", "0x1p3", ".5", "5.", "1_0", "1,5", "e3", "1e")
    },
    "constant alone": ("constant", "unknown constant '' (valid: base-latency-us, link-latency-us, ll-gbs, "),
    "unknown constant": ("constant cap hopper 1 3", "unknown constant 'cap'"),
    "unknown link": ("constant link-latency-us ib ring/ll 1", "unknown link 'ib' (valid: nvlink, pci, net)"),
    "unknown generation": ("constant ll-gbs turing 1 3", "unknown generation 'turing' (valid: volta, ampere, hopper, "),
    "four nodes": ("constant ll-gbs volta 4 3", "unknown number of nodes '4' (valid: 1, 2, more)"),
    "constant without a value": ("constant ll-gbs volta 1", "'' is not one number"),
    "constant with two": ("constant ll-gbs volta 1 2 3", "'2 3' is not one number"),
    "constant of no cell": ("constant base-latency-us 3", "'3' is not algorithm/protocol"),
}


@pytest.mark.parametrize(("line", "fragment"), BAD.values(), ids=BAD)
def test_refuses_the_table_and_names_the_line(tmp_path: Path, line: str, fragment: str) -> None:
    file = tmp_path / "t"
    file.write_text("\n".join([HEADER, "", "allreduce -> nccl", line, "also wrong"]))
    with pytest.raises(BadTable) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}:4: ")
    assert fragment in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_constant_is_set_once() -> None:
    with pytest.raises(BadTable, match=r"^table:4: constant 'base-latency-us ring/ll' twice$"):
        rows(*(f"constant base-latency-us {value}" for value in ("ring/ll 1", "ring/ll128 1", "Ring/LL 2")))


def test_pipelined_has_few_ends() -> None:
    most = [f"allreduce pipelined={2 * n}..{2 * n} -> nccl" for n in range(1, 9)]  # two ends each
    table = rows(*most, *(f"reduce pipelined={known} -> nccl" for known in ("0..1", "4..", "0..")))
    assert len(pipelined_ends(table.decisions)) == MOST_PIPELINED_ENDS
    with pytest.raises(BadTable, match=r"^table:10: more than 16 different ends of 'pipelined'"):
        rows(*most, "reduce pipelined=18.. -> nccl", "reduce -> nccl")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match=r"gone: No such file or directory$"):
        read(tmp_path / "gone")


# What is written reads back


def intervals(least: int, most: int) -> st.SearchStrategy[Span]:
    def ordered(ends: tuple[int, int | None]) -> Span:
        low, high = ends
        return Span(low, high) if high is None or low <= high else Span(high, low)

    low = st.one_of(st.integers(least, 40), st.integers(least, most - 1))
    # The largest number is always "no end".
    return st.tuples(low, st.one_of(st.none(), st.integers(least, 40), st.integers(least, most - 1))).map(ordered)


SIZES = st.one_of(
    st.just({}),
    *(intervals(0, LARGEST).map(lambda interval, key=key: {key: interval}) for key in ("bytes", "bytes_per_rank")),
)
COUNTS = st.fixed_dictionaries(
    {}, optional={key: intervals(1, LARGEST_COUNT) for key in ("ranks", "nodes", "ranks_per_node")}
)
WHERE = st.tuples(SIZES, COUNTS).map(lambda both: {**both[0], **both[1]})
PIPELINED = [Span(0), Span(1, 1), Span(2), Span(0, 0), Span(3, 7)]
DECISIONS = decisions(WHERE, [None, True, False], PIPELINED)
COSTS = costs(WHERE, st.floats(1e-30, 1e30, width=64), st.integers(1, LARGEST_COUNT))
CELL_NAMES = [f"{algorithm.name}/{protocol.name}".lower() for algorithm in Algorithm for protocol in Protocol]
NAMES = st.one_of(
    st.tuples(st.just("base-latency-us"), st.sampled_from(CELL_NAMES)),
    st.tuples(st.just("link-latency-us"), st.sampled_from(LINKS), st.sampled_from(CELL_NAMES)),
    st.tuples(st.sampled_from(CAPS), st.sampled_from(GENERATIONS), st.sampled_from(SCALES)),
)
CONSTANTS = st.lists(st.builds(ConstantRow, NAMES, st.floats(0, 1e300)), max_size=5, unique_by=lambda one: one.words)
PROVENANCE = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_-]*", fullmatch=True),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).map(lambda text: text[:30]),
    max_size=3,
)
TABLES = st.builds(
    Table,
    st.lists(DECISIONS, max_size=8).map(tuple),
    st.lists(COSTS, max_size=5).map(tuple),
    CONSTANTS.map(tuple),
    PROVENANCE,
)


@pytest.mark.slow
@given(TABLES)
def test_what_is_written_reads_back_equal(table: Table) -> None:
    assert from_text(to_text(table)) == table


def test_writes_what_a_person_would(tmp_path: Path) -> None:
    table = Table(
        (
            Decision(AR, (TableChoice(*RING.algo_proto, 8), TREE), bytes=Span(64 << 10, 4 << 20), ranks=Span(16, 16)),
            Decision(AG, (), bytes_per_rank=Span(0, 32 << 10), registered=True, pipelined=Span(1, 1)),
            Decision(AR, (TableChoice(Algorithm.NVLSTree, Protocol.Simple, None, 1 << 17),), nodes=Span(2)),
        ),
        (
            CostRow(AR, *RING.algo_proto, CostLine(8.5, 20.0, 8)),
            CostRow(AR, *TREE.algo_proto, None, ranks_per_node=Span(8, 8)),
        ),
        (ConstantRow(("ll-gbs", "hopper", "2"), 0.1),),
        {"machine": "dgx-h100", "release": "2.28.9"},
    )
    write(tmp_path / "t", table)
    before = (tmp_path / "t").read_text().rpartition("# rows")[0]
    assert (tmp_path / "t").read_text().splitlines() == [
        "nccl-tuner-table 1",
        "# rows: 6",
        "# machine: dgx-h100",
        "# release: 2.28.9",
        "constant ll-gbs hopper 2 0.1",
        "cost allreduce -> ring/ll128 latency-us=8.5 bandwidth-gbs=20.0 batch=8",
        "cost allreduce ranks-per-node=8 -> tree/simple never",
        "allreduce bytes=64K..4M ranks=16 -> ring/ll128 channels=8 | tree/simple",
        "allgather bytes-per-rank=0..32K registered=yes pipelined=1 -> nccl",
        "allreduce nodes=2.. -> nvlstree/simple chunk=128K",
        f"# rows: 6 sha256 {hashlib.sha256(before.encode()).hexdigest()}",
    ]
    assert read(tmp_path / "t") == table


@pytest.mark.parametrize(
    "entry", [("a key", "x"), ("key", "two\nlines"), ("key", " x"), ("", "x"), ("key", ""), ("key", "x\0"), ("k:", "x")]
)
def test_provenance_that_would_not_read_back_is_refused(entry: tuple[str, str]) -> None:
    with pytest.raises(BadTable, match="is not a word and one line of text"):
        to_text(Table(provenance=dict([entry])))


def test_a_row_by_both_sizes_is_not_written() -> None:
    with pytest.raises(BadTable, match="'bytes' beside 'bytes-per-rank'"):
        to_text(Table((Decision(AR, (), bytes=Span(1), bytes_per_rank=Span(1)),)))


def test_the_documented_tables_are_ones() -> None:
    text = (Path(__file__).parents[2] / "docs" / "decision-table.md").read_text()
    tables = re.findall(rf"```\n({HEADER}.*?)```", text, re.DOTALL)
    assert tables
    for block in tables:
        assert len(from_text(block).decisions) == block.count("->")
    assert from_text(tables[0]).provenance == {"machine": "dgx-h100", "by": "hand, after the sweep of 2026-11-02"}


# Which row is found


@pytest.mark.parametrize(
    ("row", "call", "found"),
    [
        ("allreduce bytes=5..7", {"size_bytes": 5}, True),
        ("allreduce bytes=5..7", {"size_bytes": 7}, True),
        ("allreduce bytes=5..7", {"size_bytes": 4}, False),
        ("allreduce bytes=5..7", {"size_bytes": 8}, False),
        ("allreduce bytes=5..", {"size_bytes": LARGEST}, True),
        ("reduce", {}, False),
        ("allreduce bytes-per-rank=5", {"size_bytes": 79}, False),
        ("allreduce bytes-per-rank=5", {"size_bytes": 80}, True),
        ("allreduce bytes-per-rank=5", {"size_bytes": 95}, True),
        ("allreduce bytes-per-rank=5", {"size_bytes": 96}, False),
        ("allreduce ranks=16", {}, True),
        ("allreduce ranks=15", {}, False),
        ("allreduce nodes=3..", {}, False),
        ("allreduce ranks-per-node=8", {}, True),
        ("allreduce ranks-per-node=9", {}, False),
        ("allreduce ranks-per-node=1..", {"ranks": 17}, False),
        ("allreduce", {"ranks": 17}, True),
        ("allreduce nvlink-domains=2..3", {"nvlink_domains": 2}, True),
        ("allreduce nvlink-domains=2..3", {"nvlink_domains": 3}, True),
        ("allreduce nvlink-domains=2..3", {"nvlink_domains": 1}, False),
        ("allreduce nvlink-domains=2..3", {"nvlink_domains": 4}, False),
        ("allreduce nvlink-domains=2..3", {}, True),
        ("allreduce", {"nvlink_domains": 4}, True),
        ("allreduce registered=yes", {}, False),
        ("allreduce registered=yes", {"registered": True}, True),
        ("allreduce registered=no", {"registered": True}, False),
        ("allreduce registered=no", {}, True),
        ("allreduce", {"registered": True}, True),
        ("allreduce pipelined=1", {}, True),
        ("allreduce pipelined=1", {"pipelined": 2}, False),
        ("allreduce pipelined=1..", {"pipelined": 0}, False),
    ],
)
def test_a_row_matches(row: str, call: dict[str, int], found: bool) -> None:
    only = decision(f"{row} -> ring/ll128")
    wanted: dict[str, Any] = {"size_bytes": 1 << 20, "ranks": 16, "nodes": 2, **call}
    size_bytes = wanted.pop("size_bytes")
    assert find([only], AR, size_bytes, **wanted) == (only if found else None)


def test_the_first_match_wins_even_where_it_is_nccl() -> None:
    table = rows("allreduce bytes=..9 -> nccl", "allreduce bytes=5..20 -> ring/ll", "allreduce -> tree/ll")
    first, second, third = table.decisions
    for size, row in [(0, first), (9, first), (10, second), (20, second), (21, third)]:
        assert find(table.decisions, AR, size, ranks=2, nodes=1) is row


def test_costs_are_found_by_combination() -> None:
    table = rows(*(f"cost allreduce {rest} never" for rest in ("bytes=..9 -> ring/ll", "-> tree/ll", "-> ring/ll")))
    for algo_proto, size, row in [("Ring", 9, 0), ("Ring", 10, 2), ("Tree", 9, 1)]:
        assert (
            find_cost(table.costs, AR, Algorithm[algo_proto], Protocol.LL, size, ranks=2, nodes=1) is table.costs[row]
        )
    assert find_cost(table.costs, AR, Algorithm.Ring, Protocol.Simple, 9, ranks=2, nodes=1) is None


def test_a_cost_is_computed_in_float32() -> None:
    (cost,) = rows("cost allreduce -> ring/ll latency-us=6.6 bandwidth-gbs=0.1 batch=8").costs
    single = np.float32(6.6) + np.float32(4096) / (np.float32(1000) * np.float32(0.1))
    assert cost_us(cost, 4096) == single
    assert cost_us(cost, 4096, pipelined=8) == single
    assert cost_us(cost, 4096, pipelined=9) == np.float32(6.6) * np.float32(2) + np.float32(4096) / np.float32(100)
    assert cost_us(cost, 0, pipelined=0) == 0
    assert cost_us(cost, 16777217) == cost_us(cost, 16777216)
    assert cost_us(cost, 1).dtype == np.float32
    assert np.isinf(cost_us(CostRow(AR, *RING.algo_proto, None), 1))


def test_every_size_is_the_default() -> None:
    assert decision("allreduce -> nccl").bytes == ANY_BYTES
