"""A group in the form other tools rely on; :mod:`tuner.libraryanswer` has the real library's."""

from collections.abc import Sequence
from typing import Any

from tuner.case import Case
from tuner.cfloat import shortest
from tuner.group import Operation, plan
from tuner.selection import Selection


def from_emulator(case: Case, operations: Sequence[Operation]) -> dict[str, Any]:
    """The kernels in the order of their launch, each with its calls in NCCL's order, and what was chosen together.

    ``call`` is the place among the calls, ``choice`` indexes the choices; ``time_us`` is of a choice's calls together.
    """
    group = plan(Selection(case.communicator()), operations)
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
    return {**case.constants, "kernels": kernels, "choices": choices}
