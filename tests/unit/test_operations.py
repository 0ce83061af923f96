"""Answers that grow no faster than what is asked, and files larger than what is kept of them: counted, not timed."""

import json
from pathlib import Path

import pytest

from tests.support.operations import calls_of, most_bytes_of
from tuner.graphs import compiled
from tuner.graphs.graphs import search
from tuner.graphs.request import SearchRequest
from tuner.jobs.traces.read import read
from tuner.machine import catalogue
from tuner.plugin import lint
from tuner.plugin.formats import convert
from tuner.plugin.table.records import HEADER
from tuner.scenario.logs import importer
from tuner.scenario.logs.imported import LogAdditions

EXAMPLE_LOG = Path(__file__).parents[2] / "docs" / "examples" / "nccl.log"
LOGGED_CALL = (
    "node0:4121:4133 [0] NCCL INFO AllReduce: opCount 7 sendbuff 0x7f02 recvbuff 0x7f02 count 1048576 datatype 7 op 0 "
    "root 0 comm 0x55d0 [nranks=16] stream 0x55\n"
)


def linted(rows: int) -> None:
    lines = [
        f"allreduce bytes={64 * at}..{64 * at + 63} nodes=2 -> ring/ll channels={at % 16 + 1}" for at in range(rows)
    ]
    assert len(lint.check(convert.from_content("\n".join([HEADER, *lines, ""]).encode(), "t").table)) == 1


def test_lint_takes_as_much_for_each_row_of_a_long_table() -> None:
    few, many = (calls_of(lambda n=rows: linted(n)) for rows in (1000, 4000))
    assert many < 4.2 * few < 4.2 * 1000 * 400


@pytest.mark.slow
def test_a_log_takes_no_memory_by_its_length(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(EXAMPLE_LOG.read_text() + LOGGED_CALL * 60_000)
    importer.read(EXAMPLE_LOG, LogAdditions())  # what is loaded once
    assert most_bytes_of(lambda: importer.read(path, LogAdditions())) < path.stat().st_size / 2
    calls = read(path, 16).calls
    assert [call.calls for call in calls] == [60_000]
    assert most_bytes_of(lambda: read(path, 16)) < path.stat().st_size / 2


def test_a_trace_takes_less_memory_than_its_events(tmp_path: Path) -> None:
    said = {"Collective name": "allreduce", "dtype": "Float", "Group size": 16, "In msg nelems": 64, "note": "x" * 1000}
    events = [
        {"name": "record_param_comms", "ph": "X", "args": {**said, "External id": number}} for number in range(10_000)
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert most_bytes_of(lambda: read(path, 16)) < path.stat().st_size


@pytest.mark.skipif(compiled._library() is None, reason="needs csrc/picks")
def test_c_makes_the_moves_of_a_search() -> None:
    """Python takes a hundred times as many calls for them."""
    machine = catalogue.load("pcie-l40s-4nic")
    request = SearchRequest(machine.topology_xml, machine.gpus_per_node, True, machine.environment)
    assert calls_of(lambda: search(request, "2.28.9")) < 200_000
