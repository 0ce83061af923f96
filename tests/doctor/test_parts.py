"""Parts by their ids: the table is whole, and no machine of the catalogue has more than its parts can."""

import xml.etree.ElementTree as ET

import pytest

from tuner.answers.doctor import records
from tuner.answers.doctor.match import link
from tuner.machine import catalogue, gpus


def test_ids_in_any_case_and_unknown_ones() -> None:
    part = records.of("0x15B3", "0x1021")
    assert part is not None
    assert (part.name, part.kind, part.pcie, part.gbps) == ("ConnectX-7", "adapter", (5, 16), 400)
    assert records.of(None, None) is None
    assert records.of("0x15b3", "0xffff") is None


def test_every_gpu_model_is_a_part() -> None:
    for name in gpus.names():
        model = gpus.load(name)
        for device in model.pci_devices:
            part = records.of("0x10de", device)
            assert part is not None
            assert part.comp_cap == model.compute_capability
    bridged = records.of("0x10de", "0x20b5")
    assert bridged is not None
    assert bridged.nvlinks == (0, 12)  # without bridges, and with them


@pytest.mark.parametrize("machine", catalogue.names())
def test_no_machine_has_more_than_its_parts_can(machine: str) -> None:
    for pci in ET.fromstring(catalogue.load(machine).topology_xml).iter("pci"):
        part = records.of(pci.get("vendor"), pci.get("device"))
        if part is None:
            continue
        if part.pcie is not None and None not in (found := link(pci)):
            assert found[0] <= part.pcie[0], pci.attrib
            assert found[1] <= part.pcie[1], pci.attrib
        for net in pci.findall("nic/net"):
            assert part.gbps is None or int(net.get("speed", "0")) <= 1000 * part.gbps, pci.attrib
