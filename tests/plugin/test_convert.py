"""Decision tables, NVIDIA's and NCCLX's files: read as their own readers do, written so that they mean the same."""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.command_line import run
from tests.support.table_search import find
from tuner.base.errors import BadTable
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.cli.plugin.tables import convert_command
from tuner.plugin import lint
from tuner.plugin.formats import convert, shared
from tuner.plugin.table.records import HEADER, LARGEST, Decision, Table, TableChoice

AR, AG = Collective.AllReduce, Collective.AllGather
RING = TableChoice(Algorithm.Ring, Protocol.LL128)
NEWEST = "# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,chunkSize\n"
TEN = "# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,numPipeOps,regBuff,chunkSize\n"
TEN_BYTES = TEN.replace("bytesPerRank", "bytes")


def load(text: str, name: str = "f") -> convert.File:
    return convert.from_content(text.encode(), name)


def only(text: str) -> Decision:
    (row,) = load(f"{text}\n").table.decisions
    return row


def rules(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> str:
    return json.dumps({"rules": [{"filter": match, "config": config} for match, config in pairs]})


CONFIG = {"algorithm": "ring", "protocol": "ll128"}


# Which format


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (f"# x\n\n {HEADER}\n", "table"),
        ("# allreduce,*,ring,ll,-1,*,*\nallreduce,0,1,ring,ll,-1,-1,-1\n", "nvidia"),
        ("allreduce,0,1,rang,ll,-1,-1,-1", "nvidia"),
        ("\r\nallreduce,*,ring,ll,-1,*,*", "ncclx-csv"),
        ("allreduce,(1,2),rang,ll,-1,*,*", "ncclx-csv"),
        (' \n{"rules": []}', "ncclx-json"),
        (rules(({"collective": "allreduce"}, CONFIG)), "ncclx-json"),
    ],
)
def test_the_format_is_told_by_content(tmp_path: Path, content: str, found: str) -> None:
    for name in ("x.json", "x.csv", "x.table"):
        (tmp_path / name).write_text(content)
        try:
            assert convert.read(tmp_path / name).format == found
        except BadTable as error:
            assert "unknown algorithm 'rang'" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "f: empty, so its format is unknown (valid: table, nvidia, ncclx-csv, ncclx-json)"),
        ("# comment\n\n", "f: empty"),
        ("a\n", "f:1: 'a' begins no format that is known"),
        ("allreduce -> ring/ll\n", "f:1: a row of a decision table without its first line; put 'nccl-tuner-table 1'"),
        ("x,y\0", "f:1: a zero byte"),
        ("nccl-tuner-table 2\n", "f:1: version '2'"),
        ("{", "f: not JSON: "),
        ('{"rules": {}}', "f: no array 'rules'"),
        ('{"rules": [], "rules": []}', "f: not JSON: a key twice"),
    ],
)
def test_what_is_no_table_is_refused(content: str, reason: str) -> None:
    with pytest.raises(BadTable) as caught:
        load(content)
    assert str(caught.value).startswith(reason)


PIECES = st.sampled_from(
    [
        "allreduce",
        "ring",
        "ll",
        ",",
        ",",
        ",",
        "*",
        "[",
        "]",
        "(",
        ")",
        "1",
        "-1",
        "0",
        "64K",
        "\n",
        "\r",
        "#",
        '"',
        "{",
        "}",
        ":",
        '{"rules": [{"filter": {',
        '"collective": "allreduce", ',
        '"nNodes": ',
        '}, "config": ',
        "null",
        "1e400",
        "[[[[",
        "\u00e9",
        "allreduce,*,ring,ll,-1,*,*\n",
        "allreduce,0,1,ring,ll,-1,-1,-1\n",
        HEADER + "\n",
        "allreduce -> ring/ll\n",
        "# collective,bytes,",
        "cost allreduce -> ring/ll ",
        "latency-us=",
        "constant ",
    ]
)


@given(st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=20).map(lambda pieces: "".join(pieces).encode())))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    refusal = None
    try:
        lint.check(convert.from_content(content, "f").table)
    except BadTable as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith("f:") and refusal.isprintable())


# NVIDIA's


def test_reads_nvidias_columns() -> None:
    tree = TableChoice(Algorithm.Tree, Protocol.Simple, 2)
    expected = Decision(AR, (tree,), bytes=Span(0, 65536), nodes=Span(1, 1), registered=True)
    assert only("allreduce,0,65536,tree,simple,2,1,-1,-1,1") == expected
    row = only(" allgather , 1,-1,\tcollnet_direct,ll128 ,-1, -1, 32, 4\r\n")
    assert row == Decision(
        AG,
        (TableChoice(Algorithm.CollNetDirect, Protocol.LL128),),
        bytes=Span(1),
        ranks=Span(32, 32),
        pipelined=Span(4, 4),
    )
    choice = TableChoice(Algorithm.NVLSTree, Protocol.LL)
    assert only(f"allreduce,0,{LARGEST},nvls_tree,ll,0,-1,-1") == Decision(AR, (choice,))
    assert only("allreduce,0,1,pat,ll,64,-1,-1,-1,0").registered is False


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("Allreduce,0,1,ring,ll,1,1,1", "unknown collective 'Allreduce' (valid: broadcast, reduce, allgather, "),
        ("alltoall,0,1,ring,ll,1,1,1", "unknown collective"),
        ("allreduce,0,1,Ring,ll,1,1,1", "unknown algorithm 'Ring' (valid: tree, ring, collnet_direct, "),
        ("allreduce,0,1,nvlstree,ll,1,1,1", "unknown algorithm 'nvlstree'"),
        ("allreduce,0,1,ring,LL,1,1,1", "unknown protocol 'LL' (valid: ll, ll128, simple)"),
        ("allreduce,0,1,ring,ll,1,1", "7 columns (valid: 8 to 10: collective,min_bytes,"),
        ("allreduce,0,1,ring,ll,1,1,1,1,1,1", "11 columns"),
        ("allreduce,0,1,ring,ll,1,1,", "nRanks, if not -1 for any, '' is not a number"),
        ("allreduce,64K,1M,ring,ll,1,1,1", "min_bytes '64K' is not a number from 0 to 18446744073709551615"),
        ("allreduce,-1,1,ring,ll,1,1,1", "min_bytes '-1'"),
        ("allreduce,2,1,ring,ll,1,1,1", "min_bytes 2 is above max_bytes 1"),
        (f"allreduce,0,{LARGEST + 1},ring,ll,1,1,1", "max_bytes"),
        ("allreduce,0,1,ring,ll,65,1,1", "channels, if not -1 for any, '65' is not a number from 1 to 64"),
        ("allreduce,0,1,ring,ll,-2,1,1", "channels"),
        ("allreduce,0,1,ring,ll,1,0,1", "nNodes"),
        ("allreduce,0,1,ring,ll,1,*,1", "nNodes"),
        ("allreduce,0,1,ring,ll,1,1,1,1,2", "regBuff, if not -1 for any, '2' is not a number from 0 to 1"),
        ("allreduce,0,1,ring,ll,1,1,\u0661", "nRanks"),
        ("allreduce,0," + "9" * 5000 + ",ring,ll,1,1,1", "max_bytes"),
    ],
)
def test_refuses_what_nvidias_reader_guesses_or_drops(row: str, reason: str) -> None:
    with pytest.raises(BadTable) as caught:
        load(f"# c\nallreduce,0,1,ring,ll,1,1,1\n{row}\n")
    assert str(caught.value).startswith(f"f:3: {reason}")


# NCCLX's


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("*", Span(0)),
        ("", Span(0)),
        ("5", Span(5, 5)),
        ("[0,2]", Span(0, 2)),
        ("(0,2)", Span(1, 1)),
        ("(0,2]", Span(1, 2)),
        ("[1,3)", Span(1, 2)),
        ("(1,)", Span(2)),
        ("[2,)", Span(2)),
        ("[2,]", Span(2)),
        ("(,4]", Span(0, 4)),
        ("(,4)", Span(0, 3)),
        ("(,)", Span(0)),
        ("[1073741824,17179869184]", Span(1 << 30, 16 << 30)),
        ("  (1, 4]  ", Span(2, 4)),
        ("[-5,4]", Span(0, 4)),
    ],
)
def test_reads_ncclx_intervals(text: str, interval: Span) -> None:
    row = Decision(AR, (RING,), bytes_per_rank=interval)
    assert only(f"allreduce,{text},ring,ll128,-1,*,*") == row
    assert only(rules(({"collective": "allreduce", "bytesPerRank": text}, CONFIG))) == row


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "[a,b]",
        "[1,x]",
        "[1,2",
        "1,2]",
        "[12]",
        "[1,2,3]",
        "(2,1]",
        "-1",
        "(1,2)",
        "[1,1)",
        "(,0)",
        "64K",
        "1.0",
        "[9223372036854775808,]",
        "9" * 5000,
    ],
)
def test_refuses_other_intervals(text: str) -> None:
    with pytest.raises(BadTable, match=r"^f: rule 1: bytesPerRank '.*' (is not \*, a number or|holds no number)"):
        load(rules(({"collective": "allreduce", "bytesPerRank": text}, CONFIG)))
    with pytest.raises(BadTable, match=r"^f:3: "):
        load(f"# c\nallreduce,*,ring,ll,-1,*,*\nallreduce,{text},ring,ll128,-1,*,*")


def test_reads_every_version_of_ncclx_columns() -> None:
    choice = TableChoice(Algorithm.CollNetChain, Protocol.Simple, 4, 1 << 19)
    row = Decision(AG, (choice,), bytes_per_rank=Span(1, 9), nodes=Span(2, 2), ranks_per_node=Span(8))
    assert only("allgather, [1,9] ,collnet_chain,simple,4,2,[8,),524288") == row
    assert only(NEWEST + "allgather,[1,9],collnet_chain,simple,4,2,[8,),524288") == row
    assert only(TEN + "allgather,[1,9],collnet_chain,simple,4,2,[8,),-1,-1,524288") == row
    by_bytes = only(TEN_BYTES + "allgather,[1,9],collnet_chain,simple,4,2,[8,),-1,-1,524288")
    assert by_bytes == Decision(AG, (choice,), bytes=Span(1, 9), nodes=Span(2, 2), ranks_per_node=Span(8))
    spaced = TEN_BYTES.replace(",", " , ")
    told = only(spaced + "allgather,[1,9],collnet_chain,simple,4,2,[8,),3,0")
    assert (told.bytes, told.pipelined, told.registered) == (Span(1, 9), Span(3, 3), False)
    assert only("allgather,,ring,ll,,,,") == Decision(AG, (TableChoice(Algorithm.Ring, Protocol.LL),))
    match = {"collective": "allgather", "bytes": "[1,9]", "nNodes": 2, "nLocalRanks": "[8,)", "regBuff": -1}
    config = {"algorithm": "collnet_chain", "protocol": "simple", "channels": 4, "chunkSize": 1 << 19}
    assert only(rules((match, config))) == by_bytes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("allreduce,*,ring,ll,-1,*,*,-1,-1,0", "f:1: 10 columns, of which the second is bytes or bytesPerRank"),
        (NEWEST + TEN_BYTES + "allreduce,*,ring,ll,-1,*,*", "f: comments name the columns "),
        ("# collective,bytes,protocol,algorithm\nallreduce,*,ring,ll,-1,*,*", "f: comments name the columns "),
        (NEWEST + "allreduce,*,ring,ll,-1,*,*,0,0", "f:2: 9 columns (valid: 7 to 8: collective,bytesPerRank,"),
        (TEN + "allreduce,*,ring,ll,-1,*", "f:2: 6 columns (valid: 7 to 10:"),
        ("allreduce,*,ring,ll,-1,*,*,-1", "f:1: chunkSize '-1'"),
        ("allreduce,*,ring,ll,-1,*,*,1024", "f:1: chunkSize 1024 is neither 0 nor a size from 4K to 1G"),
        ("allreduce,*,ring,ll,-1,0,*", "f:1: nNodes '0' holds no number"),
        ("allreduce,*,ring,ll,-1,-1,*", "f:1: nNodes '-1' holds no number from 1"),
        ("allreduce,*,nvlstree,ll,-1,*,*", "f:1: unknown algorithm 'nvlstree'"),
        (TEN + "allreduce,*,ring,ll,-1,*,*,1,-1,4096", "f:2: NCCLX sets no chunkSize in a row with numPipeOps"),
        (rules(({"collective": "allreduce", "size": 1}, CONFIG)), "f: rule 1: unknown key 'size' in 'filter'"),
        (rules(({"bytes": 1, "bytesPerRank": 1}, CONFIG)), "f: rule 1: 'bytes' and 'bytesPerRank' in one rule"),
        (rules(({"collective": "allreduce"}, {**CONFIG, "channels": "4"})), "f: rule 1: 'channels' is \"4\"; valid"),
        (rules(({"collective": "allreduce"}, {**CONFIG, "channels": [4]})), "f: rule 1: 'channels' is [4]"),
        (rules(({"collective": "allreduce", "nNodes": True}, CONFIG)), "f: rule 1: 'nNodes' is true"),
        (rules(({}, CONFIG)), "f: rule 1: unknown collective ''"),
        (rules(({"collective": "allreduce"}, {})), "f: rule 1: unknown algorithm ''"),
        ('{"rules": [{"collective": "allreduce"}]}', "f: rule 1: not an object of 'filter' and 'config'"),
        ('{"rules": [{"filter": [], "config": {}}]}', "f: rule 1: 'filter' is not an object"),
    ],
)
def test_refuses_what_ncclx_would_ignore_or_nobody_can_tell(text: str, reason: str) -> None:
    with pytest.raises(BadTable) as caught:
        load(text)
    assert str(caught.value).startswith(reason)


# What cannot be said


@pytest.mark.parametrize(
    ("row", "target", "reason"),
    [
        ("allreduce -> nccl", "nvidia", "'nccl' is no choice of this format"),
        ("allreduce ranks=2..4 -> ring/ll", "nvidia", "an interval of 'ranks'"),
        ("allreduce nodes=2.. -> ring/ll", "nvidia", "an interval of 'nodes'"),
        ("allreduce pipelined=1..2 -> ring/ll", "nvidia", "an interval of 'pipelined'"),
        ("allreduce ranks-per-node=8 -> ring/ll", "nvidia", "NVIDIA's format cannot say 'ranks-per-node'"),
        ("allreduce bytes-per-rank=8 -> ring/ll", "nvidia", "NVIDIA's format cannot say 'bytes-per-rank'"),
        ("allreduce -> ring/ll chunk=8K", "nvidia", "NVIDIA's format cannot say 'chunk'"),
        ("allreduce ranks=3 ranks-per-node=2 -> ring/ll", "nvidia", "no communicator has these ranks"),
        ("cost allreduce -> ring/ll never", "nvidia", "the format nvidia has no costs and constants"),
        ("constant ll-gbs volta 1 1", "ncclx-json", "the format ncclx-json has no costs and constants"),
        ("allreduce bytes=..1M -> ring/ll", "ncclx-csv", "NCCLX knows sizes per rank"),
        ("allreduce bytes=..1M ranks=4 nodes=2 -> ring/ll", "ncclx-json", "NCCLX knows sizes per rank"),
        ("allreduce registered=no -> ring/ll", "ncclx-csv", "NCCLX's format has no 'registered' and no 'pipelined'"),
        ("allreduce pipelined=1 -> ring/ll", "ncclx-csv", "NCCLX's format has no 'registered' and no 'pipelined'"),
        ("allreduce ranks=4 -> ring/ll", "ncclx-csv", "NCCLX's format has no 'ranks'"),
        ("allreduce ranks=5 nodes=2 -> ring/ll", "ncclx-csv", "NCCLX's format has no 'ranks'"),
        ("allreduce bytes-per-rank=9223372036854775808.. -> ring/ll", "ncclx-csv", "NCCLX's numbers end at"),
    ],
)
def test_what_a_format_cannot_say_is_refused_by_line(row: str, target: str, reason: str) -> None:
    with pytest.raises(BadTable) as caught:
        convert.to_text(load(f"{HEADER}\nbroadcast bytes=0.. -> ring/ll\n{row}\n"), target)
    assert str(caught.value).startswith(f"f:3: {reason}")


def unhashed(text: str) -> list[str]:
    """The lines, the hash of those above left out of the last."""
    return re.sub(r"(?<= sha256 )[0-9a-f]{64}\n$", "HASH\n", text).splitlines()


def test_a_row_that_others_would_pass_on_is_refused() -> None:
    file = load(f"{HEADER}\nallreduce bytes=..9 -> ring/ll\nallreduce -> tree/ll\n")
    with pytest.raises(BadTable, match=r"^f:2: meets line 3, to which readers of this format go on"):
        convert.to_text(file, "nvidia")
    named = load(f"{HEADER}\nallreduce bytes=..9 -> ring/ll | tree/ll\nallreduce -> tree/ll\n")
    assert unhashed(convert.to_text(named, "nvidia"))[1:] == [
        "# rows: 3",
        "allreduce,0,9,ring,ll,-1,-1,-1,-1,-1",
        "allreduce,0,9,tree,ll,-1,-1,-1,-1,-1",
        f"allreduce,0,{LARGEST},tree,ll,-1,-1,-1,-1,-1",
        "# rows: 3 sha256 HASH",
    ]


def test_other_words_for_the_same_are_found() -> None:
    row = "allreduce bytes=32..79 nodes=2 ranks-per-node=8 -> ring/ll"
    assert "allreduce,[2,4],ring,ll,-1,2,8,0" in convert.to_text(load(f"{HEADER}\n{row}\n"), "ncclx-csv")
    row = "allreduce bytes-per-rank=2..4 nodes=2 ranks-per-node=8 -> ring/ll channels=3"
    assert "allreduce,32,79,ring,ll,3,2,16,-1,-1" in convert.to_text(load(f"{HEADER}\n{row}\n"), "nvidia")


def test_unknown_target() -> None:
    with pytest.raises(BadTable, match=r"^unknown format 'csv' \(valid: table, nvidia, ncclx-csv, ncclx-json\)$"):
        convert.to_text(load(f"{HEADER}\n"), "csv")


# Meaning is kept

Call = tuple[Collective, int, int, int, bool, int]
COMMUNICATORS = [(2, 1), (2, 2), (4, 1), (4, 2), (8, 2), (6, 3)]
CALLS: list[Call] = [
    (collective, size, *shape, registered, pipelined)
    for collective in (AR, AG)
    for size in (*range(26), LARGEST)
    for shape in COMMUNICATORS
    for registered in (False, True)
    for pipelined in (0, 1, 2)
]
TO_12 = st.integers(0, 12)
SMALL = st.one_of(st.just(Span(0)), st.builds(lambda low, more: Span(low, low + more), TO_12, TO_12))


def exact(least: int, *numbers: int) -> st.SearchStrategy[Span]:
    return st.sampled_from([Span(least), Span(least), *(Span(number, number) for number in numbers)])


CHOICES = st.builds(
    TableChoice,
    st.sampled_from([Algorithm.Tree, Algorithm.Ring, Algorithm.NVLSTree]),
    st.just(Protocol.LL),
    st.sampled_from([None, 1, 2]),
)
NVIDIA_ROWS = st.builds(
    lambda collective, choice, size, ranks, nodes, registered, pipelined: Decision(
        collective, (choice,), bytes=size, ranks=ranks, nodes=nodes, registered=registered, pipelined=pipelined
    ),
    st.sampled_from([AR, AG]),
    CHOICES,
    SMALL,
    exact(1, 2, 4),
    exact(1, 1, 2),
    st.sampled_from([None, True, False]),
    exact(0, 1, 2),
)
NCCLX_ROWS = st.builds(
    lambda collective, choice, chunk, size, nodes, per_node: Decision(
        collective,
        (TableChoice(choice.algorithm, choice.protocol, choice.channels, chunk),),
        bytes_per_rank=size,
        nodes=nodes,
        ranks_per_node=per_node,
    ),
    st.sampled_from([AR, AG]),
    CHOICES,
    st.sampled_from([None, None, 4096, 8192]),
    SMALL,
    st.sampled_from([Span(1), Span(2), Span(1, 1)]),
    st.sampled_from([None, Span(2), Span(1, 1), Span(2, 4)]),
)


def matching(rows: Iterable[Decision], call: Call) -> list[Decision]:
    collective, size, ranks, nodes, registered, pipelined = call
    asked: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "registered": registered, "pipelined": pipelined}
    return [row for row in rows if find([row], collective, size, **asked)]


def passed_on(rows: Iterable[Decision], call: Call, runs: set[Algorithm]) -> TableChoice | None:
    """As NVIDIA's and NCCLX's readers go through rows of one choice; NCCLX looks for the chunk size by itself."""
    found = matching(rows, call)
    taken = next((row.choices[0] for row in found if row.choices[0].algorithm in runs), None)
    if taken is None:
        return None
    chunks = [row.choices[0].chunk_bytes for row in found if row.choices[0].algo_proto == taken.algo_proto]
    return TableChoice(*taken.algo_proto, taken.channels, next(filter(None, chunks), None))


def decided(rows: Iterable[Decision], call: Call, runs: set[Algorithm]) -> TableChoice | None:
    """As the plugin goes through ranked rows."""
    for row in matching(rows, call)[:1]:
        return next((choice for choice in row.choices if choice.algorithm in runs), None)
    return None


RUNS = st.sets(st.sampled_from([Algorithm.Tree, Algorithm.Ring, Algorithm.NVLSTree]))


def there_and_back(rows: list[Decision], runs: set[Algorithm], seed: int, target: str) -> None:
    own = convert.File("f", target, Table(tuple(rows)))
    written = load(convert.to_text(own, target)) if rows else own
    assert written.format == target
    table = load(convert.to_text(written, "table"))
    back = load(convert.to_text(table, target)) if rows else written
    for call in random.Random(seed).sample(CALLS, 150):
        expected = passed_on(rows, call, runs)
        assert passed_on(written.table.decisions, call, runs) == expected
        assert decided(table.table.decisions, call, runs) == expected
        assert passed_on(back.table.decisions, call, runs) == expected


@given(st.lists(NVIDIA_ROWS, max_size=6), RUNS, st.integers())
@settings(max_examples=60)
def test_nvidias_rows_mean_the_same_as_a_table_and_back(rows: list[Decision], runs: set[Algorithm], seed: int) -> None:
    there_and_back(rows, runs, seed, "nvidia")


@pytest.mark.parametrize("target", ["ncclx-csv", "ncclx-json"])
@given(st.lists(NCCLX_ROWS, max_size=6), RUNS, st.integers())
@settings(max_examples=60)
def test_ncclx_rows_mean_the_same_as_a_table_and_back(
    target: str, rows: list[Decision], runs: set[Algorithm], seed: int
) -> None:
    there_and_back(rows, runs, seed, target)


RANKED = st.builds(
    lambda row, choices: Decision(row.collective, tuple(choices), bytes=row.bytes, nodes=row.nodes, ranks=row.ranks),
    NVIDIA_ROWS,
    st.lists(CHOICES, min_size=1, max_size=3, unique_by=lambda choice: choice.algo_proto),
)


@given(st.lists(RANKED, min_size=1, max_size=4), RUNS, st.integers())
@settings(max_examples=150)
def test_a_table_is_written_with_its_meaning_or_refused(rows: list[Decision], runs: set[Algorithm], seed: int) -> None:
    try:
        written = load(convert.to_text(convert.File("f", "table", Table(tuple(rows))), "nvidia"))
    except BadTable:
        return
    for call in random.Random(seed).sample(CALLS, 150):
        assert passed_on(written.table.decisions, call, runs) == decided(rows, call, runs)


def test_a_refusal_is_about_a_meaning_that_would_change() -> None:
    """The upper rows hide the meeting from the walk: nothing is refused for what never decides."""
    rows = [
        Decision(AR, (RING, TableChoice(Algorithm.Tree, Protocol.LL)), bytes=Span(50, 100)),
        Decision(AR, (RING,), bytes=Span(0, 100)),
        Decision(AR, (TableChoice(Algorithm.Tree, Protocol.LL),), bytes=Span(50, 150)),
    ]
    assert len(shared.single(rows, str)) == 4


@pytest.mark.slow
def test_ten_thousand_rows_convert() -> None:
    lines = [f"allreduce,{n * 10},{n * 10 + 9},ring,ll,-1,-1,{n % 8 + 1}" for n in range(10_000)]
    file = load("\n".join([*lines, "allreduce,0,-1,tree,ll,-1,-1,-1", ""]))
    table = load(convert.to_text(file, "table"))
    assert len(table.table.decisions) == 10_001
    assert table.table.decisions[-2].choices[-1].algorithm is Algorithm.Tree
    assert load(convert.to_text(table, "nvidia")).table.decisions[-1] == file.table.decisions[-1]


# The command


def test_the_command_writes_or_refuses(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("# by hand\nallgather,(,2097152],tree,simple,4,2,8\n")
    done = CliRunner().invoke(convert_command, [str(source), "--out", str(target)])
    assert (done.exit_code, done.output) == (0, f"{target}: 1 row of {source} (ncclx-csv) as table\n")
    assert unhashed(target.read_text()) == [
        HEADER,
        "# rows: 1",
        "# converted-from: ncclx-csv",
        "allgather bytes-per-rank=0..2M nodes=2 ranks-per-node=8 -> tree/simple channels=4",
        "# rows: 1 sha256 HASH",
    ]
    done = CliRunner().invoke(convert_command, [str(target), "--out", str(source), "--to", "ncclx-json", "--json"])
    said = {"nccl_tuner_json": 1, "from": "table", "to": "ncclx-json", "out": str(source), "rows": 1}
    assert json.loads(done.output) == said
    (rule,) = json.loads(source.read_text())["rules"]
    assert rule["filter"] == {
        "collective": "allgather",
        "bytesPerRank": "[0,2097152]",
        "nNodes": "2",
        "nLocalRanks": "8",
    }
    assert rule["config"] == {"algorithm": "tree", "protocol": "simple", "channels": 4}
    target.write_text(f"{HEADER}\nallreduce -> nccl\n")
    before = source.read_text()
    done = CliRunner().invoke(convert_command, [str(target), "--out", str(source), "--to", "nvidia"])
    assert str(done.exception).startswith(f"{target}:2: 'nccl' is no choice")
    assert source.read_text() == before


@pytest.mark.parametrize("target", convert.FORMATS)
def test_a_table_without_rows_is_written(target: str) -> None:
    assert "\n" in convert.to_text(load(f"{HEADER}\n"), target)


def test_what_nvidia_ships_is_read() -> None:
    """As nccl_tuner.conf of v2.30.7-1 has them: of several shapes, with comments between."""
    rows = "allreduce,0,65536,tree,simple,2,1,-1,-1,1", "allgather,0,4294967295,ring,simple,4,2,-1"
    file = load("# Format: ...\n#\n" + "\n\n".join(rows) + "\n")
    assert [row.line for row in file.table.decisions] == [3, 5]
    assert file.table.decisions[1].registered is None


@pytest.mark.parametrize(
    ("name", "text", "to"),
    [("ours.table", "nccl-tuner-table 1\n" + "allreduce -> ring/ll\n" * 300, "ncclx-csv"),
     ("nvidia.csv", "allreduce,0,-1,tree,simple,2,-1,-1\n" * 300, "table")],
)  # fmt: skip
def test_more_rows_that_meet_than_can_be_followed_are_refused(
    name: str, text: str, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    words = ("plugin", "convert", str(tmp_path / name), "--to", to, "--out", str(tmp_path / "made"))
    run(*words)
    monkeypatch.setattr("tuner.plugin.formats.shared.MOST_MEETINGS", 20_000)
    assert "pairs of rows meet; valid: fewer" in run(*words, code=2).stderr
