"""Computes the bill of a communicator: the memory and blocks that libnccl requests from the simulated devices.

For the bill, all ranks connect over NCCL's own transports and proxies; no other answer of the oracle needs that.
"""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.emulator.request import Request
from tuner.oracle import messages, start
from tuner.oracle.api import serious_warnings
from tuner.scenario.oracle_configuration import OracleConfiguration

PROGRAM = "tuner.oracle.child.connected"
INIT = "initialisation"


@dataclass(frozen=True, slots=True)
class MemoryStage:
    """The bill of every rank after initialisation, or after a later call; tuples are indexed by rank.

    ``device_bytes`` is memory of the device, ``host_bytes`` pinned memory of the host. ``counted_bytes`` is the device
    memory that NCCL itself counts (ncclCommMemStats, from 2.29.7 on), and None in older releases. ``blocks`` is how
    many blocks the call's kernel has, each of which occupies a multiprocessor (SM); 0 after initialisation.
    """

    after: str
    collective: Collective | None
    bytes: int | None
    device_bytes: tuple[int, ...]
    peak_device_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...]
    counted_bytes: tuple[int | None, ...]
    blocks: tuple[int, ...]


def bill(
    configuration: OracleConfiguration, calls: Sequence[tuple[Request, int]], timeout_s: float = 120.0
) -> list[MemoryStage]:
    """The bills of a communicator that makes ``calls`` (with NCCL's nBytes) one after the other, on plain buffers: one
    after initialisation, and one after each call.

    Raises BadInput for nodes that differ, for NVLink domains, for a communicator that was split off, and for calls on a
    communicator of one rank. Like an Oracle, it also raises BadTopology, OracleUnavailable and OracleFailed.
    """
    prepared = start.prepare(replace(configuration, without_tuner=True))
    if len(prepared.kinds) > 1 or configuration.domains:
        raise BadInput(
            "memory is only counted for equal nodes without NVLink domains, because each process reads one topology "
            "here"
        )
    if configuration.split_off is not None:
        raise BadInput("memory is not counted for communicators that were split off others: use one of all ranks")
    if configuration.ranks == 1 and calls:
        raise BadInput("a communicator of one rank makes no calls: NCCL only copies")
    each = [issued(request, size, configuration.ranks) for request, size in calls]
    child = start.launch_child(prepared, PROGRAM)
    try:
        first = start.request(prepared, child.log, child.topologies, child.sysfs)
        stages = [_stage(INIT, None, child.request(first, timeout_s, f"connecting {configuration.ranks} ranks"))]
        if warnings := serious_warnings(child.log_lines()):
            raise child.failure(f"NCCL warned {len(warnings)} times while initialising")
        for call, (request, size) in zip(each, calls, strict=True):
            what = f"{request.collective.name} of {size} bytes"
            answer = child.request(call, timeout_s, what)
            stages.append(_stage(what, (request.collective, size), answer))
    finally:
        child.close()
    return stages


def issued(request: Request, size: int, ranks: int) -> messages.CallMessage:
    """A call of ``size`` bytes (nBytes). BadInput if no number of elements has that size."""
    unit = request.unit_bytes(ranks)
    if size % unit or not size:
        low = max(size // unit, 1) * unit
        raise BadInput(f"{request.collective.name} on {ranks} ranks cannot have {size} bytes; nearest: {low}")
    return messages.CallMessage(int(request.collective), int(request.dtype), int(request.op), size // unit)


def _stage(after: str, call: tuple[Collective, int] | None, ranks: tuple[messages.RankBill, ...]) -> MemoryStage:
    collective, size = call or (None, None)
    return MemoryStage(
        after,
        collective,
        size,
        tuple(rank.device_bytes for rank in ranks),
        tuple(rank.peak_device_bytes for rank in ranks),
        tuple(rank.host_bytes for rank in ranks),
        tuple(rank.counted_bytes for rank in ranks),
        tuple(rank.blocks for rank in ranks),
    )
