"""Answers by the real library, in the same records as the emulator's answers."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.answers import picks
from tuner.answers.graphs import GraphsAcross
from tuner.answers.mixed import CallInKernel, ChoiceAnswer, GroupAnswer, KernelAnswer
from tuner.answers.picks import PickAnswer
from tuner.answers.symmetric import NonClassicPick
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.base.numerics import shortest
from tuner.emulator.connect import summarize
from tuner.emulator.group import Operation
from tuner.emulator.model import Tables
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Pick
from tuner.machine.graphs import OrderedGraph
from tuner.oracle import search
from tuner.oracle.answers import LoggedSymmetricKernel, OracleLaunch
from tuner.oracle.api import Oracle
from tuner.oracle.launches import GroupKernel
from tuner.oracle.preloaded import preloaded
from tuner.scenario import Scenario


def of_sizes(scenario: Scenario, request: Request, sizes: Sequence[int], timeout_s: float) -> list[PickAnswer]:
    """The library's answer for each size: the cost table that it passes to a tuner plugin, and the pick that it
    launches.
    """
    configuration = scenario.resolve().oracle_configuration_to_launch()
    with Oracle(configuration, timeout_s=timeout_s) as oracle:
        launched = oracle.launch_on_any_path(request, sizes)
    staying = [size for size, real in zip(sizes, launched, strict=True) if isinstance(real, OracleLaunch)]
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        answered = oracle.ask(request, staying)
    answers, row = [], 0
    for size, real in zip(sizes, launched, strict=True):
        if isinstance(real, NonClassicPath):
            answers.append(picks.off_classic_path(scenario, request, size, NonClassicPick.by(real)))
            continue
        time_us = shortest(answered.winner_us[row])
        pick = Pick(real.algorithm, real.protocol, real.channels, real.threads, time_us)
        cost_us = picks.costs_us(answered.before_us[row])
        answers.append(
            PickAnswer(request.collective, int(size), scenario.constants, cost_us, pick, ranks=scenario.ranks)
        )
        row += 1
    return answers


def of_group(scenario: Scenario, operations: Sequence[Operation], timeout_s: float) -> GroupAnswer:
    """The answer for a group, read from what libnccl launched. A field is None if the release does not show it.

    No release shows the identity of a call (``call``, ``choice``) or a choice's ``time_us``. Up to 2.23, releases do
    not show a call's collective and bytes either; up to 2.21, they do not show a choice's collective and bytes.
    """
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        ranks = oracle.configuration.ranks
        group = oracle.launch_group(operations)
    kernels = tuple(
        _symmetric(kernel, kernel.symmetric)
        if kernel.symmetric
        else KernelAnswer(
            kernel.channels,
            kernel.threads,
            tuple(
                CallInKernel(
                    call=None,
                    collective=each.collective,
                    bytes=each.nbytes(ranks),
                    dtype=each.dtype,
                    algorithm=each.algorithm,
                    protocol=each.protocol,
                    channels=tuple(each.channels),
                    choice=None,
                )
                for each in kernel.operations
            ),
        )
        for kernel in group.kernels
    )
    choices = tuple(
        ChoiceAnswer(question.collective, question.bytes, question.pipelined, time_us=None)
        for question in group.questions
    )
    return GroupAnswer(scenario.constants, kernels, choices)


def _symmetric(kernel: GroupKernel, said: LoggedSymmetricKernel) -> KernelAnswer:
    """The calls of a symmetric kernel: NCCL shows their kind and number, but not which calls they are."""
    collective = Collective[said.name.partition("_")[0]]
    call = CallInKernel(None, collective, None, None, None, None, (), None)
    return KernelAnswer(kernel.channels, kernel.threads, (call,) * said.calls, f"symmetric kernel {said.name}")


def tables(scenario: Scenario, timeout_s: float) -> Tables:
    """libnccl's own tuning tables in the emulator's form. ``reasons`` is empty, because only the emulator knows why a
    bandwidth is 0.
    """
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        own = oracle.tables
    return Tables(
        latency_us=own.latency_us,
        bandwidth_gbs=own.bandwidth_gbs,
        max_threads=own.max_threads.astype(np.int64),
        thread_thresholds_bytes=own.thread_thresholds_bytes,
        backup_gbs=np.zeros((5, 3), np.float32),
        reasons={},
    )


def graphs(scenario: Scenario, timeout_s: float) -> Mapping[str, OrderedGraph]:
    """The channel graphs that libnccl's search finds, by name."""
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        return search.ordered_graphs(oracle)


def with_across(scenario: Scenario, timeout_s: float) -> GraphsAcross:
    """Graphs (empty if nodes differ), and the channels of all ranks across nodes, as libnccl has them in memory."""
    with Oracle(scenario.oracle_configuration(), timeout_s=timeout_s) as oracle:
        found = {} if len(scenario.resolve().nodes) > 1 else search.ordered_graphs(oracle)
        return GraphsAcross(found, summarize(oracle.connected()))


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that has ended. ``exit_code`` is 128 plus the signal's number if a signal ended it, as in a shell."""

    communicator: str
    library: str
    command: tuple[str, ...]
    exit_code: int


def run(
    scenario: Scenario, command: Sequence[str], processes_per_node: int | None = None, to_stderr: bool = False
) -> EndedProgram:
    """Runs the program to its end. BadInput if it cannot be started or simulated, OracleUnavailable without the
    library.
    """
    with preloaded(scenario.oracle_configuration(), processes_per_node) as prepared:
        variables = prepared.variables({**os.environ, **(scenario.environment or {})})
        print(f"nccl-tuner: GPUs of {scenario.title} are simulated, under {prepared.library}.", file=sys.stderr)
        print(
            "nccl-tuner: no kernel runs, so the times and results that the program prints mean nothing.",
            file=sys.stderr,
            flush=True,
        )
        try:
            ended = subprocess.run(command, env=variables, stdout=sys.stderr if to_stderr else None, check=False)
        except OSError as error:
            raise BadInput(f"{command[0]} cannot be run: {error.strerror}") from None
    code = ended.returncode
    return EndedProgram(scenario.title, str(prepared.library), tuple(command), code if code >= 0 else 128 - code)
