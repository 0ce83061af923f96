"""Every machine of the catalogue is found again from what nvidia-smi and lstopo would print of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.listed_machines import lstopo, nvidia_smi
from tuner.machine import catalogue, gpus
from tuner.machine.gpus import GpuModel
from tuner.machine.listings import Listing, ListingAdditions, completed, read
from tuner.machine.listings.complete import ranked
from tuner.machine.listings.shape import of_listing, of_topology
from tuner.scenario import Scenario

HOSTS = [name for name in catalogue.names() if catalogue.load(name).trays is None]
NCCL = "2.28.9"
SEARCHED = ["dgx-h100", "hgx-h200", "dgx-a100", "azure-nd-h100-v5", "aws-p4d", "a100-4x-2nic"]


def model_of(machine: str) -> GpuModel | None:
    devices = of_topology(catalogue.load(machine).topology_xml).devices
    found = [gpus.load(name) for name in gpus.names() if set(gpus.load(name).pci_devices) & set(devices)]
    return found[0] if found else None


def listed(tmp_path: Path, text: str) -> Listing:
    file = tmp_path / "listing"
    file.write_text(text)
    found = read(file)
    assert found is not None
    return found


@pytest.mark.parametrize("machine", HOSTS)
def test_nvidia_smi_shows_the_shape_of_a_machine(machine: str, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    shown, own = of_listing(listed(tmp_path, nvidia_smi(xml)), None), of_topology(xml)
    assert (sorted(shown.sockets), shown.nvlinks) == (sorted(own.sockets), own.nvlinks)
    assert (shown.near, shown.adapters) == (own.near, own.adapters)


@pytest.mark.parametrize("machine", HOSTS)
def test_lstopo_shows_the_shape_of_a_machine(machine: str, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    shown, own = of_listing(listed(tmp_path, lstopo(xml)), None), of_topology(xml)
    assert (sorted(shown.sockets), shown.near) == (sorted(own.sockets), own.near)
    assert (set(shown.adapters), shown.devices) == (set(own.adapters), own.devices)
    assert shown.cpu is not None
    assert own.cpu is not None
    assert (shown.cpu.arch, shown.cpu.vendor, shown.cpu.model) == (own.cpu.arch, own.cpu.vendor, own.cpu.model)


@pytest.mark.parametrize("kind", [nvidia_smi, lstopo])
@pytest.mark.parametrize("machine", HOSTS)
def test_the_nearest_machine_is_that_machine(machine: str, kind: object, tmp_path: Path) -> None:
    xml = catalogue.load(machine).topology_xml
    node = of_listing(listed(tmp_path, nvidia_smi(xml) if kind is nvidia_smi else lstopo(xml)), model_of(machine))
    every = ranked(node)
    own = next(near for near in every if near.machine == machine)
    assert own.differs == ()
    assert own.rank == every[0].rank, every[0].in_words
    assert "adapters' speed" in own.unknown or not node.adapters


@pytest.mark.parametrize("kind", [nvidia_smi, lstopo])
@pytest.mark.parametrize("machine", SEARCHED)
def test_a_listing_completed_has_the_graphs_of_the_machine(machine: str, kind: object, tmp_path: Path) -> None:
    known, model = catalogue.load(machine), model_of(machine)
    assert model is not None
    gbps = known.topology.nets[0].speed_mbps / 1000
    cpu = known.topology.cpu
    words = f"{cpu.vendor}:{cpu.family}:{cpu.model}"
    latency = known.topology.nets[0].latency_us
    text = nvidia_smi(known.topology_xml) if kind is nvidia_smi else lstopo(known.topology_xml)
    file = tmp_path / "listing"
    file.write_text(text)
    made = completed(file, ListingAdditions(model.name, gbps, latency, words if kind is nvidia_smi else None))
    out = tmp_path / "node.xml"
    out.write_text(made.topology)
    scenarios = Scenario(NCCL, 2, topology=out), Scenario(NCCL, 2, machine=machine)
    ours, own = (scenario.resolve().own.for_emulator(several=True) for scenario in scenarios)
    kept = {name: graph for name, graph in own.graphs.items() if name in ours.graphs}
    assert ours == replace(own, graphs=kept)
    assert {"ring", "tree"} <= kept.keys()
