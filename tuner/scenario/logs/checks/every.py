"""Lists all checks of a log, and collects the evidence from the checks and from the log's lines."""

from collections.abc import Callable, Iterator, Mapping

from tuner.base.findings import Finding
from tuner.release import Release
from tuner.scenario.logs.checks import communication, devices, diagnostics, endings, ends, requests, timeouts, warnings
from tuner.scenario.logs.imported import LogEvidence, Reading, ShownByLog

Check = Callable[[ShownByLog], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    communication.tuner,
    diagnostics.diagnostics,
    *requests.CHECKS,
    endings.ending,
    ends.end,
    ends.p2p_on_geforce,
    devices.single_ranks,
    devices.gpu_twice,
    devices.newer_than_release,
    devices.out_of_bus_order,
    devices.releases,
    devices.libraries,
    devices.rings,
    timeouts.timeouts,
    warnings.warnings,
    communication.channels,
    communication.network,
    communication.adapters,
    communication.bridges,
    communication.gpudirect,
    communication.harmful_settings,
    communication.shared_memory,
    communication.forced,
    communication.nvls,
)


def evidence(
    reading: Reading, variables: Mapping[str, str], channels: tuple[str, str | None] | None, nccl: Release | None
) -> LogEvidence:
    """The evidence on the communicator in question; ``channels`` are NCCL's numbers of channels for collectives and for
    NVLS."""
    log = reading.log
    shown = ShownByLog(reading, variables, channels, nccl)
    sends = {rank: tuple(sorted(nets)) for rank, nets in sorted(log.adapters_of_ranks.items())}
    return LogEvidence(
        None if log.stepped_back else next(iter(log.tuner_plugins), None),
        dict(log.transports),
        tuple(log.warnings),
        tuple(log.rings[channel] for channel in sorted(log.rings)),
        log.trees,
        tuple(log.nvls_heads[head] for head in sorted(log.nvls_heads)),
        sends,
        tuple(finding for check in CHECKS for finding in check(shown)),
        log.aws_release,
        log.tuner_product or log.instance,
    )
