"""A table that is replaced while libnccl creates communicators: all ranks of each go by one content."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.plugin_tables import table_of
from tuner import plugin
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration

HASH = re.compile(r"TUNER/nccl-tuner: table \S+ \(sha256 ([0-9a-f]{12})\)")
RANKS = 16


@contextmanager
def replaced(table: Path) -> Iterator[None]:
    """Another thread writes other tables in its place, one after the other, each by an atomic rename."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            following = table_of(table.parent, *[f"allreduce -> ring/ll channels={number % 64 + 1}"] * (number % 100))
            following.rename(table)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("nccl", ["2.21.5", "2.23.4", "2.28.9"])
def test_all_ranks_go_by_one_content(nccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Oracle, "_check_log", lambda oracle: None)  # that the file has changed is a warning
    table = tmp_path / "pod.table"
    table_of(tmp_path, "allreduce -> ring/ll").rename(table)
    env = {"NCCL_TUNER_TABLE": str(table), "NCCL_TUNER_STRICT": "1"}
    topology = catalogue.load("dgx-h100").topology_xml
    with replaced(table):
        for _ in range(3):
            configuration = OracleConfiguration(topology, 2, 8, nccl, env, plugin=plugin.path())
            with Oracle(configuration) as oracle:
                read = HASH.findall("\n".join(oracle.log_lines()))
            assert len(read) == RANKS
            assert len(set(read)) == 1
