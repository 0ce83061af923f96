"""Rows for numbers of nodes between those that rows are known for, and `plugin compile --interpolate`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.cli.plugin.tables import compile_command, lint_command
from tuner.emulator.selection import Selection
from tuner.plugin import compile
from tuner.plugin.compile import CommunicatorShape, between, edges, held_out
from tuner.plugin.table.parse import read
from tuner.plugin.table.records import Choice, Decision, Interval
from tuner.scenario import Scenario

AR = Collective.AllReduce
TREE, RING = Choice(Algorithm.Tree, Protocol.LL), Choice(Algorithm.Ring, Protocol.Simple)
RING_LL128, NVLS = Choice(Algorithm.Ring, Protocol.LL128), Choice(Algorithm.NVLS, Protocol.Simple)
KIB, MIB = 1 << 10, 1 << 20


def rows(*choices: tuple[int, Choice | None], end: int | None = None) -> list[Decision]:
    """Each choice from a size on; None leaves a gap."""
    ends = [*(low - 1 for low, _ in choices[1:]), end]
    return [
        Decision(AR, (choice,), bytes=Interval(low, high))
        for (low, choice), high in zip(choices, ends, strict=True)
        if choice is not None
    ]


def chosen(found: list[Decision], nodes: int) -> list[tuple[int, int | None, Choice]]:
    return [(row.bytes.low, row.bytes.high, row.choices[0]) for row in found if row.nodes == Interval(nodes, nodes)]


def test_an_edge_is_a_power_of_the_ranks() -> None:
    known = {
        CommunicatorShape(8, 2): rows((0, TREE), (64 * KIB, RING)),
        CommunicatorShape(32, 8): rows((0, TREE), (MIB, RING)),
    }
    found = between(known)
    assert {row.nodes.low for row in found} == {3, 4, 5, 6, 7}
    assert {(row.nodes.low, row.ranks) for row in found} == {(n, Interval(4 * n, 4 * n)) for n in range(3, 8)}
    assert chosen(found, 4) == [(0, 256 * KIB - 1, TREE), (256 * KIB, None, RING)]


def test_a_choice_that_one_lacks_shrinks_to_nothing() -> None:
    known = {
        CommunicatorShape(2, 2): rows((0, TREE), (64 * KIB, RING_LL128), (MIB, RING)),
        CommunicatorShape(8, 8): rows((0, TREE), (256 * KIB, RING)),
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
        CommunicatorShape(2, 2): rows((64 * KIB, TREE), (128 * KIB, None), (MIB, RING), end=4 * MIB - 1),
        CommunicatorShape(8, 8): rows((128 * KIB, TREE), (256 * KIB, None), (2 * MIB, RING), end=8 * MIB - 1),
    }
    (tree, ring) = chosen(between(known), 4)
    assert tree[:2] == (pytest.approx(64 * KIB * 2**0.5, abs=1), pytest.approx(128 * KIB * 2**0.5, abs=1))
    assert ring[:2] == (pytest.approx(MIB * 2**0.5, abs=1), pytest.approx(4 * MIB * 2**0.5, abs=1))
    assert [choice for _, _, choice in (tree, ring)] == [TREE, RING]


def test_ranges_of_a_few_bytes_where_times_meet_are_left_out() -> None:
    flickering = rows((0, TREE), (100_000, RING), (100_010, TREE), (100_020, RING), (100_031, TREE), (100_040, RING))
    assert [(each.low, each.choices) for each in edges(flickering)] == [(0, (TREE,)), (100_040, (RING,))]


def test_what_cannot_be_interpolated_is_refused() -> None:
    one = rows((0, TREE))
    for known in (
        {CommunicatorShape(8, 2): one},
        {CommunicatorShape(8, 2): one, CommunicatorShape(12, 4): one},
        {CommunicatorShape(8, 2): one, CommunicatorShape(32768, 8192): one},
    ):
        with pytest.raises(BadInput, match="two numbers of nodes at least"):
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
        known[CommunicatorShape(there.communicator.ranks, count)] = compile.decisions(there, Collective)
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
                ranks=Interval(here.ranks, here.ranks),
                nodes=Interval(held, held),
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
