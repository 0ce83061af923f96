"""Our search against graphs that NCCL itself dumped on real machines, where somebody published both, restated here."""

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass

import pytest

from tuner import release
from tuner.graphs import SearchRequest, find, graph_file
from tuner.machine import catalogue


@dataclass(frozen=True)
class Dumped:
    """A <graph> of the file: its attributes, and how many channels have these GPUs, as the file names them."""

    pattern: int
    speed_intra_gbs: str
    speed_inter_gbs: str
    types: tuple[str, str]
    same_channels: bool
    channels: dict[str, int]


FIRST = "0 0x1 0x2 0x3"
BOTH = f"{FIRST} {' '.join(f'0x10000000000000{gpu}' for gpu in range(4))}"
HEADS_OF_ONE = dict.fromkeys(FIRST.split(), 1)
HEADS_OF_TWO = dict.fromkeys(BOTH.split(), 1)

# https://github.com/datacrunch-research/nccl-eBPF, .agents/debug/2026-08-14-mnnvl-channel-collapse/topo, 2174a93: NCCL
# 2.29.7 on trays of a GB300 NVL72. mnnvl_graph_1tray_04.xml and mnnvl_graph_0405_healthy_control.xml.
GB300 = {
    1: {
        "0": Dumped(4, "45", "45", ("NVL", "PIX"), True, {FIRST: 16}),
        "1": Dumped(
            3,
            "50",
            "50",
            ("NVL", "PIX"),
            False,
            {FIRST: 10, "0x1 0x2 0x3 0": 2, "0x2 0x3 0 0x1": 2, "0x3 0 0x1 0x2": 2},
        ),
        "3": Dumped(5, "90", "90", ("NVL", "PIX"), False, HEADS_OF_ONE),
    },
    2: {
        "0": Dumped(4, "45", "45", ("NVL", "PIX"), True, {BOTH: 16}),
        "1": Dumped(1, "45", "45", ("NVL", "PIX"), True, {BOTH: 16}),
        "3": Dumped(5, "80", "90", ("NVL", "PIX"), False, HEADS_OF_TWO),
    },
}


@pytest.mark.parametrize("trays", GB300)
def test_trays_of_gb300_have_the_graphs_that_nccl_dumped_on_them(trays: int) -> None:
    request = SearchRequest(catalogue.load("gb300-nvl72").topology_xml, 4, several_nodes=False, hosts=trays)
    text = graph_file.text(find(request, "2.29.7"), release.load("2.29.7").search.dump)
    graphs = {graph.attrib["id"]: _read(graph) for graph in ET.fromstring(text) if len(graph)}
    assert graphs == GB300[trays]


def _read(graph: ET.Element) -> Dumped:
    asked = graph.attrib
    channels = Counter(" ".join(gpu.attrib["dev"] for gpu in channel.iter("gpu")) for channel in graph)
    return Dumped(
        pattern=int(asked["pattern"]),
        speed_intra_gbs=asked["speedintra"],
        speed_inter_gbs=asked["speedinter"],
        types=(asked["typeintra"], asked["typeinter"]),
        same_channels=asked["samechannels"] == "1",
        channels=dict(channels),
    )
