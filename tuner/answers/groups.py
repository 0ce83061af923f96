"""A group in the form other tools rely on; :mod:`tuner.answers.library` has the real library's."""

from collections.abc import Sequence
from typing import Any

from tuner.base.numerics import shortest
from tuner.emulator.group import Operation, plan
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


def from_emulator(scenario: Scenario, operations: Sequence[Operation]) -> dict[str, Any]:
    """The kernels in the order of their launch, each with its calls in NCCL's order, and what was chosen together.

    ``call`` is the place among the calls, ``choice`` indexes the choices; ``time_us`` is of a choice's calls together.
    """
    group = plan(Selection(scenario.communicator()), operations)
    kernels = [
        {
            "channels": len(kernel.channels),
            "threads": kernel.threads,
            "calls": [
                {
                    "call": place,
                    "collective": pick.operation.request.collective.name,
                    "bytes": pick.operation.bytes,
                    "type": pick.operation.request.device_dtype.name,
                    "algorithm": pick.algorithm.name,
                    "protocol": pick.protocol.name,
                    "channels": list(pick.channels),
                    "choice": pick.choice,
                }
                for place in kernel.places
                for pick in (group.picks[place],)
            ],
        }
        for kernel in group.kernels
    ]
    choices = [
        {
            "collective": choice.request.collective.name,
            "bytes": choice.bytes,
            "numPipeOps": choice.pipelined,
            "time_us": shortest(choice.time_us),
        }
        for choice in group.choices
    ]
    return {**scenario.constants, "kernels": kernels, "choices": choices}
