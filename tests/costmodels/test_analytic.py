"""The cost models against algorithms that are played through, against each other, and over arrays."""

import ast
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tuner.times.costmodels
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.times.costmodels import algorithms, fabric, line, operations, step, wires
from tuner.times.costmodels.algorithms import HIERARCHICAL, cost, costs, names, predict
from tuner.times.costmodels.alphabeta import FORMULAS, Linear, crossover_bytes, fastest, level, log2_rounds, terms
from tuner.times.costmodels.operations import CostOperation, size_bytes
from tuner.times.costmodels.step import Cluster, Model, Parallelism

NOTHING = algorithms.overheads()


def linear(fixed: Any, slope: Any) -> Linear:
    """Of scalars, which the models take as well."""
    scalars: Any = (np.float64(fixed), np.float64(slope))
    return Linear(*scalars)


def each_of(*strategies: Any) -> Any:
    """`given` with fewer examples, as there are many such tests."""
    return lambda test: settings(max_examples=60)(given(*strategies)(test))


bytes_of = st.integers(1, 1 << 40)
ranks_of = st.integers(2, 300)
levels_of = st.builds(level, st.floats(0.01, 100), st.floats(0.1, 1000))


def close(value: Any, rel: float = 1e-9) -> Any:
    return pytest.approx(value, rel=rel, abs=1e-9)


# Floors


def test_there_is_no_nccl_in_it() -> None:
    allowed = (
        "tuner.times.costmodels",
        *(
            f"tuner.base.{name}"
            for name in (
                "bounds",
                "dataclass",
                "errors",
                "expressions",
                "files",
                "names",
                "numerics",
                "records",
                "sizes",
                "spelling",
                "tables",
                "view",
            )
        ),
    )
    files = list(Path(tuner.times.costmodels.__file__).parent.glob("*.py"))
    assert len(files) > 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            found = [f"{node.module}.{one.name}" for one in node.names] if isinstance(node, ast.ImportFrom) else []
            found += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for module in found:
                assert not module.startswith("tuner") or module.startswith(allowed), (file.name, module)


# Bandwidths


@each_of(st.sampled_from(CostOperation), bytes_of, st.floats(0.1, 1e8), ranks_of)
def test_the_time_of_a_busbw_is_the_time(operation: CostOperation, nbytes: int, time_us: float, ranks: int) -> None:
    gbs = operations.bus_gbs(operation, nbytes, time_us, ranks)
    assert operations.time_us(operation, nbytes, gbs, ranks) == close(time_us)
    assert wires.transferred_bytes(operation, nbytes, ranks) / time_us / 1000 / ranks == close(gbs)


def test_the_factors_are_those_of_nccl_tests() -> None:
    for operation in CostOperation:
        expected = {"AllReduce": 1.5}.get(
            operation.name, 1.0 if operation.name in ("Broadcast", "Reduce", "SendRecv") else 0.75
        )
        assert operations.bus_factor(operation, 4) == expected
    for collective in Collective:
        assert operations.bus_factor(collective, 5) == operations.bus_factor(CostOperation[collective.name], 5)


def test_sizes_are_of_the_whole_array() -> None:
    assert size_bytes(CostOperation.AllReduce, 1000, 4, 8) == 4000
    assert size_bytes(CostOperation.AllGather, 1000, 4, 8) == 32000
    assert size_bytes(CostOperation.SendRecv, [1, 2], 2, 8).tolist() == [2, 4]
    assert {each for each in CostOperation if size_bytes(each, 1, 1, 3) == 3} == {
        CostOperation.AllGather,
        CostOperation.ReduceScatter,
        CostOperation.AllToAll,
        CostOperation.Gather,
        CostOperation.Scatter,
    }


# Alpha and beta: the algorithms played through


def play_ring(ranks: int, passes: int) -> tuple[int, float]:
    """Steps, and the parts of 1/n that each rank sent, of a ring in which every part goes round once or twice."""
    where = {part: part for part in range(ranks)}
    sent, steps = [0] * ranks, 0
    for _ in range(passes * (ranks - 1)):
        steps += 1
        for part, at in where.items():
            sent[at] += 1
            where[part] = (at + 1) % ranks
    assert len(set(sent)) == 1
    return steps, sent[0] / ranks


def play_halving(ranks: int) -> tuple[int, float]:
    """Steps and share of a reduce-scatter by halving distances: half of what is left goes to the partner."""
    held, steps, sent = {rank: set(range(ranks)) for rank in range(ranks)}, 0, 0
    distance = ranks // 2
    while distance:
        keep = {rank: {part for part in held[rank] if part & distance == rank & distance} for rank in held}
        sent += len(held[0]) - len(keep[0])
        held, steps, distance = keep, steps + 1, distance // 2
    assert all(parts == {rank} for rank, parts in held.items())
    return steps, sent / ranks


def play_tree(ranks: int) -> int:
    """Rounds of a broadcast in which everyone who has it sends it on."""
    have, rounds = 1, 0
    while have < ranks:
        have, rounds = 2 * have, rounds + 1
    return rounds


@each_of(ranks_of)
def test_rings_take_the_steps_and_send_the_share_of_a_played_ring(ranks: int) -> None:
    for operation, passes in (
        (CostOperation.AllGather, 1),
        (CostOperation.ReduceScatter, 1),
        (CostOperation.AllReduce, 2),
    ):
        steps, share = play_ring(ranks, passes)
        assert terms(operation, "ring", ranks).steps == steps
        assert terms(operation, "ring", ranks).share == close(share)
    assert log2_rounds(ranks) == play_tree(ranks)
    assert terms(CostOperation.Broadcast, "tree", ranks).share == play_tree(ranks)


@each_of(st.sampled_from(CostOperation), ranks_of, levels_of, bytes_of, bytes_of)
def test_more_bytes_and_more_ranks_take_longer(
    operation: CostOperation, ranks: int, on: Any, one: int, other: int
) -> None:
    for algorithm in FORMULAS[operation]:
        halving = algorithm == "halving-doubling"
        count = 1 << ranks.bit_length() - 1 if halving else ranks
        here, there = (terms(operation, algorithm, n) for n in (count, 2 * count if halving else count + 1))
        assert here.time_us(min(one, other), on) <= here.time_us(max(one, other), on)
        assert here.time_us(one, on) <= there.time_us(one, on) * (1 + 1e-12)


@each_of(st.sampled_from([*algorithms.TWO_LEVEL]), st.integers(2, 64), st.integers(2, 64), levels_of, st.floats(1, 50))
def test_a_hierarchy_of_one_network_sends_what_a_flat_one_does(
    operation: CostOperation, gpus: int, nodes: int, on: Any, faster: float
) -> None:
    """In fewer steps, or as many of an AllToAll; a faster network inside the nodes is never a loss."""
    two_level = algorithms.total(algorithms.TWO_LEVEL[operation](gpus, nodes, on, on))
    flat = cost(operation, names(operation)[0], gpus, nodes, (on, on))
    assert two_level.us_per_byte == close(flat.us_per_byte)
    assert two_level.fixed_us <= flat.fixed_us * (1 + 1e-12)
    inside = level(on.alpha_us / faster, on.beta_gbs * faster)
    better = algorithms.total(algorithms.TWO_LEVEL[operation](gpus, nodes, inside, on))
    assert better.time_us(10**6) <= two_level.time_us(10**6) * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 64, 1024])
def test_halving_takes_the_steps_and_sends_the_share_of_played_halving(ranks: int) -> None:
    steps, share = play_halving(ranks)
    assert terms(CostOperation.ReduceScatter, "halving-doubling", ranks).steps == steps
    assert terms(CostOperation.ReduceScatter, "halving-doubling", ranks).share == close(share)
    assert terms(CostOperation.AllReduce, "halving-doubling", ranks).share == close(2 * share)


@each_of(ranks_of, bytes_of, levels_of)
def test_collectives_are_made_of_others(ranks: int, nbytes: int, on: Any) -> None:
    def time(operation: CostOperation, algorithm: str) -> float:
        return float(terms(operation, algorithm, ranks).time_us(nbytes, on))

    ring = time(CostOperation.ReduceScatter, "ring") + time(CostOperation.AllGather, "ring")
    assert time(CostOperation.AllReduce, "ring") == close(ring)
    tree = time(CostOperation.Reduce, "tree") + time(CostOperation.Broadcast, "tree")
    assert time(CostOperation.AllReduce, "tree") == close(tree)
    scattered = time(CostOperation.Scatter, "binomial") + time(CostOperation.AllGather, "ring")
    assert time(CostOperation.Broadcast, "scatter-allgather") == close(scattered)


# Two levels


@each_of(st.sampled_from(list(algorithms.TWO_LEVEL)), ranks_of, bytes_of, levels_of, levels_of)
def test_one_level_is_flat(operation: CostOperation, ranks: int, nbytes: int, intra: Any, inter: Any) -> None:
    flat = names(operation)[0]
    for gpus, nodes, on in ((ranks, 1, intra), (1, ranks, inter)):
        found = cost(operation, HIERARCHICAL, gpus, nodes, (intra, inter)).time_us(nbytes)
        assert found == close(terms(operation, flat, ranks).time_us(nbytes, on))


@each_of(st.integers(1, 16), st.integers(1, 64), bytes_of, levels_of, levels_of)
def test_a_hierarchical_allreduce_is_scatter_and_gather(
    gpus: int, nodes: int, nbytes: int, intra: Any, inter: Any
) -> None:
    def time(operation: CostOperation) -> Any:
        return algorithms.total(algorithms.TWO_LEVEL[operation](gpus, nodes, intra, inter)).time_us(nbytes)

    both = time(CostOperation.ReduceScatter) + time(CostOperation.AllGather)
    assert time(CostOperation.AllReduce) == close(both)


# Crossovers


@each_of(st.sampled_from(CostOperation), st.sampled_from([2, 6, 8, 64, 96, 256]), levels_of, levels_of)
def test_at_a_crossover_both_are_equally_fast_and_then_change(
    operation: CostOperation, ranks: int, intra: Any, inter: Any
) -> None:
    found = costs(operation, 2, ranks // 2, (intra, inter))
    for one in found.values():
        for other in found.values():
            at = float(crossover_bytes(one, other))
            if math.isnan(at):
                fixed, slope = one.fixed_us - other.fixed_us, one.us_per_byte - other.us_per_byte
                assert fixed * slope >= -1e-9 * one.fixed_us * one.us_per_byte
            else:
                assert one.time_us(at) == close(other.time_us(at))
                before, after = (one.time_us(at * factor) - other.time_us(at * factor) for factor in (0.5, 2.0))
                assert before * after < 0


@each_of(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_the_fastest_is_the_least_of_all_lines(lines: list[tuple[int, int]]) -> None:
    found = {str(at): linear(fixed, slope) for at, (fixed, slope) in enumerate(lines)}
    bounds = fastest(found)
    assert bounds[0][0] == 0
    starts = [at for at, _ in bounds]
    assert starts == sorted(set(starts))
    for size in (1e-3, 0.3, 1.0, 2.5, 7.0, 40.0, 1e4, *(1.01 * at for at in starts if at)):
        name = next(name for at, name in reversed(bounds) if at <= size)
        assert found[name].time_us(size) == close(min(each.time_us(size) for each in found.values()))


def test_the_crossover_of_ring_and_tree() -> None:
    """8 ranks: 14 a + 1.75 n/b = 6 a + 6 n/b, so n = 8/4.25 a b."""
    found = costs(CostOperation.AllReduce, 8, 1, (level(10, 100), None))
    assert crossover_bytes(found["ring"], found["tree"]) == close(8 / 4.25 * 10 * 100_000)
    assert [name for _, name in fastest({name: found[name] for name in ("ring", "tree")})] == ["tree", "ring"]


# Overheads


shares_of = st.floats(0, 0.9)


@each_of(ranks_of, bytes_of, levels_of, st.floats(0, 100), shares_of, shares_of, st.floats(0.1, 100), shares_of)
def test_the_parts_are_the_time(
    ranks: int, nbytes: int, on: Any, software: float, protocol: float, contention: float, copy: float, late: float
) -> None:
    factors = algorithms.overheads(software, protocol, contention, copy, late)
    found = predict(CostOperation.AllReduce, "ring", nbytes, ranks, 1, (on, None), factors)
    plain = terms(CostOperation.AllReduce, "ring", ranks)
    slower = level(on.alpha_us, on.beta_gbs * (1 - protocol) * (1 - contention))
    expected = (plain.time_us(nbytes, slower) + software + nbytes / copy / 1000) * (1 + late)
    assert found.time_us == close(expected, 1e-6)
    assert found.parts_us["model"] == close(plain.time_us(nbytes, on))
    assert all(part >= -1e-6 * expected for part in found.parts_us.values())
    assert found.busbw_gbs == close(operations.bus_gbs(CostOperation.AllReduce, nbytes, expected, ranks), 1e-6)


@each_of(bytes_of, st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), st.floats(0.1, 1000))
def test_one_message_of_loggp_is_alpha_and_beta(nbytes: int, wait: float, own: float, gap: float, gbs: float) -> None:
    sent = terms(CostOperation.SendRecv, "direct", 2).time_us(nbytes, algorithms.loggp(wait, own, gap, gbs))
    assert sent == close(max(wait + 2 * own, gap) + nbytes / gbs / 1000)


# Ideal


@each_of(st.floats(1, 1000), st.floats(1, 1000), st.integers(1, 16), st.integers(1, 64), bytes_of)
def test_the_ideal_is_the_longer_of_both_transfers(b: float, i: float, p: int, q: int, nbytes: int) -> None:
    n = p * q
    if n < 2:
        return
    found = wires.ideal(b, i, p, q)
    volume = nbytes * 2 * (n - 1)  # of an AllReduce
    inter = volume * (q - 1) / (n - 1) / (i * q)
    intra = volume * (n - q) / (n - 1) / (b * n)
    assert found.busbw_gbs == close(volume / max(inter, intra) / n)
    assert bool(found.inter_limits) == (inter > intra) or inter == close(intra)
    time = found.time_us(CostOperation.AllReduce, nbytes, n)
    assert found.efficiency(operations.bus_gbs(CostOperation.AllReduce, nbytes, time, n)) == close(1)
    assert wires.inter_share(p, q) == close((q - 1) / (n - 1))


@each_of(st.floats(1, 1000), st.floats(1, 1000), st.integers(1, 32), st.integers(2, 64))
def test_no_ring_is_above_an_ideal_that_the_network_limits(b: float, i: float, p: int, q: int) -> None:
    bound = wires.ideal(b, i, p, q)
    full_us = wires.loads(CostOperation.AllReduce, "ring", p, q).time_us(10**9, b, i)
    gbs = operations.bus_gbs(CostOperation.AllReduce, 10**9, full_us, p * q)
    assert gbs <= bound.busbw_gbs * (1 + 1e-9) or not bound.inter_limits
    assert wires.ideal(2 * b, 2 * i, p, q).busbw_gbs == close(2 * bound.busbw_gbs)


def test_a_ring_may_be_above_an_ideal_that_the_links_limit() -> None:
    """Every second hop leaves the node, and one of three has to."""
    full_us = wires.loads(CostOperation.AllReduce, "ring", 2, 2).time_us(10**9, 1, 9)
    assert operations.bus_gbs(CostOperation.AllReduce, 10**9, full_us, 4) == close(2.0)
    assert wires.ideal(1, 9, 2, 2).busbw_gbs == close(1.5)


# Wires


def play_pat(ranks: int, ranks_per_switch: int) -> tuple[list[int], list[int]]:
    """Parts that each rank sends, and that leave each switch, when all parts have spread over distances n/2 ... 1."""
    have = {rank: {rank} for rank in range(ranks)}
    sent, leaving = [0] * ranks, [0] * (ranks // ranks_per_switch)
    distance = 1 << (ranks - 1).bit_length() - 1
    while distance:
        got: dict[int, set[int]] = {rank: set() for rank in have}
        for rank, parts in have.items():
            to = (rank + distance) % ranks
            # A part goes where it is no further than all others: its offset stays below the number of ranks.
            moved = {part for part in parts if (rank - part) % ranks + distance < ranks}
            sent[rank] += len(moved)
            if to // ranks_per_switch != rank // ranks_per_switch:
                leaving[rank // ranks_per_switch] += len(moved)
            got[to] |= moved
        have = {rank: have[rank] | got[rank] for rank in have}
        distance //= 2
    assert all(len(parts) == ranks for parts in have.values())
    return sent, leaving


@pytest.mark.parametrize(("ranks", "ranks_per_switch"), [(2, 1), (8, 2), (8, 8), (64, 8), (12, 4), (20, 5), (24, 3)])
def test_pat_sends_what_a_played_pat_sends(ranks: int, ranks_per_switch: int) -> None:
    sent, leaving = play_pat(ranks, ranks_per_switch)
    assert set(sent) == {ranks - 1}
    found = wires.loads(CostOperation.AllGather, "pat", 1, ranks)
    assert found.node_share == close((ranks - 1) / ranks)
    share = wires.uplink_share(CostOperation.AllGather, "pat", ranks, ranks_per_switch)
    assert share * ranks == close(np.mean(leaving))
    ring = 0 if ranks == ranks_per_switch else (ranks - 1) / ranks
    for operation, passes in (
        (CostOperation.AllGather, 1),
        (CostOperation.ReduceScatter, 1),
        (CostOperation.AllReduce, 2),
    ):
        assert wires.uplink_share(operation, "ring", ranks, ranks_per_switch) == close(passes * ring)
    with pytest.raises(
        BadInput, match="what the uplinks of switches carry is not known for pat AllReduce; valid: ring"
    ):
        wires.uplink_share(CostOperation.AllReduce, "pat", ranks, ranks_per_switch)


def play_nvls(gpus: int, reduces: bool, multicasts: bool) -> tuple[int, int]:
    """Parts of 1/n up and down each GPU's links."""
    up, down = [0] * gpus, [0] * gpus
    for owner in range(gpus):
        if reduces:  # the switch reads the part from all of them and hands over the sum
            up = [count + 1 for count in up]
            down[owner] += 1
        if multicasts:
            up[owner] += 1
            down = [count + 1 for count in down]
    assert len(set(up)) == len(set(down)) == 1
    return up[0], down[0]


@pytest.mark.parametrize("gpus", [2, 4, 8, 72])
def test_nvls_carries_what_a_played_switch_carries(gpus: int) -> None:
    for operation, reduces, multicasts in (
        (CostOperation.AllReduce, True, True),
        (CostOperation.ReduceScatter, True, False),
        (CostOperation.AllGather, False, True),
    ):
        busier = max(play_nvls(gpus, reduces, multicasts)) / gpus
        assert wires.loads(operation, "nvls", gpus, 1).gpu_share == close(busier)
    assert wires.loads(CostOperation.AllReduce, "NVLSTree", gpus, 4).gpu_share == close(1 + 1 / gpus)


@pytest.mark.parametrize(("gpus", "nodes"), [(8, 1), (8, 2), (4, 16), (1, 5), (3, 3)])
def test_rings_load_links_as_played(gpus: int, nodes: int) -> None:
    ranks = gpus * nodes
    inside, outside = [0] * ranks, [0] * nodes
    for turn in range(gpus):  # channels, each leaving the nodes at another GPU
        ring = [node * gpus + (turn + gpu) % gpus for node in range(nodes) for gpu in range(gpus)]
        for one, following in pairwise([*ring, ring[0]]):
            if one // gpus == following // gpus:
                inside[one] += ranks - 1
            else:
                outside[one // gpus] += ranks - 1
    found = wires.loads(CostOperation.AllGather, "ring", gpus, nodes)
    assert found.gpu_share == close(np.mean(inside) / ranks / gpus)
    assert found.node_share == close(np.mean(outside) / ranks / gpus)
    assert wires.loads(CostOperation.AllReduce, "ring", gpus, nodes).node_share == close(2 * found.node_share)


def test_trees_and_chains_load_links_as_counted() -> None:
    """A tree over Q nodes has Q - 1 edges, each with the whole up and the whole down; so has a chain over P GPUs."""
    found = wires.loads(CostOperation.AllReduce, "tree", 8, 4)
    assert (found.gpu_share, found.node_share) == (2 * 7 / 8, 2 * 3 / 4)
    assert wires.loads(CostOperation.AllReduce, "nvlstree", 8, 4).node_share == 2 * 3 / 4
    # Broadcast passes the whole on once; of a node's eight channels one leaves at each GPU.
    one, several = (wires.loads(CostOperation.Broadcast, "ring", 8, nodes) for nodes in (1, 4))
    assert (one.gpu_share, one.node_share) == (1, 0)
    assert (several.gpu_share, several.node_share) == (7 / 8, 1)


def test_a_full_link_gives_the_least_time() -> None:
    found = wires.loads(CostOperation.AllReduce, "ring", 8, 2)
    # 2 x 15/16 of 1 GB over 100 GB/s of a node is longer than 7/8 of it over 450 GB/s.
    assert found.time_us(10**9, 450, 100) == close(18_750)
    assert operations.bus_gbs(CostOperation.AllReduce, 10**9, 18_750, 16) == close(100)
    assert bool(found.inter_limits(450, 100))
    assert not bool(found.inter_limits(100, 450))


@pytest.mark.parametrize(
    ("operation", "algorithm", "gpus", "nodes", "says"),
    [
        (CostOperation.AllReduce, "pat", 1, 8, "valid: nvls, nvlstree, ring, tree"),
        (CostOperation.AllGather, "pat", 8, 2, "one GPU per node"),
        (CostOperation.AllReduce, "nvls", 8, 2, "one node"),
        (CostOperation.AllToAll, "ring", 8, 2, "valid: none"),
    ],
)
def test_what_no_wire_carries(operation: CostOperation, algorithm: str, gpus: int, nodes: int, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        wires.loads(operation, algorithm, gpus, nodes)


# Fits


@each_of(st.floats(1, 100), st.floats(1, 500), st.integers(0, 2**31))
def test_a_planted_line_is_found(fixed: float, gbs: float, seed: int) -> None:
    sizes = 2.0 ** np.arange(10, 34, 2)
    noise = np.random.default_rng(seed).normal(0, 0.02, len(sizes))
    found = line.fit(sizes, (fixed + sizes / gbs / 1000) * np.exp(noise), 0.02)
    assert abs(found.fixed_us - fixed) < 6 * found.fixed_deviation_us
    assert abs(found.gbs - gbs) < 6 * found.gbs_deviation
    assert found.fixed_deviation_us < 0.1 * fixed
    assert found.r2 > 0.9
    assert np.abs(found.error).max() < 0.2


def test_a_fit_gives_alpha_of_a_step_and_beta_of_a_link() -> None:
    sizes, ring = 2.0 ** np.arange(10, 34), terms(CostOperation.AllReduce, "ring", 16)
    found = line.fit(sizes, ring.time_us(sizes, level(10, 100))).level(ring)
    assert (found.alpha_us, found.beta_gbs) == (close(10, 1e-6), close(100, 1e-6))
    assert line.repeated([1.0, 2.0, 3.0]) == line.Repeated(2.0, 1.0)
    assert line.repeated([1.5]).deviation is None
    with pytest.raises(BadInput, match="cannot be fitted to 2 sizes: measure 3 or more"):
        line.fit([1, 2, 2], [1, 2, 2])


@each_of(st.floats(0.5, 20), st.floats(10, 400), ranks_of, st.integers(1, 10_000))
def test_the_experiments_give_back_what_they_measure(alpha: float, beta: float, ranks: int, iterations: int) -> None:
    ring = terms(CostOperation.AllReduce, "ring", ranks)
    assert line.alpha_us(iterations * ring.latency_us(level(alpha, beta)), iterations, ranks) == close(alpha)
    elapsed = iterations * ring.transfer_us(2e9, level(alpha, beta))
    assert line.beta_gbs(2e9, elapsed, iterations, ranks) == close(beta)


@pytest.mark.parametrize(
    ("error", "name", "causes"),
    [
        (0.0999, "excellent", 0),
        (-0.1, "useful for planning", 0),
        (0.3, "useful for planning", 0),
        (0.301, "assumptions violated", 4),
        (-0.9, "assumptions violated", 4),
        (math.nan, "no prediction", 0),
    ],
)
def test_classes_of_errors(error: float, name: str, causes: int) -> None:
    found = line.of_error(error)
    assert (found.name, len(found.causes)) == (name, causes)


def test_classes_of_efficiencies() -> None:
    assert line.of_efficiency(0.7, 0.1).name == "well optimised"
    assert line.of_efficiency(0.4375, 0.1).name == "below what is usual"
    assert line.of_efficiency(0.01, 0.9).name == "latency-bound"
    assert line.of_efficiency(1.1, 0.1).name == "above the ideal"
    assert line.error(110, 100) == close(0.1)


# Training steps


MODEL = Model(7e9, layers=32, hidden=4096, sequence=4096)
CLUSTER = Cluster(8, level(1, 300), level(5, 50))


def sent(plan: Parallelism, model: Model = MODEL) -> dict[str, float]:
    found: dict[str, Any] = {}
    for each in step.traffic(model, plan):
        found[each.parallelism] = found.get(each.parallelism, 0) + step.per_gpu_bytes(each)
    return found


def test_what_each_parallelism_sends() -> None:
    dp = sent(Parallelism(dp=8))["DP"]
    assert dp == close(2 * 7 / 8 * 14e9)
    assert sent(Parallelism(dp=8, zero=1))["ZeRO-1"] == close(dp)
    assert sent(Parallelism(dp=8, zero=2))["ZeRO-2"] == close(dp)
    assert sent(Parallelism(dp=8, zero=2, micro_batches=3))["ZeRO-2"] == close(2 * dp)
    assert sent(Parallelism(dp=8, zero=3))["ZeRO-3"] == close(1.5 * dp)
    tp = sent(Parallelism(tp=8))["TP"]
    assert tp == close(4 * 32 * 2 * 7 / 8 * 4096 * 4096 * 2)
    assert sent(Parallelism(tp=8, sequence_parallel=True))["SP"] == close(tp)
    assert sent(Parallelism(pp=4, micro_batches=6)) == {"PP": close(12 * 4096 * 4096 * 2)}
    assert sent(Parallelism()) == {}
    split = sent(Parallelism(tp=8, pp=4, sequence_parallel=True))
    assert split["PP"] == close(2 * 4096 * 4096 * 2 / 8)
    experts = Model(7e9, 32, 4096, 4096, expert_parameters=4e9, expert_layers=16, experts_per_token=2)
    found = sent(Parallelism(dp=8, ep=4), experts)
    assert found["EP"] == close(4 * 16 * 3 / 4 * 2 * 4096 * 4096 * 2)
    assert found["DP"] == close(2 * 7 / 8 * 6e9)
    assert found["DP of experts"] == close(2 * 1 / 2 * 2e9)
    traffic = step.traffic(experts, Parallelism(dp=8, ep=4, zero=3))
    calls = {(each.parallelism, each.operation.name): each.calls for each in traffic}
    assert calls["ZeRO-3", "AllGather"] == 2 * 32
    assert calls["ZeRO-3 of experts", "AllGather"] == 2 * 16  # in as many layers as have some
    assert calls["ZeRO-3 of experts", "ReduceScatter"] == 16
    of_gradients = {
        each.operation.name for each in step.traffic(experts, Parallelism(tp=2, dp=8, zero=3)) if each.gradients
    }
    assert of_gradients == {"ReduceScatter"}
    assert sent(Parallelism(dp=8, ep=4, zero=3), experts)["ZeRO-3 of experts"] == close(3 * 1 / 2 * 2e9)


def test_where_groups_lie() -> None:
    shapes = {each.parallelism: each.shape(8) for each in step.traffic(MODEL, Parallelism(tp=4, dp=4, pp=2))}
    assert shapes == {"TP": (4, 1), "DP": (2, 2), "PP": (1, 2)}
    far, near = step.traffic(MODEL, Parallelism(tp=8, pp=2))[1], step.traffic(MODEL, Parallelism(tp=2, pp=2))[1]
    assert step.time_us(far, CLUSTER) == close(5 + far.bytes / 50_000)
    assert step.time_us(near, CLUSTER) == close(1 + near.bytes / 300_000)
    (uneven,) = step.traffic(MODEL, Parallelism(dp=12))
    with pytest.raises(BadInput, match=r"groups of DP \(12 GPUs, 1 apart\)"):
        uneven.shape(8)


def test_buckets_only_add_latency() -> None:
    one, many = (step.traffic(MODEL, Parallelism(dp=16, buckets=count))[0] for count in (1, 10))
    total = [step.time_us(each, CLUSTER) * each.calls for each in (one, many)]
    assert total[1] - total[0] == close(9 * (2 * 7 * 1 + 2 * 1 * 5))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Parallelism(pp=3), "pp 3 does not divide layers 32"),
        (Parallelism(dp=4, ep=3), "model with experts"),
        (Parallelism(sequence_parallel=True), "set tp to 2 or more"),
        (Parallelism(zero=4), "zero 4: valid are 0, 1, 2 and 3"),
        (Parallelism(dp=2, gradient_bytes=0), "gradient_bytes: 0; valid: above 0"),
        (Parallelism(tp=0), "tp: 0; valid: 1 or more, whole"),
        (Parallelism(micro_batch_sequences=-1.0), "micro_batch_sequences: -1"),
    ],
)
def test_plans_that_do_not_fit(plan: Parallelism, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        step.traffic(MODEL, plan)


@each_of(st.floats(1, 1e7), st.floats(1, 1e7), st.floats(0, 1))
def test_overlap_lies_between_the_longer_and_the_sum(compute: float, communication: float, hidden: float) -> None:
    found = step.step_us(compute, communication, hidden)
    assert max(compute, communication) - 1e-6 <= found <= compute + communication + 1e-6
    assert step.step_us(compute, communication, 1.0) == close(max(compute, communication))
    assert step.step_us(compute, communication, 0.0) == close(compute + communication)


# Projection


def test_the_host_path_adds_every_link() -> None:
    table = fabric.read("aurora")
    found = fabric.fabric(table, "nominal")
    once = 2e9 * (1 / 55 + 1 / 55 + 1 / 25 + 1 / 55 + 1 / 1024) / 1000  # equation 1
    assert found.time_us(2e9, 2, 1, "host") == close(2 * (2 - 1) / 1 * once)
    assert found.time_us(2e9, 1, 2, "host") == close(2 * (2e9 / 53 + 2e9 / 1024) / 1000)  # equation 7
    # Equation 10, with both of its kinds of links.
    assert found.time_us(2e9, 1, 4) == close(2 * (2e9 / 4 / 53 + 2e9 / 4 / 220) / 1000)
    assert found.time_us(2e9, 1, 4, "pcie") == found.time_us(2e9, 1, 4)
    # Equation 5: two Xe-links, four adapters.
    expected = (2 * 1e9 / (2 * 53) + 2 * 2e9 / (0.8 * 4 * 25) * (2 - 1) / 2) / 1000
    assert found.time_us(2e9, 2, 4) == close(expected)


def test_a_fabric_of_ones_own(tmp_path: Path) -> None:
    table = fabric.read("aurora")
    names_of = [f"{name} = {value}" for name, value in {**table["profiles"]["nominal"]}.items()]
    file = tmp_path / "mine.toml"
    head = "gpus_per_node = 8\ntiles_per_gpu = 1\nnics_per_node = 4\nnic_share = 1.0\n[profiles.mine]\n"
    file.write_text(head + "\n".join(names_of))
    found = fabric.fabric(fabric.read(str(file)), "mine")
    assert found.parts_us(1e9, 2, 8)["NIC"] == close(2e9 / (4 * 25) / 2 / 1000)
    assert found.parts_us(1e9, 1, 8)["MDFI"] == 0
    with pytest.raises(BadInput, match="no profile 'other'; valid: mine"):
        fabric.fabric(fabric.read(str(file)), "other")
    file.write_text(head + "\n".join(names_of[1:]))
    with pytest.raises(BadInput, match="lacks mdfi_gbs"):
        fabric.fabric(fabric.read(str(file)), "mine")
    whole = head + "\n".join(names_of)
    for text, says in (
        ("profiles = 3", "no profile 'mine'; valid: none"),
        ("[profiles]\nmine = 3", "no profile 'mine'; valid: mine"),
        (f"{whole}\nparent = 'gone'", "no profile 'gone'; valid: mine"),
        (whole.replace("nic_share = 1.0", "nic_share = 1.8"), "nic_share: 1.8; valid: 0 to 1"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=re.escape(says)):
            fabric.fabric(fabric.read(str(file)), "mine")
    described = fabric.fabric(fabric.read("aurora"), "measured")
    for text, says in (
        (whole, "the fabric's file has no tables: add bytes="),
        (f"tables = 3\n{whole}", "tables: TypeError"),
        (f"tables = [{{ title = 'a', path = 'direct', rows = [] }}]\n{whole}", "tables: KeyError('bytes'): each needs"),
        (f"tables = [{{ title = 'a', path = 'direct', bytes = 1, rows = [[1, 2]] }}]\n{whole}", "rows of nodes, ranks"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=re.escape(says)):
            fabric.projected_tables(described, fabric.read(str(file)))
    file.write_text("nic_share = ")
    with pytest.raises(BadInput, match=re.escape(str(file))):
        fabric.read(str(file))


def test_every_shipped_fabric_has_whole_profiles() -> None:
    table = fabric.read("aurora")
    for profile in table["profiles"]:
        assert fabric.fabric(table, profile).nics_per_node == 8


# Arrays, and numbers that are none


def test_formulas_take_arrays() -> None:
    sizes, ranks = np.array([1e3, 1e6, 1e9]), np.array([[2], [16], [512]])
    nodes = ranks // 2
    for operation in CostOperation:
        for algorithm in FORMULAS[operation]:
            found = terms(operation, algorithm, ranks).time_us(sizes, level(3, [10, 20, 30]))
            for (row, column), value in np.ndenumerate(found):
                on = level(3, [10, 20, 30][column])
                assert value == close(terms(operation, algorithm, ranks[row, 0]).time_us(sizes[column], on))
        gbs = operations.bus_gbs(operation, sizes, 7.0, ranks)
        assert gbs.shape == (3, 3)
        assert gbs[2, 1] == close(operations.bus_gbs(operation, 1e6, 7.0, 512))
    levels = (level(1, 300), level(5, 50))
    found = predict(CostOperation.AllReduce, HIERARCHICAL, sizes, 2, nodes, levels, NOTHING).time_us
    assert found[1, 2] == close(predict(CostOperation.AllReduce, HIERARCHICAL, 1e9, 2, 8, levels, NOTHING).time_us)
    flat = cost(CostOperation.AllReduce, "ring", 8, [1, 2], levels).time_us(1e9)
    assert flat.tolist() == [close(14 + 1.75e6 / 300), close(150 + 1.875e6 / 50)]
    bounds = wires.ideal(450, 100, 8, [1, 2, 4]).busbw_gbs
    assert bounds.tolist() == [close(float(wires.ideal(450, 100, 8, count).busbw_gbs)) for count in (1, 2, 4)]
    aurora = fabric.fabric(fabric.read("aurora"), "measured").time_us(2e9, [2, 4], 12)
    assert aurora.shape == (2,)
    assert step.step_us(1e6, [1e5, 2e6], 0.5).tolist() == [1.05e6, 2e6]
    batches = np.array([1.0, 2.0, 61.0])
    for one, last in zip(
        step.traffic(MODEL, Parallelism(tp=8, pp=2, micro_batch_sequences=batches)),
        step.traffic(MODEL, Parallelism(tp=8, pp=2, micro_batch_sequences=61)),
        strict=True,
    ):
        assert step.time_us(one, CLUSTER).shape == (3,)
        assert step.time_us(one, CLUSTER)[2] == close(float(step.time_us(last, CLUSTER)))
    shares = wires.uplink_share(CostOperation.AllGather, "pat", 64, [1, 8, 64])
    assert shares.tolist() == [
        close(63 / 64),
        close(float(wires.uplink_share(CostOperation.AllGather, "PAT", 64, 8))),
        0,
    ]


def test_numbers_in_give_numbers_out() -> None:
    both, ring = (level(1, 300), level(5, 50)), wires.loads(CostOperation.AllReduce, "ring", 8, 2)
    chain, bounds = wires.loads(CostOperation.Broadcast, "ring", 8, 2), wires.ideal(450, 100, 8, 2)
    made = predict(CostOperation.AllReduce, HIERARCHICAL, 1e9, 8, 8, both, algorithms.overheads(1, 0.1, 0.1, 64, 0.1))
    aurora = fabric.fabric(fabric.read("aurora"), "measured")
    found = [
        operations.bus_gbs(CostOperation.AllReduce, 1, 1, 8),
        operations.time_us(CostOperation.Broadcast, 1, 1, 8),
        bounds.intra_gbs,
        bounds.inter_gbs,
        bounds.busbw_gbs,
        both[0].alpha_us,
        both[0].beta_gbs,
        log2_rounds(8),
        crossover_bytes(linear(1, 2), linear(2, 1)),
        made.time_us,
        made.busbw_gbs,
        made.latency_us,
        made.flat_us,
        *made.parts_us.values(),
        *made.phases_us.values(),
        ring.gpu_share,
        ring.node_share,
        chain.gpu_share,
        chain.node_share,
        ring.time_us(1, 1, 1),
        *(wires.uplink_share(CostOperation.AllGather, name, 64, 8) for name in ("ring", "pat")),
        step.achieved(1, 1, 0.5),
        aurora.time_us(2e9, 2, 2),
        *aurora.parts_us(2e9, 2, 2, "pcie").values(),
        line.alpha_us(1, 1, 2),
    ]
    assert [one for one in found if not isinstance(one, float)] == []


@each_of(st.floats(1e-9, 1e25), st.floats(1e-9, 1e25), st.floats(0, 1))
def test_what_hiding_reaches_is_a_share(compute: float, communication: float, hidden: float) -> None:
    """Of any two times, also where one is lost beside the other."""
    assert 0 <= step.achieved(compute, communication, hidden) <= 1 + 1e-9
    assert step.achieved(compute, communication, 1.0) == close(1)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "x", None])
def test_nonsense_is_refused(bad: Any) -> None:
    for call in (
        lambda: operations.bus_gbs(CostOperation.AllReduce, bad, 1, 8),
        lambda: operations.bus_gbs(CostOperation.AllReduce, 1, bad, 8),
        lambda: operations.bus_gbs(CostOperation.AllReduce, 1, 1, bad),
        lambda: level(1, bad),
        lambda: wires.ideal(bad if bad is not None else 0, 1, 8, 2),
        lambda: terms(CostOperation.AllReduce, "ring", bad),
        lambda: fabric.fabric(fabric.read("aurora"), "measured").time_us(bad, 2, 2),
    ):
        with pytest.raises(BadInput, match="valid"):
            call()


def test_one_bad_value_of_many_is_named() -> None:
    with pytest.raises(BadInput, match=r"ranks: 2\.5; valid: 2 or more, whole"):
        operations.bus_gbs(CostOperation.AllReduce, 1, 1, [2, 2.5, 4])
    with pytest.raises(BadInput, match="hierarchical algorithms need alpha and beta of two levels"):
        cost(CostOperation.AllReduce, HIERARCHICAL, 2, 2, (level(1, 1), None))
    with pytest.raises(BadInput, match="for a power of two ranks, not for 6"):
        terms(CostOperation.AllReduce, "halving-doubling", 6)
