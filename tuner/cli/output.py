"""Printing: JSON, and tables for people."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tuner.base.numerics import NEVER_US
from tuner.base.records import to_json
from tuner.base.sizes import human_bytes as human_bytes
from tuner.cli.layout import laid_out, width_to_fit
from tuner.cli.messages import with_options

LOG = "tuner.cli.log"  # in click's context: what the command's description has of a log


def say(text: str = "", err: bool = False) -> None:
    """A line for people, with the options of the arguments that it names."""
    click.echo(with_options(text), err=err)


def verdict(text: str, good: bool | None) -> str:
    """A verdict, on a terminal in green or red; None: it cannot be judged."""
    return click.style(text, fg={True: "green", False: "red", None: "yellow"}[good], bold=True)


def print_json(value: Any) -> None:
    """Records, or what is JSON already; with what is taken of a log, where one describes the communicator."""
    says, written = click.get_current_context().meta.get(LOG), to_json(value)
    if says is not None:
        log = {"log": to_json(says)}
        written = [each | log for each in written] if isinstance(written, list) else written | log
    click.echo(with_options(json.dumps(written, indent=1)))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()
) -> None:
    """A plain aligned table; columns whose cells are all numbers are set to the right.

    On a terminal, or where COLUMNS says how wide one is, it is no wider: ``spare`` columns are left out first. Not by a
    library: a table as plain as this would wait 20 ms for one that draws all kinds.
    """
    if title:
        click.echo(title)
    body = [[with_options(str(cell)) for cell in row] for row in rows]
    notes = _noted(body)
    click.echo(laid_out(columns, body, width_to_fit(), spare))
    for number, text in enumerate(notes, start=1):
        click.echo(f" [{number}] {text}")


def _noted(body: list[list[str]]) -> list[str]:
    """Words on what times are extrapolated over, which leave their cells for a number there: ``41.2 to 55.1 [1]``."""
    notes: list[str] = []
    for row in body:
        for at, cell in enumerate(row):
            said, found, over = cell.partition("; extrapolated")
            if found:
                text = f"extrapolated{over}"
                if text not in notes:
                    notes.append(text)
                row[at] = f"{said} [{notes.index(text) + 1}]"
    return notes


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Comma-separated values below their names; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)


def counted(count: int, what: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count} {what}{'s' * (count != 1)}"


def span(values: Sequence[int]) -> str:
    """``4``, or ``4-16`` where they differ."""
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def number(value: float | None, digits: int) -> str:
    """A number with so many digits after the point; ``-`` where there is none, ``never`` for what NCCL never takes."""
    if value is not None and value >= NEVER_US:
        return "never"
    return "-" if value is None else f"{value:.{digits}f}"
