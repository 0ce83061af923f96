"""Hosts that NCCL treats as several nodes, without libnccl: what they become, what is said, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.split_hosts import IN_TURN, SIXTEEN_L20, UNEVEN, two_sockets
from tuner.base.errors import BadInput
from tuner.emulator import group
from tuner.emulator.communicator import Comm
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.check import ALL_COLLECTIVES
from tuner.scenario import Scenario
from tuner.scenario.describe import describe
from tuner.times.acceptance.curves import CurveKind
from tuner.times.acceptance.expected import Expectation
from tuner.times.acceptance.faults import Fault, Resource
from tuner.times.placement import ConfiguredShape
from tuner.times.timemodel import predict

NCCL = "2.28.9"


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    return tmp_path / "host.xml"


def communicator(file: Path, xml: str, **described: Any) -> Comm:
    file.write_text(xml)
    return describe(nccl=NCCL, topology=file, **described).communicator()


def shape(own: Comm) -> tuple[int, int, int, int]:
    return own.ranks, own.nodes, own.min_local_ranks, own.max_local_ranks


def test_each_socket_is_a_node(file: Path) -> None:
    assert shape(communicator(file, SIXTEEN_L20)) == (16, 2, 8, 8)
    two = communicator(file, SIXTEEN_L20, nodes=2)
    assert shape(two) == (32, 4, 8, 8)
    assert two.nodes_are_alike
    assert shape(communicator(file, UNEVEN, nodes=3)) == (24, 6, 3, 5)
    assert not communicator(file, UNEVEN).nodes_are_alike


def test_slow_adapters_and_the_variable_leave_a_host_whole(file: Path) -> None:
    assert shape(communicator(file, two_sockets(range(4), range(4, 8), gbps=100), nodes=2)) == (16, 2, 8, 8)
    assert shape(communicator(file, SIXTEEN_L20, nodes=2, env={"NCCL_NET_DISABLE_INTRA": "1"})) == (32, 2, 16, 16)


def test_variables_that_leave_only_the_network() -> None:
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert shape(describe(machine="dgx-h100", nodes=2, gpus_per_node=4, nccl=NCCL, env=off).communicator()) == (
        8,
        8,
        1,
        1,
    )


def test_ranks_of_a_node_may_be_apart(file: Path) -> None:
    file.write_text(IN_TURN)
    resolved = Scenario(NCCL, 2, topology=file).resolve()
    assert resolved.ranks_of == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert resolved.connected.node_of_rank == (0, 1, 0, 1, 2, 3, 2, 3)
    for view in resolved.connected.ranks:
        for channel in view.channels:
            assert channel.ring_adapter is not None


def test_more_nodes_are_not_resolved_again(file: Path) -> None:
    file.write_text(UNEVEN)
    one = Scenario(NCCL, 1, topology=file).resolve()
    anew = Scenario(NCCL, 5, topology=file).resolve()
    assert [shape(view) for view in one.with_nodes(5).views] == [shape(view) for view in anew.views]
    assert len(anew.views_of_kinds) == 2


def test_explain_says_it(file: Path) -> None:
    file.write_text(SIXTEEN_L20)
    words = ("explain", "allreduce", "--topology", str(file), "--nodes", "2", "--nccl", NCCL, "--bytes", "1M")
    output = run(*words).stdout
    assert (
        f"NCCL makes 4 nodes of 2 hosts. {file}: NCCL treats this host as 2 nodes: GPU 0 and GPU 8 have 22 GB/s"
        in output
    )
    assert "24 GB/s to adapter 0 (PIX) and 24 GB/s to adapter 1 (PIX)" in output
    assert "NCCL_NET_DISABLE_INTRA=1 forbids that" in output
    assert "NCCL makes" not in run(*words, "--env", "NCCL_NET_DISABLE_INTRA=1").stdout
    assert "NCCL makes 4 nodes" in run(*words, "--json").stdout


def test_titles_say_it(file: Path) -> None:
    file.write_text(SIXTEEN_L20)
    split = describe(nccl=NCCL, topology=file, nodes=3)
    assert split.title == f"3 x {file}, 16 GPUs each, which NCCL treats as 6 nodes, NCCL 2.28.9"
    whole = describe(nccl=NCCL, topology=file, nodes=3, env={"NCCL_NET_DISABLE_INTRA": "1"})
    assert whole.title == f"3 x {file}, 16 GPUs each, NCCL 2.28.9"
    words = ("--topology", str(file), "--nccl", NCCL)
    scaled = run("edges", "--over", "nodes", "allreduce", *words, "--bytes", "1M", "--to-nodes", "2").stdout
    assert f"AllReduce on nodes of {file}, 16 GPUs each, each of which NCCL treats as 2 nodes, NCCL 2.28.9" in scaled
    changed = run("diff", "allreduce", "nics=1", *words, "--nodes", "2", "--bytes", "1M").stdout
    assert f"before: 2 x {file}, 16 GPUs each, which NCCL treats as 4 nodes, NCCL 2.28.9" in changed
    assert f"after:  2 x {file} with nics=1, 16 GPUs each, NCCL 2.28.9" in changed


def test_very_many_split_hosts_are_quickly_answered(file: Path) -> None:
    assert shape(communicator(file, SIXTEEN_L20, nodes=16384)) == (262144, 32768, 8, 8)
    assert shape(communicator(file, UNEVEN, nodes=16384)) == (131072, 32768, 3, 5)


def test_no_calibrated_times_of_split_hosts() -> None:
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    selection = Selection(describe(machine="dgx-h100", nodes=2, nccl=NCCL, env=off).communicator())
    with pytest.raises(BadInput, match="treats a host as several nodes, because none were measured"):
        predict.of_communicator(selection, "dgx-h100")


def test_accept_judges_split_hosts(file: Path) -> None:
    file.write_text(SIXTEEN_L20)
    expectation = Expectation(describe(nccl=NCCL, topology=file, nodes=2))
    kind, sizes = CurveKind(ConfiguredShape(2, 16), ALL_COLLECTIVES[-1]), np.array([1 << 30], np.uint64)
    (healthy,) = expectation.times(kind, sizes).time_us
    (slower,) = expectation.times(kind, sizes, Fault(Resource.pcie_link, "half", inter=0.5)).time_us
    assert 1.9 < slower / healthy < 2.1


def test_nodes_that_differ_refuse_nothing(file: Path) -> None:
    own = communicator(file, UNEVEN)
    assert not any(group.not_emulated(Selection(own), [request]) for request in ALL_COLLECTIVES)
    network = communicator(file, UNEVEN, collnet=True, env={"NCCL_COLLNET_ENABLE": "1"}).collnet
    assert network is not None
    assert network.heads == 1


def test_a_host_is_no_node_of_its_own_where_it_is_split(file: Path) -> None:
    file.write_text(SIXTEEN_L20)
    with pytest.raises(BadInput, match="as 2 nodes here; only pick and explain answer that"):
        Scenario(NCCL, 1, topology=file).resolve().own.for_emulator(several=False)


APART = {"NCCL_P2P_DISABLE": "1", "NCCL_MNNVL_ENABLE": "1"}  # a domain all the same, without peer-to-peer in it


def test_a_domain_may_fall_apart_into_its_hosts() -> None:
    own = describe("gb200-nvl72", nodes=2, trays=2, gpus_per_tray=3, nccl=NCCL, env=APART)
    assert shape(own.communicator()) == (12, 4, 3, 3)
    assert tuple(map(tuple, own.resolve().ranks_of)) == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    words = ("--machine", "gb200-nvl72", "--trays", "2", "--nccl", NCCL, "--bytes", "1M")
    said = run("explain", "allreduce", *words, *(f"--env={name}={value}" for name, value in APART.items())).stdout
    assert "NCCL treats each domain as several nodes: all 2 hosts as 2 nodes." in said
    assert "NCCL makes 2 nodes of 1 NVLink domain. NVLink domain of 2 trays of a gb200-nvl72: NCCL treats" in said
    assert "between GPU 0 of host 0 and GPU 0 of host 1 peer-to-peer is off" in said


def test_a_domain_may_fall_apart_into_gpus() -> None:
    own = describe("gb200-nvl72", trays=2, nccl=NCCL, env={**APART, "NCCL_SHM_DISABLE": "1"})
    assert shape(own.communicator()) == (8, 8, 1, 1)


@pytest.mark.parametrize("nccl", ["2.21.5", "2.22.3", "2.25.1", "2.26.5"])
def test_releases_that_crash_where_a_domain_falls_apart(nccl: str) -> None:
    with pytest.raises(BadInput, match="crashes: it treats"):
        describe("gb200-nvl72", trays=2, nccl=nccl, env={"NCCL_P2P_DISABLE": "1"}).communicator()


def test_channels_of_nvls_go_by_hosts_that_are_there() -> None:
    """Up to 2.29.7 NCCL counts them before it knows that a host is several nodes."""
    split = {"NCCL_P2P_DISABLE": "1"}
    channels = [
        describe("dgx-b200", nodes=nodes, nccl=nccl, env=split).communicator().nvls_channels
        for nccl, nodes in (("2.28.9", 1), ("2.28.9", 2), ("2.30.7", 1))
    ]
    assert channels == [24, 32, 32]
