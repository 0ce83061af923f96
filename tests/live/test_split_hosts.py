"""Hosts that the live libnccl takes for several nodes: every number, pick and channel."""

from itertools import product
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.split_hosts import IN_TURN, SIXTEEN_L20, UNEVEN
from tuner.conformance.check import check
from tuner.scenario import Scenario

pytestmark = pytest.mark.live

MADE_UP = {"16 L20": SIXTEEN_L20, "uneven": UNEVEN, "in turn": IN_TURN}
P2P_OFF, BOTH_OFF = {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
OF_CATALOGUE = (("dgx-h100", 4, BOTH_OFF, 8), ("dgx-h100", 8, P2P_OFF, 4))


def compare(scenario: Scenario, nodes: int) -> None:
    assert scenario.communicator().nodes == nodes
    report = check(scenario, timeout_s=600)
    assert report.mismatches == ()
    assert all(report.compared[what] for what in ("graphs", "tables", "cells", "picks"))


@pytest.mark.parametrize(("nccl", "host", "hosts"), list(product(HERE, MADE_UP, (1, 2))))
def test_sockets_are_nodes(nccl: str, host: str, hosts: int, tmp_path: Path) -> None:
    file = tmp_path / "host.xml"
    file.write_text(MADE_UP[host])
    compare(Scenario(nccl, hosts, topology=file), 2 * hosts)


@pytest.mark.parametrize(("nccl", "shape"), list(product(HERE, OF_CATALOGUE)), ids=str)
def test_variables_split_hosts(nccl: str, shape: tuple[str, int, dict[str, str], int]) -> None:
    machine, gpus, environment, nodes = shape
    compare(Scenario(nccl, 2, machine=machine, gpus_per_node=gpus, environment=environment), nodes)
