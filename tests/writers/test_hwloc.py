"""Listings that the real lstopo wrote, in the form of its version 2 and of version 1, read alike."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import run

GPU = 'pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.015385"'
ADAPTER = 'pci_type="0207 [15b3:1021] [15b3:0023] 00" pci_link_speed="63.015385"'
SWITCH = 'pci_type="0604 [1000:c030] [1000:a064] b0" pci_link_speed="63.015385"'

pytestmark = pytest.mark.live  # else it connects to no other computer


@pytest.fixture(scope="module")
def written(hwloc: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two packages with a PCI switch each, below it two GPUs and two adapters, as lstopo writes them."""
    folder = tmp_path_factory.mktemp("hwloc")
    libraries = ":".join(str(hwloc / each / "x86_64-linux-gnu") for each in ("usr/lib", "lib"))

    def lstopo(*words: str) -> None:
        env = {**os.environ, "LD_LIBRARY_PATH": libraries}
        subprocess.run([hwloc / "usr" / "bin" / "lstopo-no-graphics", *words], cwd=folder, env=env, check=True)

    lstopo("-i", "pack:2 numa:1 core:2 pu:1", "plain.xml")
    text, number = (folder / "plain.xml").read_text(), iter(range(900, 1000))
    ends = [[match.start() for match in re.finditer("<object type=.Package", text)][1], text.rindex("</object>")]
    for package in (1, 0):
        at = text.rindex("</object>", 0, ends[package])
        text = text[:at] + _devices(16 + 64 * package, 2 * package, number) + text[at:]
    (folder / "made.xml").write_text(text)
    lstopo("-i", "made.xml", "--whole-io", "v2.xml")
    lstopo("-i", "made.xml", "--whole-io", "--export-xml-flags", "v1", "v1.xml")
    return {"hwloc 2.0": folder / "v2.xml", "hwloc 1": folder / "v1.xml"}


def _devices(first: int, adapter: int, number: Iterator[int]) -> str:
    devices = ""
    for at in range(2):
        devices += f'<object type="PCIDev" gp_index="{next(number)}" pci_busid="0000:{first + 8 + at:02x}:00.0" {GPU}/>'
        card = f'<object type="OSDev" gp_index="{next(number)}" name="mlx5_{adapter + at}" osdev_type="3"/>'
        bus_id = f'pci_busid="0000:{first + 12 + at:02x}:00.0"'
        devices += f'<object type="PCIDev" gp_index="{next(number)}" {bus_id} {ADAPTER}>{card}</object>'
    below = f'bridge_pci="0000:[{first + 1:02x}-{first + 15:02x}]" pci_busid="0000:{first:02x}:00.0"'
    switch = f'<object type="Bridge" gp_index="{next(number)}" bridge_type="1-1" depth="1" {below} {SWITCH}>'
    host = f'bridge_type="0-1" depth="0" bridge_pci="0000:[{first:02x}-{first + 15:02x}]"'
    return f'<object type="Bridge" gp_index="{next(number)}" {host}>{switch}{devices}</object></object>'


def test_both_versions_give_one_topology(written: dict[str, Path]) -> None:
    made = []
    for version, file in written.items():
        done = run("machines", str(file), "--gpu", "h100-sxm", "--nic-gbps", "400", "--cpu", "GenuineIntel:6:143")
        assert f"lstopo ({version})" in done.stderr
        made.append(done.stdout)
    assert made[0] == made[1]
    assert made[0].count("<gpu ") == made[0].count("<net ") == 4
    assert made[0].count("<cpu ") == 2
    assert re.findall(r'<pci busid="0000:(..):00.0" class="0x030200"', made[0]) == ["18", "19", "58", "59"]
