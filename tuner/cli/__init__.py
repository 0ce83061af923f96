"""The command line: one module per verb, loaded when it is called; verbs format records and compute nothing."""

import sys

import click

from tuner.base.errors import OracleFailed, TunerError
from tuner.cli.lazy import LazyGroup

VERBS = {
    "pick": "what NCCL picks for a collective and sizes",
    "explain": "why NCCL picks it: every number step by step, and what the others lack",
    "edges": "the exact sizes at which the choice changes",
    "diff": "what changes between releases, machines, node counts or settings, and what it gains or loses",
    "scale": "what is picked as the number of nodes grows from 1 to 16384",
    "whatif": "a hardware part, a count or a variable changed: picks, times and bandwidths before and after",
    "budget": "how long a job's collectives take by the model: by release and setting, and where it goes",
    "plot": "pictures: maps of choices, curves, what changes, measured against predicted",
    "report": "a machine's choices by size, nodes and release as one HTML page",
    "group": "what NCCL makes of several collectives in one group",
    "table": "the tuning table, in the layout NCCL prints",
    "machines": "the machines known by name",
    "oracle": "the same questions, answered by the real libnccl on simulated GPUs",
    "check": "the emulator against the real libnccl: every cell, pick, channel and thread",
    "import-log": "what a NCCL log says: communicator, tables and choices",
    "check-log": "the emulator against what the run of a log printed",
    "measure": "what is really fastest: every algorithm, protocol and channel count, timed",
    "fit": "constants of NCCL's model, or the textbook's, from measurements",
    "verify": "is NCCL's pick the fastest that was measured?",
    "decide": "a decision table from measurements, each row proven in an A/B run",
    "cost": "the textbook's models beside NCCL's: bandwidths, alpha-beta, ideal, training steps, efficiency",
    "plugin": "the tuner plugin that applies decision tables",
    "fetch-nccl": "fetch a release's libnccl for the oracle",
}


# Not called `group`: tuner.cli.group is the module of that verb once it is loaded.
@click.command(
    name="nccl-tuner",
    cls=LazyGroup,
    verbs=VERBS,
    package="tuner.cli",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="nccl-tuner")
def everything() -> None:
    """What NCCL picks, why, and whether it is best.

    \b
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --bytes 8,1K,64MiB
    """


def main() -> None:
    """Runs a verb. Exit codes: 0 answered, 1 the answer is "no", 2 bad input; errors are one line on stderr."""
    try:
        sys.exit(everything(standalone_mode=False) or 0)
    except TunerError as error:
        print(f"nccl-tuner: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, OracleFailed) else 2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        print(f"nccl-tuner: {' '.join(error.format_message().split())}", file=sys.stderr)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        print("nccl-tuner: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
