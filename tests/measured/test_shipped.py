"""The measured tables that are shipped: complete heads, rows that their collective, release and runs know."""

import csv
import re
from functools import cache
from pathlib import Path

import pytest

from tuner import release
from tuner.machine import catalogue
from tuner.times import measured
from tuner.times.measured.header import MeasuredHealth
from tuner.times.measured.reader import OWN_COLUMNS
from tuner.times.measured.samples import Measurements

FOLDER = Path(__file__).parents[2] / "tables" / "measured"
every_table = pytest.mark.parametrize("table", measured.names(), indirect=True)
loaded = cache(measured.load)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Measurements:
    return loaded(request.param)


def test_all_files_are_there_by_name() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(measured.names())
    assert len(measured.names()) == 86


@every_table
def test_head_is_complete(table: Measurements) -> None:
    head = table.header
    facts = (head.title, head.machine_note, head.gpu, head.nccl_note, head.how_measured)
    assert all(facts)
    assert all((head.source.repository, head.source.commit, head.source.path, head.source.licence))
    assert head.traps
    assert all(table.network_of(row) for row in table.blocks if row.nodes > 1 and head.launch != "unknown")


@every_table
def test_release_and_machine_are_known_or_said_to_be_unknown(table: Measurements) -> None:
    assert table.header.nccl in ("", *release.names())
    assert table.header.machine in ("", *catalogue.names())
    of_file = table.name.split("__")[1]
    assert of_file == table.header.nccl or not table.header.nccl
    if table.header.machine:
        most = catalogue.load(table.header.machine).gpus_per_node
        assert max(row.gpus_per_node for row in table.blocks) <= most


@every_table
def test_rows_are_as_they_are_written(table: Measurements) -> None:
    """The lines' numbers lead to the rows, and none is lost: read by csv alone."""
    lines = (FOLDER / f"{table.name}.csv").read_text("utf-8").splitlines()
    body = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    assert body[0][1] == ",".join(OWN_COLUMNS)
    assert [number for number, _ in body[1:]] == [row.line for row in table.blocks]
    for cells, row in zip(csv.DictReader(line for _, line in body), table.blocks, strict=True):
        assert (cells["collective"], int(cells["bytes"])) == (row.point.name, row.point.bytes)
        assert float(cells["time_us"]) == row.median_us
        assert (int(cells["nodes"]), int(cells["gpus_per_node"])) == (row.nodes, row.gpus_per_node)


@every_table
def test_sizes_are_whole_elements_of_every_rank(table: Measurements) -> None:
    for row in table.blocks:
        parts = 1 if row.point.name in ("allreduce", "broadcast", "reduce", "sendrecv", "hypercube") else row.ranks
        assert row.point.bytes % (parts * row.point.dtype.size_bytes) == 0, row


@every_table
def test_runs_are_all_used_and_name_variables(table: Measurements) -> None:
    assert {row.run for row in table.blocks} - {""} == set(table.header.runs)
    for row in table.blocks:
        assert len(table.devices_of(row)) == row.gpus_per_node, row
        for name in table.environment_of(row):
            assert re.fullmatch(r"(NCCL|FI)_[A-Z0-9_]+", name)


@every_table
def test_forced_rows_agree_with_the_variables_of_their_run(table: Measurements) -> None:
    for row in table.blocks:
        variables = table.environment_of(row)
        if row.took.algorithm and "NCCL_ALGO" in variables:
            assert row.took.algorithm.upper() == variables["NCCL_ALGO"].upper(), row
        if row.took.protocol and "NCCL_PROTO" in variables:
            assert row.took.protocol == variables["NCCL_PROTO"], row


@every_table
def test_a_file_is_what_the_writer_writes(table: Measurements) -> None:
    assert measured.text(table) == (FOLDER / f"{table.name}.csv").read_text("utf-8")


def test_rows_that_were_wrong_are_left_out_and_counted() -> None:
    alps = measured.load("gh200-4x-32n__2.23.4__alps")
    assert sum(alps.header.left_out.values()) == 27
    assert len(alps.blocks) + 27 == 3600


def test_a_box_without_a_known_topology_names_no_machine() -> None:
    l40s = measured.load("l40s-8x__2.27.3__aiconfigurator").header
    assert l40s.machine == ""
    assert "not known" in l40s.machine_note


@every_table
def test_health_says_why(table: Measurements) -> None:
    assert table.header.health_note
    assert all(run.health_note for run in table.header.runs.values() if run.health)
    assert {table.health_of(row) for row in table.blocks} <= set(MeasuredHealth)


def test_health_of_a_run_stands_before_that_of_its_table() -> None:
    polaris = measured.load("a100-4x-540n__2.21.5__polaris")
    of_nodes = {(row.nodes == 540, polaris.health_of(row)) for row in polaris.blocks}
    assert of_nodes == {(False, MeasuredHealth.healthy), (True, MeasuredHealth.unknown)}


def test_adapters_that_the_catalogue_has_none_of_are_said() -> None:
    """Tables whose nodes have other adapters than the machine that their rows are placed on, by GB/s a node."""
    adapters = measured.load("h100-8x-2n__unknown__a3mega").header.adapters
    assert adapters.node_gbs == 200
    assert adapters.note
