"""Rows of a decision table from measurements, and the gate that they have to pass."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.measurement_files import write
from tests.support.simulated_runs import NOTHING, idle, measured
from tests.support.table_search import find
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.decision.gate import RowVerdict, verdict
from tuner.bench.decision.rows import DecisionRow, assign, proposed, regrets
from tuner.bench.loop import Loop, Settings, Wanted, points, tasks
from tuner.bench.simulated import Simulated
from tuner.cli.decide import command
from tuner.cli.fit import constants_command as fit_command
from tuner.cli.plugin.tables import lint_command
from tuner.plugin.table.parse import read as read_table
from tuner.scenario import Scenario
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock, read

A, B = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Tree, Protocol.LL)
SEEDS = range(10)  # benchmarks/decide.py has 200


def test_few_rows_as_long_as_they_cost_little() -> None:
    gain, little = {A: 0.2, B: 0.1}, {A: -0.01, B: -0.01}
    assert assign([little, gain, gain, little]) == [None, A, A, None]
    assert assign([gain] * 20 + [little] + [gain] * 20) == [A] * 41  # one row, not two
    assert assign([gain, *[little] * 10, gain]) == [A, *[None] * 10, A]
    assert assign([little] * 5) == [None] * 5
    assert assign([{A: 0.2}, {B: 0.2}, {}]) == [A, B, None]  # what was not measured is not requested


@pytest.mark.slow
def test_the_table_leaves_hardly_any_regret() -> None:
    for seed in range(5):
        run = measured(seed)
        kept = [each.row for each in run.gated(seed) if each.why_not is None]
        points = [one.call for one in run.comparison.sizes]
        assert np.mean([run.true_regret(kept, point) for point in points]) <= 0.01
        # Sizes that nothing was measured at.
        new = [Point(each.collective, each.bytes * 5 // 4 // 64 * 64) for each in points if each.bytes > 64]
        assert np.mean([run.true_regret(kept, point) for point in new]) <= 0.01


def test_rows_are_for_nccls_nodes(tmp_path: Path) -> None:
    split = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    hosts = Scenario("2.28.9", 2, machine="dgx-h100", gpus_per_node=4, environment=split)
    blocks: list[SampleBlock] = []
    with closing(Simulated(hosts, 7)) as backend:
        wanted = tasks(backend, points([Collective.AllReduce], [1 << 20], backend.ranks), Wanted())
        for _ in Loop(backend, wanted, Settings(rounds=3, seed=7), blocks.append).run():
            pass
        path = tmp_path / "run.jsonl"
        write(path, Measurements(backend.describe(), tuple(blocks)))
    assert (proposed(path).ranks, proposed(path).nodes) == (8, 8)


def test_hold_out_sizes_gain_as_well() -> None:
    out = measured(5).proposal.hold_out()
    assert out.sizes > 30
    assert out.after < out.before / 4


@pytest.mark.slow
def test_nothing_is_kept_where_nothing_is_to_be_gained() -> None:
    falsely = 0
    for seed in SEEDS:
        run = measured(seed, NOTHING)
        falsely += any(each.why_not is None for each in [*run.gated(seed), *run.gated(seed, idle(run))])
    assert falsely <= 0.05 * len(SEEDS)


POINTS = [Point(Collective.AllReduce, 1024 << power) for power in range(4)]
ROW = DecisionRow(Collective.AllReduce, 1024, 8192, A, (1024, 2048, 4096, 8192))


def judged(*gains: float, sigma: float = 0.01, executed: Combination = A) -> RowVerdict:
    rng = np.random.default_rng(2)
    found = {point: rng.normal(gain, sigma, 20) for point, gain in zip(POINTS, gains, strict=True)}
    return verdict(ROW, POINTS, found, {point: {executed} for point in POINTS})


def test_the_gate_says_why_not() -> None:
    assert judged(0.1, 0.1, 0.1, 0.1).why_not is None
    assert "not more than 2 %" in (judged(0.01, 0.01, 0.01, 0.01).why_not or "")
    assert "probability" in (judged(0.1, 0.1, 0.1, 0.1, sigma=3.0).why_not or "")
    assert "slower at 2K" in (judged(0.1, -0.1, 0.1, 0.1).why_not or "")
    assert "NCCL ran Tree/LL instead" in (judged(0.1, 0.1, 0.1, 0.1, executed=B).why_not or "")


def test_a_row_ends_before_it_is_slower() -> None:
    trimmed = judged(0.1, 0.1, 0.1, -0.1)
    assert trimmed.why_not is None
    assert (trimmed.row.low, trimmed.row.high, trimmed.row.sizes) == (1024, 4096, (1024, 2048, 4096))


def test_a_size_that_loses_little_is_cut_all_the_same() -> None:
    """As on one H200 between 5.9 and 8 MiB: a loss of 1.3 % at one size is no part of a gain of 9.4 % at the next."""
    row = DecisionRow(Collective.AllReduce, 5931642, 9400000, A, (8388608,))
    points = [Point(Collective.AllReduce, size) for size in (7053948, 8388608)]
    rng = np.random.default_rng(3)
    gains = {point: rng.normal(gain, 0.003, 5) for point, gain in zip(points, (-0.013, 0.09), strict=True)}
    found = verdict(row, points, gains, {point: {A} for point in points})
    assert found.why_not is None
    assert (found.row.low, found.row.high, found.sizes) == (8388608, 9400000, (8388608,))
    inside = {**gains, (other := Point(Collective.AllReduce, 6000000)): gains[points[1]]}
    lost = verdict(row, [other, *points], inside, {point: {A} for point in inside})
    assert "slower at" in (lost.why_not or "")


def test_one_round_decides_nothing() -> None:
    assert measured(5, rounds=1).proposal.rows == []


@pytest.mark.slow
def test_the_command_writes_a_table_that_is_only_for_its_ranks(tmp_path: Path) -> None:
    runs = {nodes: measured(5, nodes=nodes) for nodes in (2, 4)}
    files = [str(write(tmp_path / f"{nodes}.jsonl", run.comparison.measurements)) for nodes, run in runs.items()]
    out = tmp_path / "pod.table"
    answer = json.loads(CliRunner().invoke(command, [*files, "--out", str(out), "--json"]).output)
    assert answer["kept"]
    assert answer["regret_after"] < answer["regret_before"]
    assert {(each["decided_at"], each["tried_at"]) for each in answer["other_ranks"]} == {(16, 32), (32, 16)}
    written = read_table(out)
    assert len(written.decisions) == len(answer["kept"])
    assert {"measured-1", "date", "command", "gate", "gate-1"} <= set(written.provenance)
    first = written.decisions[0]
    inside = first.bytes.low
    own: dict[str, Any] = {"ranks": first.ranks.low, "nodes": first.nodes.low}
    assert find(written.decisions, first.collective, inside, **own)
    assert find(written.decisions, first.collective, inside, ranks=64, nodes=8) is None
    for ranks in (16, 32):
        blocks = read(tmp_path / f"pod.table.{ranks}.ab.jsonl").blocks
        assert {block.table for block in blocks} == {None, "candidate"}
    assert regrets(runs[2].proposal.sizes, []).before == regrets(runs[2].proposal.sizes, []).after


def test_the_table_passes_lint_with_the_sizes_that_it_leaves_to_nccl(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", measured(1).comparison.measurements)
    out = tmp_path / "pod.table"
    assert CliRunner().invoke(command, [str(path), "--out", str(out), "--no-gate"]).exit_code == 0
    linted = CliRunner().invoke(lint_command, [str(out)])
    assert linted.exit_code == 0, linted.output
    assert "between line" in linted.output
    assert "as '# gaps:' says" in linted.output
    # The same rows without that word are a table with holes that nobody meant.
    out.write_text("".join(line for line in out.read_text().splitlines(True) if not line.startswith("# gaps:")))
    assert CliRunner().invoke(lint_command, [str(out)]).exit_code == 1


@pytest.mark.slow
def test_rows_between_two_numbers_of_nodes_gain_at_one_that_was_not_measured(tmp_path: Path) -> None:
    files = [
        str(write(tmp_path / f"{nodes}.jsonl", measured(5, nodes=nodes).comparison.measurements)) for nodes in (2, 8)
    ]
    out = tmp_path / "pod.table"
    words = [*files, "--out", str(out), "--no-gate"]
    plain = CliRunner().invoke(command, [*words, "--json"])
    before = read_table(out).decisions
    done = CliRunner().invoke(command, [*words, "--interpolate", "--json"])
    assert done.exit_code == 0, done.output
    table = read_table(out)
    assert table.decisions[: len(before)] == before
    added = table.decisions[len(before) :]
    assert {row.nodes.low for row in added} == {3, 4, 5, 6, 7}
    answer = json.loads(done.output)
    assert answer.pop("interpolated_rows") == len(added)
    assert answer == json.loads(plain.output)
    assert table.provenance["interpolated"].startswith(f"{len(added)} rows for the numbers of nodes between, from 16 ")
    # Held out: 4 nodes.
    there = [
        DecisionRow(row.collective, row.bytes.low, row.bytes.high, Combination(*row.choices[0].algo_proto), ())
        for row in added
        if row.nodes.low == 4
    ]
    held_out = regrets(measured(5, nodes=4).proposal.sizes, there)
    assert held_out.after < 0.75 * held_out.before
    alone = CliRunner().invoke(command, [files[0], "--out", str(out), "--no-gate", "--interpolate"])
    assert isinstance(alone.exception, BadInput)


@pytest.mark.slow
def test_each_number_of_nodes_between_the_others_is_held_out(tmp_path: Path) -> None:
    runs = {nodes: measured(5, nodes=nodes) for nodes in (8, 2, 4)}
    files = [str(write(tmp_path / f"{nodes}.jsonl", run.comparison.measurements)) for nodes, run in runs.items()]
    out = tmp_path / "pod.table"
    words = [*files, "--out", str(out), "--no-gate", "--interpolate"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    table = read_table(out)
    assert {row.nodes.low for row in table.decisions} == {2, 3, 4, 5, 6, 7, 8}
    answer = json.loads(CliRunner().invoke(command, [*words, "--json"]).output)
    (held_out,) = answer["held_out"]
    assert held_out["nodes"] == 4
    assert held_out["sizes"] == sum(map(len, runs[4].proposal.sizes.values()))
    assert held_out["regret_own"] <= held_out["regret_after"] < held_out["regret_before"]
    # The same rows as without the file of 4 nodes.
    CliRunner().invoke(command, [words[0], words[1], *words[3:]], catch_exceptions=False)
    there = [
        DecisionRow(row.collective, row.bytes.low, row.bytes.high, Combination(*row.choices[0].algo_proto), ())
        for row in read_table(out).decisions
        if row.nodes.low == 4
    ]
    assert regrets(runs[4].proposal.sizes, there).after == pytest.approx(held_out["regret_after"])
    (line,) = [line for line in done.output.splitlines() if line.startswith("held out, 4 nodes: regret ")]
    assert line == f"held out, {table.provenance['held-out-1']}"


def test_as_many_ranks_on_other_nodes_are_another_run(tmp_path: Path) -> None:
    runs = [measured(5), measured(5, nodes=4, gpus=4)]
    files = [str(write(tmp_path / f"{run.proposal.nodes}.jsonl", run.comparison.measurements)) for run in runs]
    done = CliRunner().invoke(command, [*files, "--out", str(tmp_path / "t"), "--rounds", "3"], catch_exceptions=False)
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.glob("*.ab.jsonl")} == {"t.16.2.ab.jsonl", "t.16.4.ab.jsonl"}


def test_no_row_survives_is_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", measured(3, NOTHING).comparison.measurements)
    out = tmp_path / "pod.table"
    done = CliRunner().invoke(command, [str(path), "--out", str(out)])
    assert done.exit_code == 1
    assert "no row stays: NCCL's default is the best" in done.output
    assert read_table(out).decisions == ()
    assert "no row" in read_table(out).provenance["result"]


def test_bad_input_writes_no_table(tmp_path: Path) -> None:
    found = measured(5).comparison.measurements
    path = write(tmp_path / "run.jsonl", found)
    other = write(tmp_path / "other.jsonl", replace(found, header=replace(found.header, backend="abacus")))
    more = write(tmp_path / "more.jsonl", replace(found, blocks=found.blocks[:-1]))
    out = tmp_path / "pod.table"
    for files, reason in (
        ([path, path], "run.jsonl has the same measurements as"),
        ([path, more], "two FILEs have the same numbers of ranks and nodes"),
        ([other], "unknown backend 'abacus'"),
    ):
        done = CliRunner().invoke(command, [*map(str, files), "--out", str(out)])
        assert isinstance(done.exception, BadMeasurement)
        assert reason in str(done.exception)
        assert not out.exists()


def test_a_table_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", measured(5).comparison.measurements)
    done = CliRunner().invoke(command, [str(path), "--no-gate", "--out", str(tmp_path / "none" / "pod.table")])
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).endswith("pod.table: No such file or directory")


@pytest.mark.slow
def test_fitted_constants_place_the_borders_between_sizes(tmp_path: Path) -> None:
    run = measured(5)
    path = write(tmp_path / "run.jsonl", run.comparison.measurements)
    constants = tmp_path / "pod.toml"
    assert CliRunner().invoke(fit_command, [str(path), "--out", str(constants)]).exit_code == 0
    tables = {}
    for name, more in {"without": [], "with": ["--constants", str(constants)]}.items():
        out = tmp_path / name
        done = CliRunner().invoke(command, [str(path), "--out", str(out), "--no-gate", *more], catch_exceptions=False)
        assert done.exit_code == 0
        tables[name] = read_table(out)
    assert "layer" in tables["with"].provenance
    rows = {
        name: [(each.collective, each.choices, each.bytes) for each in table.decisions]
        for name, table in tables.items()
    }
    assert rows["with"] != rows["without"]
    assert {each[:2] for each in rows["with"]} == {each[:2] for each in rows["without"]}


def test_a_number_of_channels_becomes_part_of_a_row(tmp_path: Path) -> None:
    few = replace(A, channels=4)
    blocks = [
        SampleBlock(
            Point(Collective.AllReduce, 1024 << power), requested, requested or A, (time_us, time_us + 0.01), number
        )
        for power in range(6)
        for number in range(8)
        for requested, time_us in ((None, 20.0), (A, 20.0), (few, 10.0))
    ]
    found = replace(measured(5).comparison.measurements, blocks=tuple(blocks))
    path, out = write(tmp_path / "run.jsonl", found), tmp_path / "pod.table"
    CliRunner().invoke(command, [str(path), "--out", str(out), "--no-gate"], catch_exceptions=False)
    (row,) = read_table(out).decisions
    assert [(choice.algo_proto, choice.channels) for choice in row.choices] == [((A.algorithm, A.protocol), 4)]
