"""Nodes that differ: what of each the communicator takes over. tests/live/test_mixed_nodes.py asks the library."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Pattern
from tuner.emulator.build import build
from tuner.emulator.communicator import Comm, Node
from tuner.emulator.rules import init, time
from tuner.machine.graphs import Graph
from tuner.release.environment import Environment

RING = Graph(
    pattern=Pattern.Ring,
    channels=8,
    same_channels=True,
    bw_intra_gbs=40.0,
    bw_inter_gbs=20.0,
    latency_inter_us=1.0,
    type_intra="NVL",
    type_inter="PIX",
    cross_nic=0,
)
TREE = replace(RING, pattern=Pattern.BalancedTree)
NVLS = replace(RING, pattern=Pattern.NVLS, channels=16)
ONE = Node(
    graphs={"ring": RING, "tree": TREE, "nvls": NVLS},
    comp_caps=(90,) * 8,
    cpu_arch="x86_64",
    cpu_vendor="GenuineIntel",
    has_nvswitch=True,
    direct_nvlink=True,
    net_gbs=50.0,
)
WEAK_RING = replace(
    RING,
    channels=6,
    same_channels=False,
    bw_intra_gbs=20.0,
    bw_inter_gbs=10.0,
    latency_inter_us=3.0,
    type_intra="PHB",
    type_inter="SYS",
    cross_nic=2,
)
OTHER = Node(
    graphs={"ring": WEAK_RING, "tree": replace(WEAK_RING, pattern=Pattern.Tree, channels=7)},
    comp_caps=(80,) * 4,
    cpu_arch="x86_64",
    cpu_vendor="AuthenticAMD",
    has_nvswitch=False,
    direct_nvlink=False,
    net_gbs=25.0,
)


def built(*nodes: Node, nccl: str = "2.28.9") -> Comm:
    return build(release.load(nccl), [(node, 1) for node in nodes], Environment({}))


def test_the_weakest_of_all_graphs_counts() -> None:
    weak = built(ONE, OTHER).graphs[Algorithm.Ring]
    assert weak == replace(WEAK_RING, latency_inter_us=1.0)  # the latency is not exchanged
    assert built(OTHER, ONE).graphs[Algorithm.Ring] == WEAK_RING


def test_ranks_are_counted_by_node() -> None:
    mixed = built(ONE, OTHER, ONE)
    assert (mixed.ranks, mixed.nodes) == (20, 3)
    assert (mixed.local_ranks, mixed.min_local_ranks, mixed.max_local_ranks) == (8, 4, 8)
    assert built(OTHER, ONE).local_ranks == 4


def test_nvls_needs_every_node() -> None:
    assert built(ONE, ONE).nvls
    assert not built(ONE, OTHER).nvls
    assert not built(OTHER, ONE).nvls


@pytest.mark.parametrize(("nccl", "channels"), [("2.20.5", 16), ("2.21.5", 8)])
def test_an_old_release_counts_channels_for_an_nvls_that_the_other_node_lacks(nccl: str, channels: int) -> None:
    few = replace(ONE, graphs={"ring": replace(RING, channels=4), "tree": replace(TREE, channels=4), "nvls": NVLS})
    slow = replace(few, graphs={"ring": replace(RING, channels=4, bw_intra_gbs=20.0), "tree": TREE})
    assert not built(few, slow, nccl=nccl).nvls
    assert built(few, slow, nccl=nccl).channels == channels
    assert built(slow, few, nccl=nccl).channels == 8


def test_capabilities_and_processors_of_all_nodes() -> None:
    mixed = built(ONE, OTHER)
    assert (mixed.min_comp_cap, mixed.max_comp_cap) == (80, 90)
    assert (mixed.cpu_arch, mixed.cpu_vendor) == ("x86_64", "mixed")
    assert built(ONE, replace(ONE, cpu_arch="arm64", cpu_vendor=None)).cpu_arch == "mixed"


@pytest.mark.parametrize(
    ("nccl", "comp_caps", "vendor", "table_vendor", "pattern"),
    [
        ("2.20.5", (90, 90), "GenuineIntel", "GenuineIntel", Pattern.BalancedTree),
        ("2.21.5", (80, 90), "GenuineIntel", "GenuineIntel", Pattern.BalancedTree),
        ("2.23.4", (80, 90), "mixed", "GenuineIntel", Pattern.BalancedTree),
        ("2.25.1", (80, 90), "mixed", "mixed", Pattern.BalancedTree),
        ("2.26.2", (80, 90), "mixed", "mixed", Pattern.Tree),
    ],
)
def test_what_older_releases_do_not_exchange(
    nccl: str, comp_caps: tuple[int, int], vendor: str, table_vendor: str, pattern: Pattern
) -> None:
    mixed = built(ONE, OTHER, nccl=nccl)
    assert (mixed.min_comp_cap, mixed.max_comp_cap) == comp_caps
    assert (mixed.cpu_vendor, mixed.table_cpu_vendor) == (vendor, table_vendor)
    assert mixed.tree_pattern is pattern


def test_equal_nodes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    weakest = init.weakest

    def counted(graphs: Any, types: Any) -> Any:
        seen.append(len(graphs))
        return weakest(graphs, types)

    monkeypatch.setattr(init, "weakest", counted)
    assert built(*[ONE] * 4096).ranks == 32768
    assert set(seen) == {1}


def test_a_communicator_needs_two_ranks() -> None:
    with pytest.raises(BadInput, match="two ranks or more"):
        built(replace(ONE, comp_caps=(90,)))
    with pytest.raises(BadInput, match="no nodes"):
        built()


@pytest.mark.parametrize("capability", [107, 109, 111, 119, 122, 130])
def test_gpus_with_bandwidths_that_the_table_does_not_have_are_refused(capability: int) -> None:
    of_rubin = replace(ONE, comp_caps=(100,) * 7 + (capability,))
    with pytest.raises(BadInput, match=f"compute capability {capability / 10:g}, which are not emulated; valid: other"):
        built(of_rubin, nccl="2.32.3")
    assert built(of_rubin, nccl="2.31.2").max_comp_cap == capability


@pytest.mark.parametrize("capability", [106, 110, 120, 121])
def test_gpus_beside_those_are_answered(capability: int) -> None:
    assert built(replace(ONE, comp_caps=(capability,) * 8), nccl="2.32.3").min_comp_cap == capability


@pytest.mark.parametrize(("rule", "pick"), [(time.first_fastest, 1), (time.last_fastest, 3)])
def test_of_equal_times_a_release_picks_the_first_or_the_last(rule: time.PickRule, pick: int) -> None:
    times = np.array([[3], [2], [4], [2], [2.5]], np.float32)  # us, of each cell at one size
    picks, time_us = rule(iter(times), built(ONE, ONE))
    assert (picks.tolist(), time_us.tolist()) == ([pick], [2])
