"""Topologies and graphs of GPUs that several ranks share, as NCCL 2.30.3 and later dump them, and who refuses them."""

from pathlib import Path

import pytest

import tuner
from tests.support.small_topologies import cpu, net, system
from tuner import release
from tuner.base.errors import BadInput, BadTopology
from tuner.emulator.rules import init
from tuner.machine.graphs import read_dump, read_orders
from tuner.machine.topology import read
from tuner.machine.topology.edit import each_gpu_once
from tuner.scenario import Scenario
from tuner.scenario.describe import describe

SHARING = [name for name in release.names() if release.load(name).environment.shares_gpus]


def shared(dev: int, *ranks: int, rest: str = 'mlopart="-1"') -> str:
    """The <pci> of a GPU with a <gpu> for each rank on it."""
    of_each = "".join(f'<gpu dev="{dev}" sm="90" rank="{rank}" gdr="1" {rest}/>' for rank in ranks)
    return f'<pci busid="0000:0{dev}:00.0" class="0x030200">{of_each}</pci>'


def test_which_releases_let_ranks_share_a_gpu() -> None:
    assert SHARING == ["2.30.3", "2.30.4", "2.30.7", "2.31.2", "2.32.3"]


def test_a_gpu_that_ranks_share_is_one_gpu() -> None:
    topology = read(system(cpu(shared(0, 0, 2, 4) + shared(1, 1, 3) + net(0))))
    assert [gpu.dev for gpu in topology.gpus] == [0, 1]
    assert topology.gpu_of_rank == (0, 1, 0, 1, 0)
    assert (topology.placed(3), topology.placed(6)) == ((0, 1, 0), None)


def test_ranks_count_in_their_order_and_gpus_in_theirs() -> None:
    """A dump of the second node begins with its first rank; CUDA_VISIBLE_DEVICES can turn GPUs round."""
    topology = read(system(cpu(shared(1, 8, 9) + shared(0, 10, 11))))
    assert [gpu.busid for gpu in topology.gpus] == ["0000:00:00.0", "0000:01:00.0"]
    assert topology.gpu_of_rank == (1, 1, 0, 0)


def test_gpus_of_one_rank_each_are_as_before() -> None:
    topology = read(system(cpu(shared(1, 0) + shared(0, 1))))
    assert (topology.gpu_of_rank, topology.placed(2)) == ((), (0, 1))


def test_libnccl_gets_each_gpu_once() -> None:
    text = each_gpu_once(system(cpu(shared(0, 0, 1) + shared(1, 2, 3))))
    assert text.count("<gpu ") == 2
    assert read(text).gpu_of_rank == ()


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        (shared(0, 0, 0), "<gpu rank>=0 twice: each rank may occur once"),
        (shared(0, 0) + shared(0, 1), "<gpu dev>=0 twice"),
        (shared(0, 0, 1).replace('dev="0"', 'dev="1"', 1), "has another dev than the first <gpu> of its <pci>"),
        (shared(0, 0, 1).replace('sm="90"', 'sm="80"', 1), "has another sm than the first <gpu> of its <pci>"),
        (shared(0, 0, 1).replace(' rank="1"', ""), "<gpu> has no rank"),
        (shared(0, 0, 1, rest='mlopart="0"'), "is a part of a GPU (mlopart); valid: whole GPUs"),
    ],
)
def test_what_no_ranks_share(inside: str, why: str) -> None:
    with pytest.raises(BadTopology) as refused:
        read(system(cpu(inside)))
    assert why in str(refused.value)


def write(folder: Path, *gpus: str) -> Path:
    path = folder / "node.xml"
    path.write_text(system(cpu("".join(gpus) + net(0))))
    return path


def test_a_scenario_takes_ranks_from_the_topology(tmp_path: Path) -> None:
    file = write(tmp_path, shared(0, 0, 2), shared(1, 1, 3))
    scenario = Scenario(SHARING[0], 2, topology=file)
    assert (scenario.gpus(), scenario.local_ranks(), scenario.ranks, scenario.shares_gpus) == (2, 4, 8, True)
    assert scenario.title == f"2 x {file}, 2 GPUs each, 2 ranks on each, NCCL 2.30.3"
    assert scenario.oracle_configuration().gpu_of_rank == (0, 1, 0, 1)
    assert scenario.oracle_configuration().topology.count("<gpu ") == 2
    one = Scenario(SHARING[0], 2, topology=file, gpus_per_node=1)
    assert one.oracle_configuration().gpu_of_rank == (0, 0)
    changed = Scenario(SHARING[0], 2, topology=file, hardware={"nic-gbps": "100"})
    assert changed.oracle_configuration().gpu_of_rank == (0, 1, 0, 1)


@pytest.mark.parametrize(("per_gpu", "placed"), [(1, ()), (2, (0, 0, 1, 1)), (3, (0, 0, 0, 1, 1, 1))])
def test_as_many_ranks_per_gpu_as_asked_for(tmp_path: Path, per_gpu: int, placed: tuple[int, ...]) -> None:
    scenario = describe(
        topology=write(tmp_path, shared(0, 0, 2), shared(1, 1, 3)), ranks_per_gpu=per_gpu, nccl="2.32.3"
    )
    assert scenario.oracle_configuration().gpu_of_rank == placed
    assert scenario.ranks == 2 * per_gpu


def test_uneven_sharing_is_said_in_words(tmp_path: Path) -> None:
    scenario = Scenario("2.32.3", 1, topology=write(tmp_path, shared(0, 0, 2, 4), shared(1, 1, 3)))
    assert scenario.title.endswith("2 GPUs each, 5 ranks on them, NCCL 2.32.3")


@pytest.mark.parametrize("name", sorted(set(release.names()) - set(SHARING)))
def test_earlier_releases_refuse(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        tuner.communicator("dgx-h100", nccl=name, gpus_per_node=1, ranks_per_gpu=2).pick("allreduce", 1024)
    assert str(refused.value) == (
        f"NCCL {name} refuses several ranks on one GPU: use one rank per GPU, or NCCL 2.30.3 or later"
    )


def test_what_else_is_refused() -> None:
    def asked(**description: object) -> Scenario:
        return describe("dgx-h100", **{"nccl": "2.32.3", "ranks_per_gpu": 2, **description})  # type: ignore[arg-type]

    with pytest.raises(BadInput, match="ranks_per_gpu 0: give 1 or more"):
        asked(ranks_per_gpu=0)
    with pytest.raises(BadInput, match="with NCCL_MULTI_RANK_GPU_ENABLE=0 NCCL refuses several ranks on one GPU"):
        asked(env={"NCCL_MULTI_RANK_GPU_ENABLE": "0"}).local_ranks()
    with pytest.raises(BadInput, match="a training step is not possible if ranks share a GPU: set ranks_per_gpu= 1"):
        asked().check_gpu_for_each_rank("a training step")
    assert asked(env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"}).local_ranks() == 16
    asked(ranks_per_gpu=1).check_gpu_for_each_rank("a training step")


def test_releases_are_those_that_let_ranks_share() -> None:
    assert Scenario("2.32.3", 1, "dgx-h100", ranks_per_gpu=2).releases == tuple(SHARING)
    assert len(Scenario("2.32.3", 1, "dgx-h100", ranks_per_gpu=1).releases) > len(SHARING)


@pytest.mark.parametrize(
    ("nodes", "any_share", "last_two_share"),
    [
        ([(0, 1), (0,)], False, False),
        ([(0, 0, 1, 1)], True, True),
        ([(0, 1, 0, 1)], True, False),
        ([(0, 0), (0, 1)], True, False),
        ([(0, 1), (0, 0)], True, True),
        ([(0, 0), (0,)], True, False),
    ],
)
def test_nvls_goes_by_the_last_two_ranks(nodes: list[tuple[int, ...]], any_share: bool, last_two_share: bool) -> None:
    """2.30.7 overwrites what it found of each pair of ranks with the next pair's (sic)."""
    assert init.off_where_ranks_share(nodes) is any_share
    assert init.off_if_the_last_two_ranks_share(nodes) is last_two_share


CHANNEL = '<channel><net dev="0"/>{}<net dev="0"/></channel>'
GRAPH = """<graph id="{}" pattern="{}" crossnic="0" nchannels="{}" speedintra="20" speedinter="20" latencyinter="0"
typeintra="NVL" typeinter="PIX" samechannels="0">{}</graph>"""


def test_a_dump_of_graphs_tells_ranks_on_one_gpu_apart(tmp_path: Path) -> None:
    def channel(*ranks: int) -> str:
        return CHANNEL.format("".join(f'<gpu dev="{hex(rank // 2)}" rank="{rank}"/>' for rank in ranks))

    both = channel(4, 5, 6, 7) + channel(6, 7, 4, 5)
    file = tmp_path / "graphs.xml"
    graphs = [GRAPH.format(0, 4, 2, both), GRAPH.format(1, 1, 2, both), GRAPH.format(3, 5, 2, channel(4) + channel(6))]
    file.write_text(f'<graphs version="1">{"".join(graphs)}</graphs>')
    found, ranks = read_dump(file)
    assert (ranks, found["nvls"].heads) == (4, (0, 2))


@pytest.mark.parametrize("name", SHARING)
def test_symmetric_kernels_reach_ranks_on_one_gpu_from_2_30_7_on(name: str) -> None:
    """2.30.3 and 2.30.4 ask for NVLink between all ranks, and within a GPU there is something nearer (sic)."""
    one = Scenario(name, 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=2).communicator()
    two = Scenario(name, 1, machine="dgx-h100", gpus_per_node=2, ranks_per_gpu=2).communicator()
    reaches = one.rules.symmetric_reach
    assert reaches is not None
    assert reaches(one) is (name not in ("2.30.3", "2.30.4"))
    assert reaches(two)
    assert (one.local_ranks, one.ranks, one.nvls, one.shares_gpus) == (2, 2, False, True)
    assert (two.local_ranks, two.ranks, two.nvls) == (4, 4, False)


def test_no_calibrated_times_where_ranks_share_a_gpu() -> None:
    communicator = tuner.communicator("dgx-h100", gpus_per_node=2, ranks_per_gpu=2, nccl="2.32.3")
    assert communicator.pick("allreduce", 1 << 20).algorithm
    with pytest.raises(BadInput, match="no calibrated times exist if ranks share a GPU"):
        communicator.calibrated("allreduce", 1 << 20)


def test_gpus_that_come_twice_without_ranks_are_not_shared() -> None:
    """NCCL up to 2.20 writes GPUs after the head of a channel of NVLS that mean nothing."""
    channel = '<channel><net dev="0"/><gpu dev="0"/><gpu dev="0"/><net dev="0"/></channel>'
    dump = f'<graphs version="1"><graph id="3">{channel}</graph></graphs>'
    assert read_orders(dump)["nvls"] == (("net:0", "gpu:0", "net:0"),)
    ranked = dump.replace('<gpu dev="0"/><gpu dev="0"/>', '<gpu dev="0" rank="0"/><gpu dev="0" rank="1"/>')
    assert read_orders(ranked.replace('id="3"', 'id="0"'))["ring"] == (("net:0", "gpu:0/0", "gpu:0/1", "net:0"),)


def test_more_ranks_than_nccl_has_room_for_are_refused() -> None:
    scenario = Scenario(nccl="2.30.7", machine="dgx-h100", nodes=1, ranks_per_gpu=99999)
    with pytest.raises(BadInput, match="99999 ranks on each of 8 GPUs are too many: a node has at most 640 ranks"):
        assert scenario.resolve().own.gpu_of_rank
