"""Our own channels across nodes against the live libnccl: what every rank has in memory, and what it logs."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import count, pairwise, product, zip_longest
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tests.support.random_topologies import drawn
from tuner.base.errors import OracleFailed, TunerError
from tuner.cli import everything as main
from tuner.emulator.connect import Connected, Tree
from tuner.machine import catalogue
from tuner.machine.gpus import PeerToPeer
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

pytestmark = pytest.mark.live

# Machine, nodes, GPUs of each
SHAPES = (
    ("dgx-h100", 1, None),
    ("dgx-h100", 2, None),
    ("dgx-h100", 3, None),
    ("dgx-h100", 5, 3),
    ("dgx-h100", 7, 1),
    ("dgx-a100", 3, None),
    ("dgx-b200", 2, 4),
    ("dgx-1v", 5, 4),
    ("gh200-4x", 3, None),
    ("a100-4x-2nic", 3, None),
    ("pcie-l40s-no-p2p", 2, None),
    ("ws-2x-a6000", 1, None),
)
SETTINGS: tuple[dict[str, str], ...] = (
    {"NCCL_CROSS_NIC": "0"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_MIN_NCHANNELS": "20"},
    {"NCCL_MAX_NCHANNELS": "1"},
    {"NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "8"},
    {"NCCL_MIN_CTAS": "13", "NCCL_MAX_CTAS": "24"},
    {"NCCL_COLLNET_ENABLE": "1"},
    {"NCCL_COLLNET_ENABLE": "1", "NCCL_MAX_NCHANNELS": "3", "NCCL_MIN_NCHANNELS": "7"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_P2P_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NVLS_NCHANNELS": "7"},
    {"NCCL_NVLS_ENABLE": "0"},
)
# Machine, GPUs, nodes; in the order of ranks
MIXED = (
    (("dgx-h100", None, 1), ("dgx-h100", 4, 2)),
    (("dgx-h100", None, 2), ("dgx-a100", None, 1), ("dgx-h100", 3, 1)),
    (("dgx-1v", None, 2), ("dgx-a100", 1, 3)),
    (("dgx-2", None, 1), ("dgx-a100", 4, 1)),
)
LOGGED = "2.28.9"


def both(scenario: Scenario, timeout_s: float = 600.0) -> tuple[Connected, Connected]:
    """Computed here, and what libnccl has."""
    ours = scenario.resolve().connected
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        return ours, oracle.connected()


def differences(ours: Connected, theirs: Connected) -> Iterator[str]:
    """Every field of every channel of every rank that is not the same."""
    if ours.node_of_rank != theirs.node_of_rank:
        yield f"nodes of ranks: {ours.node_of_rank} here, {theirs.node_of_rank} in libnccl"
    for rank, (own, real) in enumerate(zip_longest(ours.ranks, theirs.ranks)):
        if own is None or real is None:
            yield f"rank {rank} is missing"
            continue
        if own.pat_peers != real.pat_peers:
            yield f"rank {rank}, PAT: {own.pat_peers} here, {real.pat_peers} in libnccl"
        for kind in ("channels", "nvls"):
            for number, pair in enumerate(zip_longest(getattr(own, kind), getattr(real, kind))):
                yield from (f"rank {rank}, {kind} {number}, {difference}" for difference in _between(*pair))


def _between(own: object, real: object) -> Iterator[str]:
    if own is None or real is None:
        yield f"{own} here, {real} in libnccl"
        return
    for field in fields(own):  # type: ignore[arg-type]
        here, there = getattr(own, field.name), getattr(real, field.name)
        if here != there:
            yield f"{field.name}: {here} here, {there} in libnccl"


def compare(scenario: Scenario) -> Connected:
    ours, theirs = both(scenario)
    assert list(differences(ours, theirs)) == []
    assert theirs.ranks
    assert all(rank.channels for rank in theirs.ranks)
    return theirs


def compare_or_refuse(scenario: Scenario) -> None:
    """What is refused here, libnccl fails on."""
    try:
        assert scenario.resolve().connected.ranks
    except TunerError:
        with pytest.raises(OracleFailed), Oracle(scenario.oracle_configuration(), timeout_s=600) as oracle:
            oracle.connected()
    else:
        compare(scenario)


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "shape"), list(product(HERE, SHAPES)), ids=str)
def test_every_rank_has_the_channels_of_libnccl(nccl: str, shape: tuple[str, int, int | None]) -> None:
    machine, nodes, gpus = shape
    compare(Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus))


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "settings"), list(product(HERE, SETTINGS)), ids=str)
def test_every_rank_has_the_channels_of_libnccl_with_variables(nccl: str, settings: dict[str, str]) -> None:
    compare(Scenario(nccl, 2, machine="dgx-h100", collnet=True, environment=settings))


@pytest.mark.each_choice
@pytest.mark.parametrize(("nccl", "described"), list(product(HERE, MIXED)), ids=str)
def test_every_rank_has_the_channels_of_libnccl_where_nodes_differ(
    nccl: str, described: tuple[tuple[str, int | None, int], ...]
) -> None:
    own, *others = [Scenario(nccl, nodes, machine=name, gpus_per_node=gpus) for name, gpus, nodes in described]
    compare(replace(own, others=tuple(others)))


@pytest.mark.parametrize("nccl", HERE)
def test_random_topologies_have_the_channels_of_libnccl(nccl: str, draws: Draws, tmp_path: Path) -> None:
    numbers, file = count(), tmp_path / "node.xml"
    for _ in range(draws.times):
        nodes = (drawn(f"{draws.seed} channels {number} {nccl}") for number in numbers)
        # No file says that peer-to-peer fails.
        node = next(node for node in nodes if node.peer_to_peer is PeerToPeer.all and node.gpus * node.nodes > 1)
        file.write_text(node.xml)
        own = Scenario(nccl, node.nodes, topology=file, gpus_per_node=node.gpus, environment=node.environment)
        compare_or_refuse(replace(own, collnet=True))


@pytest.mark.parametrize("nccl", HERE)
def test_random_machines_have_the_channels_of_libnccl(nccl: str, draws: Draws) -> None:
    random = draws.random(f"channels {nccl}")
    here = [name for name in catalogue.names() if nccl not in catalogue.load(name).crashes]
    for _ in range(draws.times):
        machine, settings = random.choice(here), random.choice(({}, *SETTINGS))
        gpus = random.choice(sorted(catalogue.load(machine).gpu_counts))
        nodes = random.choice((2, 3, 5) if gpus == 1 else (1, 2, 3, 5))
        compare_or_refuse(
            Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus, collnet=True, environment=settings)
        )


def test_ranks_that_share_gpus_have_the_channels_of_libnccl() -> None:
    newest = HERE[-1]
    compare(Scenario(newest, 2, machine="dgx-h100", gpus_per_node=2, ranks_per_gpu=2))


@pytest.mark.parametrize("nccl", HERE)
def test_what_libnccl_logs_is_what_it_has_in_memory(nccl: str) -> None:
    scenario = Scenario(nccl, 3, machine="dgx-h100", gpus_per_node=4)
    ours = scenario.resolve().connected
    with Oracle(scenario.oracle_configuration(), timeout_s=600) as oracle:
        log = "\n".join(oracle.log_lines())
    rings = re.findall(r"NCCL INFO Ring (\d+) : (-?\d+) -> (\d+) -> (-?\d+)", log)
    own = [
        (str(number), str(channel.previous), str(rank), str(channel.next))
        for rank, view in enumerate(ours.ranks)
        for number, channel in enumerate(view.channels)
    ]
    assert sorted((str(int(number)), *rest) for number, *rest in rings) == sorted(own)
    orders = {int(number): text.split() for number, text in re.findall(r"NCCL INFO Channel (\d+)/\d+ : +([\d ]+)", log)}
    assert set(orders) == set(range(len(ours.ranks[0].channels)))
    for number, order in orders.items():
        for rank, following in pairwise(order):
            assert ours.ranks[int(rank)].channels[number].next == int(following)
    trees = re.findall(r"NCCL INFO Trees (.*)", log)
    assert len(trees) == len(ours.ranks)
    for line in trees:
        for number, *down, rank, up in re.findall(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)(?= |$)", line):
            tree = ours.ranks[int(rank)].channels[int(number)].tree
            children = tuple(int(child) for child in down if int(child) >= 0)
            assert tree == Tree(None if int(up) < 0 else int(up), children)
    heads = dict(re.findall(r"NVLS Head +(\d+): +(.*)", log))  # every rank of the first node logs them
    assert [tuple(map(int, heads[str(head)].split())) for head in range(len(heads))] == nvls_heads(ours)


def nvls_heads(connected: Connected) -> list[tuple[int, ...]]:
    of_rank = [rank.nvls[0].head for rank in connected.ranks if rank.nvls]
    numbers = sorted({head for head in of_rank if head is not None})
    return [tuple(rank for rank, head in enumerate(of_rank) if head == number) for number in numbers]


def test_the_oracles_command_prints_the_same_json() -> None:
    asked = ["--machine", "dgx-h100", "--gpus-per-node", "2", "--nodes", "3", "--nccl", LOGGED, "--across", "--json"]
    printed = [
        json.loads(CliRunner().invoke(main, [*verb, *asked], catch_exceptions=False).stdout)
        for verb in (["graphs"], ["graphs", "--libnccl"])
    ]
    assert printed[0] == printed[1]
    assert {"graphs", "ranks_of_nodes", "rings", "trees"} <= set(printed[0])
    assert {"ring", "tree"} <= set(printed[0]["graphs"])
