"""Runs a command on a computer whose GPUs are simulated.

``python -m tests.support.double --machine NAME --nccl RELEASE ... -- COMMAND``: everything that the command starts
finds the GPUs, also by torchrun or mpirun. Files of measurements say that they are of the double.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.support.double.settings import DoubleEnvironment, DoubleSettings, Fault, FaultKind
from tuner.base.errors import TunerError
from tuner.base.interrupts import sigterm_interrupts
from tuner.bench.gpu.opening import FORBIDDEN
from tuner.scenario import Scenario


def main() -> int:
    """The exit code of the command; 2 where there is no such machine or libnccl, 130 where it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.double", description=__doc__)
    parser.add_argument("--machine")
    parser.add_argument("--topology", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus-per-node", type=int)
    parser.add_argument("--ranks-per-gpu", type=int, help="the most that the command opens")
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nothing-planted", action="store_true")
    parser.add_argument("--process-per-rank", action="store_true", help="the command starts a process for each rank")
    parser.add_argument("--fault", action="append", default=[], help=", ".join(FaultKind))
    parser.add_argument("--library", type=Path, help="this libnccl.so.2 of the release [default: the cached]")
    parser.add_argument("command", nargs="+", help="{library} in it is the path of the libnccl.so.2")
    given = parser.parse_args()
    try:
        with sigterm_interrupts():
            return _run(given)
    except TunerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(given: argparse.Namespace) -> int:
    own = {name: value for name, value in os.environ.items() if name.startswith("NCCL_") and name not in FORBIDDEN}
    scenario = Scenario(
        given.nccl,
        given.nodes,
        machine=given.machine,
        topology=given.topology,
        gpus_per_node=given.gpus_per_node,
        ranks_per_gpu=given.ranks_per_gpu,
        environment=own,
    )
    settings = DoubleSettings(
        scenario,
        given.seed,
        planted=not given.nothing_planted,
        process_per_rank=given.process_per_rank,
        faults=tuple(map(Fault.parsed, given.fault)),
    )
    with DoubleEnvironment(settings, given.library) as environment:
        command = [word.replace("{library}", str(environment.library)) for word in given.command]
        return subprocess.run(command, env=environment.variables(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
