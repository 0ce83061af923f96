"""The graphs of a scenario's node, as our own search finds them."""

from collections.abc import Mapping
from pathlib import Path

from tuner.base.errors import BadInput, one_of
from tuner.base.files import write_text
from tuner.machine.graphs import OrderedGraph
from tuner.release import Release
from tuner.scenario import Scenario
from tuner.search import Request, dump, find, searched
from tuner.search.explain import Explanation, explain


def of_scenario(scenario: Scenario) -> Mapping[str, OrderedGraph]:
    """By name; a graph without channels is absent. Errors: BadInput for nodes that differ and unknown variables."""
    return find(_request(scenario), scenario.nccl)


def explained(scenario: Scenario, graph: str) -> Explanation:
    """Every search that is tried for one graph. Errors: as :func:`of_scenario`, BadInput where it is not searched."""
    return explain(_request(scenario), scenario.nccl, graph)


def write_dump(scenario: Scenario, file: Path) -> None:
    """Writes them as NCCL writes NCCL_GRAPH_DUMP_FILE. Errors: as :func:`of_scenario`, BadInput for the file."""
    form = scenario.resolve().release.search.dump
    write_text(file, dump.text(searched(_request(scenario), scenario.nccl).graphs, form))


def _request(scenario: Scenario) -> Request:
    resolved = scenario.resolve()
    if len(resolved.nodes) > 1:
        raise BadInput("graphs: those of one kind of node; valid: --machine or --topology, without --node")
    if scenario.graphs is not None:
        raise BadInput("graphs: searched, not read; valid without --graphs")
    _check_variables(scenario.environment or {}, resolved.release)
    ((node, count),) = resolved.nodes
    return node.for_search(count > 1)


def _check_variables(variables: Mapping[str, str], nccl: Release) -> None:
    if unknown := nccl.unknown_variables(variables.keys() - nccl.search_variables):
        others = set(nccl.environment.known) - nccl.search_variables
        raise BadInput(
            f"graphs: the search does not know {unknown[0]}; {one_of(sorted(nccl.search_variables))}, and "
            f"{len(others) + len(nccl.indifferent_variables)} that change no graph, such as NCCL_ALGO and NCCL_DEBUG"
        )
