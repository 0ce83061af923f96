"""Skeleton topologies: NCCL completes them from what the simulated NVML says, and what nothing says is refused."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tuner.base.errors import BadInput, BadTopology, UnknownGpu
from tuner.base.names import Collective, DataType, Op
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.machine import gpus, skeleton
from tuner.machine.topology import Target, Topology, read
from tuner.oracle import search
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import check
from tuner.oracle.search import of_skeleton
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import OracleConfiguration

NCCL = "2.28.9"
ALLREDUCE = [Request(Collective.AllReduce, DataType.float32, Op.sum)]
LINK = 'link_speed="32.0 GT/s PCIe" link_width="16"'
SWITCH = f'<pci busid="ffff:ff:0{{n}}.0" class="0x060400" {LINK}>{{inner}}</pci>'
GPU = f'<pci busid="000{{n}}:00:00.0" class="0x030200" {LINK}/>'
NIC = f'<pci busid="010{{n}}:00:00.0" class="0x020700" {LINK}/>'
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'


def rail(n: int) -> str:
    """A GPU and its adapter below one switch."""
    return SWITCH.format(n=n, inner=GPU.format(n=n) + NIC.format(n=n))


def system(*sockets: str) -> str:
    cpus = (f'<cpu numaid="{n}" affinity="1" {INTEL}>{inner}</cpu>' for n, inner in enumerate(sockets))
    return f'<system version="1">{"".join(cpus)}</system>'


def with_gpu(n: int, gpu: str, text: str | None = None) -> str:
    """The n-th GPU's <pci> with a <gpu> in it."""
    bare = GPU.format(n=n)
    return (text or TWO_RAILS).replace(bare, f"{bare[:-2]}>{gpu}</pci>")


# The second GPU stands first in the file: NCCL numbers GPUs by bus id.
TWO_RAILS = system(rail(2), rail(1))
FOUR_RAILS = system(rail(1) + rail(2), rail(3) + rail(4))
TWO_GPUS = system(GPU.format(n=1) + GPU.format(n=2))
CROSSED_GPUS = system(GPU.format(n=4) + GPU.format(n=1), GPU.format(n=3) + GPU.format(n=2))
EIGHT_GPUS = system("".join(GPU.format(n=n) for n in range(1, 5)), "".join(GPU.format(n=n) for n in range(5, 9)))

Write = Callable[..., Path]  # text, and name of the file


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "skeleton.xml") -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def completed(file: Path, gpu: str, gbps: float | None = None, nccl: str | None = None) -> Topology:
    """As it is completed here, or by NCCL ``nccl``."""
    ours = skeleton.completed(file, gpu, gbps, None)
    return read(ours if nccl is None else search.completed(file, gpu, gbps, None, nccl))


# --- what NCCL fills in ---


@pytest.mark.live
@pytest.mark.parametrize("nccl", [None, *HERE])
def test_gpus_behind_an_nvswitch(write: Write, nccl: str | None) -> None:
    topology = completed(write(TWO_RAILS), "h100-sxm", 400, nccl)
    assert [(gpu.dev, gpu.busid, gpu.sm, gpu.numaid) for gpu in topology.gpus] == [
        (0, "0001:00:00.0", 90, 1),
        (1, "0002:00:00.0", 90, 0),
    ]
    assert [gpu.count_nvlinks(Target.SWITCH) for gpu in topology.gpus] == [18, 18]
    assert [(net.dev, net.busid, net.speed_mbps, net.port, net.latency_us) for net in topology.nets] == [
        (0, "0101:00:00.0", 400000, 1, 0.0),
        (1, "0102:00:00.0", 400000, 1, 0.0),
    ]


@pytest.mark.live
@pytest.mark.parametrize("nccl", [None, *HERE])
def test_links_between_gpus_lead_to_gpus(write: Write, nccl: str | None) -> None:
    """The class of a link's far end is not in the file either: NCCL reads it in sysfs."""
    topology = completed(write(TWO_GPUS), "a100-pcie-bridged", nccl=nccl)
    assert [[(link.target, link.count, link.kind) for link in gpu.nvlinks] for gpu in topology.gpus] == [
        [("0002:00:00.0", 12, Target.GPU)],
        [("0001:00:00.0", 12, Target.GPU)],
    ]
    assert not topology.nets  # NCCL had one to start with; the machine has none


@pytest.mark.live
def test_the_hybrid_cube_mesh(write: Write) -> None:
    topology = completed(write(EIGHT_GPUS), "v100-sxm2")
    links = {
        (int(gpu.busid[3]) - 1, int(link.target[3]) - 1): link.count for gpu in topology.gpus for link in gpu.nvlinks
    }
    mesh = gpus.load("v100-sxm2").mesh
    assert links == {(a, b): mesh[a][b] for a in range(8) for b in range(8) if mesh[a][b]}


@pytest.mark.live
def test_what_the_file_says_stays(write: Write) -> None:
    gpu = '<gpu dev="{dev}"><nvlink target="0000:07:00.0" count="{count}" tclass="0x068000"/></gpu>'
    text = with_gpu(2, gpu.format(dev=0, count=12), with_gpu(1, gpu.format(dev=1, count=6)))
    topology = completed(write(text), "a100-sxm4-80gb", 200)
    assert [(g.dev, g.busid, g.sm, g.count_nvlinks(Target.SWITCH)) for g in topology.gpus] == [
        (0, "0002:00:00.0", 80, 12),
        (1, "0001:00:00.0", 80, 6),
    ]


@pytest.mark.live
@pytest.mark.parametrize(
    ("text", "gpu", "gbps"),
    [
        (TWO_RAILS, "h100-sxm", 400),
        (TWO_RAILS, "rtx-4090", 100),
        (TWO_GPUS, "a100-pcie-bridged", None),
        (CROSSED_GPUS, "l4", None),
        (EIGHT_GPUS, "v100-sxm2", None),
        (with_gpu(1, '<gpu dev="1"/>', with_gpu(2, '<gpu dev="0" gdr="0"/>')), "h100-sxm", 12.5),
    ],
)
def test_it_is_completed_as_libnccl_does(write: Write, text: str, gpu: str, gbps: float | None) -> None:
    assert_completed_alike(write(text), gpu, gbps, None)


@pytest.mark.live
@pytest.mark.parametrize("name", ["azure-ndv2-topo.xml", "azure-ndv5-topo.xml", "aws-ofi-nccl-p4d-24xl-topo.xml"])
def test_a_shipped_skeleton_is_completed_as_libnccl_does(name: str) -> None:
    gpu, gbps, latency_us = WORKS[name]
    assert gpu is not None
    assert_completed_alike(shipped(name), gpu, gbps, latency_us)


def assert_completed_alike(file: Path, gpu: str, gbps: float | None, latency_us: float | None) -> None:
    ours = skeleton.completed(file, gpu, gbps, latency_us)
    assert elements(ET.fromstring(ours)) == elements(ET.fromstring(search.completed(file, gpu, gbps, latency_us, NCCL)))


def elements(element: ET.Element) -> tuple[object, ...]:
    return element.tag, element.attrib, [elements(child) for child in element]


# --- the written file is the machine ---


@pytest.mark.each_choice
@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("by", ["itself", "here"])
def test_the_completed_file_gives_the_graphs_of_the_skeleton(write: Write, nccl: str, nodes: int, by: str) -> None:
    """Whichever release completed it; the search goes by the file's order, which NCCL's own dump does not keep."""
    text, gbps = (TWO_RAILS, 400) if nodes > 1 else (CROSSED_GPUS, None)
    assert_same_graphs(write(text), ("h100-sxm", gbps, None), nccl, nodes, nccl if by == "itself" else None)


def assert_same_graphs(file: Path, model: tuple[Any, ...], nccl: str, nodes: int, by: str | None) -> None:
    """``by``: the release that completes the file; None: it is completed here."""
    asked = of_skeleton(skeleton.read(file, *model), nccl, nodes)
    with Oracle(asked) as oracle:
        found = oracle.graph_xml()
    text = skeleton.completed(file, *model) if by is None else search.completed(file, *model, by)
    with Oracle(OracleConfiguration(text, nodes, asked.gpus_per_node, nccl, {})) as oracle:
        assert oracle.graph_xml() == found
    assert found


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
@pytest.mark.parametrize(("text", "nodes"), [(TWO_RAILS, 2), (FOUR_RAILS, 1)], ids=["2x2", "1x4"])
def test_emulator_and_libnccl_agree(write: Write, text: str, nodes: int, nccl: str) -> None:
    scenario = Scenario(nccl=nccl, nodes=nodes, topology=write(text), gpu="h100-sxm", net_gbps=400)
    assert text is TWO_RAILS or scenario.communicator().nvls  # two GPUs use the switch's multicast from 2.28.7 on
    report = check(scenario, ALLREDUCE, [8, 1 << 20, 256 << 20])
    assert report.compared["cells"] >= 3 * 18
    assert not report.mismatches


@pytest.mark.live
def test_the_command_writes_what_is_read_back(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "completed.xml"
    arguments = [str(write(TWO_RAILS)), "--gpu", "h100-sxm", "--nic-gbps", "400"]
    result = CliRunner().invoke(everything, ["machines", *arguments, "-o", str(out)])
    assert (result.exit_code, result.output) == (0, f"wrote {out}\n")
    skeleton.read_complete(out)
    pick = ["pick", "allreduce", "--nodes", "2", "--bytes", "1K,64M", "--json", "--topology"]
    of_file = CliRunner().invoke(everything, [*pick, str(out), "--nccl", NCCL])
    of_skeleton = CliRunner().invoke(everything, [*pick, *arguments, "--nccl", NCCL])
    assert of_file.exit_code == 0
    assert of_file.output == of_skeleton.output


# --- what is refused ---


def refusal(write: Write, text: str, gpu: str = "h100-sxm", gbps: float | None = 400) -> str:
    with pytest.raises((BadInput, BadTopology)) as caught:
        skeleton.read(write(text), gpu, gbps, None)
    return str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_another_encoding_is_one_line(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "node.xml"
    file.write_text(TWO_RAILS, encoding=encoding)
    with pytest.raises(BadTopology) as caught:
        Scenario(nccl=NCCL, nodes=1, topology=file).gpus()
    assert str(caught.value).startswith(f"{file}:")
    assert "\n" not in str(caught.value)


def test_a_skeleton_without_a_model_is_one_line(write: Write) -> None:
    with pytest.raises(BadTopology, match=r"2 of 2 GPUs have no <gpu> with sm.*gpu= MODEL.*; valid: p40, .*b200"):
        Scenario(nccl=NCCL, nodes=1, topology=write(TWO_RAILS)).gpus()


def test_a_wrong_model_has_a_hint() -> None:
    with pytest.raises(UnknownGpu, match=r"no GPU model 'h100-sxm5'; did you mean h100-sxm\?; valid: "):
        gpus.load("h100-sxm5")


@pytest.mark.parametrize("spelled", ["H100-SXM", "h100 sxm", "h100_sxm"])
def test_a_model_is_known_however_it_is_spelled(spelled: str) -> None:
    assert gpus.load(spelled).name == "h100-sxm"


@pytest.mark.parametrize("gone", ["arch", "vendor", "familyid", "modelid", "numaid"])
def test_a_cpu_is_not_this_computers(write: Write, gone: str) -> None:
    words = refusal(write, re.sub(f' {gone}="[^"]*"', "", TWO_RAILS))
    assert f"<cpu numaid={None if gone == 'numaid' else '0'!r}> and 1 more have no {gone}, which NCCL reads" in words


@pytest.mark.parametrize("gone", ["link_speed", "link_width"])
def test_a_slot_is_not_guessed(write: Write, gone: str) -> None:
    words = refusal(write, re.sub(f' {gone}="[^"]*"', "", TWO_RAILS))
    assert f"<pci busid='ffff:ff:02.0'> and 5 more have no {gone}" in words


BAD = {
    "no class": (TWO_RAILS.replace(' class="0x030200"', ""), "have no class, which NCCL reads from its machine"),
    "a display of nobody": (TWO_RAILS.replace("0x030200", "0x030000"), "is a display without vendor"),
    "no gpu": (system(NIC.format(n=1)), "no GPU in it"),
    "upper case": (TWO_RAILS.replace("0001:00:00.0", "000A:00:00.0"), "in lower case"),
    "another bus id": (TWO_RAILS.replace("0001:00:00.0", "1:00:00.0"), "valid: as in 0000:1b:00.0"),
    "another device": (
        TWO_RAILS.replace(' class="0x030200"', ' class="0x030200" device="0x20b0"', 1),
        "is device 0x20b0, not h100-sxm; valid: a100-sxm4-40gb",
    ),
    "another sm": (
        with_gpu(2, '<gpu dev="1"/>', with_gpu(1, '<gpu dev="0" sm="80"/>')),
        "has sm='80', and h100-sxm has 90",
    ),
    "a net without number": (
        TWO_RAILS.replace("</system>", f'<cpu numaid="2" {INTEL}><nic><net name="eth0" dev="x"/></nic></cpu></system>'),
        "<net dev='x'> is not a whole number",
    ),
    "one numbered": (with_gpu(1, '<gpu dev="0"/>'), "1 of 2 GPUs have a <gpu dev>"),
    "an EFA": (
        TWO_RAILS.replace(' class="0x020700"', ' class="0x020000" vendor="0x1d0f"'),
        "net_latency_us=, 75 for p4d",
    ),
}


@pytest.mark.parametrize("scenario", BAD)
def test_what_the_file_lacks_or_contradicts_is_refused(write: Write, scenario: str) -> None:
    text, words = BAD[scenario]
    assert words in refusal(write, text)
    assert "\n" not in refusal(write, text)


def test_the_speed_of_adapters_is_asked_for(write: Write) -> None:
    assert "2 adapters have no speed, the first is 0102:00:00.0; say how fast" in refusal(write, TWO_RAILS, gbps=None)
    assert "all adapters have a speed already" in refusal(write, TWO_GPUS)


@pytest.mark.live
def test_a_net_without_speed_has_that_of_the_network(write: Write) -> None:
    text, net = TWO_RAILS, '{}><nic><net name="mlx5_{}" dev="{}"/></nic></pci>'
    for n in (1, 2):
        text = text.replace(NIC.format(n=n), net.format(NIC.format(n=n)[:-2], n, n - 1))
    assert "2 adapters have no speed, the first is mlx5_2; say how fast" in refusal(write, text, gbps=None)
    assert "net_latency_us=, 75 for p4d" in refusal(write, text.replace('0x020700"', '0x020700" vendor="0x1d0f"'))
    assert [(net.name, net.speed_mbps) for net in completed(write(text), "h100-sxm", 400).nets] == [
        ("mlx5_1", 400_000),
        ("mlx5_2", 400_000),
    ]
    said = text.replace('dev="0"', 'dev="0" speed="100000"')
    assert [net.speed_mbps for net in completed(write(said, "said.xml"), "h100-sxm", 400).nets] == [100_000, 400_000]


def test_a_mesh_needs_its_number_of_gpus(write: Write) -> None:
    assert "v100-sxm2 comes in groups of 8" in refusal(write, TWO_GPUS, "v100-sxm2", None)


def test_options_that_belong_together() -> None:
    with pytest.raises(BadInput, match="the GPUs of dgx-h100 are known"):
        Scenario(nccl=NCCL, nodes=1, machine="dgx-h100", gpu="h100-sxm").gpus()
    with pytest.raises(BadInput, match="add gpu= MODEL"):
        Scenario(nccl=NCCL, nodes=1, machine="dgx-h100", net_gbps=400).gpus()


# --- the table ---


@pytest.mark.parametrize("name", gpus.names())
def test_a_models_links_add_up(name: str) -> None:
    model = gpus.load(name)
    assert model.source
    assert (model.lead_to == "nothing") == (model.nvlinks == 0)
    assert (model.lead_to == "gpus") == bool(model.mesh)
    assert model.lead_to in ("nvswitch", "gpus", "nothing")
    for a, row in enumerate(model.mesh):
        assert sum(row) == model.nvlinks
        assert [other[a] for other in model.mesh] == list(row)  # a link has two ends
        assert row[a] == 0
    assert all(re.fullmatch("0x[0-9a-f]{4}", device) for device in model.pci_devices)


# --- the files that cloud vendors ship, and other people's ---

SHIPPED = Path(__file__).parents[2] / "../shared/cases/machines"
WORKS = {  # file: --gpu, --nic-gbps, --net-latency-us; a file that is complete needs none
    "azure-ndv2-topo.xml": ("v100-sxm2", 100, None),
    "azure-ndv4-topo.xml": ("a100-sxm4-40gb", 200, None),
    "azure-ndv5-topo.xml": ("h100-sxm", 400, None),
    "aws-ofi-nccl-p4d-24xl-topo.xml": ("a100-sxm4-40gb", 100, 75),
    "aws-ofi-nccl-p4de-24xl-topo.xml": ("a100-sxm4-80gb", 100, 75),
    "azure-ncv4-topo.xml": (None, None, None),
    "cuiboyuan-nccl_topo_8_gpu_V100SXM2.xml": (None, None, None),
    "misc-zijie-tian_4_CROSS_GPU_topo.xml": (None, None, None),
    "yynil-topo.xml": (None, None, None),
}
REFUSED = {
    "aws-ofi-nccl-g5.48xl-topo.xml": "<cpu numaid='0'> and 1 more have no arch; <pci busid='0000:00:16.0'> and 8 more "
    "have no class and no link_speed and no link_width, which NCCL reads from its machine",
    "azure-ncv4-graph.xml": "<graphs> is not a topology",
}


def shipped(name: str) -> Path:
    if not SHIPPED.is_dir():
        pytest.skip(f"{SHIPPED} is not here")
    return SHIPPED / name


def agrees(name: str, nodes: int, nccl: str) -> Scenario:
    gpu, gbps, latency_us = WORKS[name]
    scenario = Scenario(nccl, nodes, topology=shipped(name), gpu=gpu, net_gbps=gbps, net_latency_us=latency_us)
    report = check(scenario, ALLREDUCE, [8, 1 << 20, 256 << 20])
    assert report.compared["cells"] >= 3 * 18
    assert not report.mismatches
    return scenario


def test_every_file_is_spoken_of() -> None:
    assert sorted(WORKS | REFUSED) == sorted(file.name for file in shipped("").glob("*.xml"))


@pytest.mark.live
@pytest.mark.parametrize("name", WORKS)
def test_a_shipped_file_works(name: str) -> None:
    agrees(name, 2, NCCL)


@pytest.mark.live
@pytest.mark.parametrize("name", [name for name, (gpu, *_) in WORKS.items() if gpu is not None])
def test_a_shipped_skeleton_and_its_completed_file_have_the_same_graphs(name: str) -> None:
    for by in (HERE[-1], None):
        assert_same_graphs(shipped(name), WORKS[name], NCCL, 1, by)


@pytest.mark.parametrize("name", REFUSED)
def test_a_shipped_file_says_why_not(name: str) -> None:
    with pytest.raises(BadTopology, match=re.escape(REFUSED[name])):
        skeleton.read(shipped(name), "a10g", 100, None)


@pytest.mark.live
@pytest.mark.parametrize("nccl", [name for name in HERE if name != NCCL])
def test_azure_ndv5_has_nvls(nccl: str) -> None:
    scenario = agrees("azure-ndv5-topo.xml", 1, nccl)
    assert scenario.communicator().nvls


def test_a_file_is_a_machine_by_its_name_and_eight_digits_of_its_content(tmp_path: Path) -> None:
    """Calibrations of users name their machine so, and find it again by that."""
    (tmp_path / "node.xml").write_bytes(b"<system/>")
    assert skeleton.name_of(tmp_path / "node.xml") == "node.xml ca2a8ff0"
