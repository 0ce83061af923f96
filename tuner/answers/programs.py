"""What commands say of a program that was run on simulated GPUs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.oracle.preloaded import preloaded
from tuner.scenario import Scenario

NOT_STARTED = 127  # as a shell says it


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended. ``exit_code`` is 128 and the signal's number where one ended it, as a shell says it."""

    communicator: str
    library: str
    command: tuple[str, ...]
    exit_code: int


def run(
    scenario: Scenario, command: Sequence[str], processes_per_node: int | None = None, to_stderr: bool = False
) -> Ended:
    """Runs it to its end. Errors: those of :func:`preloaded`; BadInput where it cannot be started."""
    with preloaded(scenario.oracle_configuration(), processes_per_node) as prepared:
        variables = prepared.variables({**os.environ, **(scenario.environment or {})})
        print(f"nccl-tuner: GPUs of {scenario.title} are simulated, under {prepared.library}.", file=sys.stderr)
        print(
            "nccl-tuner: no kernel runs: times and results that the program prints are not those of any hardware.",
            file=sys.stderr,
            flush=True,
        )
        try:
            ended = subprocess.run(command, env=variables, stdout=sys.stderr if to_stderr else None, check=False)
        except OSError as error:
            raise BadInput(f"{command[0]}: {error.strerror}; valid: a program that can be run") from None
    code = ended.returncode
    return Ended(scenario.title, str(prepared.library), tuple(command), code if code >= 0 else 128 - code)
