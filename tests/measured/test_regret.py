"""Forced and default runs against NCCL's picks: what is known, what is noise, and what is not known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tuner
from tests.support import kinks, nccl_tests_text
from tuner.api import measure
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.plugin.table import parse
from tuner.times import measured
from tuner.times.measured.header import Header, MeasuredRun
from tuner.times.measured.samples import Combination, Measurements, Point, SampleBlock
from tuner.times.picks import PickVerdict
from tuner.times.placement import Site
from tuner.times.regret import arms, judged, workflow
from tuner.times.regret.arms import Arm, ArmCall, MeasuredArms, MeasuredCall
from tuner.times.regret.judged import Noise, NoiseSource, RunsPick
from tuner.times.regret.workflow import MeasuredRegret, RunsQuery

B200 = "b200-8x-64n__2.29.7__together"
RING, NVLSTREE = Combination(Algorithm.Ring, Protocol.Simple), Combination(Algorithm.NVLSTree, Protocol.Simple)
MIB, GIB = 1 << 20, 1 << 30
LARGE = [(MIB << power, 100.0 * 2**power) for power in range(6, 12)]


def of_files(*labelled: tuple[str, Path], **asked: object) -> MeasuredRegret:
    query = RunsQuery(labelled=labelled, site=Site("dgx-h100", "2.28.9"), **asked)  # type: ignore[arg-type]
    return workflow.of_arms(workflow.read(query))


def noise_of(one: RunsPick) -> Noise:
    assert one.evidence.noise is not None
    return one.evidence.noise


def log(path: Path, factor: float = 1.0, jitter: float = 0.0) -> Path:
    """Times in proportion to the size on 2 x 8 GPUs, 64 MiB to 2 GiB, where NCCL picks NVLSTree/Simple."""
    shakes = np.random.default_rng(len(path.name)).normal(0, jitter, len(LARGE))
    times = [(size, us * factor * float(np.exp(shake))) for (size, us), shake in zip(LARGE, shakes, strict=True)]
    return nccl_tests_text.write(path, times, nodes=2)


@pytest.fixture(scope="module")
def b200() -> MeasuredRegret:
    return workflow.of_arms(workflow.read(RunsQuery(tables=(B200,))))


def test_what_nccl_ran_on_the_b200_cluster_is_the_emulated_pick_wherever_it_can_be_known(b200: MeasuredRegret) -> None:
    known = {
        (one.call.nodes, one.call.bytes // GIB): one.evidence.identified
        for one in b200.sizes
        if one.evidence.identified
    }
    assert sorted(known) == [(nodes, size) for nodes in (2, 4, 8, 16, 32, 64) for size in (2, 4, 8)]
    nvlstree = {(2, 2), (2, 4), (2, 8), (16, 2), (32, 2), (32, 4), (64, 2), (64, 4), (64, 8)}
    for place, ran in known.items():
        assert ran.combination.algorithm is (Algorithm.NVLSTree if place in nvlstree else Algorithm.Ring), place
        assert ran.agrees, place
    found = b200.agreement
    assert (found.clear, found.clear_agreeing, found.nearest, found.nearest_agreeing) == (15, 15, 3, 3)


def test_what_the_b200_cluster_lost_is_recommended_only_beyond_the_published_noise(b200: MeasuredRegret) -> None:
    lost = {(one.call.nodes, one.call.bytes // GIB): one for one in b200.sizes if one.regret}
    assert {place: round(one.regret or 0, 3) for place, one in lost.items()} == {
        (16, 2): 0.155,
        (32, 2): 0.094,
        (32, 4): 0.1,
        (64, 4): 0.105,
        (64, 8): 0.353,
    }
    assert {one.call.nodes for one in lost.values() if one.verdict is PickVerdict.loses} == {16, 32}
    assert all(one.verdict is PickVerdict.tie for place, one in lost.items() if place[0] == 64)
    assert [row.row for row in b200.rows] == [
        "allreduce bytes=2G ranks=128 nodes=16 -> ring/simple",
        "allreduce bytes=2G ranks=256 nodes=32 -> ring/ll128",
        "allreduce bytes=4G ranks=256 nodes=32 -> ring/simple",
    ]
    assert all(one.verdict is PickVerdict.unknown for one in b200.sizes if one.call.collective is Collective.AllGather)


def test_a_recommended_row_is_one_of_a_decision_table(b200: MeasuredRegret) -> None:
    table = parse.from_text("nccl-tuner-table 1\n" + "\n".join(row.row for row in b200.rows) + "\n")
    assert [decision.choices[0].algo_proto for decision in table.decisions] == [
        row.choice.algo_proto for row in b200.rows
    ]


def test_a_pick_that_loses_beyond_the_noise_of_its_neighbours_is_named_with_the_row(tmp_path: Path) -> None:
    default, ring = log(tmp_path / "plain.log", 1.3), log(tmp_path / "ring.log", 1.0)
    found = of_files(("default", default), ("Ring/Simple", ring))
    own = [one for one in found.sizes if not one.call.in_place]
    assert {(one.emulated_pick, one.best, one.verdict) for one in own} == {(NVLSTREE, RING, PickVerdict.loses)}
    assert {noise_of(one).source for one in own} == {"neighbouring sizes"}
    assert own[0].regret == pytest.approx(0.3)
    (row,) = found.rows
    assert row.row == "allreduce bytes=64M..2G ranks=16 nodes=2 -> ring/simple"
    assert (row.surely, row.gain_low, row.gain_high) == pytest.approx((0.3, 0.3, 0.3))  # without any scatter


def test_a_gain_within_the_noise_is_a_tie_and_changes_nothing(tmp_path: Path) -> None:
    known = of_files(("default", log(tmp_path / "c.log", 1.2)), ("Ring", log(tmp_path / "dd.log")), noise_percent=25.0)
    assert {noise_of(one).source for one in known.sizes} == {"stated"}
    assert {one.verdict for one in known.sizes} == {PickVerdict.tie}
    assert known.rows == ()


@pytest.mark.parametrize("repeats", [1, 3])
def test_where_nothing_is_to_be_gained_few_picks_lose(repeats: int) -> None:
    rng = np.random.default_rng(5)
    verdicts = []
    for _ in range(100):
        calls = tuple(planted(MIB << power, rng.normal(0, 0.04, (2, repeats))) for power in range(14))
        found = workflow.of_arms(MeasuredArms(Site("dgx-h100", "2.28.9"), calls, {}, {}))
        verdicts += [one.verdict for one in found.sizes]
    assert 0 < verdicts.count(PickVerdict.loses) < 0.05 * len(verdicts)


def planted(size: int, shakes: np.ndarray) -> MeasuredCall:
    """Two arms of the same time, [arm, repeat]."""
    times = [tuple((size / 1e4 * np.exp(each)).tolist()) for each in shakes]
    call = ArmCall(Collective.AllReduce, DataType.float32, 2, 8, False, "", size)
    own = Arm("default", NVLSTREE, times[0], None)
    return MeasuredCall(call, NVLSTREE, own, (Arm("Ring", RING, times[1], None),))


def test_repeats_are_joined_and_their_scatter_is_the_noise(tmp_path: Path) -> None:
    files = [
        (label, log(tmp_path / f"{label}{'x' * number}.log", factor, 0.05))
        for number in range(4)
        for label, factor in (("default", 1.0), ("Ring", 1.05))
    ]
    found = of_files(*files)
    assert {len(arm.times_us) for one in found.sizes for arm in one.evidence.columns} == {4}
    assert {noise_of(one).source for one in found.sizes} == {"repeats"}
    assert 6 < noise_of(found.sizes[0]).percent < 18  # twice the deviation planted


def test_the_interval_of_a_regret_is_that_of_both_arms_repeats() -> None:
    """Stated noise of 5 %: half of the interval of a difference is that over the root of both numbers of repeats."""
    for repeats, other in ((1, 1), (4, 1), (4, 4)):
        one = planted(MIB, np.zeros((2, repeats)))
        arm = replace(one.forced[0], times_us=tuple(time_us / 1.2 for time_us in one.forced[0].times_us[:other]))
        calls = (replace(one, forced=(arm,)),)
        (found,) = workflow.of_arms(MeasuredArms(Site("dgx-h100", "2.28.9"), calls, {}, {"1": 5.0})).sizes
        half = np.log(1.05) * np.sqrt(1 / repeats + 1 / other)
        assert (found.low, found.high) == pytest.approx(tuple(np.expm1(np.log(1.2) + np.array([-half, half]))))


def test_of_repeats_and_what_is_stated_the_larger_counts(tmp_path: Path) -> None:
    files = [("default", log(tmp_path / f"{'x' * number}.log", 1.0, 0.05)) for number in range(1, 5)]
    for stated, source in ((0.5, "repeats"), (60.0, "stated")):
        assert {noise_of(one).source for one in of_files(*files, noise_percent=stated).sizes} == {source}


def test_no_row_is_recommended_that_would_lose_in_place_or_in_another_type() -> None:
    def calls(*faster: bool) -> tuple[MeasuredCall, ...]:
        shakes = [np.log([[2.0], [1.0 if each else 2.0]]) for each in faster]
        both = [planted(MIB, shake) for shake in shakes]
        return tuple(replace(one, call=replace(one.call, in_place=bool(n))) for n, one in enumerate(both))

    for faster, rows in (((True, True), 1), ((True, False), 0)):
        found = workflow.of_arms(MeasuredArms(Site("dgx-h100", "2.28.9"), calls(*faster), {}, {"1": 5.0}))
        assert [one.verdict is PickVerdict.loses for one in found.sizes] == list(faster)
        assert len(found.rows) == rows


def test_the_pick_is_that_of_the_default_run_and_its_variables(tmp_path: Path) -> None:
    plain, ring = log(tmp_path / "plain.log"), log(tmp_path / "ring.log")
    plain.write_text("mpirun -np 16 -x NCCL_NVLS_ENABLE=0 all_reduce_perf\n" + plain.read_text())
    for files in ((("default", plain), ("Tree", ring)), (("Tree", ring), ("default", plain))):
        assert NVLSTREE not in {one.emulated_pick for one in of_files(*files).sizes}


def test_without_a_default_run_what_forced_runs_switch_off_is_on_for_the_pick() -> None:
    table = measured.load(B200)
    rows = tuple(row for row in table.blocks if row.run in ("ring", "tree") and row.nodes == 2)
    found = arms.of_sources([arms.TableSource(replace(table, blocks=rows))], Site("dgx-b200", "2.29.7"))
    assert {one.pick.plain for one in found.calls if one.call.collective is Collective.AllReduce} == {NVLSTREE}


def test_default_runs_without_nvls_are_an_arm_beside_those_with_it() -> None:
    head = Header(
        runs={
            "plain": MeasuredRun("plain"),
            "off": MeasuredRun("NVLS switched off", {"NCCL_NVLS_ENABLE": "0"}),
        }
    )
    rows = tuple(
        SampleBlock(Point(Collective.AllReduce, 64 * MIB), None, None, (time_us,), shape=(2, 8), run=run)
        for run, time_us in (("plain", 400.0), ("off", 500.0))
    )
    table = Measurements(head, rows, name="two")
    (one,) = arms.of_sources([arms.TableSource(table)], Site("dgx-h100", "2.28.9")).calls
    assert [(arm.label, arm.time_us) for arm in one.arms] == [
        ("default", pytest.approx(400)),
        ("NCCL_NVLS_ENABLE=0", pytest.approx(500)),
    ]
    assert one.arms[1].combination.algorithm is Algorithm.Ring
    assert one.pick.plain == NVLSTREE


def test_an_arm_is_what_the_log_says_that_ran_else_what_is_emulated() -> None:
    head = Header(runs={"default": MeasuredRun("NCCL's own")})
    logged = Combination(Algorithm.Tree, Protocol.LL, 4)
    plain = SampleBlock(Point(Collective.AllReduce, 64 * MIB), None, None, (400.0,), shape=(2, 8), run="default")
    for row, ran in ((plain, NVLSTREE), (replace(plain, executed=logged), logged.plain)):
        table = Measurements(head, (row,), name="two")
        (one,) = arms.of_sources([arms.TableSource(table)], Site("dgx-h100", "2.28.9")).calls
        assert one.default is not None
        assert one.default.combination == ran
        assert one.default.logged == row.executed


def test_where_nothing_but_the_default_was_measured_the_answer_is_unknown(tmp_path: Path) -> None:
    found = of_files(("default", log(tmp_path / "a.log")))
    assert {(one.verdict, one.regret, one.others) for one in found.sizes} == {(PickVerdict.unknown, None, ())}
    assert {one.why for one in found.sizes} == {"nothing else was measured"}


def test_where_the_pick_was_not_measured_the_answer_is_unknown(tmp_path: Path) -> None:
    found = of_files(("Ring", log(tmp_path / "a.log")), ("Tree", log(tmp_path / "bb.log")))
    assert {(one.verdict, one.why) for one in found.sizes} == {
        (PickVerdict.unknown, "NVLSTree/Simple was not measured")
    }


def test_the_pick_may_be_among_forced_runs_without_a_default(tmp_path: Path) -> None:
    found = of_files(("Ring", log(tmp_path / "a.log")), ("NVLSTree", log(tmp_path / "bb.log", 2.0)))
    assert {one.verdict for one in found.sizes} == {PickVerdict.loses}
    assert [one.regret for one in found.sizes] == pytest.approx([1.0] * len(found.sizes))


def test_what_ran_unlike_the_emulated_pick_is_said(tmp_path: Path) -> None:
    files = [("default", log(tmp_path / "a.log")), ("Ring", log(tmp_path / "bb.log", 0.999))]
    found = of_files(*files, ("NVLSTree", log(tmp_path / "ccc.log", 1.5)))  # Ring's small lead is no loss: it ran
    assert found.agreement.clear == len(found.sizes)
    assert found.agreement.clear_agreeing == 0
    ran = [(one.evidence.identified, one.verdict) for one in found.sizes]
    assert {(each.label, verdict) for each, verdict in ran if each} == {("Ring", PickVerdict.best)}
    assert all(one.same[0].is_default for one in found.sizes)  # Ring ran, and its time is the default's


def test_a_text_that_names_its_variables_is_an_arm_of_these(tmp_path: Path) -> None:
    ring, tree = log(tmp_path / "ring.log"), log(tmp_path / "tree.log")
    ring.write_text("mpirun -np 16 -x NCCL_ALGO=Ring -x NCCL_PROTO=Simple all_reduce_perf\n" + ring.read_text())
    tree.write_text("n:1:1 [0] NCCL INFO NCCL_ALGO set by environment to TREE\n" + tree.read_text())
    found = workflow.read(RunsQuery(files=(ring, tree), site=Site("dgx-h100", "2.28.9")))
    assert [[arm.label for arm in one.forced] for one in found.calls] == [["Ring/Simple", "Tree"]] * len(found.calls)
    with pytest.raises(BadInput, match=r"ring\.log:\d+: Ring/Simple was forced, but arm= says Tree"):
        of_files(("Tree", ring))
    with pytest.raises(BadInput, match="arm= says default"):
        of_files(("default", ring))


def test_json_of_nccl_tests_names_its_variables(tmp_path: Path) -> None:
    record = {
        "args": ["./all_reduce_perf"],
        "env": ["HOME=/root", "NCCL_ALGO=Ring"],
        "nccl_version": 22809,
        "config": {"devices": [{"hostname": f"n{n // 8}", "device_info": "H100"} for n in range(16)]},
        "results": [
            {"size": 64 * MIB, "type": "float", "redop": "sum", "out_of_place": {"time": 500.0, "nwrong": 0}},
        ],
    }
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(record))
    (one,) = workflow.read(RunsQuery(files=(path,), site=Site("dgx-h100"))).calls
    assert [arm.label for arm in one.forced] == ["Ring"]


def test_rows_that_log_what_ran_are_the_default() -> None:
    found = workflow.of_arms(workflow.read(RunsQuery(tables=("v100-8x__2.27.5__dgx1",))))
    (one,) = found.sizes
    assert (one.verdict, one.why) == (PickVerdict.unknown, "the noise is not known")
    identified = one.evidence.identified
    assert identified is not None
    assert (identified.logged, identified.agrees, one.regret) == (True, True, pytest.approx(0.446, abs=0.001))
    assert str(one.best) == "Ring/LL channels=24"
    known = workflow.of_arms(workflow.read(RunsQuery(tables=("v100-8x__2.27.5__dgx1",), noise_percent=5.0)))
    assert [row.row for row in known.rows] == ["allreduce bytes=1600K ranks=8 nodes=1 -> ring/ll channels=24"]


def test_runs_of_measure_are_arms_with_their_rounds_as_repeats(tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    machine = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
    measure("allreduce", out=run, simulated=machine, seed=7, sizes=[65536, MIB, 16 * MIB], rounds=6)
    found = workflow.of_arms(workflow.read(RunsQuery(files=(run,))))
    assert [one.call.bytes for one in found.sizes] == [65536, MIB, 16 * MIB]
    assert {noise_of(one).source for one in found.sizes} == {"repeats"}
    assert all(len(arm.times_us) > 1 for one in found.sizes for arm in one.evidence.columns)
    alone = tuner.verify(run)
    assert [one.best for one in found.sizes] == [one.best for one in alone.sizes]
    assert [one.regret for one in found.sizes] == pytest.approx([one.regret for one in alone.sizes], abs=0.02)


@pytest.mark.parametrize(
    ("label", "forces"),
    [
        ("default", ("", "", 0)),
        ("ring", ("Ring", "", 0)),
        ("LL128", ("", "LL128", 0)),
        ("NVLS/Simple", ("NVLS", "Simple", 0)),
        ("Ring/LL/8", ("Ring", "LL", 8)),
    ],
)
def test_labels(label: str, forces: tuple[str, str, int]) -> None:
    assert arms.by_label(label).parts == forces


@pytest.mark.parametrize("label", ["", "Rings", "Ring/Tree", "Ring/LL/0", "Ring/", "default/Ring"])
def test_labels_that_are_none(label: str) -> None:
    with pytest.raises(BadInput, match="give default, or what was forced"):
        arms.by_label(label)


def test_two_smaller_calls_that_beat_one_are_found_in_default_runs(tmp_path: Path) -> None:
    doubled = [(MIB << power, 100.0 * 2**power) for power in range(14)]
    slow = [(size, us * (1.4 if size >= 512 * MIB else 1.0)) for size, us in doubled]
    found = of_files(("default", nccl_tests_text.write(tmp_path / "a.log", slow, nodes=2)), noise_percent=2.0)
    split = [one for one in found.splits if not one.call.in_place]
    assert [(one.call.bytes, one.part_bytes, one.parts) for one in split] == [(512 * MIB, 256 * MIB, 2)]
    assert split[0].gain == pytest.approx(0.4)
    assert split[0].low < 0.4
    assert of_files(("default", log(tmp_path / "b.log")), noise_percent=2.0).splits == ()


def test_third_differences_see_the_noise_and_not_the_curve() -> None:
    table = measured.load("h100-8x__2.29.2__aiconfigurator")
    found = arms.of_sources([arms.TableSource(table)], Site("dgx-h100", "2.29.2"))
    halves = {each.source: each for each in judged.of_arms(found).values()}
    assert set(halves) == {NoiseSource.sizes}
    assert all(0.5 < each.percent < 12 for each in judged.of_arms(found).values())


def test_published_noise_holds_from_its_number_of_nodes_on(b200: MeasuredRegret) -> None:
    known = {one.call.nodes: round(noise_of(one).percent, 3) for one in b200.sizes}
    assert known == {1: 5, 2: 5, 4: 5, 8: 5, 16: 5, 32: 5, 64: 30}


def test_what_to_force_next_was_never_measured_and_may_be_faster(b200: MeasuredRegret) -> None:
    found = workflow.next_runs(b200.measured)
    assert found.not_answered == ()
    gains = [run.possible_gain for run in found.runs]
    assert gains == sorted(gains, reverse=True)
    assert gains
    for run in found.runs:
        assert run.low_us < run.pick_us
        assert run.possible_gain == pytest.approx(run.pick_us / run.low_us - 1)
        call = next(
            one
            for one in b200.measured.calls
            if (one.call.collective, one.call.nodes, one.call.bytes) == (run.collective, run.nodes, run.bytes)
        )
        assert run.combination.algo_proto not in {arm.combination.algo_proto for arm in call.arms}
    without_ring = replace(
        b200.measured,
        calls=tuple(
            replace(one, forced=tuple(a for a in one.forced if a.label != "Ring")) for one in b200.measured.calls
        ),
    )
    assert len(workflow.next_runs(without_ring).runs) > len(found.runs)


def curve(bend_at: int, change_at: int) -> list[MeasuredCall]:
    """Of 12 doubled sizes in proportion to which time grows; from one on it takes longer, and from one the pick is
    another.
    """
    calls = []
    for power in range(12):
        call = ArmCall(Collective.AllReduce, DataType.float32, 2, 8, False, "", MIB << power)
        pick = RING if power < change_at else NVLSTREE
        time_us = 100.0 * 2**power * (1.5 if power >= bend_at else 1.0)
        calls.append(MeasuredCall(call, pick, Arm("default", pick, (time_us,), None), ()))
    return calls


@pytest.mark.parametrize(("bend_at", "there"), [(6, 1), (2, 0), (10, 0)])
def test_the_largest_kink_is_where_the_curve_bends(bend_at: int, there: int) -> None:
    found = kinks.kinks(curve(bend_at, change_at=6))
    assert [(each.before, each.after) for each in found] == [
        (kinks.ANY, kinks.ANY),
        ("Ring/Simple", "NVLSTree/Simple"),
    ]
    assert [(each.curves, each.largest_there, each.by_chance) for each in found] == [(1, there, 0.2)] * 2
    again = kinks.together([*found, *found])
    assert [(each.curves, each.largest_there, each.by_chance) for each in again] == [(2, 2 * there, 0.4)] * 2


def test_curves_of_few_sizes_or_without_a_change_have_no_kinks() -> None:
    assert kinks.kinks(curve(6, change_at=99)) == []
    assert kinks.kinks(curve(6, change_at=6)[3:10]) == []


def test_machine_and_release_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="machine=: no file says it"):
        workflow.read(RunsQuery(files=(log(tmp_path / "a.log"),)))
    with pytest.raises(BadInput, match="files of several"):
        workflow.read(RunsQuery(tables=(B200, "h100-8x__2.29.2__aiconfigurator")))
    with pytest.raises(BadInput, match="no row of 3 nodes: it has 1, 2, 4"):
        workflow.read(RunsQuery(tables=(B200,), nodes=3))
