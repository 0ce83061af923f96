"""Calls with their schedules: collectives, and what NCCL makes of sends and receives."""

from dataclasses import dataclass, replace
from functools import cache

from tuner.answers.alone import PAT_READ_FROM, calls_alone, pat_not_read
from tuner.answers.exchanges import Asked, calls_of
from tuner.base.errors import BadInput
from tuner.base.names import PeerCall
from tuner.base.sizes import human_bytes
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.p2p.plan import POINT_TO_POINT, plan
from tuner.emulator.p2p.records import ExchangeKernel
from tuner.emulator.request import Request
from tuner.emulator.steps.records import Schedule
from tuner.emulator.steps.schedule import schedule, schedule_of_exchanges
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context
from tuner.scenario.resolved import ResolvedScenario

BY_LOADS = "its kernels load and store in peers' memory, and send no messages"


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """A call in words, and what it sends."""

    title: str
    schedule: Schedule


def of_collective(scenario: Scenario, request: Request, nbytes: int, root: int) -> ScheduledCall:
    """A collective of ``nbytes`` (NCCL's nBytes). BadInput where it has no schedule, and as :func:`calls_alone`."""
    (call,) = calls_alone(scenario, request, [nbytes], root)
    if isinstance(call, NonClassicPath):
        raise BadInput(f"schedule: not of {call.name}: {BY_LOADS}; valid: `env` NCCL_ALGO=Ring")
    if pat_not_read(call):
        raise BadInput(f"schedule: of PAT from NCCL {PAT_READ_FROM} on; valid: `env` NCCL_ALGO=Ring")
    return ScheduledCall(call.title, schedule(call.work, call.across))


def of_exchange(scenario: Scenario, asked: Asked) -> ScheduledCall:
    """AllToAll, Gather or Scatter of ``asked.sizes[0]`` bytes in all, or a send from ``asked.rank`` to ``asked.root``.

    BadInput as of :func:`tuner.emulator.p2p.plan.plan`.
    """
    resolved, (size,) = ResolvedScenario(scenario), asked.sizes

    @cache
    def kernels_of(rank: int) -> tuple[ExchangeKernel, ...]:
        where, own = p2p_context(resolved, rank), asked
        if point_to_point:
            if rank not in (asked.rank, asked.root):
                return ()
            if rank == asked.root:  # the other end
                own = replace(asked, function=_other(asked.function), rank=rank, root=asked.rank)
        return plan(where, calls_of(own, size, where))

    point_to_point = asked.function in POINT_TO_POINT
    for option, rank in (("`rank`", asked.rank), ("`peer`" if point_to_point else "`root`", asked.root)):
        if not 0 <= rank < scenario.ranks:
            raise BadInput(f"{option} {rank}: valid: 0 to {scenario.ranks - 1}")
    if point_to_point and asked.rank == asked.root:
        raise BadInput(f"`peer` {asked.root}: a send to the rank itself is a copy; valid: another rank than `rank`")
    kernels_of(asked.root)
    words = f"{asked.function.name} of {human_bytes(size)}, {scenario.heading}"
    return ScheduledCall(words, schedule_of_exchanges(kernels_of, scenario.ranks))


def _other(function: PeerCall) -> PeerCall:
    send, receive = POINT_TO_POINT
    return receive if function is send else send
