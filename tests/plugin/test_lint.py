"""What lint finds: by itself held against every call of a small world, by release and communicator by example."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tuner import release
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.nouns import Span
from tuner.cli.plugin.tables import lint_command
from tuner.plugin import headers, lint, lint_scenario
from tuner.plugin.formats import convert
from tuner.plugin.table.records import HEADER, Decision, Table, TableChoice
from tuner.scenario import Scenario

AR = Collective.AllReduce
RING = TableChoice(Algorithm.Ring, Protocol.LL)


def load(*lines: str) -> Table:
    return convert.from_content("\n".join([HEADER, *lines, ""]).encode(), "t").table


def found(*lines: str) -> list[tuple[int, str, str]]:
    return [(one.line, one.severity, one.reason) for one in lint.check(load(*lines))]


def only(*lines: str, severity: str | None = None) -> tuple[int, str, str]:
    (one,) = [one for one in found(*lines) if severity in (None, one[1])]
    return one


# By itself


def test_a_clean_table() -> None:
    assert found("allreduce bytes=..64K -> ring/ll", "allreduce bytes=65537.. -> nccl", "allgather -> pat/simple") == []


def test_a_row_below_the_general_one_never_decides() -> None:
    lines = "allreduce ranks=16 -> ring/ll", "allreduce bytes=..1M ranks=16 nodes=2 -> tree/ll", "allgather -> ring/ll"
    assert only(*lines) == (3, "warning", "never decides: hidden by line 2")
    same = "allreduce ranks-per-node=8 nodes=2 -> tree/ll"  # 16 ranks by other words
    assert only(lines[0], same) == (3, "warning", "never decides: hidden by line 2")


def test_a_row_hidden_by_several_together() -> None:
    parts = [(low, low + 9, which) for low in (0, 10, 20) for which in ("yes", "no")]
    rows = [f"allreduce bytes={low}..{high} registered={which} -> tree/ll" for low, high, which in parts]
    hidden = "allreduce bytes=5..29 -> ring/ll"
    assert [one for one in found(*rows, hidden) if one[0] == 8] == [
        (8, "warning", "never decides: hidden by lines 2, 3, 4 and 3 more")
    ]
    assert not any("never" in reason for _, _, reason in found(*rows[:-1], hidden))


@pytest.mark.parametrize(
    "rows",
    [
        ("allreduce bytes=0..29", "allreduce bytes=5..9", "allreduce bytes=20..40", "allreduce bytes=0..35"),
        ("allreduce ranks=2 nodes=..2", "allreduce ranks=2"),
        ("allreduce bytes=..3", "allreduce bytes-per-rank=0 ranks=..4"),
        ("allreduce bytes=32..79", "allreduce bytes-per-rank=2..4 ranks=16"),
        ("allreduce bytes-per-rank=2..4 ranks=16", "allreduce bytes=32..79 nodes=2 ranks-per-node=8"),
        ("allgather bytes-per-rank=..7", "allgather bytes-per-rank=8..", "allgather nodes=2"),
    ],
)
def test_a_row_hidden_by_what_follows_from_its_conditions(rows: tuple[str, ...]) -> None:
    last = len(rows) + 1
    assert any(line == last and reason.startswith("never decides") for line, _, reason in found(*map(ring, rows)))
    assert not any(line == last and "never" in reason for line, _, reason in found(*map(ring, rows[1:])))


def ring(row: str) -> str:
    return f"{row} -> ring/ll"


def test_a_row_that_no_communicator_has() -> None:
    reason = "never matches: no communicator has these ranks, nodes and ranks per node"
    for where in ("ranks=9 ranks-per-node=2", "nodes=3 ranks=2", "ranks=8 nodes=2 ranks-per-node=3"):
        assert (2, "warning", reason) in found(f"allreduce {where} -> ring/ll")


def test_rows_that_meet() -> None:
    first = "allreduce bytes=..1M ranks=16 -> ring/ll"
    assert only(first, "allreduce bytes=64K.. ranks=16 -> tree/ll") == (
        3,
        "warning",
        "line 2 has other choices and wins where both match, bytes=64K..1M",
    )
    assert only(first, "allreduce bytes=1M.. ranks=16 -> tree/ll") == (
        3,
        "note",
        "line 2 has other choices and wins where both match, bytes=1M",
    )
    special = (3, "note", "special cases of this row above it win there: line 2")
    assert only(first, "allreduce -> tree/ll") == special
    assert found(first, "allreduce bytes=64K.. ranks=16 -> ring/ll") == []
    for apart in ("allgather ranks=16", "allreduce ranks=8", "allreduce nodes=17.."):
        assert [one[:2] for one in found(first, f"{apart} -> ring/simple")] == [(2, "note")], "only the end of line 2"


def test_gaps() -> None:
    rows = "allreduce bytes=..64K -> ring/ll", "allreduce bytes=65538.. -> tree/ll"
    gap = (3, "warning", "no row for bytes=65537, between line 2 and this one: NCCL's own choice there")
    assert only(*rows) == gap
    assert gap not in found(*rows, "allreduce ranks=2.. -> ring/simple")
    explores = [f"allreduce bytes={size} -> explore ring/ll | nccl every=10 block=10" for size in ("1M", "32M")]
    assert {each[1] for each in found(*explores)} == {"note"}, "other sizes are not explored, as is meant"
    assert "warning" in {each[1] for each in found(explores[0], "allreduce bytes=32M -> ring/ll")}
    part = "no row for part of bytes=65537, between line 2 and this one: NCCL's own choice there"
    assert (3, "warning", part) in found(*rows, "allreduce ranks=3.. -> ring/simple")
    other = "allgather bytes-per-rank=2..4 -> ring/ll", "allgather bytes-per-rank=9.. -> ring/ll"
    assert only(*other)[2].startswith("no row for bytes-per-rank=5..8, between line 2")


@pytest.mark.parametrize(("end", "severity"), [("4294967295", "warning"), ("4G", "warning"), ("1G", "note")])
def test_sizes_past_the_last_row(end: str, severity: str) -> None:
    line, found_severity, reason = only(f"allreduce bytes=..{end} -> ring/ll")
    assert (line, found_severity) == (2, severity)
    assert reason.startswith("no row for bytes=")
    assert reason.endswith(".., past the last: NCCL's own choice there")
    assert found(f"allreduce bytes=..{end} nodes=2 -> ring/ll", "allreduce -> ring/ll") == []


def test_what_no_nccl_runs() -> None:
    reason = "no NCCL runs Broadcast by nvlstree/simple; valid: ring/ll, ring/ll128, ring/simple"
    assert only("broadcast -> ring/ll | nvlstree/simple") == (2, "error", reason)
    assert only("cost allgather -> tree/ll never")[:2] == (2, "error")
    assert only("allreduce -> nvls/ll")[2].startswith("no NCCL runs AllReduce by nvls/ll; valid: tree/ll, ")


def test_hidden_costs() -> None:
    rows = "allreduce -> ring/ll", "allreduce -> tree/ll", "allreduce nodes=2 -> ring/ll"
    assert only(*(f"cost {row} never" for row in rows)) == (4, "warning", "never decides: hidden by line 2")


def test_what_exists_is_what_the_releases_have() -> None:
    """All rows of all releases; CollNetChain of 2.31 has numbers for more than may run."""
    for collective in Collective:
        rows = {each for name in release.names() for each in release.load(name).rules.exists[collective]}
        chain = set() if collective is AR else {Algorithm.CollNetChain}
        assert rows - chain == set(lint.ALGORITHMS[collective])
    for name in release.names():
        table = release.load(name)
        for algorithm in Algorithm:
            rules = [*table.rules.fills.get(algorithm, ()), *table.rules.bandwidth[algorithm]]
            simple = "simple_only" in rules or "no_low_latency" in rules
            assert not rules or simple != (algorithm in lint.EVERY_PROTOCOL), (name, algorithm)


def intervals(least: int, most: int) -> st.SearchStrategy[Span]:
    pairs = st.tuples(st.integers(least, most), st.one_of(st.none(), st.integers(0, most - least)))
    some = pairs.map(lambda pair: Span(pair[0], None if pair[1] is None else pair[0] + pair[1]))
    return st.one_of(st.just(Span(least)), some)


SIZES: st.SearchStrategy[dict[str, Span]] = st.one_of(
    st.just({}),
    intervals(0, 12).map(lambda one: {"bytes": one}),
    intervals(0, 3).map(lambda one: {"bytes_per_rank": one}),
)
ROWS = st.builds(
    lambda size, ranks, nodes, which: Decision(AR, (RING,), ranks=ranks, nodes=nodes, registered=which, **size),
    SIZES,
    intervals(1, 4),
    intervals(1, 3),
    st.sampled_from([None, None, True, False]),
)
# Every number up to past all ends that rows have, and one far away of each.
SHAPES = [(ranks, nodes) for ranks in (*range(1, 31), 60) for nodes in range(1, min(ranks, 7) + 1)]
WORLD = np.array(
    [
        (size, *shape, which)
        for shape in SHAPES
        for which in (0, 1)
        for size in (*range(66), *(shape[0] * per_rank for per_rank in range(9)), 10**9)
    ]
).T


def reached(row: Decision) -> NDArray[np.bool_]:
    size, ranks, nodes, registered = WORLD

    def within(numbers: NDArray[np.int_], interval: Span) -> NDArray[np.bool_]:
        return (numbers >= interval.low) & (True if interval.high is None else numbers <= interval.high)

    which = True if row.registered is None else registered == row.registered
    sizes = within(size, row.bytes) & within(size // ranks, row.bytes_per_rank)
    return sizes & within(ranks, row.ranks) & within(nodes, row.nodes) & which


@given(st.lists(ROWS, min_size=1, max_size=7))
@settings(max_examples=120)
def test_hidden_rows_are_those_that_no_call_reaches(rows: list[Decision]) -> None:
    numbered = [Decision(row.collective, row.choices, **{**conditions(row), "line": at}) for at, row in enumerate(rows)]
    taken = np.zeros(WORLD.shape[1], np.bool_)
    expected = set()
    for row in numbered:
        if not (reached(row) & ~taken).any():
            expected.add(row.line)
        taken |= reached(row)
    hidden = {one.line for one in lint.check(Table(tuple(numbered))) if one.reason.startswith("never ")}
    assert hidden == expected


def conditions(row: Decision) -> dict[str, Any]:
    names = ("bytes", "bytes_per_rank", "ranks", "nodes", "ranks_per_node", "registered", "pipelined")
    return {name: getattr(row, name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("general", [0, 1])
def test_ten_thousand_rows(general: int) -> None:
    draw = random.Random(general)
    lines = []
    for collective in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce"):
        for nodes in (1, 2, 4, 8):
            cuts = sorted(draw.sample(range(1, 1 << 34), 499))
            ends = zip([0, *(cut + 1 for cut in cuts)], [*cuts, None], strict=True)
            for low, high in ends:
                protocol = draw.choice(["ll", "simple"])
                lines.append(f"{collective} bytes={low}..{high or ''} nodes={nodes} -> ring/{protocol}")
        lines += [f"{collective} -> ring/ll128"] * general
    result = found(*lines)
    assert len(lines) == 10_000 + 5 * general
    assert [one for one in result if one[1] != "note"] == []
    assert len(result) == 5 * general


def test_ranks_do_not_agree_on_what_is_registered() -> None:
    rows = ["allreduce -> tree/ll", "allgather registered=yes -> ring/ll", "allgather registered=no -> ring/ll128"]
    ((line, severity, reason),) = found(*rows)
    assert (line, severity) == (3, "warning")
    assert reason.startswith("registered= holds what one rank knows (as 1 more): ranks whose buffers are not")
    assert found(rows[0], "allgather -> ring/ll") == []


def test_gaps_that_are_meant_are_notes() -> None:
    rows = ["allreduce bytes=..1K -> tree/ll", "allreduce bytes=4K..4G -> ring/ll"]
    assert [severity for _, severity, _ in found(*rows)] == ["warning", "warning"]
    meant = "NCCL's own choice there, as '# gaps:' says"
    assert found("# gaps: NCCL's own choice", *rows) == [
        (4, "note", f"no row for bytes=1025..4095, between line 3 and this one: {meant}"),
        (4, "note", f"no row for bytes=4294967297.., past the last: {meant}"),
    ]
    # Other warnings stay.
    assert (4, "warning") in [
        each[:2] for each in found("# gaps: NCCL's own", *rows[:1], "allreduce bytes=1 -> ring/ll")
    ]


# By release and communicator


def by_release(nccl: str, *lines: str) -> list[tuple[int, str, str]]:
    return [
        (one.line, one.severity, one.reason) for one in lint_scenario.check_release(load(*lines), release.load(nccl))
    ]


def test_a_release_without_plugins() -> None:
    assert by_release("2.18.3", "allreduce -> ring/ll128") == [(1, "error", "NCCL 2.18.3 loads no tuner plugin")]


@pytest.mark.parametrize(
    ("row", "told", "silent", "reason"),
    [
        ("allreduce -> tree/ll | ring/ll128", ["2.19.3", "2.21.5"], ["2.22.3", "2.32.3"], "NCCL_TUNER_UNCHECKED=1"),
        ("allreduce -> tree/ll chunk=8K", ["2.19.3", "2.28.9", "2.29.7"], ["2.30.3", "2.32.3"], "the chunk size"),
        ("allreduce registered=yes -> tree/ll", ["2.19.3", "2.23.4"], ["2.24.3", "2.32.3"], "registered buffers"),
        ("constant ll-gbs volta 1 1", ["2.19.3", "2.27.7", "2.31.2"], ["2.28.3", "2.30.7", "2.32.3"], "constants"),
        ("allgather -> pat/simple", ["2.19.3", "2.22.3"], ["2.23.4", "2.32.3"], "does not run AllGather by PAT"),
    ],
)
def test_what_a_release_does_not_do(row: str, told: list[str], silent: list[str], reason: str) -> None:
    for nccl in told:
        ((line, severity, found_reason),) = by_release(nccl, row)
        assert (line, severity, reason in found_reason) == (2, "warning", True), found_reason
    for nccl in silent:
        assert by_release(nccl, row) == []


def test_a_release_without_costs_lets_the_tables_compete() -> None:
    assert by_release("2.21.5", "cost allreduce -> tree/ll never") == [
        (2, "note", "NCCL 2.21.5 hands no costs to a plugin: the table's compete with each other only")
    ]
    assert by_release("2.22.3", "cost allreduce -> tree/ll never") == []


@pytest.mark.parametrize(
    "row",
    [
        "allreduce ranks=4 -> ring/ll",
        "allreduce bytes-per-rank=4 -> ring/ll",
        "allreduce ranks-per-node=1.. -> ring/ll",
        "cost allreduce nodes=2 -> ring/ll never",
    ],
)
def test_a_release_that_does_not_say_who_asks(row: str) -> None:
    assert any("does not say which communicator asks" in reason for _, _, reason in by_release("2.20.5", row))
    assert not any("which communicator" in reason for _, _, reason in by_release("2.21.5", row))
    channels = by_release("2.20.5", "allreduce -> ring/ll channels=3")
    assert [reason for _, _, reason in channels] == [
        "NCCL 2.20.5 does not check channels; the plugin passes them on only with NCCL_TUNER_UNCHECKED=1"
    ]
    assert by_release("2.21.5", "allreduce -> ring/ll channels=3") == []


def here(*lines: str, nodes: int = 2, op: Op = Op.sum) -> list[tuple[int, str, str]]:
    communicator = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=nodes).communicator()
    table = load(*lines)
    checked = lint_scenario.check_communicator(table, communicator, DataType.float32, op)
    return [(one.line, one.severity, one.reason) for one in checked]


NVLS = (
    "nvls/simple cannot run here: NVLS needs CollNet: several nodes, a network that reduces, and NCCL_COLLNET_ENABLE=1"
)


def test_what_cannot_run_on_a_communicator_is_said_with_the_reason() -> None:
    assert here("allreduce -> nvls/simple | ring/ll") == [(2, "warning", NVLS)]
    assert here("cost allreduce -> nvlstree/simple never", nodes=1) == [
        (2, "warning", "nvlstree/simple cannot run here: NVLSTree needs several nodes")
    ]
    assert here("allreduce -> nvlstree/simple") == []
    assert "cannot reduce" in here("allreduce -> nvlstree/simple", op=Op.max)[0][2]
    assert here("broadcast -> tree/ll") == [], "what no NCCL runs is said once"


def test_rows_for_other_communicators() -> None:
    reason = "does not apply to this communicator of 16 ranks on 2 nodes"
    for where in ("ranks=8", "nodes=3..", "ranks-per-node=4", "ranks-per-node=9.."):
        assert here(f"allreduce {where} -> nvls/simple") == [(2, "note", reason)]
    assert here("allreduce ranks=16 nodes=2 ranks-per-node=8 -> ring/ll") == []


def test_ring_for_8_bit_sums_of_many_ranks_is_said_once() -> None:
    rows = load("allreduce bytes=..9 -> tree/ll", "allreduce bytes=10..19 -> ring/ll", "allreduce -> ring/simple")
    for nccl, nodes, lines in [("2.28.9", 2, [3]), ("2.32.3", 2, [3]), ("2.28.9", 1, []), ("2.23.4", 2, [])]:
        communicator = Scenario(nccl=nccl, machine="dgx-h100", nodes=nodes).communicator()
        found = lint_scenario.check_types(rows, communicator)
        assert [(one.line, one.severity) for one in found] == [(line, "note") for line in lines]
    many = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2).communicator()
    for row in (
        "allgather -> ring/ll",
        "allreduce -> tree/ll",
        "allreduce ranks=8 -> ring/ll",
        "cost allreduce -> ring/ll never",
    ):
        assert lint_scenario.check_types(load(row), many) == []


def test_channels_on_a_communicator() -> None:
    assert here("allreduce -> ring/ll channels=17") == [(2, "note", "channels=17 of ring/ll: this communicator has 16")]
    assert here("allreduce -> ring/ll channels=16") == []
    withheld = "the plugin keeps NCCL's channels for nvls/simple here: NCCL would not check others"
    assert (2, "warning", withheld) in here("allreduce -> nvls/simple channels=8")
    assert here("allreduce -> nvls/simple channels=8", nodes=1) == []


# The command


def run(path: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(lint_command, [str(path), *arguments])
    return done.exit_code, done.output


def test_the_command_says_where_and_exits_by_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text(f"{HEADER}\nallreduce bytes=..1G -> nvls/simple\n")
    assert run(file) == (
        0,
        (
            f"{file}: 1 row (table), 0 warnings and errors, 1 note\n"
            f"{file}:2: note: no row for bytes=1073741825.., past the last: NCCL's own choice there\n"
        ),
    )
    code, out = run(file, "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--json")
    findings = json.loads(out)["tables"][0]["findings"]
    assert (code, [one["severity"] for one in findings]) == (1, ["note", "warning"])
    assert findings[1] == {"line": 2, "severity": "warning", "reason": NVLS}
    assert run(file, "--nccl", "2.18.1")[0] == 1


def test_the_command_reads_other_formats(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("allreduce,0,4294967295,ring,ll,-1,-1,-1\nallreduce,5,6,tree,ll,-1,-1,-1\n")
    code, out = run(file)
    assert code == 1
    assert f"{file}:2: warning: never decides: hidden by line 1\n" in out
    rule = {"filter": {"collective": "reduce"}, "config": {"algorithm": "pat", "protocol": "ll"}}
    file.write_text(json.dumps({"rules": [rule]}))
    assert f"{file}: rule 1: error: no NCCL runs Reduce by pat/ll" in run(file)[1]


# What a table is for


def said(*lines: str, nccl: str | None = None, machine: str | None = None) -> list[str]:
    table = load(*lines)
    findings = headers.check(table)
    findings += headers.check_release(table, nccl) if nccl else []
    findings += headers.check_machine(table, machine) if machine else []
    return [f"{one.line} {one.severity} {one.reason}" for one in findings]


def test_comments_that_say_nothing_known() -> None:
    good = "# gpus: H100, NVIDIA H200 141GB", "# machine: 2 x dgx-h100, p5.48xlarge", "# nccl: 2.28.9, 2.27.3"
    assert said(*good, "allreduce -> nccl") == []
    assert found(*good, "allreduce -> nccl") == []
    (unknown,) = said("# gpus: H100, X9000")
    assert unknown.startswith("2 note # gpus: 'X9000' is the name of no GPU that is known here: NVML's name decides; ")
    assert unknown.endswith(" more")
    assert said("# gpus: H100,,H200")[0].startswith("2 warning # gpus: an empty name between commas")
    long = ", ".join(["H100"] * 22)
    assert said(f"# gpus: {long}") == [f"2 warning # gpus: {len(long)} letters, of which the plugin reads 127"]
    assert said("# machine: pod 7") == [
        "2 note # machine: names no machine of the catalogue, so that nothing can be compared with it"
    ]
    assert "'2.99.1' is no release that is known; valid: such as " in said("# nccl: 2.28.9, 2.99.1")[0]
    assert "'newest' is no release's number; valid: such as " in said("# nccl: newest")[0]


@pytest.mark.parametrize(
    ("line", "nccl", "machine", "expected"),
    [
        ("# nccl: 2.27.3, 2.28.9", "2.28.9", None, []),
        ("# nccl: 2.27.3", "2.28.9", None, ["2 warning # nccl: the table is for NCCL 2.27.3, not for 2.28.9"]),
        ("# machine: 2 x DGX-H100, 8 GPUs each", None, "dgx-h100", []),
        ("# machine: dgx-h100", None, "aws-p5", ["2 warning # machine: the table is for dgx-h100, not for aws-p5"]),
        ("# gpus: A100, nvidia h100 80GB HBM3", None, "dgx-h100", []),
        ("# gpus: H200", None, "gh200-4x", ["2 warning # gpus: the table is for GPUs H200, and gh200-4x has GH200"]),
        ("# gpus: A6000", None, "ws-2x-a6000", []),
        ("# gpus: 80GB", None, "dgx-h100", ["2 warning # gpus: the table is for GPUs 80GB, and dgx-h100 has H100"]),
    ],
)
def test_a_table_for_something_else(line: str, nccl: str | None, machine: str | None, expected: list[str]) -> None:
    known = [each for each in said(line, nccl=nccl, machine=machine) if "is the name of no GPU" not in each]
    assert known == expected


def test_the_gpus_are_read_wherever_they_stand() -> None:
    """As the plugin does it, in both formats."""
    content = f"# gpus: A100\n{HEADER}\n# by: hand\n\n# gpus: H100\nallreduce -> nccl\n"
    table = convert.from_content(content.encode(), "f").table
    assert (table.provenance, table.provenance_lines) == ({"by": "hand", "gpus": "A100"}, {"by": 3, "gpus": 1})
    csv = convert.from_content(b"allreduce,0,1,ring,ll,1,1,1\n#gpus: \t B200 \n", "f").table
    assert (csv.provenance["gpus"], csv.provenance_lines["gpus"]) == ("B200", 2)


def test_rows_by_nvlink_domains() -> None:
    """Their number is that of the nodes, from 2.28 on."""
    table = load("allreduce nvlink-domains=3 -> ring/ll", "cost allreduce nvlink-domains=2 -> ring/ll never")
    apply = "does not apply to this communicator of 16 ranks on 2 nodes"
    for nccl, rows in (("2.28.9", [apply]), ("2.27.3", [])):
        communicator = Scenario(nccl=nccl, machine="dgx-h100", nodes=2).communicator()
        found = lint_scenario.check_communicator(table, communicator, DataType.float32, Op.sum)
        assert [one.reason for one in found if one.line == 2 and "apply" in one.reason] == rows
        release = [one.reason for one in lint_scenario.check_release(table, communicator.release)]
        says = f"NCCL {nccl} does not say how many NVLink domains there are: "
        assert release == (
            []
            if nccl == "2.28.9"
            else [
                f"{says}the choice stays NCCL's there; valid: 2.28.3 and later",
                f"{says}the cost has no effect; valid: 2.28.3 and later",
            ]
        )
