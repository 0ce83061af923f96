"""Fits against machines whose constants are known: what is found, what cannot be, and what must not move it."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.table_search import find_cost
from tuner import release
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType, Op, Protocol
from tuner.cli import everything as cli
from tuner.emulator import fitted_constants
from tuner.emulator.build import with_release
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.plugin.table.parse import read as read_table
from tuner.scenario import Scenario
from tuner.times.calibration import fit as model
from tuner.times.calibration import observations, workflow
from tuner.times.calibration.fit import AT_LEAST, IDENTIFIED, KEPT_ALIKE, KEPT_WITHOUT_EFFECT, TOGETHER, Fit, identify
from tuner.times.calibration.forward import constants, tables
from tuner.times.calibration.workflow import held_out
from tuner.times.costmodels.line import deviations
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Point, SampleBlock, Writer

SIZES = tuple(1 << power for power in range(3, 31))
ALL = tuple(Collective)


def true_us(
    scenario: Scenario, change: Mapping[str, Any], collective: Collective, sizes: Sequence[int]
) -> dict[Any, Any]:
    """By combination, the times of all sizes; only of combinations that the model has a time for."""
    communicator = scenario.communicator()
    nccl = fitted_constants.apply(release.load(scenario.nccl), FittedConstants(scenario.nccl, change, {}))
    selection = Selection(with_release(communicator, nccl))
    request = Request(collective, DataType.float32, Op.sum)
    times_us = selection.cost_table(request, sizes)
    out = selection.excluded(request)
    return {
        algo_proto: times_us[:, algo_proto[0], algo_proto[1]].astype(float)
        for algo_proto in ALGO_PROTOS
        if algo_proto not in out
    }


def blocks(
    scenario: Scenario,
    change: Mapping[str, Any],
    *,
    seed: int = 1,
    collectives: Iterable[Collective] = ALL,
    sizes: Sequence[int] = SIZES,
    repeats: int = 20,
    sigma: float = 0.02,
    spikes: float = 0.02,
) -> list[SampleBlock]:
    """Lognormal noise, and now and then a run that takes up to five times as long."""
    rng = np.random.default_rng(seed)
    made = []
    for collective in collectives:
        for (algorithm, protocol), times_us in true_us(scenario, change, collective, sizes).items():
            for nbytes, time_us in zip(sizes, times_us, strict=True):
                runs = time_us * np.exp(rng.normal(0, sigma, repeats))
                runs *= np.where(rng.random(repeats) < spikes, rng.uniform(1.5, 5, repeats), 1)
                requested = Combination(Algorithm(algorithm), Protocol(protocol))
                made.append(SampleBlock(Point(collective, nbytes), requested, requested, tuple(runs.tolist())))
    return made


def write(path: Path, scenario: Scenario, what: Iterable[SampleBlock]) -> Path:
    with Writer(path, Header(scenario=scenario)) as file:
        for block in what:
            file.add(block)
    return path


NCCL = "2.28.9"
TWO = Scenario(NCCL, 2, machine="dgx-h100")
CHANGE: dict[str, Any] = {
    "base_latency_us": {"ring": {"ll": 9.0, "simple": 12.0}, "tree": {"ll": 5.0}},
    "hw_latency_us": {
        "nvlink": {"ring": {"ll": 0.9, "ll128": 1.2}},
        "net": {"ring": {"ll": 4.0, "simple": 10.0}, "tree": {"ll": 8.0, "simple": 20.0}},
    },
    "efficiency": {"ring": {"simple": 0.7, "ll128": 0.9}, "tree": {"simple": 0.8}, "nvls_tree": {"simple": 0.6}},
    "ring_plateau": {"hopper": 1.8},
    "tree_correction": {"ll": [round(f**1.5, 9) for f in release.load(NCCL).tree_correction[Protocol.LL]]},
}


def fitted(*paths: Path) -> Fit:
    return model.fit(observations.read(paths))


def by_name(fit: Fit) -> dict[str, Any]:
    return {one.name: one for one in fit.constants}


def planted(name: str, change: Mapping[str, Any], nccl: float) -> float:
    """The true value of a constant by the name a fit gives it."""
    if name == "tree_correction.ll.exponent":
        return 1.5 if "tree_correction" in change else 1.0
    value: Any = change
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return nccl if value is None else float(value)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One, two and four nodes."""
    folder = tmp_path_factory.mktemp("planted")
    cases = [replace(TWO, nodes=nodes) for nodes in (1, 2, 4)]
    return [
        write(folder / f"{scenario.nodes}.jsonl", scenario, blocks(scenario, CHANGE, seed=scenario.nodes))
        for scenario in cases
    ]


@pytest.fixture(scope="module")
def all_nodes(files: list[Path]) -> Fit:
    return fitted(*files)


@pytest.mark.slow
def test_planted_constants_are_found_within_5_percent(all_nodes: Fit) -> None:
    found = by_name(all_nodes)
    identified = [one for one in all_nodes.constants if one.status == IDENTIFIED]
    off = {one.name: one.value / planted(one.name, CHANGE, one.nccl) - 1 for one in identified}
    assert {name: round(share, 3) for name, share in off.items() if abs(share) > 0.05} == {}
    for name in (
        "base_latency_us.ring.ll",
        "base_latency_us.ring.simple",
        "hw_latency_us.nvlink.ring.ll",
        "hw_latency_us.net.ring.ll",
        "hw_latency_us.net.tree.ll",
        "hw_latency_us.net.tree.simple",
        "efficiency.ring.simple",
        "ring_plateau.hopper",
        "tree_correction.ll.exponent",
    ):
        assert found[name].status == IDENTIFIED, name
        assert abs(planted(name, CHANGE, found[name].nccl) / found[name].nccl - 1) > 0.05, name


@pytest.mark.slow
def test_a_share_below_1_presumes_that_idle_caps_are_no_lower(all_nodes: Fit) -> None:
    found = by_name(all_nodes)["efficiency.ring.ll128"]
    assert found.value == pytest.approx(planted(found.name, CHANGE, 1.0), rel=0.02)
    assert found.value < 1
    assert found.status == TOGETHER
    assert "cap_gbs.ring_ll128_per_channel.hopper.1_node" in found.alike


@pytest.mark.slow
def test_the_intervals_hold_the_truth(all_nodes: Fit) -> None:
    identified = [one for one in all_nodes.constants if one.status == IDENTIFIED]
    inside = [one.low <= planted(one.name, CHANGE, one.nccl) <= one.high for one in identified]
    assert len(inside) > 20
    assert np.mean(inside) >= 0.9


def test_one_node_count_cannot_tell_a_tree_s_base_from_its_steps(files: list[Path]) -> None:
    found = by_name(fitted(files[1]))
    group = [found[f"{name}.tree.ll"] for name in ("base_latency_us", "hw_latency_us.nvlink", "hw_latency_us.net")]
    kept = [one for one in group if one.status == KEPT_ALIKE]
    (used,) = (one for one in group if one.status == TOGETHER)
    assert len(kept) == 2
    for one in kept:
        assert one.value == one.nccl
        assert used.name in one.alike
        assert used.alike[one.name] == one.alike[used.name]
    # What is known is their sum: 2 nodes of 8 are 14 steps inside and 2 between.
    nccl = release.load(NCCL)
    wire = 2 * TWO.communicator().graphs[Algorithm.Tree].latency_inter_us
    base, inside, between = (one.value for one in group)
    assert base + 14 * inside + 2 * between == pytest.approx(5.0 + 14 * 0.6 + 2 * 8.0, rel=0.03)
    assert wire >= 0
    assert nccl.hw_latency_us["nvlink"][Algorithm.Tree][Protocol.LL] == 0.6
    assert found["base_latency_us.ring.ll"].status == IDENTIFIED  # of other collectives with other steps


def test_a_cap_that_acts_as_an_efficiency_keeps_nccl_s_value(files: list[Path]) -> None:
    found = by_name(fitted(files[1]))
    cap = found["cap_gbs.nvls_tree_per_channel.hopper.2_nodes"]
    assert (cap.status, cap.value) == (KEPT_ALIKE, cap.nccl)
    assert cap.alike == {"efficiency.nvls_tree.simple": pytest.approx(1.0, abs=0.01)}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.66, 0.8])
def test_caps_beyond_the_point_where_they_bind_are_found(share: float, tmp_path: Path) -> None:
    """The one of one node does not bind in truth, where NCCL's does: no slope leads there from NCCL's value."""
    rows = release.load(NCCL).cap_gbs["ll"]
    change = {
        "cap_gbs": {"ll": {row: [1.97 * value for value in rows[row]] for row in ("volta", "hopper")}},
        "efficiency": {"tree": {"ll": share}},
    }
    paths = []
    for scenario in (replace(TWO, nodes=nodes) for nodes in (1, 2, 4)):
        some = blocks(scenario, change, collectives=[Collective.AllReduce])
        low_latency = [each for each in some if each.requested and each.requested.protocol is Protocol.LL]
        paths.append(write(tmp_path / f"{scenario.nodes}.jsonl", scenario, low_latency))
    found = by_name(fitted(*paths))
    for name, value in {
        "cap_gbs.ll.volta.2_nodes": 1.97 * 39,
        "cap_gbs.ll.volta.more_nodes": 1.97 * 20.4,
        "efficiency.tree.ll": share,
        "efficiency.ring.ll": 1.0,
    }.items():
        assert found[name].value == pytest.approx(value, rel=0.02), name
        assert found[name].status == (TOGETHER if found[name].value < 0.9 else IDENTIFIED), name
    alone = found["cap_gbs.ll.hopper.1_node"]
    assert (alone.status, alone.low, alone.high) == (AT_LEAST, None, None)
    assert alone.value > alone.nccl


def test_what_was_not_measured_keeps_nccl_s_value(tmp_path: Path) -> None:
    some = blocks(TWO, CHANGE, collectives=[Collective.AllGather])
    found = fitted(write(tmp_path / "a.jsonl", TWO, some))
    assert "base_latency_us.tree.ll" in found.unreached
    assert "hw_latency_us.pci.ring.ll" in found.unreached
    assert "base_latency_us.nvls_tree.simple" in found.zeros
    rows = [found.tables["base_latency_us"], found.tables["efficiency"], *found.tables["hw_latency_us"].values()]
    assert {algorithm for row in rows for algorithm in row} == {"ring"}
    assert set(found.tables) == {"base_latency_us", "hw_latency_us", "efficiency"}


def test_small_sizes_say_nothing_of_bandwidths(tmp_path: Path) -> None:
    small = blocks(TWO, CHANGE, sizes=[8, 16, 32, 64, 128, 256, 512, 1024])
    found = by_name(fitted(write(tmp_path / "a.jsonl", TWO, small)))
    assert {one.status for name, one in found.items() if name.startswith("efficiency.ring")} == {KEPT_WITHOUT_EFFECT}
    assert found["base_latency_us.ring.ll"].value == pytest.approx(9.0, rel=0.05)


@pytest.mark.slow
def test_replaced_and_wrong_blocks_and_outliers_do_not_move_the_fit(tmp_path: Path) -> None:
    few = [Collective.AllGather, Collective.AllReduce]
    clean = blocks(TWO, CHANGE, collectives=few, spikes=0)
    dirty, rng = [], np.random.default_rng(5)
    for block in clean:
        other = Combination(Algorithm.NVLS, Protocol.Simple)
        slow = tuple(50 * time_us for time_us in block.times_us)
        dirty += [replace(block, executed=other, times_us=slow), replace(block, times_us=slow, wrong=1)]
        spiked = tuple(time_us * (8 if rng.random() < 0.15 else 1) for time_us in block.times_us)
        # Now and then a call is slow whatever is done: the median too.
        factor = 3 if rng.random() < 0.03 else 1
        dirty.append(replace(block, times_us=tuple(factor * time_us for time_us in spiked)))
    one = fitted(write(tmp_path / "clean.jsonl", TWO, clean))
    read = observations.read([write(tmp_path / "dirty.jsonl", TWO, dirty)])
    other_fit = model.fit(read)
    assert read.left_out["sample blocks that NCCL replaced"] == len(clean)
    assert read.left_out["sample blocks with wrong results"] == len(clean)
    for name, constant in by_name(one).items():
        if constant.status == IDENTIFIED:
            assert by_name(other_fit)[name].value == pytest.approx(constant.value, rel=0.05), name


@pytest.mark.slow
def test_the_held_out_error_is_that_of_sizes_that_were_not_used(files: list[Path]) -> None:
    read = observations.read(files[1:2])
    held = {size for group in read.groups for size in group.sizes.nbytes[group.held_out].tolist()}
    assert held == set(SIZES[2:-1:4])
    found = model.fit(read)
    made = fitted_constants.apply(release.load(NCCL), FittedConstants(NCCL, found.tables, {}))
    selection = Selection(with_release(TWO.communicator(), made))
    off = []
    for group in read.groups:
        table = selection.cost_table(group.request, group.sizes.nbytes)[:, group.algo_proto[0], group.algo_proto[1]]
        off += (100 * np.abs(table / group.median_us - 1))[group.held_out].tolist()
    *parts, everything = found.errors
    assert everything.fitted_held_out_percent == pytest.approx(np.mean(off))
    assert everything.held_out_calls == len(off) == sum(part.held_out_calls for part in parts)
    assert everything.fitted_held_out_percent < 1 < 5 < everything.nccl_held_out_percent

    # Held-out times reach no constant.
    lied = tuple(
        replace(group, median_us=np.where(group.held_out, 10 * group.median_us, group.median_us))
        for group in read.groups
    )
    again = model.fit(replace(read, groups=lied))
    assert again.tables == found.tables
    assert again.errors[-1].fitted_held_out_percent == pytest.approx(90, abs=2)


def test_a_model_that_misses_the_times_says_so(tmp_path: Path) -> None:
    """Times that no constants explain: wider intervals, no false knowledge."""
    rng, spoiled = np.random.default_rng(1), []
    for block in blocks(TWO, {}):
        factor = np.exp(rng.normal(0, 0.3))
        spoiled.append(replace(block, times_us=tuple(factor * time_us for time_us in block.times_us)))
    found = fitted(write(tmp_path / "a.jsonl", TWO, spoiled))
    assert found.noise > 10
    assert not [one.name for one in found.constants if one.status == IDENTIFIED]
    rough = [one for one in found.constants if one.low is not None]
    assert rough
    assert np.mean([one.low <= one.nccl <= one.high for one in rough]) > 0.75


@pytest.mark.slow
def test_a_host_s_floor_is_not_taken_for_a_latency(tmp_path: Path) -> None:
    """Small calls take what the host does; without a word of it, that would be an identified latency of the GPUs."""
    change = {"hw_latency_us": {"nvlink": {"ring": {"ll": 0.9}}}}
    scenario, floor_us, rng = replace(TWO, nodes=1), 30.0, np.random.default_rng(3)
    with_floor = [
        replace(each, times_us=tuple(max(time_us, floor_us * np.exp(rng.normal(0, 0.02))) for time_us in each.times_us))
        for each in blocks(scenario, change)
    ]
    path = write(tmp_path / "a.jsonl", scenario, with_floor)
    read = observations.read([path])
    (floor,) = read.floors
    assert floor.floor_us == pytest.approx(floor_us, rel=0.02)
    assert min(group.median_us.min() for group in read.groups) > 1.2 * floor_us
    assert any(f"{floor.calls}" == str(count) and "the host takes" in why for why, count in read.left_out.items())
    one = by_name(model.fit(read))["hw_latency_us.nvlink.ring.ll"]
    assert one.low is None or one.low <= 0.9 <= one.high
    said = CliRunner().invoke(cli, ["fit", "constants", str(path)], catch_exceptions=False).output
    assert (
        "the fastest calls of several combinations all take 30.0 us, which must be the time that the host needs" in said
    )
    assert observations.read([write(tmp_path / "b.jsonl", scenario, blocks(scenario, change))]).floors == ()
    # What the backend says of its host's time.
    bound = [replace(each, host_us=0.9 * each.median_us) for each in blocks(scenario, change, sizes=SIZES[:4])]
    rest = blocks(scenario, change, sizes=SIZES[4:])
    marked = observations.read([write(tmp_path / "c.jsonl", scenario, [*bound, *rest])])
    assert min(group.sizes.nbytes.min() for group in marked.groups) == SIZES[4]
    assert marked.left_out["sample blocks whose times are the host's, not the GPUs'"] == len(bound)


@pytest.mark.slow
def test_sessions_and_communicators_are_held_out(files: list[Path], tmp_path: Path) -> None:
    of_node = observations.read(files[:2])
    titles = [scenario.title for scenario in of_node.cases]
    errors = {one.what: one for one in held_out(of_node)}
    assert list(errors) == titles  # one session each
    calls = {shape: sum(len(group.median_us) for group in of_node.groups if group.shape == shape) for shape in (0, 1)}
    assert [errors[title].calls for title in titles] == list(calls.values())
    assert all(one.nccl_percent > 5 for one in errors.values())
    # Three sessions, of which the third is another machine: a fit to the others cannot know it.
    scenario = replace(TWO, nodes=1)
    sessions = [
        replace(each, process=number, times_us=tuple((1 + 0.2 * (number == 2)) * time_us for time_us in each.times_us))
        for number in range(3)
        for each in blocks(scenario, CHANGE, seed=number, collectives=[Collective.AllReduce])
    ]
    (of_sessions,) = held_out(observations.read([write(tmp_path / "a.jsonl", scenario, sessions)]))
    assert of_sessions.what == "sessions"
    assert of_sessions.calls == len(sessions) / 3
    assert of_sessions.fitted_percent == pytest.approx(100 * 0.2 / 1.2, abs=1.5)


@pytest.mark.slow
def test_sizes_that_the_model_misses_are_named_and_do_not_speak_for_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)

    def off(block: SampleBlock) -> SampleBlock:
        factor = np.exp(rng.normal(0, 0.5)) if block.point.bytes <= 64 else 1.0
        return replace(block, times_us=tuple(factor * time_us for time_us in block.times_us))

    path = write(tmp_path / "a.jsonl", TWO, [off(each) for each in blocks(TWO, {})])
    found = fitted(path)
    by_bytes = {one.from_bytes: one.noise for one in found.noise_by_size}
    assert min(by_bytes[size] for size in (8, 16, 64)) > 10
    assert max(noise for size, noise in by_bytes.items() if size > 64) < 3
    assert found.noise < 3
    said = CliRunner().invoke(cli, ["fit", "constants", str(path)], catch_exceptions=False).output
    assert "the model is further off at some sizes, which get less weight (standard deviations): from 8 B" in said


def test_nccl_s_own_machine_is_left_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TWO, blocks(TWO, {}, sigma=0.002, spikes=0))
    for one in fitted(path).constants:
        assert one.value == pytest.approx(one.nccl, rel=0.05), one.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2.18.1", "2.21.5", "2.23.4", "2.27.7", "2.30.7", "2.32.3"])
def test_every_release_can_be_fitted(name: str, tmp_path: Path) -> None:
    scenario = Scenario(name, 2, machine="dgx-a100")
    change = {"hw_latency_us": {"net": {"ring": {"ll": 5.0}}}, "efficiency": {"ring": {"simple": 0.6}}}
    found = by_name(fitted(write(tmp_path / "a.jsonl", scenario, blocks(scenario, change))))
    assert found["hw_latency_us.net.ring.ll"].value == pytest.approx(5.0, rel=0.05)
    assert found["efficiency.ring.simple"].value == pytest.approx(0.6, rel=0.05)


def test_every_constant_is_where_a_file_may_have_it(tmp_path: Path) -> None:
    for name in release.names():
        nccl = release.load(name)
        able, zeros = constants(nccl)
        assert len({str(one) for one in able} | set(zeros)) == len(able) + len(zeros)
        assert tables(nccl, {one: one.nccl for one in able}) == {}
        made = tables(nccl, {one: one.value(0.1) for one in able})
        fitted_constants.write(tmp_path / "a.toml", FittedConstants(name, made, {}))
        assert fitted_constants.read(tmp_path / "a.toml").constants == made


def test_identify_takes_the_best_known_and_says_what_it_stands_for() -> None:
    calls = np.arange(1, 41)
    base, hop, none = np.ones(40), 3 * np.ones(40), np.full(40, 1e-3)
    slope = calls / 10.0
    known = identify(100 * np.stack([base, hop, slope, none, slope], axis=1), [0, 0, 0, 0, 1])
    assert sorted(known.fitted) == [1, 2]
    assert known.alike == {0: {1: pytest.approx(1 / 3)}, 3: {}, 4: {2: pytest.approx(1)}}
    assert deviations(np.diag([2.0, 4.0])).tolist() == [0.5, 0.25]
    again = identify(100 * np.stack([base, base * 1.2, base * 9], axis=1), [0, 0, 0], before=[0])
    assert again.fitted == (2,)
    assert identify(100 * np.stack([base, base * 1.2], axis=1), [0, 0], before=[0]).fitted == (0,)
    assert deviations(np.zeros((3, 0))).tolist() == []
    assert deviations(np.array([[0.0, 1e-30], [0.0, 0.0]])).tolist() == [np.inf, pytest.approx(1e30)]


def test_alpha_and_beta_are_found(tmp_path: Path) -> None:
    """Of a ring's LL, which is exactly that; AllReduce's tree is not, and its errors say so."""
    path = write(tmp_path / "a.jsonl", TWO, blocks(TWO, CHANGE))
    fits, without = workflow.alpha_betas(observations.read([path]))
    assert without == []
    found = {(one.collective, one.algorithm, one.protocol): one for one in fits}
    algo_proto = (Algorithm.Ring, Protocol.LL)
    times_us = true_us(TWO, CHANGE, Collective.AllGather, SIZES)[algo_proto]
    ring = found[(Collective.AllGather, *algo_proto)]
    alpha_us, beta_gbs = times_us[0], (SIZES[-1] - SIZES[-2]) / 1000 / (times_us[-1] - times_us[-2])
    assert ring.alpha_us == pytest.approx(alpha_us, rel=0.02)
    assert ring.beta_gbs == pytest.approx(beta_gbs, rel=0.02)
    assert abs(ring.alpha_us - alpha_us) < 4 * ring.alpha_deviation_us
    assert abs(ring.beta_gbs - beta_gbs) < 4 * ring.beta_deviation_gbs
    assert ring.r2 > 0.99
    assert ring.held_out_error_percent < 2
    tree = found[(Collective.AllReduce, Algorithm.Tree, Protocol.Simple)]
    assert tree.r2 < ring.r2
    assert tree.held_out_error_percent > 5 * ring.held_out_error_percent


def test_alpha_and_beta_that_the_sizes_do_not_reach_make_no_row(tmp_path: Path) -> None:
    read = observations.read([write(tmp_path / "a.jsonl", TWO, blocks(TWO, {}, sizes=[8, 16, 32, 64, 128]))])
    fits, _ = workflow.alpha_betas(read)
    assert fits
    assert not any(one.known for one in fits)
    assert workflow.alpha_beta_table(fits, {}).costs == ()
    few = observations.read([write(tmp_path / "b.jsonl", TWO, blocks(TWO, {}, sizes=[8, 1 << 20]))])
    assert workflow.alpha_betas(few)[0] == []
    assert "too few sizes; needed: 3" in workflow.alpha_betas(few)[1][0]


@pytest.mark.slow
def test_the_command_writes_constants_that_pick_takes(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pod.toml"
    paths = [str(path) for path in files[:2]]
    answer = CliRunner().invoke(cli, ["fit", "constants", *paths, "--out", str(out), "--json"], catch_exceptions=False)
    record = json.loads(answer.output)
    made = fitted_constants.read(out)
    assert made.constants == record["tables"]
    assert made.provenance["machine"] == "dgx-h100"
    assert made.provenance["nodes"] == [1, 2]
    assert [each["file"] for each in made.provenance["measurements"]] == ["1.jsonl", "2.jsonl"]
    sha256 = subprocess.run(["sha256sum", paths[0]], capture_output=True, text=True, check=True).stdout.split()[0]
    assert made.provenance["measurements"][0]["sha256"] == sha256
    assert made.provenance["holdout_mape_percent"] == record["errors"][-1]["fitted_held_out_percent"]
    assert [each["combination"] for each in made.provenance["residuals"]][-1] == "all"
    sizes = [1 << 10, 1 << 20, 1 << 26]
    picked = CliRunner().invoke(
        cli,
        [
            "pick",
            "allreduce",
            "--machine",
            "dgx-h100",
            "--nodes",
            "2",
            "--bytes",
            ",".join(map(str, sizes)),
            "--constants",
            str(out),
            "--json",
        ],
    )
    truth = true_us(TWO, CHANGE, Collective.AllReduce, sizes)
    for row, answered in enumerate(json.loads(picked.output)["picks"]):
        for name, time_us in answered["cost_us"].items():
            algorithm, protocol = name.split("/")
            assert time_us == pytest.approx(truth[Algorithm[algorithm], Protocol[protocol]][row], rel=0.03), name
    text = CliRunner().invoke(cli, ["fit", "constants", *paths], catch_exceptions=False).output
    for one in record["constants"]:
        assert one["name"] in text or one["status"] == KEPT_WITHOUT_EFFECT, one["name"]


def test_the_command_writes_costs_for_the_plugin(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pod.table"
    command = ["fit", "alpha-beta", str(files[1]), "--cost-table", str(out)]
    record = json.loads(CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False).output)
    table = read_table(out)
    assert len(table.costs) == sum(one["known"] for one in record["fits"])
    assert table.provenance["machine"] == "dgx-h100"
    for one in record["fits"]:
        algo_proto = Collective[one["collective"]], Algorithm[one["algorithm"]], Protocol[one["protocol"]]
        cost = find_cost(table.costs, *algo_proto, 1 << 20, ranks=16, nodes=2)
        assert cost is not None
        assert cost.time is not None
        assert (cost.time.latency_us, cost.time.bandwidth_gbs) == (one["alpha_us"], one["beta_gbs"])
        assert find_cost(table.costs, *algo_proto, 1 << 20, ranks=32, nodes=4) is None
    text = CliRunner().invoke(cli, command, catch_exceptions=False).output
    assert f"{out}: {len(table.costs)} rows" in " ".join(text.split())


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    some = blocks(TWO, {}, collectives=[Collective.AllGather], sizes=[8, 1024, 1 << 20, 1 << 25])
    good = write(tmp_path / "good.jsonl", TWO, some)
    text = good.read_text()

    def refused(*paths: Path, match: str) -> None:
        with pytest.raises(BadMeasurement, match=match) as error:
            observations.read(paths)
        assert "\n" not in str(error.value)

    refused(tmp_path / "none.jsonl", match="none.jsonl: No such file")
    (tmp_path / "empty.jsonl").write_text("")
    refused(tmp_path / "empty.jsonl", match="empty.jsonl is empty: give a file that")
    (tmp_path / "cut.jsonl").write_text(text[:20])
    refused(tmp_path / "cut.jsonl", match="cut.jsonl:1: not a file of measurements")
    (tmp_path / "mid.jsonl").write_text(text.replace('"AllGather"', '"AllGather', 1))
    refused(tmp_path / "mid.jsonl", match="mid.jsonl:2: not JSON")
    refused(write(tmp_path / "no.jsonl", TWO, []), match="no.jsonl: none of its 0 sample blocks counts")
    other = Combination(Algorithm.Tree, Protocol.LL)
    replaced = [replace(block, executed=other) for block in some]
    refused(
        write(tmp_path / "r.jsonl", TWO, replaced),
        match=f"r.jsonl: none of its {len(some)} sample blocks counts: {len(some)} sample blocks that NCCL replaced$",
    )
    forced = [
        replace(each, requested=replace(each.requested, channels=2), executed=None) for each in some if each.requested
    ]
    refused(write(tmp_path / "f.jsonl", TWO, forced), match="sample blocks with forced channels")
    with Writer(tmp_path / "h.jsonl", Header()) as file:
        file.add(some[0])
    refused(tmp_path / "h.jsonl", match=r"h\.jsonl: the header does not say which communicator")

    copy = tmp_path / "copy.jsonl"
    copy.write_text(text)
    refused(good, good, match=r"good.jsonl has the same measurements as .*good.jsonl: give each file once$")
    refused(good, copy, match=r"copy.jsonl has the same measurements as .*good.jsonl: give each file once$")

    older = write(tmp_path / "older.jsonl", replace(TWO, nccl="2.27.7"), some)
    refused(good, older, match=r"older.jsonl was measured on dgx-h100, NCCL 2\.27\.7, but .*good.jsonl on .*2\.28")
    a100 = write(tmp_path / "a100.jsonl", replace(TWO, machine="dgx-a100"), some)
    refused(good, a100, match=r"a100.jsonl was measured on dgx-a100, .*give files of one machine and one release")
    tree = [replace(each, requested=other, executed=other) for each in some]
    refused(
        write(tmp_path / "t.jsonl", TWO, tree), match="NCCL's model has no time for anything that was measured: .*Tree"
    )


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", TWO, blocks(TWO, {}, collectives=[Collective.AllGather]))
    whole = observations.read([path])
    path.write_text(path.read_text()[:-30])
    cut = observations.read([path])
    assert cut.calls == whole.calls - 1
    assert cut.left_out["last lines that were cut off"] == 1
    output = CliRunner().invoke(cli, ["fit", "constants", str(path)], catch_exceptions=False).output
    assert "left out: 1 last lines that were cut off" in output


def test_nccl_s_own_choices_count_as_what_ran(tmp_path: Path) -> None:
    requested = blocks(TWO, CHANGE, collectives=[Collective.AllGather])
    own = [
        replace(each, requested=None, executed=replace(each.executed, channels=16))
        for each in requested
        if each.executed
    ]
    unseen = [replace(requested[0], requested=None, executed=None), replace(requested[0], requested=None, table="00")]
    first = fitted(write(tmp_path / "a.jsonl", TWO, requested))
    read = observations.read([write(tmp_path / "b.jsonl", TWO, [*own, *unseen])])
    assert model.fit(read).tables == first.tables
    assert read.left_out["sample blocks of NCCL's own choice, not seen or by a table"] == 2


def test_a_case_reads_back_from_a_header_without_constants(tmp_path: Path) -> None:
    fitted = replace(TWO, fitted_constants=FittedConstants(NCCL, {}, {}))
    with Writer(tmp_path / "a.jsonl", Header(scenario=fitted)) as file:
        for block in blocks(TWO, {}, collectives=[Collective.AllGather], sizes=SIZES[:4]):
            file.add(block)
    assert observations.read([tmp_path / "a.jsonl"]).cases == (replace(TWO, environment={}),)


def test_a_file_that_cannot_be_written(files: list[Path]) -> None:
    result = CliRunner().invoke(cli, ["fit", "constants", str(files[0]), "--out", "/no/such/folder/x.toml"])
    assert isinstance(result.exception, BadInput)
    assert re.match(r"/no/such/folder/x.toml: No such", str(result.exception))
