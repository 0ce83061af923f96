"""Properties of verdicts, over all public runs that ship and 10,000 drawn changes of them."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.scripts import write_judging, write_public_runs
from tests.support import nccl_tests_text
from tests.support.command_line import run
from tests.support.judged_runs import RUNS, judged
from tuner import release
from tuner.base import tables
from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.scenario.describe import describe
from tuner.times import measured
from tuner.times.acceptance import accept, curves, judge, limits, public_runs
from tuner.times.acceptance.expected import Expectation, nothing
from tuner.times.acceptance.in_findings import RunVerdict
from tuner.times.acceptance.judge import SizeVerdict
from tuner.times.acceptance.public_runs import PublicCurve
from tuner.times.calibration import plausible
from tuner.times.measured.formats import Given

DRAWN = 10_000
FOLDER = tables.folder()
ORDER = (RunVerdict.fails, RunVerdict.not_judged, RunVerdict.passes)
TABLE = measured.load("h100-8x__2.29.2__aiconfigurator")


def verdict(curve: PublicCurve) -> RunVerdict:
    found = judged(curve)
    if found is None:
        return RunVerdict.not_judged
    if not found.passes:
        return RunVerdict.fails
    return RunVerdict.passes if found.judged else RunVerdict.not_judged


def slower(curve: PublicCurve, at: int, factor: float) -> PublicCurve:
    times = list(curve.time_us)
    times[at] *= factor
    return replace(curve, time_us=tuple(times))


def without(curve: PublicCurve, at: int) -> PublicCurve:
    sizes, times, model = (
        tuple(np.delete(values, at).tolist()) for values in (curve.bytes, curve.time_us, curve.model_us)
    )
    return replace(curve, bytes=sizes, time_us=times, model_us=model)


def test_no_slower_row_makes_a_verdict_better() -> None:
    draw = random.Random(54)
    before: dict[int, RunVerdict] = {}
    for _ in range(DRAWN):
        number = draw.randrange(len(RUNS))
        changed = RUNS[number]
        before.setdefault(number, verdict(changed))
        for _ in range(draw.randint(1, 3)):
            changed = slower(changed, draw.randrange(len(changed.bytes)), 2 ** draw.uniform(0, 7))
        assert ORDER.index(verdict(changed)) <= ORDER.index(before[number]), changed


def test_leaving_out_a_row_that_is_not_slow_turns_no_failure_into_a_pass() -> None:
    draw = random.Random(55)
    for curve in draw.choices(RUNS, k=2500):
        changed = curve
        for _ in range(draw.randint(0, 4)):
            changed = slower(changed, draw.randrange(len(changed.bytes)), 2 ** draw.uniform(0, 7))
        found = judged(changed)
        if found is None or found.passes:
            continue
        fine = [at for at, each in enumerate(found.verdicts) if each not in (SizeVerdict.slow, SizeVerdict.isolated)]
        if fine:
            assert verdict(without(changed, draw.choice(fine))) is not RunVerdict.passes, changed


def test_a_run_gets_no_better_verdict_on_the_way_to_half_of_its_speed() -> None:
    for curve in RUNS:
        found = [
            verdict(replace(curve, time_us=tuple(time * factor for time in curve.time_us)))
            for factor in (1, 4 / 3, 3 / 2, 2)
        ]
        assert [*found] == sorted(found, key=ORDER.index, reverse=True), curve


def test_no_healthy_run_passes_with_every_time_doubled() -> None:
    passing = 0
    for curve in RUNS:
        if curve.is_healthy:
            passing += verdict(curve) is RunVerdict.passes
            doubled = replace(curve, time_us=tuple(2 * time for time in curve.time_us))
            assert verdict(doubled) is not RunVerdict.passes, curve
    assert passing > 400


@pytest.mark.parametrize("several", [True, False])
def test_a_row_60_times_slower_fails_wherever_a_run_is_judged(several: bool) -> None:
    positions = 0
    for curve in RUNS:
        if curve.nodes > 1 != several or (found := judged(curve)) is None:
            continue
        if not (curve.is_healthy and found.passes):
            continue
        for at, nbytes in enumerate(curve.bytes):
            if nbytes >= 4 << 20 and not np.isnan(found.expected.time_us[at]):
                positions += 1
                assert verdict(slower(curve, at, 60)) is RunVerdict.fails, (curve, nbytes)
    assert positions > 500


def test_order_of_rows_blank_lines_and_placement_do_not_matter(tmp_path: Path) -> None:
    rows = [
        (row.point.bytes, row.median_us)
        for row in TABLE.blocks
        if row.gpus_per_node == 8 and row.point.name == "allreduce" and row.point.dtype is DataType.float16
    ]
    codes = {}
    for slow, code in ((1, 0), (1.6, 1)):
        given = [(size, time * (slow if size > 1 << 24 else 1)) for size, time in rows]
        own = nccl_tests_text.write(tmp_path / "own.log", given, nccl=22902, in_place=1).read_text("utf-8")
        lines = own.splitlines()
        first = next(at for at, line in enumerate(lines) if line.split()[:1] == [str(given[0][0])])
        mixed = lines[first:]
        random.Random(3).shuffle(mixed)
        for name, text in {
            "order": "\n".join([*lines[:first], *mixed]) + "\n",
            "blank": "\n\n".join(lines) + "\n",
        }.items():
            (tmp_path / f"{name}.log").write_text(text, "utf-8")
            run("accept", str(tmp_path / f"{name}.log"), "--machine", "dgx-h100", code=code)
        columns = [f"allreduce,float32,1,8,{size},{time},1" for size, time in given]
        head = "collective,dtype,nodes,gpus_per_node,bytes,time_us,in_place"
        (tmp_path / "placed.csv").write_text("\n".join([head, *columns]) + "\n", "utf-8")
        run("accept", str(tmp_path / "placed.csv"), "--machine", "dgx-h100", "--nccl", "2.29.2", code=code)
        codes[slow] = code
    assert set(codes.values()) == {0, 1}


@pytest.mark.slow
def test_the_public_runs_and_their_limits_are_those_of_the_tables() -> None:
    runs = public_runs.text_of(list(write_public_runs.shipped_curves()))
    assert runs == (FOLDER / public_runs.FILE).read_text("utf-8")
    learnt = write_judging.learnt(write_judging.seen())
    assert write_judging.text_of(learnt) == (FOLDER / limits.FILE).read_text("utf-8")


@pytest.mark.slow
def test_a_row_60_times_slower_fails_at_every_position_of_every_table_of_a_known_machine() -> None:
    """Also where nothing is near enough to compare with: the links alone fail it there."""
    positions, tables_seen, unexpected = 0, 0, 0
    for name in measured.names():
        machine = measured.load(name).header.machine
        if not machine:
            continue  # judged by public runs alone, as above
        scenario = describe(machine)
        file = accept.read_results(Path(name), Given(), scenario)
        nccl = file.table.header.nccl
        expectation = Expectation(replace(scenario, nccl=nccl if nccl in release.names() else scenario.nccl))
        expectation.judged_tables = frozenset([name])
        own = expectation.scenario.resolve().own
        rows = {row.line: row for row in file.table.blocks}
        tables_seen += 1
        for curve in curves.of_table(file.table, name, expectation.scenario)[0]:
            try:
                expected = expectation.times(curve.kind, curve.bytes)
            except BadInput:  # sends and receives that nothing has times of
                expected = nothing(len(curve.bytes))
                unexpected += 1
            fastest_us = plausible.fastest_us_on(own.topology, own.trays)
            least_us = np.array([fastest_us(rows[at[0]]) for at in curve.lines])
            for at in np.flatnonzero(curve.bytes >= 4 << 20):
                slower_us = curve.time_us * np.where(np.arange(len(curve.bytes)) == at, 60, 1)
                found = judge.judge(replace(curve, time_us=slower_us, worst=None), expected, least_us)
                assert not found.passes, (name, curve.kind, int(curve.bytes[at]))
                positions += 1
    assert tables_seen > 40
    assert positions > 4500
    assert unexpected > 50


def test_no_healthy_public_run_takes_as_many_times_what_its_links_need_as_fail() -> None:
    """In a node, and AllToAll and SendRecv between nodes, from 4 MiB on."""
    most = 0.0
    for name in measured.names():
        table = measured.load(name)
        if not table.header.machine:
            continue
        own = describe(table.header.machine).resolve().own
        for row in table.blocks:
            of_run = table.header.runs.get(row.run)
            health = (of_run.health if of_run else None) or table.header.health
            exchange = row.point.name in ("alltoall", "sendrecv")
            if health.value != "healthy" or row.point.bytes < judge.BEYOND_BYTES or (row.nodes > 1 and not exchange):
                continue
            most = max(most, row.median_us / plausible.fastest_us_on(own.topology, own.trays)(row))
    assert 20 < most < judge.BEYOND_LINKS / 1.4
