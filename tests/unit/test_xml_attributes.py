"""Every attribute of every XML that is read, with a value that it cannot have: an answer or one line, no traceback."""

import pickle
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import run_to_any_end
from tuner import release
from tuner.base.errors import TunerError
from tuner.graphs import graphs
from tuner.graphs.request import SearchRequest, SearchResult
from tuner.machine.topology import Topology, read

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
VALUES = ("x", "", "-1", "1e400", "nan", "0x", "9" * 5000, "1.5", "1,", "\u0663", "99999999999999999999")
FILES = ("node.xml", "skeleton.xml", "guest.xml", "lstopo.xml", "two-sockets.xml")


def attributes(file: Path) -> list[tuple[str, str]]:
    """Each attribute of each kind of element, once; of hwloc's, which all are called alike, by what they are of."""
    found = dict[tuple[str, str], None]()
    for element in ET.parse(file).getroot().iter():
        kind = element.get("type") or element.get("name") if element.tag in ("object", "info") else None
        found.update(
            dict.fromkeys((f"{element.tag}[{kind}]" if kind else element.tag, name) for name in element.attrib)
        )
    return list(found)


def changed(file: Path, kind: str, name: str, value: str, every: bool) -> str:
    root = ET.parse(file).getroot()
    for element in root.iter():
        own = element.get("type") or element.get("name") if element.tag in ("object", "info") else None
        if (f"{element.tag}[{own}]" if own else element.tag) == kind and name in element.attrib:
            element.set(name, value)
            if not every:
                break
    return ET.tostring(root, encoding="unicode")


CASES = [(file, kind, name) for file in FILES for kind, name in attributes(EXAMPLES / file)]


@pytest.fixture(scope="module", autouse=True)
def equal_nodes_are_searched_once() -> Iterator[None]:
    """Many attributes are read by no search: where the same devices and links are built of two files, one is searched.

    A search can read no more of the files here than what is built and the GPUs: the rest is None to it.
    """
    found: dict[bytes, SearchResult | TunerError] = {}
    built, search = graphs.built, graphs.search

    def once(request: SearchRequest, nccl: str) -> SearchResult:
        system, gpus = built(request, release.load(nccl)), read(request.topology).gpus
        unread = replace(request, topology=None)  # type: ignore[arg-type]
        key = pickle.dumps((system, gpus, unread, nccl))
        if key not in found:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(graphs, "built", lambda *_: system)
                patched.setattr(graphs, "read_topology", lambda _: Topology(None, gpus, None))  # type: ignore[arg-type]
                try:
                    found[key] = search(unread, nccl)
                except TunerError as error:
                    found[key] = error
        if isinstance(answer := found[key], TunerError):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graphs, "search", once)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("file", "kind", "name"), CASES)
def test_an_attribute_that_is_wrong_is_one_line(file: str, kind: str, name: str, tmp_path: Path) -> None:
    for number, value in enumerate(VALUES):
        path = tmp_path / f"{number}.xml"
        path.write_text(changed(EXAMPLES / file, kind, name, value, every=number % 2 == 0))
        more = ["--gpu", "h100-sxm", "--nic-gbps", "400"]
        assert run_to_any_end("machines", str(path), *more).returncode in (0, 1, 2, 3)
        assert run_to_any_end("diagnose", str(path), "--machine", "dgx-h100").returncode in (0, 1, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", attributes(EXAMPLES / "graphs.xml"))
def test_an_attribute_of_graphs_that_is_wrong_is_one_line(name: tuple[str, str], tmp_path: Path) -> None:
    for number, value in enumerate(VALUES):
        path = tmp_path / f"{number}.xml"
        path.write_text(changed(EXAMPLES / "graphs.xml", *name, value, every=number % 2 == 0))
        words = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--bytes", "1M")
        assert run_to_any_end(*words, "--graphs", str(path)).returncode in (0, 1, 2, 3)
        assert run_to_any_end(*words, "--env", f"NCCL_GRAPH_FILE={path}").returncode in (0, 1, 2, 3)
        assert run_to_any_end("diagnose", str(path)).returncode in (0, 1, 2, 3)
