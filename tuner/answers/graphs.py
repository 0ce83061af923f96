"""The graphs of a scenario's node, as the emulated search finds them."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError, one_of
from tuner.base.files import write_text
from tuner.base.records import json_form
from tuner.base.spelling import option
from tuner.emulator.connect import Across, summarize
from tuner.graphs import SearchRequest, find, graph_file, searched
from tuner.graphs.explain import GraphExplanation, explain
from tuner.machine.adapters import network_of, refuse_contradiction, selecting
from tuner.machine.graphs import OrderedGraph
from tuner.release.variables import nearest, not_emulated
from tuner.scenario import Scenario
from tuner.scenario.resolved import ResolvedScenario

LIMIT_CHANNELS = (
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_NRINGS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
)
OF_CHANNELS = ("ring", "tree")


@dataclass(frozen=True, slots=True)
class CommunicatorChannels:
    """How many channels collectives use, the variables that limit this number, and how many channels they would use
    without these variables.
    """

    channels: int
    variables: Mapping[str, str]
    without_variables: int


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a graph is as it is, and how many channels NCCL makes from it."""

    explanation: GraphExplanation = field(metadata=json_form(merged=True))
    communicator: CommunicatorChannels | None


def of_scenario(scenario: Scenario) -> Mapping[str, OrderedGraph]:
    """Graphs by name; a graph without channels is absent. BadInput for nodes that differ, or unknown variables."""
    return find(_request(scenario), scenario.nccl)


@dataclass(frozen=True, slots=True)
class GraphsAcross:
    """The graphs of a node, and the channels that NCCL makes of all nodes' graphs."""

    graphs: Mapping[str, OrderedGraph]  # empty where nodes differ
    across: Across = field(metadata=json_form(merged=True))


def with_across(scenario: Scenario) -> GraphsAcross:
    """The graphs with the channels across nodes; the nodes may differ.

    BadInput for graphs from a file, or unknown variables.
    """
    across = summarize(scenario.resolve().connected)
    return GraphsAcross({} if len(scenario.resolve().nodes) > 1 else of_scenario(scenario), across)


def explained(scenario: Scenario, graph: str) -> Explained:
    """Explains one graph. BadInput for nodes that differ, unknown variables, or a graph that is not searched."""
    found = explain(_request(scenario), scenario.nccl, graph)
    return Explained(found, _communicator(scenario) if graph in OF_CHANNELS and found.found.channels else None)


def limited(scenario: Scenario, graph: str) -> GraphExplanation:
    """Explains one graph, but not what would lift its limits: to find that out takes several more searches."""
    return explain(_request(scenario), scenario.nccl, graph, with_lifts=False)


def _communicator(scenario: Scenario) -> CommunicatorChannels | None:
    """Channels of the communicator; None if the emulator cannot tell, as for a host that NCCL treats as several
    nodes.
    """
    variables = scenario.environment or {}
    limiting = {name: value for name, value in variables.items() if name in LIMIT_CHANNELS}
    others = {name: value for name, value in variables.items() if name not in limiting}
    try:
        channels = scenario.communicator().coll_channels
        without = replace(scenario, environment=others).communicator().coll_channels
    except TunerError:
        return None
    return CommunicatorChannels(channels, limiting, without)


def write_dump(scenario: Scenario, file: Path) -> None:
    """Writes the graphs as NCCL writes NCCL_GRAPH_DUMP_FILE. BadInput for nodes that differ, unknown variables, or a
    file that cannot be written.
    """
    form = scenario.resolve().release.search.dump
    write_text(file, graph_file.text(searched(_request(scenario), scenario.nccl).graphs, form))


def _request(scenario: Scenario) -> SearchRequest:
    resolved = scenario.resolve()
    if len(resolved.hosts_and_domains) > 1:
        raise BadInput(
            f"graphs are only shown for nodes of one kind: give {option('machine')} or {option('topology')} instead of "
            f"{option('node')}"
        )
    if scenario.graphs is not None:
        raise BadInput(f"graphs are searched here, not read from a file: remove {option('graphs')}")
    ((node, count),) = resolved.hosts_and_domains
    resolved.check_standing()
    request = node.for_search(count > 1)
    _check_variables(scenario.environment or {}, resolved, count * len(node.parts(count > 1)))
    for ranks in node.parts(count > 1)[1:]:  # where NCCL fails on one of them, there is no communicator
        searched(replace(request, rank=ranks[0]), scenario.nccl)
    return request


def _check_variables(variables: Mapping[str, str], resolved: ResolvedScenario, nodes: int) -> None:
    nccl = resolved.release
    for kind in resolved.kinds:
        refuse_contradiction(network_of(kind.topology.nets), variables)
    agreed = set.intersection(*(selecting(network_of(kind.topology.nets), variables, nodes) for kind in resolved.kinds))
    if unknown := not_emulated(nccl, variables.keys() - nccl.search_variables - agreed):
        others = set(nccl.environment.known) - nccl.search_variables
        raise BadInput(
            f"graphs: the search does not know {unknown[0]}{nearest(nccl, unknown[0])}; "
            f"{one_of(sorted(nccl.search_variables))}, and {len(others) + len(nccl.indifferent_variables)} "
            "that change no graph, such as NCCL_ALGO and NCCL_DEBUG"
        )
