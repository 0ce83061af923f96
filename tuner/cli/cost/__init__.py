"""``nccl-tuner cost``: the textbook's models of collectives; no NCCL in them, except where a command says so."""

import click

from tuner.cli.command import LazyGroup

VERBS = {
    "operation": "a time by alpha and beta; 'cost allreduce' alone means it",
    "busbw": "algorithm and bus bandwidth from a time, and the time from a bandwidth",
    "ideal": "the ideal bus bandwidth of nodes, and how much of it was reached",
    "crossover": "the sizes at which algorithms are equally fast",
    "measuring": "how to measure alpha and beta inside nodes and between them",
    "step": "what a training step communicates, and how long it takes",
    "overlap": "communication behind computation, and what it speeds up",
    "projection": "scale-up and scale-out of nodes with tiled GPUs",
    "report": "measured times against NCCL, alpha-beta, the ideal and the links",
}


MODULES = {
    "operation": "collective",
    **dict.fromkeys(("busbw", "ideal", "crossover", "measuring"), "bandwidths"),
    **dict.fromkeys(("step", "overlap", "projection"), "training"),
}


@click.group(
    name="cost",
    cls=LazyGroup,
    verbs=VERBS,
    package="tuner.cli.cost",
    modules=MODULES,
    former={"fit": "fit sweep"},
    default=lambda arguments: ["operation", *arguments],
)
def command() -> None:
    """How fast could a collective be, how fast should it be, and how good is what was measured.

    OPERATION is allreduce, allgather, reducescatter, broadcast, reduce, alltoall, gather, scatter or sendrecv.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """
