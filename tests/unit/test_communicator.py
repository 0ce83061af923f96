"""Communicators of nodes that differ (tests/live/test_mixed_nodes.py asks the library), and of some ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn_from
from hypothesis import strategies as st

from tuner import communicator, release
from tuner.api import Communicator
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Pattern
from tuner.base.sizes import as_ranges, from_ranges
from tuner.emulator.build import build
from tuner.emulator.communicator import Comm, Node
from tuner.emulator.rules import init, time
from tuner.machine.graphs import Graph
from tuner.release.environment import Environment
from tuner.scenario.describe import describe
from tuner.scenario.p2p import p2p_context

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
def test_rubin_is_refused_where_only_the_source_is_known(capability: int) -> None:
    """2.32.6 has a cost model of its own for Rubin; 2.32.3, which was compared, answers for it."""
    of_rubin = replace(ONE, comp_caps=(100,) * 7 + (capability,))
    with pytest.raises(BadInput, match=r"not enough for its models of Rubin; valid: other GPUs, or 2\.32\.3"):
        built(of_rubin, nccl="2.32.6")
    assert built(of_rubin, nccl="2.32.3").max_comp_cap == capability
    assert built(of_rubin, nccl="2.31.2").max_comp_cap == capability


@pytest.mark.parametrize("capability", [106, 110, 120, 121])
def test_gpus_beside_those_are_answered(capability: int) -> None:
    assert built(replace(ONE, comp_caps=(capability,) * 8), nccl="2.32.3").min_comp_cap == capability


@pytest.mark.parametrize(("rule", "pick"), [(time.first_fastest, 1), (time.last_fastest, 3)])
def test_of_equal_times_a_release_picks_the_first_or_the_last(rule: time.PickRule, pick: int) -> None:
    times = np.array([[3], [2], [4], [2], [2.5]], np.float32)  # us, of each cell at one size
    picks, time_us = rule(iter(times), built(ONE, ONE))
    assert (picks.tolist(), time_us.tolist()) == ([pick], [2])


SIZES = [1 << power for power in range(8, 31, 3)]


def picks(communicator: Communicator) -> list[tuple[object, ...]]:
    found = communicator.pick("allreduce", SIZES)
    return [tuple(row) for row in zip(found.algorithm, found.protocol, found.channels, found.time_us, strict=True)]


@pytest.mark.parametrize(
    ("ranks", "alike"),
    [
        ("0-3", {"nodes": 1, "gpus_per_node": 4}),
        ("8-11", {"nodes": 1, "gpus_per_node": 4}),
        ("0-31:8", {"nodes": 4, "gpus_per_node": 1}),
        ("0-31", {"nodes": 4}),
        ("16-18,24-26", {"nodes": 2, "gpus_per_node": 3}),
        ("0-7,24-27", {"node": ["dgx-h100", "dgx-h100:4"]}),
    ],
)
def test_some_ranks_are_as_a_communicator_of_their_hosts(ranks: str, alike: dict[str, object]) -> None:
    part = communicator("dgx-h100", nodes=4, ranks=ranks, nccl="2.28.9")
    machine = None if "node" in alike else "dgx-h100"
    assert picks(part) == picks(communicator(machine, nccl="2.28.9", **alike))  # type: ignore[arg-type]


def test_trays_of_a_domain_that_have_ranks_are_its_hosts() -> None:
    part = communicator("gb200-nvl72", nodes=2, trays=4, ranks="4-11,16-31", nccl="2.28.9")
    of_trays = describe("gb200-nvl72", nodes=2, trays=4, ranks="4-11,16-31", nccl="2.28.9").resolve()
    assert of_trays.domains == (2, 4)
    assert [count for _, count in of_trays.nodes] == [1, 1]
    assert part.pick("allreduce", 1 << 20).time_us[0] > 0


def test_which_gpus_have_a_rank_decides_the_graphs() -> None:
    """Two GPUs of a DGX-1V have two NVLinks between them, one, or none."""
    times_us = {
        ranks: communicator("dgx-1v", ranks=ranks, nccl="2.28.9").pick("allreduce", 1 << 26).time_us[0]
        for ranks in ("0,3", "0,1", "0,5")
    }
    assert 3.9 * times_us["0,3"] < 1.98 * times_us["0,1"] < times_us["0,5"]


def test_shared_resources_limit_channels() -> None:
    """All ranks on two nodes have fewer channels than those of one node would have of their own."""
    own, shared = (
        describe("dgx-h100", nodes=2, ranks="0-7", shared=shared, nccl="2.28.9").communicator()
        for shared in (False, True)
    )
    whole = describe("dgx-h100", nodes=2, nccl="2.28.9").communicator()
    assert own.channels > whole.channels == shared.channels


def test_the_variable_counts_before_the_configuration() -> None:
    for value, channels in (("0", 24), ("1", 16), ("2", 24)):
        described = describe(
            "dgx-h100", nodes=2, ranks="0-7", shared=True, nccl="2.28.9", env={"NCCL_COMM_SPLIT_SHARE_RESOURCES": value}
        )
        assert described.communicator().channels == channels


def test_shared_resources_limit_chunks_of_sends() -> None:
    """Between GPUs of a node chunks are larger than over the network, unless they are those of all ranks."""
    chunks = [
        p2p_context(
            describe("dgx-h100", nodes=2, ranks="0-7", shared=shared, nccl="2.28.9").resolve()
        ).channels.chunk_bytes
        for shared in (False, True)
    ]
    assert chunks == [1 << 19, 1 << 17]


def test_titles_name_the_ranks() -> None:
    assert describe("dgx-h100", nodes=2, ranks="0-15:2", nccl="2.28.9").title == (
        "ranks 0-14:2 of 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ranks": "0,9"}, "9 is no rank of"),
        ({"ranks": [0, 0]}, "one of them occurs twice"),
        ({"shared": True}, "shared= only applies with ranks="),
        ({"ranks": "3"}, "picks nothing"),
        ({"ranks": "0,3", "ranks_per_gpu": 2, "nccl": "2.30.7"}, "share a GPU"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        describe("dgx-h100", **given).communicator()  # type: ignore[arg-type]


def test_nvls_that_is_shared_crashes_one_release() -> None:
    """It divides by a chunk that it sets only where NVLS is the communicator's own (ncclNvlsSetup, v2.21.5-1)."""
    with pytest.raises(BadInput, match="crashes in NVLS that is shared"):
        describe("dgx-h100", nodes=2, ranks="0-7", shared=True, nccl="2.21.5").communicator()
    for given in ({"ranks": "0-3"}, {"ranks": "0-7", "env": {"NCCL_NVLS_ENABLE": "0"}}, {"ranks": "0-7"}):
        shared = given != {"ranks": "0-7"}
        describe("dgx-h100", nodes=2, shared=shared, nccl="2.21.5", **given).communicator()


def test_gpus_that_only_the_network_joins_send_over_it() -> None:
    """On a DGX-1V GPU 3 has no NVLink to 4 and 5, nor to a GPU that has, and adapters are faster than the CPUs."""
    where = p2p_context(describe("dgx-1v", ranks="2-6", nccl="2.28.9").resolve(), rank=1)
    assert [peer for peer in range(5) if peer != 1 and where.by_network(peer)] == [2, 3]
    everyone = p2p_context(describe("dgx-1v", nccl="2.28.9").resolve())
    assert not any(map(everyone.by_network, range(1, 8)))


def test_each_node_of_a_part_has_its_own_links() -> None:
    """Nodes that are alike but for which of their GPUs have ranks: each GPU has an adapter of its own nearby."""
    resolved = describe("dgx-b200", nodes=2, ranks="3,10", nccl="2.28.9").resolve()
    for rank, gpu in enumerate((3, 2)):
        links = resolved.view_of(rank).links
        assert links is not None
        assert [adapter.id for adapter in links().access[0] if adapter.reads] == [gpu]


@pytest.mark.parametrize(
    ("text", "numbers", "said"),
    [
        ("0-7:2", (0, 2, 4, 6), "0-6:2"),
        ("12,0-3", (0, 1, 2, 3, 12), "0-3,12"),
        ("0,1", (0, 1), "0-1"),
        ("0,8", (0, 8), "0,8"),
        ("1,9,17,3", (1, 3, 9, 17), "1,3,9,17"),
        ("5", (5,), "5"),
    ],
)
def test_ranges_are_read_and_said(text: str, numbers: tuple[int, ...], said: str) -> None:
    assert from_ranges(text, "--ranks") == numbers
    assert as_ranges(numbers) == said


@drawn_from(st.sets(st.integers(0, 200), min_size=1))
def test_what_is_said_is_read_again(numbers: set[int]) -> None:
    assert from_ranges(as_ranges(sorted(numbers)), "--ranks") == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "give whole numbers"),
        ("0-7:0", "give whole numbers"),
        ("a", "give whole numbers"),
        ("7-0", "0 is below 7"),
        ("0-3,2", "2 is given twice"),
        ("0-99999999", "give whole numbers"),
    ],
)
def test_what_is_no_list_of_ranks_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        from_ranges(text, "--ranks")
