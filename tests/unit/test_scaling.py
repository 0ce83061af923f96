"""Node counts on which a choice stays the same, against asking at every one of them."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.support.command_line import run
from tuner import release
from tuner.answers import scale as module
from tuner.answers.scale import CountQuery, CountRange, scale
from tuner.answers.symmetric import picks_of
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op
from tuner.base.records import to_json
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import ALL_COLLECTIVES, sizes_bytes
from tuner.scenario import Scenario

pytestmark = pytest.mark.filterwarnings("error")  # a division by zero is no answer

ALL = [Request(collective, DataType.float32, Op.sum) for collective in Collective]
SIZES = [4096, 1 << 20, 1 << 24, 1 << 28]


def scenario(machine: str, nccl: str, gpus: int | None = None) -> Scenario:
    return Scenario(nccl=nccl, machine=machine, nodes=1, gpus_per_node=gpus)


def pick(described: Scenario, request: Request, nodes: int, nbytes: int) -> Picks:
    return Selection(replace(described, nodes=nodes).communicator()).pick(request, nbytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "nccl", "gpus"),
    [("dgx-h100", "2.28.9", None), ("dgx-a100", "2.25.1", 1), ("gh200-4x", "2.32.3", None), ("pcie-l40s", "2.21.5", 8)],
)
def test_every_count_in_a_range_has_its_pick(machine: str, nccl: str, gpus: int | None) -> None:
    described = scenario(machine, nccl, gpus)
    found = scale(described, ALL, SIZES, CountQuery(high=300))
    for nodes in range(1 if described.gpus() > 1 else 2, 301):
        selection = Selection(replace(described, nodes=nodes).communicator())
        for request in ALL:
            own = [one for one in found.ranges if one.collective == request.collective.name]
            with np.errstate(divide="ignore"):  # channels of calls smaller than their type, which are none
                picks = selection.pick(request, SIZES)
            for row, size in enumerate(SIZES):
                (at,) = [one for one in own if one.bytes == size and one.first.count <= nodes <= one.last.count]
                if request.spreads and size < 4 * selection.communicator.ranks:  # NCCL returns at once
                    assert (at.algorithm, at.protocol, at.channels, at.first.time_us) == (None, None, 0, None)
                    continue
                (algo_proto,) = picks.algo_protos()[row : row + 1]
                expected = *algo_proto, picks.channels[row], picks.threads[row]
                assert (at.algorithm, at.protocol, at.channels, at.threads) == expected, (nodes, request, size)
                for end, time_us in ((at.first.count, at.first.time_us), (at.last.count, at.last.time_us)):
                    assert nodes != end or np.float32(time_us) == picks.time_us[row]


@pytest.mark.slow
def test_what_is_looked_at_is_enough_for_all_that_every_count_shows() -> None:
    """On this machine; in general a choice that changes and returns is missed, as the answer says."""
    described = scenario("dgx-h100", "2.28.9")
    quick, every = (scale(described, ALL, SIZES, CountQuery(400, 1100, every=every)) for every in (False, True))
    assert quick.ranges == every.ranges
    assert every.looked_at == ((400, 1100),)
    assert quick.counts < 200


def test_a_choice_that_changes_and_returns_needs_every_count() -> None:
    """A real one: on six numbers of nodes this ring is given one channel instead of two."""
    reduce_scatter = Request(Collective.ReduceScatter, DataType.float32, Op.sum)

    def one_channel(every: bool) -> list[tuple[int, int]]:
        found = scale(
            scenario("pcie-l40s", "2.21.5"), [reduce_scatter], [1 << 30], CountQuery(16300, 16384, every=every)
        )
        return [(one.first.count, one.last.count) for one in found.ranges if one.channels == 1]

    assert one_channel(every=False) == []
    assert one_channel(every=True) == [(16377, 16382)]


@pytest.mark.slow
def test_ranges_are_without_gaps_and_looked_at_on_both_sides() -> None:
    sizes = SIZES[-1:]
    found = scale(scenario("dgx-h100", "2.22.3"), ALL, sizes)
    for request in ALL:
        for size in sizes:
            ranges = [one for one in found.ranges if (one.collective, one.bytes) == (request.collective.name, size)]
            assert ranges[0].first.count == 1
            assert ranges[-1].last.count == 16384
            for left, right in pairwise(ranges):
                assert left.last.count + 1 == right.first.count
                assert answer(left) != answer(right)
                assert looked_at(found, left.last.count)
                assert looked_at(found, right.first.count)
    assert found.counts == sum(last - first + 1 for first, last in found.looked_at) < 4096
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found.looked_at))


def answer(one: CountRange) -> tuple[object, ...]:
    return one.algorithm, one.protocol, one.channels, one.threads


def looked_at(found: module.Scale, count: int) -> bool:
    return any(first <= count <= last for first, last in found.looked_at)


@pytest.mark.parametrize("collective", [Collective.AllGather, Collective.AllReduce])
def test_per_rank_sizes_are_each_ranks_part(collective: Collective) -> None:
    described, size = scenario("dgx-h100", "2.28.9"), 1 << 20
    request = Request(collective, DataType.float32, Op.sum)
    found = scale(described, [request], [size], CountQuery(1, 9), per_rank=True)
    for one in found.ranges:
        ranks = 8 * one.last.count
        nbytes = size * ranks if request.spreads else size
        picked = pick(described, request, one.last.count, nbytes)
        assert np.float32(one.last.time_us) == picked.time_us[0]
        assert one.channels == picked.channels[0]
        factor = (ranks - 1) / ranks * (1 if request.spreads else 2)
        assert one.last.busbw_gbs == pytest.approx(nbytes / picked.time_us[0] / 1000 * factor)
        assert one.last.ranks == ranks


def test_where_nothing_runs_there_is_no_pick() -> None:
    described = replace(scenario("dgx-h100", "2.28.9"), environment={"NCCL_ALGO": "NVLSTree"})
    with pytest.raises(NoAlgorithm):
        pick(described, ALL[-1], 1, 1 << 20)
    alone, *others = scale(described, ALL[-1:], [1 << 20], CountQuery(1, 4)).ranges
    assert (alone.first.count, alone.last.count, alone.algorithm, alone.first.busbw_gbs) == (1, 1, None, None)
    assert {one.algorithm for one in others} == {Algorithm.NVLSTree}


def test_what_cannot_be_is_refused() -> None:
    described = scenario("dgx-h100", "2.28.9")
    with pytest.raises(BadInput, match="the number of nodes cannot be changed if nodes differ: use equal nodes"):
        scale(replace(described, others=(described,)), ALL, SIZES)
    with pytest.raises(BadInput, match=r"2\*\*62 in all"):
        scale(described, ALL, [1 << 50], per_rank=True)
    with pytest.raises(BadInput, match="nodes from 9 to 8"):
        scale(described, ALL, SIZES, CountQuery(9, 8))


def test_what_runs_on_some_numbers_of_nodes_is_scaled() -> None:
    arguments = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--env", "NCCL_ALGO=NVLS", "--bytes", "1M", "--json")
    answer = run("edges", "--over", "nodes", *arguments, "--to-nodes", "4")
    assert "Broadcast: nothing can run it on 1 nodes and on 4 nodes\n" in answer.stderr
    found = json.loads(answer.stdout)["ranges"]
    assert {(one["from_nodes"], one["algorithm"]) for one in found if one["collective"] == "AllReduce"} == {
        (1, "NVLS"),
        (2, None),
    }


COMMAND = (
    "edges",
    "--over",
    "nodes",
    "allreduce",
    "--bytes",
    "64K,16M",
    "--machine",
    "dgx-h100",
    "--nccl",
    "2.28.9",
    "--time",
    "nccl",
)


def test_json_is_what_the_library_says() -> None:
    found = json.loads(run(*COMMAND, "--json").stdout)
    assert set(found) == {"nccl_tuner_json", "looked_at", "ranges"}
    assert set(found["ranges"][0]) == {
        *("collective", "bytes", "from_nodes", "to_nodes", "from_ranks", "to_ranks"),
        *("algorithm", "protocol", "channels", "threads"),
        *("time_us_from", "time_us_to", "busbw_gbs_from", "busbw_gbs_to"),
    }
    same = scale(scenario("dgx-h100", "2.28.9"), ALL[-1:], [64 << 10, 16 << 20])
    assert found["ranges"] == to_json(same.ranges)


def test_calibrated_times_are_added_and_nothing_else() -> None:
    own, both = (json.loads(run(*COMMAND, "--time", time, "--json").stdout) for time in ("nccl", "both"))
    assert both.pop("calibrations")
    for row in both["ranges"]:
        assert row.pop("calibrated_from")["low_us"] <= row.pop("calibrated_to")["high_us"]
    assert both == own


def test_the_table_says_what_was_looked_at() -> None:
    lines = run(*COMMAND, "--to-nodes", "64").stdout.splitlines()
    assert lines[0] == "the pick changes with the number of nodes: AllReduce at 2 of 2 sizes"
    (looked,) = (line for line in lines if "numbers of nodes from 1 to 64 were computed" in line)
    assert "missed" in looked
    assert [line.split()[2:8] for line in lines if "NVLSTree" in line] == [
        ["2", "31", "16", "248", "NVLSTree/Simple", "16"]
    ]
    every = run(*COMMAND, "--to-nodes", "64", "--every").stdout.splitlines()
    assert "every number of nodes from 1 to 64" in every
    assert [line for line in every if line.startswith(" ")] == [line for line in lines if line.startswith(" ")]


def test_a_number_of_nodes_is_not_taken() -> None:
    assert "use --from-nodes and --to-nodes instead" in run(*COMMAND, "--nodes", "2", code=2).stderr


@pytest.mark.parametrize(
    ("nccl", "environment", "buffers"),
    [
        ("2.28.9", {}, Buffers.registered),
        ("2.28.9", {}, Buffers.window),
        ("2.30.7", {"NCCL_GIN_TYPE": "3"}, Buffers.window),
        ("2.32.3", {"NCCL_GIN_TYPE": "3", "NCCL_CTA_POLICY": "ZERO"}, Buffers.window),
    ],
)
def test_buffers_of_every_kind_get_what_each_count_gives_them(
    nccl: str, environment: dict[str, str], buffers: Buffers
) -> None:
    described = replace(scenario("dgx-h100", nccl), environment=environment)
    collectives = (Collective.AllGather, Collective.ReduceScatter)
    requests = [Request(each, DataType.float32, Op.sum, buffers=buffers) for each in collectives]
    found = scale(described, requests, SIZES, CountQuery(high=9, every=True)).ranges
    for nodes in range(1, 10):
        selection = Selection(replace(described, nodes=nodes).communicator())
        for request in requests:
            for size, pick in zip(SIZES, picks_of(selection, request, np.array(SIZES, np.uint64)), strict=True):
                (own,) = [
                    one
                    for one in found
                    if (one.collective, one.bytes) == (request.collective.name, size)
                    and one.first.count <= nodes <= one.last.count
                ]
                assert (own.name, own.channels, own.threads) == (pick.name, pick.channels, pick.threads)
                if own.first.count == nodes:
                    assert own.first.time_us == (
                        None if pick.time_us is None else pytest.approx(pick.time_us, rel=1e-6)
                    )
    bypassing = {one.bypass is not None for one in found}
    assert bypassing == {False} if buffers is Buffers.registered else True in bypassing


def test_the_command_names_what_takes_calls_on_windows() -> None:
    words = (
        "edges",
        "--over",
        "nodes",
        "allreduce",
        "--machine",
        "dgx-h100",
        "--nccl",
        "2.28.9",
        "--bytes",
        "1M",
        "--to-nodes",
        "3",
    )
    (kernel, tree) = json.loads(run(*words, "--buffers", "window", "--json").stdout)["ranges"]
    assert (kernel["algorithm"], kernel["bypass"]) == (None, "symmetric kernel AllReduce_RSxLDMC_AGxSTMC")
    assert "bypass" not in tree
    assert "Times of symmetric kernels come from NCCL's model" in run(*words, "--buffers", "window").stdout
    over_gpus = "edges", "--over", "gpus-per-node", *words[3:10], "--buffers", "window", "--json"
    assert any("bypass" in each for each in json.loads(run(*over_gpus).stdout)["ranges"])


MOST = 4096
NODES = sorted({n for power in range(13) for n in (2**power - 1, 2**power, 2**power + 1) if 1 <= n <= MOST})
CONNECTED = [name for name in catalogue.names() if catalogue.load(name).topology.nets]


def selection(nccl: str, machine: str, nodes: int) -> Selection:
    return Selection(Scenario(nccl=nccl, machine=machine, nodes=nodes).communicator())


@pytest.mark.slow
@pytest.mark.parametrize("nccl", release.names())
def test_answers_up_to_4096_nodes(nccl: str) -> None:
    """Every machine at 4096 nodes, and every number of nodes on one of them after the other."""
    one_after_the_other = [(CONNECTED[at % len(CONNECTED)], nodes) for at, nodes in enumerate(NODES)]
    for machine, nodes in [*((machine, MOST) for machine in CONNECTED), *one_after_the_other]:
        if nccl in catalogue.load(machine).releases:
            assert_sound(selection(nccl, machine, nodes))


def assert_sound(chosen: Selection) -> None:
    communicator, tables, most = chosen.communicator, chosen.tables, chosen.communicator.release.limits
    assert np.isfinite(tables.latency_us).all()
    assert np.isfinite(tables.bandwidth_gbs).all()
    assert (tables.latency_us >= 0).all()
    assert (tables.bandwidth_gbs >= 0).all()
    for request in ALL_COLLECTIVES:
        sizes = np.array(sizes_bytes(request, communicator.ranks)[::4])
        table, picks = chosen.cost_table(request, sizes), chosen.pick(request, sizes)
        usable_us = np.where(table >= 0, table, np.inf).reshape(len(sizes), -1)
        assert np.array_equal(picks.time_us, usable_us.min(axis=1))
        assert np.array_equal(picks.time_us, table[np.arange(len(sizes)), picks.algorithm, picks.protocol])
        assert ((picks.channels >= 1) & (picks.channels <= most.max_channels)).all()
        assert ((picks.threads >= 32) & (picks.threads <= most.max_threads) & (picks.threads % 32 == 0)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nccl", "machine"),
    [
        (nccl, machine)
        for nccl in (release.names()[0], "2.22.3", "2.27.7", "2.28.9", release.names()[-1])
        for machine in CONNECTED
        if nccl in catalogue.load(machine).releases
    ],
)
def test_more_nodes_take_longer_to_reach(nccl: str, machine: str) -> None:
    """Latencies of Ring and Tree never fall with the nodes."""
    at = Collective.AllReduce, [Algorithm.Tree, Algorithm.Ring]
    found = [selection(nccl, machine, nodes).tables for nodes in (2, 3, 4, 8, 64, 1000, MOST)]
    latencies = np.stack([tables.latency_us[at] for tables in found])
    assert (np.diff(latencies, axis=0) >= 0).all()
    assert (latencies[-1, 1] > 100 * latencies[0, 1]).all(), "a ring is as long as its ranks"
    assert (latencies[-1, 0] < 100 * latencies[0, 0]).all(), "a tree is not"


@pytest.mark.parametrize("nodes", [1, 2, 100, MOST])
def test_a_size_is_answered_alike_alone_and_among_others(nodes: int) -> None:
    chosen = selection("2.28.9", "dgx-h100", nodes)
    for request in ALL_COLLECTIVES:
        sizes = np.array(sizes_bytes(request, chosen.communicator.ranks))[::-7]
        together = chosen.pick(request, sizes)
        for row, size in enumerate(sizes):
            alone = chosen.pick(request, [int(size)])
            for field in ("algorithm", "protocol", "time_us", "channels", "threads"):
                assert getattr(alone, field)[0] == getattr(together, field)[row], (request, size, field)
        assert np.array_equal(chosen.cost_table(request, sizes)[3], chosen.cost_table(request, sizes[3:4])[0])
