"""Communicators of some ranks of others."""

import pytest

from tuner import communicator
from tuner.api import Communicator
from tuner.base.errors import BadInput
from tuner.scenario.describe import describe
from tuner.scenario.p2p import p2p_context

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
        ({"ranks": "0,9"}, "9; valid: 0 to 7"),
        ({"ranks": [0, 0]}, "one of them twice"),
        ({"shared": True}, "`shared` needs `ranks`"),
        ({"ranks": "3"}, "nothing to pick"),
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
