"""aws-ofi-nccl's tuner against what its own shared objects answered, to the byte; recorded with tag and compiler."""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.aws_ofi_nccl import release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.emulator.tuner_plugin import ChunkQuestion, TunerQuestion

RECORDED = Path(__file__).parent / "tuners" / "aws-ofi-nccl.json.gz"
DRAWN = 40  # sizes between those at which an answer changes
SAME = {"1.9.2": ("1.9.2",), "1.10.0": ("1.10.0", "1.11.0", "1.11.1"), "1.12.1": ("1.12.0", "1.12.1")}
SAME |= {"1.13.1": ("1.13.0", "1.13.1"), "1.13.2": ("1.13.2",), "1.14.2": ("1.14.0", "1.14.1", "1.14.2")}
SAME |= {"1.15.0": ("1.15.0",), "1.16.3": ("1.16.0", "1.16.1", "1.16.2", "1.16.3"), "1.20.0": ("1.20.0",)}
SAME |= {"1.17.3": ("1.17.0", "1.17.1", "1.17.2", "1.17.3"), "1.18.0": ("1.18.0",)}
SAME |= {"1.19.2": ("1.19.0", "1.19.1", "1.19.2"), "1.21.1": ("1.21.0", "1.21.1")}  # by the sources' sha256


@cache
def recorded() -> dict[str, dict[str, list[list[Any]]]]:
    with gzip.open(RECORDED) as file:
        answers: dict[str, dict[str, list[list[Any]]]] = json.load(file)["answers"]
    return answers


def communicator(nodes: int, ranks: int, interface: int) -> Any:
    """One of so many nodes and ranks, as far as the tuner looks at it."""
    plugin = SimpleNamespace(api=interface, keeps_constants=False)
    nccl = SimpleNamespace(name="of a test", plugin=plugin, limits=SimpleNamespace(algorithms=7))
    return SimpleNamespace(
        nodes=nodes, ranks=ranks, release=nccl, environment=SimpleNamespace(values={}), nvls_channels=16, nvls=True
    )


def question(of: list[Any], sizes: np.ndarray[Any, Any]) -> TunerQuestion:
    """Calls of these sizes on one of the recorded communicators, no cell of which is ignored."""
    collective, nodes, ranks, interface = of[:4]
    request: Any = SimpleNamespace(
        collective=Collective[collective], pipelined=1, dtype=None, op=None, moves_only=True, spreads=False
    )
    return TunerQuestion(
        communicator(nodes, ranks, interface), request, sizes, lambda _: np.full(len(sizes), 7, np.float32)
    )


def sizes_of(starts: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The sizes at which ranges begin, those beside them, and some that are drawn."""
    drawn = np.exp2(np.random.default_rng(seed).uniform(0, 40, DRAWN)).astype(np.uint64)
    one = np.uint64(1)
    return np.unique(np.concatenate([starts, starts[1:] - one, starts + one, drawn]))


def cases() -> Iterator[tuple[str, str]]:
    for name, products in recorded().items():
        for product in products:
            yield name, product


@pytest.mark.parametrize(("name", "product"), list(cases()))
def test_answers_are_those_of_the_shared_object(name: str, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The shared object was told that NVLS is supported.
    monkeypatch.setattr(
        "tuner.emulator.aws_ofi_nccl.tuner._nvls", lambda _, asked: np.ones(len(asked.nbytes), np.bool_)
    )
    for release_name in SAME[name]:
        tuner = AwsTuner(release.load(release_name), product, {})
        for at, of in enumerate(recorded()[name][product]):
            starts = np.array(of[4], np.uint64)
            sizes = sizes_of(starts, at)
            where = np.searchsorted(starts, sizes, side="right") - 1
            answers = tuner.answers(question(of, sizes))
            assert np.array_equal(answers.cell, np.array(of[5])[where]), (release_name, of[:4])
            assert np.array_equal(answers.channels, np.array(of[6])[where]), (release_name, of[:4])


def test_every_release_was_compared() -> None:
    compared = {each for names in SAME.values() for each in names}
    unread = {"1.9.0", "1.9.1"}  # whose interface v1 reads memory that is not its own; v2 is 1.9.2's without a quirk
    assert compared | unread == set(release.names())
    assert set(SAME) == set(recorded())


def test_edges_are_where_the_shared_object_changes_its_mind() -> None:
    """Ranges come from the places at which polygons may be left, and not from sizes that happen to be looked at."""
    from tuner.base import breakpoints

    for name in ("1.18.0", "1.21.1"):
        for product, several in recorded()[name].items():
            tuner = AwsTuner(release.load(name), product, {})
            for of in several[::7]:
                asked = question(of, np.ones(1, np.uint64))
                if tuner.may_flicker(asked.communicator, asked.request):
                    continue

                def labels(sizes: np.ndarray[Any, Any], of: list[Any] = of, tuner: AwsTuner = tuner) -> Any:
                    answers = tuner.answers(question(of, sizes))
                    return np.column_stack([answers.cell, answers.channels])

                breaks = tuner.breaks(asked.communicator, asked.request)
                assert breakpoints.find(labels, 1, 1 << 40, breaks, steps=0).tolist() == of[4], (name, product, of[:4])


# What 1.21.1's shared object answers on p5en with a rank a node where NCCL would take 777 bytes; recorded as above.
CHUNKS = {
    ("AllReduce", 2): (18000, 18000, 144000, 288000, 288000, 288000),
    ("AllReduce", 8): (18000, 18000, 144000, 144000, 288000, 288000),
    ("AllReduce", 17): (18000, 18000, 144000, 144000, 288000, 288000),
    ("AllGather", 2): (32768, 32768, 524288, 524288, 1048576, 1048576),
    ("AllGather", 8): (32768, 32768, 131072, 262144, 1048576, 1048576),
    ("AllGather", 17): (32768, 32768, 65536, 131072, 524288, 524288),
}


@pytest.mark.parametrize(("collective", "nodes"), list(CHUNKS))
def test_chunks_are_those_of_the_shared_object(collective: str, nodes: int) -> None:
    cell = {"AllReduce": (Algorithm.Tree, Protocol.LL128), "AllGather": (Algorithm.PAT, Protocol.Simple)}[collective]
    request: Any = SimpleNamespace(collective=Collective[collective])
    asked = [1, 100_000, 1 << 20, 3_000_000, 1 << 24, 1 << 28]
    own = [777] * len(asked)
    for name, interface, expected in (
        ("1.21.1", 6, [*CHUNKS[collective, nodes]]),
        ("1.21.1", 5, own),
        ("1.20.0", 6, own),
    ):
        tuner, there = AwsTuner(release.load(name), "p5en.48xlarge", {}), communicator(nodes, nodes, interface)
        questions = [ChunkQuestion(there, request, cell, size, size, 777) for size in asked]
        assert [tuner.chunk_bytes(question) or 777 for question in questions] == expected
