"""The emulator against the live libnccl, exactly: tables, cost cells, picks, channels, threads."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.draws import Draws
from tuner import release
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check, sizes_bytes
from tuner.oracle.conformance.mismatches import MatchReport
from tuner.scenario import Scenario

NCCL = "2.28.9"


def assert_exact(report: MatchReport, least_cells: int) -> None:
    assert report.mismatches == ()
    assert report.compared["cells"] >= least_cells


# Whole nodes of the common machines; of every machine one whole node, and two GPUs each of a few nodes. Two racks of
# several GPUs each, which libnccl may search for 10 s, are in test_domains.py.
WHOLE = [(name, nodes, None) for name in ("dgx-a100", "dgx-b200", "dgx-h100") for nodes in (2, 4)]
WHOLE += [(name, 2, None) for name in ("dgx-1v", "aws-p4d", "aws-p5", "gh200-4x", "pcie-l40s")]
RACKS = [name for name in catalogue.names() if catalogue.load(name).trays]
SHAPES = [
    (name, *shape)
    for name in catalogue.names()
    for shape in ((1, None), (2, 2), (3, 1), (8, 1))
    if name not in RACKS or shape in ((1, None), (3, 1))
    if catalogue.load(name).gpus_per_node >= (shape[1] or 2)
]
SHAPES += [*WHOLE, (RACKS[0], 8, 1)]


@pytest.mark.each_choice
@pytest.mark.parametrize(("machine", "nodes", "gpus"), SHAPES)
def test_every_machine_all_collectives_all_sizes(machine: str, nodes: int, gpus: int | None) -> None:
    report = check(Scenario(nccl=NCCL, machine=machine, nodes=nodes, gpus_per_node=gpus))
    assert_exact(report, 5 * 60 * 21)
    for kind in ("picks", "channels", "threads"):
        assert report.compared[kind] >= 5 * 60


PARTS = [(2, 1), (3, 1), (4, 1), (6, 1), (1, 2), (1, 4), (1, 7), (2, 3), (3, 2), (4, 2), (5, 2)]


@pytest.mark.parametrize(("gpus", "nodes"), PARTS)
def test_parts_of_a_node(gpus: int, nodes: int) -> None:
    report = check(Scenario(nccl=NCCL, machine="dgx-h100", nodes=nodes, gpus_per_node=gpus))
    assert_exact(report, 5 * 60 * 21)


SETTINGS = [
    {"NCCL_ALGO": "Ring"},
    {"NCCL_ALGO": "^NVLSTree"},
    {"NCCL_ALGO": "ring;allreduce:tree,nvlstree"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_PROTO": "^LL128"},
    {"NCCL_PROTO": "LL,LL128;reduce:simple"},
    {"NCCL_NTHREADS": "256", "NCCL_LL128_NTHREADS": "320"},
    {"NCCL_NTHREADS": "100"},
    {"NCCL_NTHREADS": "32"},
    {"NCCL_THREAD_THRESHOLDS": "16 32 128 4 2 1"},
    {"NCCL_THREAD_THRESHOLDS": "100 x"},
    {"NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_MAX_NCHANNELS": "3"},
    {"NCCL_MAX_NCHANNELS": "1"},
    {"NCCL_MIN_NCHANNELS": "40", "NCCL_MAX_NCHANNELS": "4"},
    {"NCCL_MIN_NRINGS": "20"},
    {"NCCL_MAX_NRINGS": "5", "NCCL_MAX_NCHANNELS": "7"},
    {"NCCL_MIN_CTAS": "20"},
    {"NCCL_MAX_CTAS": "6"},
    {"NCCL_NVLS_NCHANNELS": "9"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_PAT_ENABLE": "1"},
    {"NCCL_PAT_ENABLE": "0"},
    {"NCCL_NET_OVERHEAD": "12345"},
    {"NCCL_LL128_C2C": "0"},
    {"NCCL_NTHREADS": ""},
    {"NCCL_ALGO": "", "NCCL_MAX_NCHANNELS": "0x8"},
]


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("dgx-h100", 2, 8), ("dgx-a100", 2, 1)])
def test_settings(machine: str, nodes: int, gpus: int, settings: dict[str, str]) -> None:
    scenario = Scenario(nccl=NCCL, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=settings)
    selection = Selection(scenario.communicator())
    requests = [request for request in ALL_COLLECTIVES if selection.usable(request)]
    assert_exact(check(scenario, requests), 60 * 21)


TYPES_AND_OPS = [(dtype, Op.sum) for dtype in DataType] + [
    (DataType.float32, Op.avg),
    (DataType.float16, Op.avg),
    (DataType.int32, Op.avg),
    (DataType.bfloat16, Op.max),
    (DataType.float32, Op.max),
    (DataType.int64, Op.min),
    (DataType.float64, Op.prod),
    (DataType.int8, Op.max),
]


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 8), (3, 1)])
def test_types_and_operations(nodes: int, gpus: int) -> None:
    """NVLS cannot reduce all types, PAT cannot average, deep rings of fp8 come last."""
    requests = [Request(collective, dtype, op) for dtype, op in TYPES_AND_OPS for collective in Collective]
    report = check(Scenario(nccl=NCCL, machine="dgx-h100", nodes=nodes, gpus_per_node=gpus), requests)
    assert_exact(report, len(requests) * 60 * 21)


def test_a_wrong_constant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = release.load(NCCL)
    own_us = np.float32(right.base_latency_us[Algorithm.Ring][Protocol.LL])
    by_one_bit = {"base_latency_us": {"ring": {"ll": float(np.nextafter(own_us, np.float32(99)))}}}
    monkeypatch.setattr(release, "load", lambda name: release.changed(right, by_one_bit))
    report = check(Scenario(nccl=NCCL, machine="dgx-h100", nodes=1, gpus_per_node=2))
    assert {mismatch.what for mismatch in report.mismatches} >= {"tables", "cells"}


def test_what_the_emulator_refuses_the_library_refuses() -> None:
    scenario = Scenario(nccl=NCCL, machine="dgx-a100", nodes=1, gpus_per_node=2, environment={"NCCL_ALGO": "Tree"})
    refused = [
        Request(Collective.Broadcast, DataType.float32, Op.sum),
        Request(Collective.AllReduce, DataType.float8e4m3, Op.sum),
    ]
    report = check(scenario, [*refused, ALL_COLLECTIVES[-1]])
    assert report.mismatches == ()
    assert report.compared["picks"] > 60


def test_a_wrong_refusal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoAlgorithm("nothing is left")

    monkeypatch.setattr(Selection, "pick", refuse)
    report = check(Scenario(nccl=NCCL, machine="dgx-a100", nodes=1, gpus_per_node=2), ALL_COLLECTIVES[:1])
    assert [(one.what, one.emulator, one.libnccl) for one in report.mismatches] == [("picks", "refused", "Ring/LL")]


def test_check_covers_what_it_promises() -> None:
    for collective in Collective:
        sizes = sizes_bytes(Request(collective, DataType.float32, Op.sum), 32)
        assert len(sizes) >= 60
        assert sizes[-1] == 16 << 30
        assert any(size & (size - 1) for size in sizes)


RUBIN_SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_NVLS_NCHANNELS": "20"},
    {"NCCL_MIN_CTAS": "40"},
    {"NCCL_MAX_NCHANNELS": "6"},
    {"NCCL_CROSS_NIC": "1"},
    {"NCCL_PXN_DISABLE": "1"},
    {"NCCL_P2P_LEVEL": "PXB"},
)
RUBIN_SHAPES = (("dgx-b300", 1, 8), ("dgx-b200", 2, 4), ("aws-p6-b200", 4, 2), ("gb300-nvl72", 3, 2), ("gcp-a4", 6, 1))


def with_rubin(machine: str, folder: Path) -> Path:
    """The topology of a machine of the catalogue with Rubin's compute capability."""
    text = re.sub(r'sm="\d+"', 'sm="107"', catalogue.load(machine).topology_xml)
    (file := folder / "rubin.xml").write_text(text)
    return file


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", RUBIN_SETTINGS, ids=lambda settings: " ".join(settings) or "none")
@pytest.mark.parametrize(("machine", "nodes", "gpus"), RUBIN_SHAPES)
def test_rubin(machine: str, nodes: int, gpus: int, settings: dict[str, str], tmp_path: Path) -> None:
    """2.32.3 has bandwidths and channels of its own for compute capability 10.7, and Blackwell's cost model."""
    topology = with_rubin(machine, tmp_path)
    scenario = Scenario("2.32.3", nodes, topology=topology, gpus_per_node=gpus, environment=settings)
    assert scenario.communicator().release.search.devices.is_rubin(scenario.communicator().min_comp_cap)
    assert_exact(check(scenario), 5 * 60 * 4)


@pytest.mark.parametrize("settings", [{}, {"NCCL_MNNVL_RAIL_PER_HOST": "0"}], ids=["default", "one rail"])
def test_trays_of_rubin(settings: dict[str, str], tmp_path: Path) -> None:
    """In a NVLink domain whose GPUs are all Rubin, adapters of several hosts have the same rail by default."""
    topology = with_rubin("gb200-nvl72", tmp_path)
    scenario = Scenario("2.32.3", 4, topology=topology, gpus_per_node=2, environment=settings, hosts_per_domain=2)
    assert_exact(check(scenario), 5 * 60 * 4)


DRAWN_RUBIN = 3  # communicators, times what is drawn
MOST_RUBIN = 48  # ranks of one
OF_RUBIN = {
    "NCCL_NVLS_ENABLE": ("0",),
    "NCCL_NVLS_NCHANNELS": ("8", "20", "48"),
    "NCCL_MIN_CTAS": ("8", "40"),
    "NCCL_MAX_CTAS": ("10",),
    "NCCL_MIN_NCHANNELS": ("16",),
    "NCCL_MAX_NCHANNELS": ("4", "12"),
    "NCCL_CROSS_NIC": ("0", "1", "2"),
    "NCCL_PXN_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("PXB", "LOC"),
    "NCCL_NTHREADS": ("256",),
    "NCCL_BUFFSIZE": ("1048576",),
    "NCCL_ALGO": ("Ring", "Tree", "^NVLS"),
    "NCCL_PROTO": ("Simple", "^LL128"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "SYS"),
}


def test_drawn_rubin(tmp_path: Path, draws: Draws) -> None:
    """1 to 16 nodes of the announced machine, and of others with Rubin's compute capability."""
    random = draws.random("rubin")
    for _ in range(DRAWN_RUBIN * draws.times):
        name = random.choice(("dgx-rubin-nvl8", *dict.fromkeys(machine for machine, *_ in RUBIN_SHAPES)))
        gpus = random.randint(1, catalogue.load(name).gpus_per_node)
        nodes = random.choice([count for count in (1, 2, 3, 4, 6, 8, 12, 16) if 2 <= count * gpus <= MOST_RUBIN])
        names = random.sample(list(OF_RUBIN), random.choice((0, 1, 1, 2)))
        settings = {each: random.choice(OF_RUBIN[each]) for each in names}
        topology = with_rubin(name, tmp_path)
        report = check(Scenario("2.32.3", nodes, topology=topology, gpus_per_node=gpus, environment=settings))
        assert report.mismatches == (), f"{name}, {nodes} nodes of {gpus}, {settings}"
        assert report.compared["cells"] > 0
