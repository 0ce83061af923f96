"""Differences of two communicators besides the algorithm and protocol of a call: what an upgrade may change.

Channels, graphs, where LL128 is legal, symmetric kernels and defaults of variables are emulated or from tables. Libnccl
is asked for buffer sizes, chunks and point-to-point channels (:func:`library_differences`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.numerics import shortest
from tuner.base.sizes import human_bytes
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine.graphs import Graph
from tuner.release.variables import changed_defaults
from tuner.scenario import Scenario

if TYPE_CHECKING:  # with what runs libnccl, which only few ask
    from tuner.oracle.api import Oracle

EMULATED, RECORDED, BY_LIBRARY = "emulated", "recorded from libnccl", "libnccl"
WINDOW_SIZES = tuple(1 << power for power in range(6, 31))  # bytes, 64 B to 1 GiB
SYMMETRIC = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)


@dataclass(frozen=True, slots=True)
class OtherChange:
    """One thing that differs: its topic, its name, both values as texts, and the source of the values.

    A value is None if that side does not have it, such as a variable that the release does not read.
    """

    topic: str
    name: str
    before: str | None
    after: str | None
    source: str


def differences(before: Scenario, after: Scenario) -> list[OtherChange]:
    """All differences that are emulated or recorded, topic by topic. BadInput or BadTopology if a scenario is
    invalid.
    """
    old, new = (Selection(scenario.communicator()) for scenario in (before, after))
    found = [
        difference
        for topic, facts in _TOPICS.items()
        for difference in between(topic, facts(old), facts(new), EMULATED)
    ]
    return [*found, *_defaults(old.communicator.release.name, new.communicator.release.name)]


def between(topic: str, before: Mapping[str, str], after: Mapping[str, str], source: str) -> Iterator[OtherChange]:
    """Yields a change for each value that differs; ``before`` and ``after`` map names to values as texts."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield OtherChange(topic, name, before.get(name), after.get(name), source)


def _channels(selection: Selection) -> dict[str, str]:
    communicator = selection.communicator
    low, high = communicator.ctas
    return {
        "of collectives": str(communicator.channels),
        "of one collective alone": str(communicator.coll_channels),
        "of NVLS": str(communicator.nvls_channels),
        "CTAs": f"{low} to {high}",
    }


def _graphs(selection: Selection) -> dict[str, str]:
    graphs: dict[str, str] = {}
    for algorithm, graph in selection.communicator.graphs.items():
        if graph.channels:
            graphs |= {f"{algorithm.name}: {name}": value for name, value in _of_graph(graph).items()}
    return graphs


def _of_graph(graph: Graph) -> dict[str, str]:
    values = {one.name: getattr(graph, one.name) for one in fields(graph) if one.name != "heads"}
    return {
        name.replace("_", " ").replace(" gbs", " GB/s").replace(" us", " us"): (
            str(shortest(np.float32(value))) if isinstance(value, float) else str(getattr(value, "name", value))
        )
        for name, value in values.items()
    }


def _ll128(selection: Selection) -> dict[str, str]:
    """By collective, the names of the algorithms whose bandwidth with LL128 is not 0."""
    bandwidths_gbs = selection.tables.bandwidth_gbs[:, :, Protocol.LL128]
    return {
        collective.name: ", ".join(each.name for each in Algorithm if bandwidths_gbs[collective, each] > 0) or "none"
        for collective in Collective
    }


def _symmetric(selection: Selection) -> dict[str, str]:
    """By collective, the kernels of calls on symmetric windows, for ranges of sizes that are powers of two."""
    return {collective.name: _kernels(selection, collective) for collective in SYMMETRIC}


def _kernels(selection: Selection, collective: Collective) -> str:
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers.window)
    try:
        paths = selection.non_classic_paths(request, WINDOW_SIZES)
    except (BadInput, NoAlgorithm):  # a release without windows, or a collective that this one does not have
        return "none"
    if not any(paths):
        return "none"
    names = ["as without windows" if path is None else path.name for path in paths]
    ranges = [
        (name, [size for _, size in sizes])
        for name, sizes in groupby(zip(names, WINDOW_SIZES, strict=True), lambda pair: pair[0])
    ]
    return ", ".join(f"{name} to {human_bytes(sizes[-1])}" for name, sizes in ranges)


def _limits(selection: Selection) -> dict[str, str]:
    limits, plugin = selection.communicator.release.limits, selection.communicator.release.plugin
    return {
        "most channels": str(limits.max_channels),
        "most threads of a block": str(limits.max_threads),
        "tuner plugin interface": str(plugin.api) if plugin else "none",
    }


def _defaults(before: str, after: str) -> Iterable[OtherChange]:
    words = partial(map, lambda value: None if value is None else str(value))
    for one in changed_defaults(before, after):
        old, new = words((one.before, one.after))
        yield OtherChange("defaults", one.variable, old, new, RECORDED)


_TOPICS: Mapping[str, Callable[[Selection], dict[str, str]]] = {
    "channels": _channels,
    "graphs": _graphs,
    "LL128 is legal for": _ll128,
    "symmetric kernels": _symmetric,
    "limits": _limits,
}


MOST_RANKS_BILLED = 16  # more ranks connect for minutes, and `nccl-tuner memory` has its own limit of time
ASKED_BYTES = tuple(1 << power for power in range(10, 31, 5))  # 1 KiB to 1 GiB


def library_differences(
    before: Scenario, after: Scenario, requests: Sequence[Request], timeout_s: float
) -> list[OtherChange]:
    """Differences besides the choice, as two libraries show them. OracleUnavailable if a libnccl cannot be run,
    OracleFailed if it fails.
    """
    old, new = (_facts(scenario, requests, timeout_s) for scenario in (before, after))
    return [each for topic in old for each in between(topic, old[topic], new[topic], BY_LIBRARY)]


def _facts(scenario: Scenario, requests: Sequence[Request], timeout_s: float) -> dict[str, dict[str, str]]:
    from tuner.oracle.api import Oracle

    with Oracle(scenario.resolve().oracle_configuration_to_launch(), timeout_s=timeout_s) as oracle:
        facts = oracle.facts
        buffers = facts.buffer_bytes or ()
        return {
            "buffers of a connection": {
                protocol.name: human_bytes(size) for protocol, size in zip(Protocol, buffers, strict=False)
            },
            "point-to-point": _known(
                {
                    "channels": facts.p2p_channels,
                    "channels of each peer": facts.p2p_channels_per_peer,
                    "bytes of a chunk": facts.p2p_chunk_bytes,
                }
            ),
            "NVLS": _known({"bytes of a chunk": facts.nvls_chunk_bytes}),
            "launches": dict(_launches(oracle, requests)),
            "memory": dict(_memory(scenario, requests, timeout_s)),
        }


def _memory(scenario: Scenario, requests: Sequence[Request], timeout_s: float) -> Iterator[tuple[str, str]]:
    """Device memory of the rank that uses most, after initialisation and after calls of :data:`ASKED_BYTES`.

    Nothing is measured for more than :data:`MOST_RANKS_BILLED` ranks, nodes that differ, or NVLink domains.
    """
    configuration, ranks = scenario.oracle_configuration(), scenario.resolve().ranks
    if ranks > MOST_RANKS_BILLED or configuration.domains or configuration.others:
        return
    calls = [
        (request, size // request.unit_bytes(ranks) * request.unit_bytes(ranks))
        for request in requests
        for size in ASKED_BYTES
        if ranks > 1 and size >= request.unit_bytes(ranks)
    ]
    from tuner.oracle.bill import bill

    for stage in bill(configuration, calls, timeout_s):
        name = f"{stage.collective.name} of {human_bytes(stage.bytes or 0)}" if stage.collective else stage.after
        yield f"device, after {name}", human_bytes(max(stage.device_bytes))


def _known(values: dict[str, int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _launches(oracle: "Oracle", requests: Sequence[Request]) -> Iterator[tuple[str, str]]:
    for request in requests:
        for asked in ASKED_BYTES:
            _, size = oracle.reachable(request.collective, request.dtype, asked)
            try:
                (launched,) = oracle.launch(request, [size])
            except BadInput:  # one rank launches nothing
                return
            name = f"{request.collective.name} of {human_bytes(asked)}"
            yield f"{name}: blocks (SMs) x threads", f"{launched.channels} x {launched.threads}"
            yield f"{name}: first chunk", human_bytes(launched.chunk_bytes)
