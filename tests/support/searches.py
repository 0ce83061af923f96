"""The file of graphs that libnccl writes on rank 0, for many topologies one after the other.

Cheaper than an :class:`Oracle` each: the library is loaded once, and of all other nodes there is one, with one GPU.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.search_server import Asked
from tuner.base.errors import OracleFailed
from tuner.oracle import start
from tuner.oracle.api import serious_warnings
from tuner.oracle.messages import Start
from tuner.oracle.process import SIM, Child, ChildConfiguration
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

SERVER = "tests.support.search_server"
KINDS = 2  # of nodes


@dataclass(frozen=True, slots=True)
class _Files:
    """Those of the child that a configuration has need of."""

    log: Path
    topologies: tuple[Path, ...]
    sysfs: None = None


class Searches:
    """One release of libnccl, loaded. Use it as a context manager."""

    def __init__(self, configuration: OracleConfiguration) -> None:
        """Any configuration of the release to be asked."""
        blank = ChildConfiguration(("",) * KINDS, of_hosts={}, env={}, tuner_plugin=SIM, program=SERVER)
        self._child = Child(blank)
        self._child.request(self._start(start.prepare(configuration)), 120, "loading libnccl")

    def _start(self, prepared: start.Preparation) -> Start:
        files = _Files(self._child.log, tuple(self._child.topologies[: len(prepared.kinds)]))
        return start.request(prepared, files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close()

    def graph_xml(self, configuration: OracleConfiguration, timeout_s: int) -> str:
        """What rank 0 writes to NCCL_GRAPH_DUMP_FILE. OracleFailed where NCCL fails or warns."""
        prepared = start.prepare(_with_one_other_gpu(configuration))
        for path, topology in zip(self._child.topologies, start.topologies(prepared), strict=False):
            path.write_text(topology)
        for left in (self._child.graph, self._child.log):
            left.unlink(missing_ok=True)
        request = self._start(prepared)
        asked = Asked(configuration.env, request.machine, request.intercepted, request.ranks, timeout_s)
        self._child.request(asked, timeout_s + 10, f"initialising {request.ranks} ranks")
        if warnings := serious_warnings(self._child.log_lines()):
            raise self._child.failure(f"NCCL warned {len(warnings)} times while initialising")
        if not self._child.graph.is_file():
            raise OracleFailed(f"NCCL {configuration.release} wrote no graphs")
        return self._child.graph.read_text()


def _with_one_other_gpu(configuration: OracleConfiguration) -> OracleConfiguration:
    """A node searches the same whatever the others are, where there are others."""
    if configuration.nodes == 1:
        return configuration
    other = Host(configuration.topology, 1, configuration.peer_to_peer_across_sockets)
    return replace(configuration, nodes=1, others=(other,))
