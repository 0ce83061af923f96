"""What only libnccl itself knows of a communicator: buffers, chunks, point-to-point channels, launches, memory."""

from collections.abc import Iterator, Sequence

from tuner.answers.beyond import BY_LIBRARY, Difference, between
from tuner.base.errors import BadInput
from tuner.base.names import Protocol
from tuner.base.sizes import human_bytes
from tuner.emulator.request import Request
from tuner.oracle.api import Oracle
from tuner.oracle.bill import bill
from tuner.scenario import Scenario

MOST_RANKS_BILLED = 16  # more ranks connect for minutes, and `nccl-tuner memory` has its own limit of time
ASKED_BYTES = tuple(1 << power for power in range(10, 31, 5))  # 1 KiB to 1 GiB


def differences(before: Scenario, after: Scenario, requests: Sequence[Request], timeout_s: float) -> list[Difference]:
    """As :func:`tuner.answers.beyond.differences`, of both libnccl. Errors: those of the oracle."""
    old, new = (_facts(scenario, requests, timeout_s) for scenario in (before, after))
    return [each for topic in old for each in between(topic, old[topic], new[topic], BY_LIBRARY)]


def _facts(scenario: Scenario, requests: Sequence[Request], timeout_s: float) -> dict[str, dict[str, str]]:
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
    """Device memory of the rank that has most, after initialisation and after the calls of :data:`ASKED_BYTES`.

    Nothing where ranks are more than :data:`MOST_RANKS_BILLED`, nodes differ or there are NVLink domains.
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
    for stage in bill(configuration, calls, timeout_s):
        name = f"{stage.collective.name} of {human_bytes(stage.bytes or 0)}" if stage.collective else stage.after
        yield f"device, after {name}", human_bytes(max(stage.device_bytes))


def _known(values: dict[str, int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _launches(oracle: Oracle, requests: Sequence[Request]) -> Iterator[tuple[str, str]]:
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
