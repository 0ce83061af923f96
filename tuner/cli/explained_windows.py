"""What ``explain --buffers window`` prints: NCCL's symmetric kernels with their times, beside the classic pick."""

import click

from tuner.analysis.symmetric import WindowExplanation
from tuner.cli.output import print_table

COLUMNS = ("kernel", "CTAs", "NCCL us", "with CTAs counted us")


def show(title: str, explanation: WindowExplanation) -> None:
    """In words and a table; the kernel that NCCL prefers comes first."""
    taken_by, classic = explanation.taken_by, explanation.classic
    if taken_by is None:
        launch = f"{explanation.blocks} channels, {explanation.threads} threads"
        click.echo(f"{title}:\nthe classic path, {launch}\n")
    elif explanation.blocks:
        click.echo(f"{title}:\n{taken_by}, {explanation.blocks} CTAs, {explanation.threads} threads\n")
    else:
        click.echo(f"{title}:\n{taken_by}: no kernel runs, and NCCL models no time\n")
    if explanation.kernels:
        rows = [(one.kernel, one.blocks, f"{one.time_us:.2f}", f"{one.score_us:.2f}") for one in explanation.kernels]
        print_table("symmetric kernels that can do it, by NCCL's model", COLUMNS, rows)
    else:
        click.echo("no symmetric kernel can do it")
    if classic is not None:
        launch = f"{classic.channels} channels, {classic.threads} threads, {classic.time_us:.2f} us"
        click.echo(
            f"on the classic path: {classic.name}, {launch} by a model that symmetric kernels are not compared by"
        )
