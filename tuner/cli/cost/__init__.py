"""``nccl-tuner cost``: the textbook's models of collectives; no NCCL in them, except where a command says so."""

import click

from tuner.cli.cost import collective
from tuner.cli.lazy import LazyGroup
from tuner.times.costmodels.operations import Operation

VERBS = {
    "busbw": "algorithm and bus bandwidth from a time, and the time from a bandwidth",
    "ideal": "the ideal bus bandwidth of nodes, and how much of it was reached",
    "crossover": "the sizes at which algorithms are equally fast, and who is fastest where",
    "fit": "alpha and beta of a measured sweep",
    "measuring": "how to measure alpha and beta inside nodes and between them",
    "step": "what a training step communicates, and how long it takes",
    "overlap": "communication behind computation, and what it speeds up",
    "projection": "scale-up and scale-out of nodes with tiled GPUs, described in a file",
    "report": "measured times against NCCL, alpha-beta, the ideal and the links",
}


@click.group(name="cost", cls=LazyGroup, verbs=VERBS, package="tuner.cli.cost")
def command() -> None:
    """How fast could a collective be, how fast should it be, and how good is what was measured.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """


for _operation in Operation:
    command.add_command(collective.command_of(_operation))
