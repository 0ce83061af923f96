"""CollNet without libnccl: NCCL's loop for CollNetDirect's channels, heads in files, what is refused."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.captured_graphs import Captured, render
from tuner.answers.graphs import write_dump
from tuner.base.errors import BadInput, BadTopology
from tuner.base.names import Pattern
from tuner.emulator.rules import collnet
from tuner.emulator.rules.bounds import _fewer_direct_channels
from tuner.machine import catalogue
from tuner.machine.graphs import Graph, GraphTable, from_table, read_dump
from tuner.release.environment import Environment
from tuner.scenario import Scenario
from tuner.scenario.notes import of_scenario


def loop(nbytes: int, channels: int, threads: int, threshold: int) -> int:
    """Counting down as the C does, one size at a time."""
    goal, too_small = 16, True
    while goal >= 1 and too_small:
        while (too_small := nbytes < channels * threads * threshold) and channels > goal:
            if channels == goal + goal // 2:
                threshold //= 2
            channels -= 1
        goal //= 2
    return channels


@given(st.integers(1, 64), st.integers(1, 8), st.lists(st.integers(1, 1 << 28), min_size=1))
def test_channels_of_collnet_direct_are_those_of_the_loop(most: int, heads: int, sizes: list[int]) -> None:
    found = _fewer_direct_channels(np.array(sizes, np.uint64), most, 640 * heads, 512)
    assert found.tolist() == [loop(size, most, 640 * heads, 512) for size in sizes]


@pytest.mark.parametrize(("value", "on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_collnet_is_asked_for_by_1(value: str | None, on: bool) -> None:
    values = {} if value is None else {"NCCL_COLLNET_ENABLE": value}
    assert collnet.requested(Environment(values)) == on


def test_the_network_has_to_reduce_too(tmp_path: Path) -> None:
    """An option, a topology or a dump says so; the variable alone gets a note."""
    alone = Scenario(nccl="2.27.5", machine="dgx-h100", nodes=2, environment={"NCCL_COLLNET_ENABLE": "1"})
    assert alone.communicator().collnet is None
    assert any("no adapter reduces" in note for note in of_scenario(alone))
    option = replace(alone, collnet=True)
    assert option.communicator().collnet is not None
    assert not of_scenario(option)
    assert replace(option, environment={}).communicator().collnet is None
    differing = replace(alone, topology=_marked(tmp_path), machine=None, nodes=1, others=(replace(alone, nodes=1),))
    with pytest.raises(BadInput, match="only some nodes have a network that reduces"):
        differing.communicator()
    marked = _marked(tmp_path)
    marked.write_text(marked.read_text().replace('coll="1" ', "", 1))
    some = replace(alone, topology=marked, machine=None)
    with pytest.raises(BadInput, match="some adapters reduce and some do not"):
        some.communicator()
    assert replace(some, environment={}).communicator().collnet is None
    dumped = tmp_path / "graphs.xml"
    write_dump(option, dumped)
    assert replace(alone, graphs=dumped).communicator().collnet is not None
    write_dump(alone, dumped)
    assert replace(alone, graphs=dumped).communicator().collnet is None


def _marked(folder: Path) -> Path:
    file = folder / "marked.xml"
    file.write_text(catalogue.load("dgx-h100").topology_xml.replace("<net ", '<net coll="1" '))
    return file


@pytest.mark.parametrize("value", ["2", "0x1", "01", "yes"])
def test_what_releases_read_differently_is_refused(value: str) -> None:
    with pytest.raises(BadInput, match=rf"NCCL_COLLNET_ENABLE={value} is read differently"):
        collnet.requested(Environment({"NCCL_COLLNET_ENABLE": value}))


ATTRIBUTES = (
    'nchannels="2" speedintra="20" speedinter="20" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1" '
    'crossnic="0"'
)


def channel(*devs: int) -> str:
    return "<channel><net dev='0'/>" + "".join(f"<gpu dev='{dev:#x}'/>" for dev in devs) + "</channel>"


def dump(folder: Path, graphs: list[tuple[int, int, str]]) -> Path:
    """``graphs`` are ids, patterns and channels."""
    text = "".join(f'<graph id="{i}" pattern="{pattern}" {ATTRIBUTES}>{body}</graph>' for i, pattern, body in graphs)
    file = folder / "graphs.xml"
    file.write_text(f'<graphs version="1">{text}</graphs>')
    return file


def test_a_dump_says_which_gpus_are_heads(tmp_path: Path) -> None:
    ring, one, both = channel(4, 6) * 2, channel(6, 4) * 2, channel(6, 4) + channel(4, 6)
    graphs = [(0, 4, ring), (1, 1, ring), (2, 3, both), (4, 6, one)]
    found, gpus = read_dump(dump(tmp_path, graphs))
    assert gpus == 2
    assert {name: graph.heads for name, graph in found.items()} == {
        "ring": None,
        "tree": None,
        "collnet_chain": None,
        "collnet_direct": (1,),
    }


@pytest.mark.parametrize(
    ("dev", "message"), [("0x7", "starts at GPU 7; valid: 4, 6"), ("x", "dev='x' is not a number")]
)
def test_a_dump_with_an_impossible_head_is_refused(tmp_path: Path, dev: str, message: str) -> None:
    graphs = [(0, 4, channel(4, 6)), (1, 1, channel(4, 6)), (4, 6, f'<channel><gpu dev="{dev}"/></channel>')]
    with pytest.raises(BadTopology, match=message):
        read_dump(dump(tmp_path, graphs))


def test_older_dumps_have_one_id_for_both_graphs(tmp_path: Path) -> None:
    def read(*collnet: tuple[int, str]) -> dict[str, Pattern | None]:
        graphs = [(0, 4, channel(4, 6)), (1, 1, channel(4, 6)), *((2, *graph) for graph in collnet)]
        found, _ = read_dump(dump(tmp_path, graphs))
        return {name: graph.pattern for name, graph in found.items() if "collnet" in name}

    both = {"collnet_direct": Pattern.Tree, "collnet_chain": Pattern.Tree}
    assert read((3, channel(4, 6))) == both  # up to 2.21
    assert read((6, channel(4, 6)), (3, channel(6, 4))) == both | {"collnet_direct": Pattern.CollNetDirect}  # 2.22


def test_heads_are_written_where_not_all_gpus_are() -> None:
    graph = Graph(Pattern.CollNetDirect, 1, False, 48.0, 48.0, 0.0, "NVL", "PIX", 0, heads=(0, 2))
    everyone = Graph(Pattern.CollNetDirect, 3, False, 48.0, 48.0, 0.0, "NVL", "PIX", 0)
    found = {("2.28.9", 3, True): {"collnet_direct": graph}, ("2.28.9", 4, True): {"collnet_direct": everyone}}
    text = render("m", Captured(GraphTable("0" * 64, found), {"2.28.9": "a" * 64}))
    assert re.findall("heads = .*?]", text) == ["heads = [0, 2]"]
    assert from_table(tomllib.loads(text)).graphs == found
