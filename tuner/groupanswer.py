"""A group in the form other tools rely on, whether it came from the emulator or from the real library."""

from collections.abc import Sequence
from typing import Any

from tuner.case import Case
from tuner.cfloat import shortest
from tuner.group import Operation, plan
from tuner.oracle import Call, Oracle
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


def from_library(case: Case, operations: Sequence[Operation], timeout_s: float) -> dict[str, Any]:
    """The same as libnccl launched it; None stands for what the release does not show.

    That is always which call it was (``call``, ``choice``) and a choice's ``time_us``, up to 2.23 a call's collective
    and bytes, up to 2.21 a choice's as well.
    """
    calls = [Call(each.request.collective, each.request.dtype, each.request.op, each.bytes) for each in operations]
    with Oracle(case.setup(), timeout_s=timeout_s) as oracle:
        group, ranks = oracle.launch_group(calls), oracle.setup.ranks
    kernels = [
        {
            "channels": kernel.channels,
            "threads": kernel.threads,
            "calls": [
                {
                    "call": None,
                    "collective": each.collective.name if each.collective is not None else None,
                    "bytes": each.nbytes(ranks),
                    "type": each.dtype.name,
                    "algorithm": each.algorithm.name,
                    "protocol": each.protocol.name,
                    "channels": list(each.channels),
                    "choice": None,
                }
                for each in kernel.operations
            ],
        }
        for kernel in group.kernels
    ]
    choices = [
        {
            "collective": question.collective.name if question.collective is not None else None,
            "bytes": question.bytes,
            "numPipeOps": question.pipelined,
            "time_us": None,
        }
        for question in group.questions
    ]
    return {**case.constants, "kernels": kernels, "choices": choices}
