"""``nccl-tuner cost``: the textbook's models of collectives; no NCCL in them, except where a command says so."""

from typing import Any

import click

from tuner.cli.command import LazyGroup

OPERATION = "OPERATION"
VERBS = {
    OPERATION: "allreduce, allgather and others: a time by alpha and beta",
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
    **dict.fromkeys(("busbw", "ideal", "crossover", "measuring"), "bandwidths"),
    **dict.fromkeys(("step", "overlap", "projection"), "training"),
}


class CostGroup(LazyGroup):
    """The commands by name, and one for each operation, which help shows as one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from tuner.times.costmodels.operations import Operation

        return [*(each.name.lower() for each in Operation), *(name for name in self.verbs if name != OPERATION)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.verbs and name != OPERATION:
            return super().get_command(ctx, name)
        from tuner.cli.cost.collective import command_of
        from tuner.times.costmodels.operations import Operation

        found: Any = {each.name.lower(): each for each in Operation}.get(name)
        return None if found is None else command_of(found)


@click.group(
    name="cost",
    cls=CostGroup,
    verbs=VERBS,
    package="tuner.cli.cost",
    modules=MODULES,
    former={"fit": "fit sweep"},
)
def command() -> None:
    """How fast could a collective be, how fast should it be, and how good is what was measured.

    OPERATION is allreduce, allgather, reducescatter, broadcast, reduce, alltoall, gather, scatter or sendrecv.

    \b
    nccl-tuner cost allreduce --algorithm ring --ranks 16 --bytes 100MB --alpha-us 10 --beta-gbs 100
    """
