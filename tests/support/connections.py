"""What NCCL notes of connections as it really makes them: over its own transports and proxies, on all ranks."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.errors import BadInput
from tuner.emulator.request import Request
from tuner.oracle import bill, messages, start
from tuner.oracle.messages import Connections, RankConnections, ReadConnections
from tuner.scenario.oracle_configuration import OracleConfiguration


def connections(
    configuration: OracleConfiguration, calls: Sequence[tuple[Request, int]], timeout_s: float = 120.0
) -> list[tuple[RankConnections, ...]]:
    """Connections of every rank after initialisation, and after each of ``calls`` (with NCCL's nBytes), on plain
    buffers.

    Errors: BadInput for nodes that differ, NVLink domains and releases up to 2.23, which note nothing of the network;
    those of :class:`tuner.oracle.api.Oracle`.
    """
    prepared = start.prepare(replace(configuration, without_tuner=True))
    if len(prepared.kinds) > 1 or configuration.domains:
        raise BadInput("connections: of nodes that are alike, without NVLink domains; each process reads one topology")
    child = start.launch_child(prepared, bill.PROGRAM)
    try:
        first = start.request(prepared, child)
        if first.ring.adapters is None:
            raise BadInput(
                f"NCCL {prepared.library.release} registers no buffers for adapters; valid: 2.24.3 and later"
            )
        child.request(first, timeout_s, f"connecting {configuration.ranks} ranks")
        asked = ReadConnections(first.ring, first.comm.members["nChannels"].offset)
        noted: list[tuple[RankConnections, ...]] = []
        for call in (None, *calls):
            if call is not None:
                request, size = call
                issued = bill.issued(request, size, configuration.ranks)
                child.request(messages.BillCall(issued), timeout_s, f"{request.collective.name} of {size} bytes")
            answer: Connections = child.request(asked, timeout_s, "reading connections")
            noted.append(answer.ranks)
    finally:
        child.close()
    return noted


def marked(configuration: OracleConfiguration, timeout_s: float = 120.0) -> tuple[RankConnections, ...]:
    """Connections of a communicator whose ranks are not connected, as the oracle marks it for registered buffers."""
    prepared = start.prepare(replace(configuration, without_tuner=True))
    child = start.launch_child(prepared)
    try:
        first = start.request(prepared, child)
        asked = _asked(prepared, first)
        child.request(first, timeout_s, f"initialising {configuration.ranks} ranks")
        answer: Connections = child.request(asked, timeout_s, "reading connections")
    finally:
        child.close()
    return answer.ranks


def _asked(prepared: start.Preparation, first: messages.Start) -> ReadConnections:
    if first.ring.adapters is None:
        raise BadInput(f"NCCL {prepared.library.release} registers no buffers for adapters; valid: 2.24.3 and later")
    return ReadConnections(first.ring, first.comm.members["nChannels"].offset)
