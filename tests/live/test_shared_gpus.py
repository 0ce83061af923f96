"""Several ranks on one GPU, which NCCL 2.30.3 and later allow."""

from dataclasses import replace

import pytest

from tests.support.available_releases import HERE, INTERFACES
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.oracle.configuration import OracleConfiguration

REFUSES = ("2.18.1", "2.28.9", "2.29.7")
SHARING = [name for name in dict.fromkeys((*HERE, *sorted(INTERFACES))) if catalogue.release_key(name) >= (2, 30, 3)]

pytestmark = pytest.mark.skipif(not SHARING, reason="no libnccl from 2.30.3 on is here")


def of(release: str, gpu_of_rank: tuple[int, ...], nodes: int = 1) -> OracleConfiguration:
    h100 = catalogue.load("dgx-h100")
    return OracleConfiguration(
        h100.topology_xml, nodes, max(gpu_of_rank) + 1, release, dict(h100.environment), gpu_of_rank=gpu_of_rank
    )


@pytest.mark.parametrize("release", SHARING)
@pytest.mark.parametrize("gpu_of_rank", [(0, 0), (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1)])
def test_ranks_that_share_a_gpu_are_ranks_of_one_node(release: str, gpu_of_rank: tuple[int, ...]) -> None:
    configuration = of(release, gpu_of_rank, nodes=2)
    assert configuration.ranks == 2 * len(gpu_of_rank)
    with Oracle(configuration) as oracle:
        assert (oracle.facts.n_ranks, oracle.facts.n_nodes) == (2 * len(gpu_of_rank), 2)
        assert oracle.facts.local_ranks == len(gpu_of_rank)


@pytest.mark.parametrize("release", SHARING)
def test_ranks_on_one_gpu_meet_in_its_memory(release: str) -> None:
    with Oracle(of(release, (0, 0, 0, 0))) as oracle:
        ring = oracle.graphs[Algorithm.Ring]
        assert (ring.type_intra, oracle.facts.nvls_support) == (0, 0)  # LOC; NVLS needs a GPU for each rank


@pytest.mark.parametrize("release", [name for name in REFUSES if library.cached(name).is_file()])
def test_earlier_releases_refuse(release: str) -> None:
    with pytest.raises(BadInput, match=f"NCCL {release} refuses several ranks on one GPU; valid: 2.30.3 and later"):
        Oracle(of(release, (0, 0)))


@pytest.mark.parametrize("gpu_of_rank", [(1, 1), (0, 2), (-1, 0)])
def test_every_gpu_has_a_rank(gpu_of_rank: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="valid: at least one rank on each"):
        Oracle(replace(of(SHARING[-1], (0, 0)), gpu_of_rank=gpu_of_rank, gpus_per_node=2))
