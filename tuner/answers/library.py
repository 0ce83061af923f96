"""What the real library answers, in the form of the emulator's answers."""

from collections.abc import Sequence
from typing import Any

from tuner.answers import picks
from tuner.base.names import Buffers
from tuner.emulator.group import Operation
from tuner.emulator.non_classic import NonClassicPath
from tuner.emulator.request import Request
from tuner.oracle.api import Launched, Oracle
from tuner.oracle.groups import Call
from tuner.scenario import Scenario


def of_sizes(scenario: Scenario, request: Request, sizes: Sequence[int], timeout_s: float) -> list[dict[str, Any]]:
    """As :func:`answer.from_emulator`: the cells a tuner plugin is handed, the pick as launched."""
    kind = request.collective, request.dtype, request.op
    with Oracle(scenario.resolve().oracle_configuration_to_launch(), timeout_s=timeout_s) as oracle:
        launched: list[Launched | NonClassicPath] = (
            oracle.launch_windows(*kind, sizes)
            if request.buffers is Buffers.window
            else list(oracle.launch(*kind, sizes, buffers=request.buffers))
        )
    staying = [size for size, real in zip(sizes, launched, strict=True) if isinstance(real, Launched)]
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        asked = oracle.ask(*kind, staying, request.buffers)
    answers, row = [], 0
    for size, real in zip(sizes, launched, strict=True):
        if isinstance(real, NonClassicPath):
            answers.append(picks.of_non_classic_path(scenario, request, size, real))
        else:
            answers.append(
                picks.record(
                    scenario,
                    request,
                    size,
                    asked.before_us[row],
                    real.algorithm,
                    real.protocol,
                    real.channels,
                    real.threads,
                    asked.winner_us[row],
                )
            )
            row += 1
    return answers


def of_group(scenario: Scenario, operations: Sequence[Operation], timeout_s: float) -> dict[str, Any]:
    """As :func:`groupanswer.from_emulator`, as launched; None stands for what the release does not show.

    That is always which call it was (``call``, ``choice``) and a choice's ``time_us``, up to 2.23 a call's collective
    and bytes, up to 2.21 a choice's as well.
    """
    calls = [Call(each.request.collective, each.request.dtype, each.request.op, each.bytes) for each in operations]
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        group, ranks = oracle.launch_group(calls), oracle.configuration.ranks
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
    return {**scenario.constants, "kernels": kernels, "choices": choices}
