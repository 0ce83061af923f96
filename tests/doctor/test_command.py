"""``nccl-tuner diagnose``: what it prints, its exit codes, the repaired file, refusals; and its table of parts."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.damages import FAULTS
from tuner.answers.doctor import records
from tuner.answers.doctor.examine import after
from tuner.answers.doctor.match import link
from tuner.answers.doctor.records import KINDS
from tuner.machine import catalogue, gpus
from tuner.machine.topology import edit
from tuner.machine.topology.xml import to_text

GUEST = Path(__file__).parents[2] / "docs" / "examples" / "guest.xml"
NCCL = ("--nccl", "2.28.9")


def damaged(tmp_path: Path, *names: str, machine: str = "dgx-h100") -> str:
    root = ET.fromstring(catalogue.load(machine).topology_xml)
    for name in names:
        assert FAULTS[name].damage(root)
    file = tmp_path / "damaged.xml"
    file.write_text(to_text(root))
    return str(file)


def test_the_repaired_file_is_sound(tmp_path: Path) -> None:
    out = tmp_path / "repaired.xml"
    seen = run("diagnose", str(GUEST), *NCCL, "-o", str(out), code=1).stdout
    for kind in ("pci-flat", "link-speed", "nvlinks", "gpudirect"):
        assert f": {kind}. " in seen
    assert "compared with hgx-h200 (agrees: " in seen
    assert f"NCCL_TOPO_FILE={out}" in seen
    words = " ".join(seen.split())
    assert "costs on 2 nodes: nothing by itself, by NCCL's own prediction on the machine" in words
    assert "AllReduce of 1 GiB reaches 142.1 GB/s busbw instead of 454.6 if everything else is repaired" in words
    assert "nothing is wrong" in run("diagnose", str(out), *NCCL).stdout


def test_json_has_all_changes_and_what_they_cost(tmp_path: Path) -> None:
    file = damaged(tmp_path, "no_nvlinks_of_one_gpu", "no_link_speeds")
    seen = json.loads(run("diagnose", file, *NCCL, "--json", code=1).stdout)["files"][0]["examined"]
    by_kind = {finding["kind"]: finding for finding in seen["findings"]}
    assert by_kind["nvlinks"]["changes"] == ["nvswitch=18@gpu:0"]
    assert seen["nearness"]["machine"] == "dgx-h100"
    assert seen["left"] == []
    last = seen["sizes"][-1]
    assert last["busbw_gbs_before"] < last["busbw_gbs_after"]
    assert by_kind["link-speed"]["busbw_gbs_left"] < last["busbw_gbs_after"]
    changes = [each for finding in seen["findings"] for each in finding["changes"]]
    assert seen["changes"] == changes


def test_a_repair_is_a_change_of_diff(tmp_path: Path) -> None:
    file = damaged(tmp_path, "no_nvlinks_of_one_gpu")
    said = run("diff", "allreduce", "nvswitch=18@gpu:0", "--topology", file, "--nodes", "2", *NCCL, "--bytes", "1G")
    (one,) = json.loads(run(*said.args[1:], "--json").stdout)["comparisons"][0]["sizes"]
    seen = json.loads(run("diagnose", file, *NCCL, "--json", code=1).stdout)["files"][0]["examined"]
    assert one["busbw_gbs_after"] == seen["sizes"][-1]["busbw_gbs_after"]


def test_machine_names_another_machine() -> None:
    seen = run("diagnose", str(GUEST), *NCCL, "--machine", "dgx-h200", "--json", code=1).stdout
    assert json.loads(seen)["files"][0]["examined"]["nearness"]["machine"] == "dgx-h200"


def test_what_nccl_cannot_search_is_said(tmp_path: Path) -> None:
    """A link that one end alone has: the search of NCCL fails, and the repair is written all the same."""
    file = damaged(tmp_path, "nvlink_to_itself", machine="dgx-1v")
    seen = run("diagnose", file, *NCCL, code=1).stdout
    assert "what the faults cost is not known: " in seen
    assert "no link back" in " ".join(seen.split())


def test_the_screen_is_80_columns_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seen = run("diagnose", str(GUEST), *NCCL, code=1).stdout
    assert max(map(len, seen.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<system", "the file is cut off: it ends in line 1 without </system>"),
        ('<system version="1"><cpu numaid="0"/></system>', "no <gpu> in it|has no arch"),
    ],
)
def test_what_cannot_be_examined_cannot_be_judged(text: str, says: str, tmp_path: Path) -> None:
    (file := tmp_path / "other.xml").write_text(text)
    done = run("diagnose", str(file), code=3)
    assert done.stdout.startswith("cannot be judged:")
    assert any(each in " ".join(done.stdout.split()) for each in says.split("|"))


def test_what_is_repaired_is_one_topology(tmp_path: Path) -> None:
    done = run("diagnose", str(GUEST), str(GUEST), "-o", str(tmp_path / "repaired.xml"), code=2)
    assert done.stderr == (
        "nccl-tuner: --out writes a repaired topology: give a single FILE that is a topology, or remove --out\n"
    )
    assert "no machine 'nothing'" in run("diagnose", str(GUEST), "--machine", "nothing", code=2).stderr


def test_a_listing_is_repaired_where_its_gpus_are_said(tmp_path: Path) -> None:
    (file := tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    (alone,) = json.loads(run("diagnose", str(file), "--json").stdout)["files"]
    assert (alone["kind"], "examined" in alone) == ("listing of a node", False)
    done = run("diagnose", str(file), "--gpu", "a100-pcie", code=3)
    assert "does not say what its CPUs are" in " ".join(done.stdout.split())


def test_more_gpus_than_nccl_has_room_for_are_refused(tmp_path: Path) -> None:
    gpus = "".join(
        f'<pci busid="{n >> 8:04x}:{n & 255:02x}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{n}" sm="90" rank="{n}" gdr="1"/></pci>'
        for n in range(1000)
    )
    cpu = '<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
    file = tmp_path / "large.xml"
    file.write_text(f'<system version="1">{cpu}{gpus}</cpu></system>')
    said = " ".join(run("diagnose", str(file), code=3).stdout.split())
    assert "has 1000 GPUs in one node, but NCCL has room for 640" in said


def test_links_are_repaired_together_as_one_by_one() -> None:
    text = catalogue.load("dgx-h100").topology_xml
    changes = ("gpudirect=off", "pcie=4x8@gpu:0", "pcie=3x16@gpu:1", "pcie=2x4", "pcie=4x8@gpu:0", "nics=4")
    each = text
    for change in changes:
        key, _, value = change.partition("=")
        each = edit.edited(each, {key: value})
    assert after(text, changes) == each


def test_every_kind_has_its_line_in_the_documentation() -> None:
    page = (GUEST.parents[1] / "doctor.md").read_text("utf-8")
    assert all(f"`{kind}`" in page for kind in KINDS)


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
