"""Our own search for channels beside libnccl's: of a whole communicator, and of many topologies one after the other."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.random_topologies import Drawn
from tests.support.search_server import Asked
from tuner import release
from tuner.base.errors import OracleFailed, TunerError
from tuner.base.names import PATHS_WITHOUT_WORD
from tuner.graphs import SearchRequest, graph_file, searched
from tuner.graphs.graphs import search
from tuner.oracle import start
from tuner.oracle.api import Oracle, serious_warnings
from tuner.oracle.messages import Start
from tuner.oracle.process import SIM, Child
from tuner.oracle.search import ordered_graphs
from tuner.scenario import Scenario
from tuner.scenario.oracle_configuration import Host, OracleConfiguration

TIMEOUT_S = 600
WHOLE = 10  # of every so many topologies all nodes are initialised


def request_of(asked: OracleConfiguration) -> SearchRequest:
    """The same question to our own search."""
    across, reduces = asked.peer_to_peer, asked.network_reduces
    return SearchRequest(
        asked.topology, asked.gpus_per_node, asked.nodes > 1, dict(asked.env), across, network_reduces=reduces
    )


def difference(configuration: OracleConfiguration, request: SearchRequest | None = None) -> str | None:
    """What differs first in numbers, orders and file of all graphs; None where nothing does.

    Errors: TunerError where the search refuses; OracleFailed, one of these, where libnccl fails.
    """
    nccl, request = configuration.release, request or request_of(configuration)
    result = searched(request, nccl)
    for part in range(1, result.parts):  # where NCCL fails in one of them, there is no communicator
        searched(replace(request, rank=result.part_of_rank.index(part)), nccl)
    with Oracle(configuration, TIMEOUT_S) as oracle:
        theirs, written = ordered_graphs(oracle), oracle.graph_xml()
    ours = {name: each for name, each in result.graphs.items() if each.graph.channels}
    for name in sorted(ours.keys() | theirs.keys()):
        # Of ring and tree NCCL goes on with as many channels as both have.
        if name in ("ring", "tree") and ours["ring"].graph.channels != ours["tree"].graph.channels:
            continue
        # Where NCCL treats a host as several nodes, it mixes their graphs, and the file alone has those of rank 0.
        if result.parts == 1 and ours.get(name) != theirs.get(name):
            return f"{name}: {ours.get(name)} here, {theirs.get(name)} in libnccl"
    if any({each.graph.type_intra, each.graph.type_inter} & set(PATHS_WITHOUT_WORD) for each in ours.values()):
        return None
    return None if graph_file.text(result.graphs, release.load(nccl).search.dump) == written else "the file of graphs"


def fails(configuration: OracleConfiguration) -> bool:
    """Whether libnccl fails to make the communicator."""
    try:
        Oracle(configuration, TIMEOUT_S).close()
    except OracleFailed:
        return True
    return False


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """One random topology: whether both refuse it, and what differs, None where nothing does."""

    refused: bool = False
    why: str | None = None


def compared(nccl: str, seed: str, node: Drawn, folder: Path, cheap: "Searches") -> ComparedFile:
    """The file of graphs of a random topology, and of every tenth all that :func:`difference` compares."""
    asked, ours, refused = node.oracle_configuration(nccl), None, ""
    try:
        ours = graph_file.text(search(request_of(asked), nccl).graphs, release.load(nccl).search.dump)
    except TunerError as error:
        refused = str(error)
    try:
        theirs = _file_of_libnccl(asked, ours, cheap)
    except OracleFailed as error:
        if refused or _has_no_communicator(nccl, node, ours or "", folder):
            return ComparedFile(refused=True)
        return ComparedFile(why=f"libnccl failed: {error}")
    if ours is None:
        return ComparedFile(why=f"refused here alone: {refused}")
    writable = _writable(ours)
    if writable != theirs:
        return ComparedFile(why=_first_difference(writable, theirs))
    whole = sum(map(ord, seed)) % WHOLE == 0 or writable != ours
    return ComparedFile(why=difference(asked) if whole else None)


def _writable(graphs: str) -> str:
    """The file as libnccl is made to write it: LOC for types that it has no word for."""
    return re.sub(rf'(type\w+)="({"|".join(PATHS_WITHOUT_WORD)})"', r'\1="LOC"', graphs)


def _file_of_libnccl(asked: OracleConfiguration, ours: str | None, cheap: "Searches") -> str:
    """The file that rank 0 writes: of whole nodes where the cheap way fails or has another one than ours.

    The other node has one GPU there: where its rank is the first to ask NVML, the pairs of GPUs are that node's.
    """
    try:
        theirs = cheap.graph_xml(asked, TIMEOUT_S)
        if ours is None or _writable(ours) == theirs:
            return theirs
    except OracleFailed:
        if ours is None:
            raise
    with Oracle(asked, TIMEOUT_S) as oracle:
        return oracle.graph_xml() or ""


def _has_no_communicator(nccl: str, node: Drawn, graphs: str, folder: Path) -> bool:
    """Whether there is no communicator though there are graphs."""
    searched_by = release.load(nccl).search_variables - {"NCCL_COLLNET_ENABLE"}  # their effect is in the graphs
    others = {name: value for name, value in node.environment.items() if name not in searched_by}
    topology, file = folder / "node.xml", folder / "graphs.xml"
    topology.write_text(node.xml)
    file.write_text(graphs)
    own = Scenario(nccl, node.nodes, topology=topology, graphs=file, gpus_per_node=node.gpus)
    try:
        replace(own, environment=others, collnet=True).communicator()
    except TunerError:
        return True
    return False


def _first_difference(ours: str, theirs: str) -> str:
    graph = ""
    for own, other in zip(ours.splitlines(), theirs.splitlines(), strict=False):
        graph = own if "<graph " in own else graph
        if own != other:
            return f"{own.strip()} here, {other.strip()} in libnccl, in {graph.strip()}"
    return "one file of graphs is longer"


SERVER = "tests.support.search_server"
KINDS = 2  # of nodes


class Searches:
    """One release of libnccl, loaded, that writes rank 0's graphs of one topology after the other; a context manager.

    Cheaper than an :class:`Oracle` each: of all other nodes there is one, with one GPU.
    """

    def __init__(self, configuration: OracleConfiguration) -> None:
        """Any configuration of the release to be asked."""
        self._child = Child(("",) * KINDS, {}, tuner_plugin=SIM, program=SERVER)
        self._child.request(self._start(start.prepare(configuration)), 120, "loading libnccl")

    def _start(self, prepared: start.Preparation) -> Start:
        return start.request(prepared, self._child.log, self._child.topologies[: len(prepared.kinds)])

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
    other = Host(configuration.topology, 1, configuration.peer_to_peer)
    return replace(configuration, nodes=1, others=(other,))
