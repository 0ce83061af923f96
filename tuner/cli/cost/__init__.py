"""``nccl-tuner cost``: the textbook's models of collectives; no NCCL in them, except where a command says so."""

import click

from tuner.cli.command import Group

VERBS = {
    "operation": "a call's time by alpha and beta, its bandwidths, crossovers of algorithms",
    "ideal": "what the links of nodes allow, and how much of it was reached",
    "step": "what a training step communicates, how long it takes, how much is hidden",
    "report": "compares measured times with NCCL's model, alpha-beta, ideal and links",
}
MODULES = {
    "operation": "cost.collective",
    "ideal": "cost.bandwidths",
    "step": "cost.training",
    "report": "cost.report",
}


@click.group(
    name="cost",
    cls=Group,
    verbs=VERBS,
    modules=MODULES,
    default="operation",
)
def command() -> None:
    """Computes by textbook models how fast a collective could be, and compares measured times with that.

    OPERATION is allreduce, allgather, reducescatter, broadcast, reduce, alltoall, gather, scatter or sendrecv.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """
