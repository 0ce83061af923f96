"""NCCL's symmetric kernels with their times, beside the classic pick, as ``explain`` and ``table`` print them."""

from collections.abc import Sequence
from itertools import groupby

import click

from tuner.answers.symmetric import WindowExplanation
from tuner.cli.output import human_bytes, print_table

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


def show_table(title: str, explanations: Sequence[WindowExplanation]) -> None:
    """A table a collective: a row a kernel, a column a size; the kernel that runs is marked."""
    for collective, alike in groupby(explanations, lambda each: each.collective):
        of_one = list(alike)
        names = dict.fromkeys(kernel.kernel for each in of_one for kernel in each.kernels)
        rows = [(name, *(_cell(each, name) for each in of_one)) for name in sorted(names)]
        rows += [("runs", *map(_runs, of_one)), ("without windows", *map(_classic, of_one))]
        print_table(f"{collective.name} on {title}", ("kernel", *(human_bytes(each.bytes) for each in of_one)), rows)
    click.echo(MARKS)


MARKS = (
    "Cells: us by NCCL's own model of symmetric kernels, and the CTAs that it asks for; * has the least time with CTAs "
    "counted, and runs. 'without windows' is by the model of algorithms, which NCCL does not compare with the other."
)


def _cell(each: WindowExplanation, name: str) -> str:
    found = [kernel for kernel in each.kernels if kernel.kernel == name]
    if not found:
        return "-"
    marked = " *" if each.taken_by is not None and each.taken_by.endswith(f" {name}") else ""
    return f"{found[0].time_us:.2f} x{found[0].blocks}{marked}"


def _runs(each: WindowExplanation) -> str:
    if each.taken_by is None:
        return "classic path"
    return f"* x{each.blocks}" if each.blocks else each.taken_by


def _classic(each: WindowExplanation) -> str:
    return "-" if each.classic is None else f"{each.classic.name} {each.classic.time_us:.2f}"
