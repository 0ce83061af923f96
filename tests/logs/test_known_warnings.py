"""The table of warnings: against what libnccl prints, and against warnings that people brought."""

import re
from pathlib import Path

import pytest

from tests.support.available_releases import FEW, INTERFACES, is_here
from tests.support.cases import report
from tests.support.printed_lines import INFO, WARN, as_printed, printed_lines
from tuner import release
from tuner.base import tables
from tuner.oracle import library
from tuner.scenario.logs.known_warnings import AFTER_INIT, ALWAYS, KnownWarning, known_warnings, meaning_of

COMPARED = sorted(each for each in FEW | INTERFACES if each is not None)  # seven, the first and the newest among them
LEAST_KNOWN = 0.9
LEFT_OUT = {row["text"] for row in tables.toml(tables.folder() / "warnings.toml")["left_out"]}


def _printed(name: str, level: int) -> frozenset[str]:
    if not is_here(name):
        pytest.skip(f"no libnccl {name} here")
    return printed_lines(library.find(name).path)[level]


def _covers(ranges: str, name: str) -> bool:
    every = release.names()
    bounds = [each.strip().partition("-") for each in ranges.split(",") if each.strip()]
    return any(_at(first) <= _at(name) <= _at(last or (every[-1] if dash else first)) for first, dash, last in bounds)


def _at(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


@pytest.mark.live
@pytest.mark.parametrize("name", COMPARED)
def test_what_a_library_warns_of_is_in_the_table_or_left_out_by_name(name: str) -> None:
    texts = _printed(name, WARN)
    unknown = {text for text in texts if meaning_of(as_printed(text)) is None}
    assert len(texts) > 250  # the calls of the logger are found
    assert unknown <= LEFT_OUT
    assert len(texts) - len(unknown) >= LEAST_KNOWN * len(texts)


@pytest.mark.live
@pytest.mark.parametrize("name", COMPARED)
def test_rows_say_in_which_releases_and_at_which_level_they_are_printed(name: str) -> None:
    texts = {level: {as_printed(text) for text in _printed(name, level)} for level in (WARN, INFO)}
    for row, pattern in known_warnings():
        assert any(map(pattern.search, texts[WARN])) == _covers(row.warns, name), (row.pattern, name)
        assert not _covers(row.informs, name) or any(map(pattern.search, texts[INFO])), (row.pattern, name)


def test_the_level_of_a_graph_that_was_not_found_changed() -> None:
    row = meaning_of("Could not find a path for pattern 4, falling back to simple order")
    assert row is not None
    assert (row.warns, row.informs) == ("2.18.1-2.26.5", "2.27.3-")


@pytest.mark.parametrize("row", [row for row, _ in known_warnings()], ids=lambda row: row.pattern[:40])
def test_every_row_is_whole(row: KnownWarning) -> None:
    assert row.says
    assert row.source
    assert row.harmless in ("", ALWAYS, AFTER_INIT)
    assert not re.search(row.pattern, "something odd")


HARMLESS = {"GID table change", "Resiliency", "lib wrapper", "query_port_speed"}
MEANINGS = {
    "ibv_create_cq": "pinned memory",
    "ibv_reg_mr_iova2": "pinned memory",
    "ibv_create_qp": "pinned memory",
    "errno 61": "GID index",
    "19 No such device": "is gone",
    "errno 22": "GID index",
    "Accept failed": "no more open files",
    "invalid device ordinal": "not visible to this process",
    "async fatal event on QP": "reports a fault",
    "port error": "went down",
    "GID table change": "connections stay",
    "Resiliency": "no effect",
    "IBV_WC_RETRY_EXC_ERR": "did not answer in time",
    "Duplicate GPU": "two ranks took one GPU",
    "Remote IB device": "different kinds",
    "named symbol not found": "no code for the GPU",
    "lib wrapper": "could not load the adapters' library",
    "Could not receive type": "follows from another failure",
    "query_port_speed": "takes the older one",
    "too old version": "different releases",
    "Could not find a path": "found no way",
    "failed to extend": "shared memory is too small",
    "closed by remote peer": "another rank ended first",
    "NVLink SHARP": "no multicast memory",
}


@pytest.mark.parametrize("part", MEANINGS)
def test_warnings_that_people_brought(part: str) -> None:
    (line,) = [each for each in Path(report("F22/warnings.txt")).read_text().splitlines() if part in each]
    row = meaning_of(line.partition("NCCL WARN ")[2])
    assert row is not None
    assert MEANINGS[part] in row.says
    assert row.is_harmless(init_complete=True) == (part in HARMLESS)


NEWER = {  # of 2.31 and 2.32: the part of a warning that several rows could take for theirs, and what it means
    "Invalid NET register request size 7, expected 7": "bookkeeping",
    "NVLS Multicast bind of size 7 at MC group 7 offset 7 dev 7 failed transiently: CUDA error 7 'word'": "tries again",
    "rank 7 NVLS UB arena divergence: rank 7 allocated offset 7, rank 7 allocated offset 7": "count the multicast",
    "ncclCryptSocketRecv called without TLS support": "encrypted connections",
    "RAS diagnostics Xid/SXid collection received invalid arguments": "does not depend on them",
    "NCCL progress counter monitor: failed to set relaxed CUDA stream capture mode (word)": "diagnostics",
    "TOPO/NET : Inconsistent rail/plane for net word: existing 7/7, new 7/7.": "contradict",
    "ncclCommGrow: new rank 7 exceeds total ranks 7": "ncclCommGrow",
    "Found 7 local devices, but GIN supports at most 7 connections. Using the first 7": "beyond the number",
}


@pytest.mark.parametrize("text", NEWER)
def test_warnings_of_the_newest_releases_that_look_like_others(text: str) -> None:
    row = meaning_of(text)
    assert row is not None
    assert NEWER[text] in row.says
