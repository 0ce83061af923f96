"""Variables that say which network NCCL takes: accepted where they say what the topology's adapters show."""

from dataclasses import replace

import pytest

from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.machine.adapters import NamedAdapter, mergeable, network_of, selecting
from tuner.scenario import Scenario

SOCKET, INFINIBAND = NamedAdapter("ib0", 0, "0000:10:00.0", gpu_direct=False), NamedAdapter("mlx5_0", 1, "0000:10:00.0")
OVER_SOCKETS, OVER_INFINIBAND = (Scenario("2.28.9", 2, machine=name) for name in ("ws-2x-a6000", "dgx-h100"))


@pytest.mark.parametrize(
    ("adapters", "network"),
    [
        ([SOCKET], "Socket"),
        ([INFINIBAND], "IB"),
        ([INFINIBAND, SOCKET], None),
        ([NamedAdapter("rdmap79s0", 1, "0000:4f:00.0")], None),
        ([], None),
    ],
)
def test_the_network_of_adapters(adapters: list[NamedAdapter], network: str | None) -> None:
    assert network_of(adapters) == network


@pytest.mark.parametrize(
    ("scenario", "variables"),
    [
        (OVER_SOCKETS, {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none"}),
        (OVER_SOCKETS, {"NCCL_NET": "socket"}),
        (OVER_INFINIBAND, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_NET_PLUGIN": "none"}),
        (replace(OVER_INFINIBAND, nodes=1), {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}),
    ],
)
def test_what_agrees_with_the_adapters_changes_nothing(scenario: Scenario, variables: dict[str, str]) -> None:
    with_them, without = replace(scenario, environment=variables).communicator(), scenario.communicator()
    assert with_them.graphs == without.graphs
    assert with_them.channels == without.channels


@pytest.mark.parametrize(
    ("scenario", "variables"),
    [
        (OVER_SOCKETS, {"NCCL_NET": "IB"}),
        (OVER_INFINIBAND, {"NCCL_NET": "Socket"}),
        (OVER_INFINIBAND, {"NCCL_IB_DISABLE": "1"}),
        (OVER_INFINIBAND, {"NCCL_NET": "AWS Libfabric"}),
        (OVER_INFINIBAND, {"NCCL_NET_PLUGIN": "libnccl-net.so"}),
        (replace(OVER_INFINIBAND, nodes=1), {"NCCL_NET": "AWS Libfabric"}),
        (replace(OVER_SOCKETS, others=(replace(OVER_INFINIBAND, nodes=1),)), {"NCCL_NET": "Socket"}),
        (replace(OVER_INFINIBAND, nodes=1, environment={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}), {}),
    ],
)
def test_what_does_not_is_refused(scenario: Scenario, variables: dict[str, str]) -> None:
    """Of the last, NCCL takes one host for eight nodes, which the network joins."""
    variables = {**(scenario.environment or {}), **(variables or {"NCCL_NET": "Socket"})}
    with pytest.raises(BadInput, match="the topology's adapters say which network is taken"):
        replace(scenario, environment=variables).communicator()


def test_nothing_agrees_with_no_adapters() -> None:
    variables = {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}
    assert selecting(None, variables, nodes=2) == set()
    assert selecting(None, variables, nodes=1) == variables.keys() - {"NCCL_IB_HCA"}


def test_sockets_are_not_merged() -> None:
    """Also those of interfaces whose names say nothing, such as IP over InfiniBand."""
    assert mergeable([INFINIBAND, INFINIBAND], {})
    assert not mergeable([SOCKET, SOCKET], {})


def test_graphs_takes_the_same() -> None:
    words = ("graphs", "--machine", "ws-2x-a6000", "--nodes", "2", "--nccl", "2.28.9")
    assert run(*words, "--env", "NCCL_NET=Socket", "--json").stdout == run(*words, "--json").stdout
    assert "--change gpudirect=off" in run(*words, "--env", "NCCL_NET=IB", code=2).stderr
