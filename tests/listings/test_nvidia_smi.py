"""The tables of nvidia-smi topo in the forms that people keep them in, and tables that are not whole."""

import re
from pathlib import Path

import pytest

from tuner.base.errors import BadInput, BadTopology
from tuner.machine.listings import Listing, ListingAdditions, completed, read
from tuner.machine.listings.shape import PIX, PXB, of_listing
from tuner.machine.topology import Topology
from tuner.machine.topology import read as read_topology

PAIR = """\
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     PIX     SYS     0-31            0               N/A
GPU1    NV4      X      SYS     PIX     32-63           1               N/A
NIC0    PIX     SYS      X      SYS
NIC1    SYS     PIX     SYS      X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
NO_LINKS = PAIR.replace("NV4", "SYS")
INTEL = "GenuineIntel:6:143"


def shown(tmp_path: Path, text: str) -> Listing:
    file = tmp_path / "topo.txt"
    file.write_text(text)
    found = read(file)
    assert found is not None
    return found


def written(tmp_path: Path, text: str) -> Path:
    """In a file of its own, as a file that was completed is not read again."""
    file = tmp_path / f"topo{len(list(tmp_path.iterdir()))}.txt"
    file.write_text(text)
    return file


def made(tmp_path: Path, text: str, given: ListingAdditions) -> tuple[Topology, tuple[str, ...]]:
    topology, notes = completed(written(tmp_path, text), given)
    return read_topology(topology), notes


FORMS = {
    "as printed": PAIR,
    "with tabs": "\n".join("\t".join(line.split("   ")) for line in PAIR.splitlines()),
    "underlined": PAIR.replace("        GPU0    GPU1", "\t\x1b[4mGPU0    GPU1").replace("NUMA ID", "NUMA ID\x1b[0m"),
    "in a comment": "".join(f"# {line}\n" for line in PAIR.splitlines()),
    "in a log": "%%% job 17 %%%\n$ nvidia-smi topo -m\n" + PAIR + "\ndone\n",
    "of an old driver": PAIR.replace("SYS", "SOC").replace("   GPU NUMA ID", "").replace("          N/A", ""),
    "with names instead of numbers": PAIR.replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_1"),
    "with names that lost their blank": PAIR.replace("NIC0    NIC1    CPU", "NIC0NIC1    CPU"),
    "with cells that lost their blank": PAIR.replace(
        "GPU0     X      NV4     PIX     SYS", "GPU0     X      NV4     PIXSYS"
    ),
    "after the table without links": PAIR.replace("NV4", "SYS") + "\n" + PAIR,
    "of Grace": PAIR.replace("0               N/A", "0,3-9,11-17             2").replace(
        "1               N/A", "1,19-25                18"
    ),
    "twice": PAIR + "\n" + PAIR,
    "without the rows of adapters": "".join(
        line for line in PAIR.splitlines(keepends=True) if not line.startswith(("NIC0 ", "NIC1 "))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str, tmp_path: Path) -> None:
    shape = of_listing(shown(tmp_path, FORMS[form]), None)
    assert shape.sockets == ((0,), (1,))
    assert shape.nvlinks == {(0, 1): 4}
    assert shape.near == ((PIX, 1), (PIX, 1))
    assert shape.adapters == ("mlx5_0", "mlx5_1")


def test_gpus_without_affinity_of_cpus_are_of_the_numa_node_that_is_said(tmp_path: Path) -> None:
    """Where a container has few CPUs; between tabs, with the blank that is after the last GPU's own X."""
    rows = (
        " GPU0 GPU1 GPU2|CPU Affinity|NUMA Affinity|GPU NUMA ID",
        "GPU0| X |NV18|NV18|0-7|0||N/A",
        "GPU1|NV18| X |NV18||1||N/A",
        "GPU2|NV18|NV18| X ||1||N/A",
    )
    text = "\n".join(rows).replace("|", "\t") + "\n"
    assert of_listing(shown(tmp_path, text), None).sockets == ((0,), (1, 2))


def test_switches_below_switches(tmp_path: Path) -> None:
    text = PAIR.replace("PIX", "PXB").replace("SYS", "PXB").replace("1               N/A", "0               N/A")
    shape = of_listing(shown(tmp_path, text), None)
    assert shape.sockets == ((0, 1),)
    assert shape.near == ((PXB, 2), (PXB, 2))


def test_without_affinities_what_is_nearer_than_sys_is_one_socket(tmp_path: Path) -> None:
    text = "\n".join(line[:40] for line in PAIR.splitlines()[:5]).replace("NV4", "SYS") + "\n"
    shape = of_listing(shown(tmp_path, text), None)
    assert shape.sockets == ((0,), (1,))
    assert shape.near == ((PIX, 1), (PIX, 1))


def test_mp_says_which_gpus_share_a_switch(tmp_path: Path) -> None:
    four = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV4     NV4     NV4     0-31            0
GPU1    NV4      X      NV4     NV4     0-31            0
GPU2    NV4     NV4      X      NV4     0-31            0
GPU3    NV4     NV4     NV4      X      0-31            0
"""
    over_pcie = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      PIX     PHB     PHB     0-31            0
GPU1    PIX      X      PHB     PHB     0-31            0
GPU2    PHB     PHB      X      PIX     0-31            0
GPU3    PHB     PHB     PIX      X      0-31            0
"""
    alone, notes = made(tmp_path, four, ListingAdditions("a100-sxm4-80gb", cpu=INTEL))
    assert [note for note in notes if "topo -mp" in note]
    both, notes = made(tmp_path, four + "\n" + over_pcie, ListingAdditions("a100-sxm4-80gb", cpu=INTEL))
    assert not [note for note in notes if "topo -mp" in note]
    assert alone.gpus[0].nvlinks == both.gpus[0].nvlinks
    file = written(tmp_path, four + "\n" + over_pcie)
    text = completed(file, ListingAdditions("a100-sxm4-80gb", cpu=INTEL))[0]
    assert text.count('class="0x060400"') == 2


@pytest.mark.parametrize(
    ("cell", "links", "kind"),
    [("NV18", 18, "NVSwitch"), ("NV8", 8, "NVSwitch"), ("NV12", 12, "NVSwitch"), ("NV2", 2, "GPU")],
)
def test_links_lead_to_switches_where_gpus_have_not_as_many(cell: str, links: int, kind: str, tmp_path: Path) -> None:
    head = "\t" + "\t".join(f"GPU{n}" for n in range(8)) + "\tCPU Affinity\tNUMA Affinity\n"
    rows = (f"GPU{a}\t" + "\t".join(" X " if a == b else cell for b in range(8)) + "\t0-31\t0\n" for a in range(8))
    topology, _ = made(tmp_path, head + "".join(rows), ListingAdditions("h100-sxm", cpu=INTEL))
    counts = {
        (link.kind.value, sum(each.count for each in gpu.nvlinks)) for gpu in topology.gpus for link in gpu.nvlinks
    }
    assert counts == {(kind, links if kind == "NVSwitch" else 7 * links)}


def test_everything_that_is_missing_is_asked_for_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gpu= MODEL.*net_gbps= 400.*cpu= GenuineIntel:6:143") as error:
        made(tmp_path, PAIR, ListingAdditions())
    assert "\n" not in str(error.value)


def test_links_that_a_model_has_and_nvidia_smi_does_not_show_are_no_guess(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"shows no NVLinks, and h100-sxm has 18; valid .*h100-pcie"):
        made(tmp_path, NO_LINKS, ListingAdditions("h100-sxm", 400, cpu=INTEL))


def test_pcie_is_the_models_unless_it_is_said(tmp_path: Path) -> None:
    given = ListingAdditions("a100-sxm4-80gb", 200, cpu=INTEL)
    _, notes = made(tmp_path, PAIR, given)
    assert [note for note in notes if "PCIe 4.0" in note]
    text = completed(written(tmp_path, PAIR), ListingAdditions("a100-sxm4-80gb", 200, cpu=INTEL, pcie="3x8"))[0]
    assert 'link_speed="8.0 GT/s PCIe" link_width="8"' in text
    assert "16.0 GT/s" not in text


PEERS = "\n \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n"


@pytest.mark.parametrize(("cell", "says"), [("CNS", "p2p=within-sockets|p2p=none"), ("GNS", "p2p=none"), ("OK", None)])
def test_refused_access_to_memory_is_said(cell: str, says: str | None, tmp_path: Path) -> None:
    notes = " ".join(shown(tmp_path, PAIR + PEERS.format(cell)).notes)
    assert ("reach" in notes) == (says is not None)
    if says:
        assert re.search(says, notes)


def test_ns_where_there_are_links_is_said(tmp_path: Path) -> None:
    assert "NVLinks are not used there" in " ".join(shown(tmp_path, PAIR + PEERS.format("NS")).notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PAIR.replace("GPU1    NV4      X      SYS     PIX", "GPU1    NV4      X"), "GPU1 has 2 of 4 columns"),
        ("\n".join(PAIR.replace("GPU1    GPU1", "").splitlines()[:2]), "no row says how GPU1 and NIC0"),
        (PEERS.format("OK"), "which says neither links nor places"),
        (PAIR.replace("NIC1    CPU", "NIC0    CPU"), "each once"),
    ],
)
def test_tables_that_are_not_whole_are_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadTopology, match=says) as error:
        shown(tmp_path, text)
    assert "\n" not in str(error.value)


def test_other_files_are_no_listings(tmp_path: Path) -> None:
    for content in ("", "hello\n", '<system version="1"/>', "<topology/>", "\x00\x01", "<topology><info/></topology>"):
        file = tmp_path / "other"
        file.write_text(content)
        assert read(file) is None, content
