"""The picture of a machine: well-formed, accessible, no text beyond its box, every limit marked."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.cli.reports.machine_picture import picture
from tuner.graphs import SearchRequest, searched
from tuner.graphs.explain import GraphExplanation, explain
from tuner.machine import catalogue

SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 0.66  # of a letter, as a part of its height, on average of a line
NCCL = "2.28.9"


# Machine, whether there are several nodes, GPUs used. On one node a picture has the same devices as on several; the
# graphs of all GPUs of these machines with several nodes take long to search.
WHOLE_AND_PARTS = [("dgx-1v", False, 8), ("dgx-1v", True, 3), ("gh200-4x", False, 4), ("gh200-4x", True, 3)]


def request(name: str, several: bool, gpus: int, hosts: int = 1) -> SearchRequest:
    machine = catalogue.load(name)
    across = machine.peer_to_peer
    asked = SearchRequest(machine.topology_xml, gpus, several, dict(machine.environment), across)
    return replace(asked, hosts=hosts)


@cache
def explained(name: str, several: bool, graph: str = "ring", *, gpus: int, hosts: int = 1) -> GraphExplanation:
    return explain(request(name, several, gpus, hosts), NCCL, graph, with_lifts=False)


def boxes(root: ET.Element) -> list[tuple[float, float, float, float]]:
    found = [each for each in root.iter(f"{SVG}rect") if each.get("class", "").startswith("box")]
    return [tuple(float(each.get(name, "0")) for name in ("x", "y", "width", "height")) for each in found]


@pytest.mark.parametrize(("name", "several"), [("dgx-h100", True), ("dgx-1v", False), ("pcie-rtxpro6000", True)])
def test_a_picture_has_every_device_and_marks_every_limit(name: str, several: bool) -> None:
    explanation = explained(name, several, gpus=8)
    root = ET.fromstring(picture(explanation, f"a node of {name}"))
    assert root.get("role") == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == f"ring of a node of {name}"
    assert description is not None
    assert "channel" in (description.text or "")
    drawn = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for device in explanation.devices:
        if device.kind in ("gpu", "cpu", "net"):
            assert device.says in drawn
    limits = {link.link for link in explanation.links if link.limits}
    assert limits
    marked = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "gauge limit"]
    titles = {(each.findtext(f"{SVG}title") or "").partition(": ")[0] for each in marked}
    assert {each for each in titles if "gpu:" in each} == {each for each in limits if "gpu:" in each}
    assert drawn.count("\N{BLACK DIAMOND}") == len(marked)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "several", "gpus"), [("dgx-h100", True, 8), ("pcie-l40s", True, 8), *WHOLE_AND_PARTS])
def test_boxes_do_not_overlap_and_hold_their_text(name: str, several: bool, gpus: int) -> None:
    root = ET.fromstring(picture(explained(name, several, gpus=gpus), name))
    places = boxes(root)
    for number, (x, y, width, height) in enumerate(places):
        for other in places[:number]:
            apart = (
                x >= other[0] + other[2] or other[0] >= x + width or y >= other[1] + other[3] or other[1] >= y + height
            )
            assert apart, (places[number], other)
    for text in root.iter(f"{SVG}text"):
        at, line = float(text.get("x", "0")), float(text.get("y", "0"))
        around = [box for box in places if box[0] <= at <= box[0] + box[2] and box[1] <= line <= box[1] + box[3]]
        size = {"small": 10, "limit-text": 10, "name": 12}.get(text.get("class", ""), 17)
        if around and text.get("text-anchor") == "start":
            assert at + len(text.text or "") * size * WIDEST <= around[0][0] + around[0][2], text.text


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("graph", ["ring", "tree", "nvls"])
@pytest.mark.parametrize(
    ("name", "several", "gpus"), [("dgx-h100", True, 8), ("pcie-rtxpro6000", True, 8), *WHOLE_AND_PARTS]
)
def test_no_link_carries_more_than_it_has(name: str, several: bool, gpus: int, graph: str) -> None:
    if graph not in searched(request(name, several, gpus), NCCL).graphs:
        return
    told = explained(name, several, graph, gpus=gpus)
    assert any(link.carries_gbs for link in told.links)
    for link in told.links:
        assert link.carries_gbs <= link.link_gbs + 0.01
        assert link.carries_gbs == pytest.approx(sum(link.channels_gbs.values()))
    used = {channel for link in told.links for channel in link.channels_gbs}
    assert used == set(range(told.found.channels))


def test_a_large_machine_has_what_channels_use() -> None:
    explanation = explained("dgx-b200", False, gpus=8, hosts=3)
    text = picture(explanation, "24 GPUs")
    assert "links that carry nothing are left out" in text
    assert "PCIe in" not in text
    assert text.count(">6 of these<") == 1  # a CPU with four GPUs stands for both of all three hosts
    assert [f">GPU {number}<" in text for number in range(5)] == [True] * 4 + [False]


def test_what_is_not_alike_is_not_folded() -> None:
    explanation = explained("dgx-b200", False, gpus=8, hosts=3)
    odd = next(link for link in explanation.links if link.start == "NVSwitch" and "host 2" in link.end)
    links = [replace(link, carries_gbs=link.carries_gbs / 2) if link is odd else link for link in explanation.links]
    text = picture(replace(explanation, links=tuple(links)), "24 GPUs")
    assert ">5 of these<" in text
    assert "of host 2<" in text


@pytest.mark.slow
def test_it_is_written_as_a_file_and_into_a_report(tmp_path: Path) -> None:
    words = ("--machine", "ws-2x-a6000", "--nccl", "2.28.9")
    drawn = run("graphs", *words, "--svg", str(tmp_path / "ring.svg"))
    assert drawn.stdout == ""
    text = (tmp_path / "ring.svg").read_text()
    assert "ring of 1 x ws-2x-a6000, 2 GPUs each, NCCL 2.28.9" in text
    pytest.importorskip("bokeh")
    run("plot", "page", *words, "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    (inside,) = re.findall(r'<section id="machine">.*?</section>', page, re.DOTALL)
    assert text.strip() in inside
