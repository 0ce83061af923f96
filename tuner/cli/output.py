"""Printing: JSON, and tables for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tuner.base.records import to_json
from tuner.base.sizes import human_bytes as human_bytes

LOG = "tuner.cli.log"  # in click's context: what the command's description has of a log


def print_json(value: Any) -> None:
    """Records, or what is JSON already; with what is taken of a log, where one describes the communicator."""
    says, written = click.get_current_context().meta.get(LOG), to_json(value)
    if says is not None:
        log = {"log": to_json(says)}
        written = [each | log for each in written] if isinstance(written, list) else written | log
    click.echo(json.dumps(written, indent=1))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain aligned table; columns whose cells are all numbers are set to the right.

    Not by a library: a table as plain as this would wait 20 ms for one that draws all kinds.
    """
    body = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *body, strict=True)]
    to_the_right = [all(map(_is_number, cells)) for _, *cells in zip(columns, *body, strict=True)]

    def line(cells: Sequence[str]) -> str:
        form = zip(cells, widths, to_the_right, strict=True)
        return " " + "   ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in form)

    rule = " " + "─" * (sum(widths) + 3 * (len(widths) - 1))
    if title:
        click.echo(title)
    click.echo("\n".join(each.rstrip() for each in ["", line(columns), rule, *map(line, body), ""]))


def span(values: Sequence[int]) -> str:
    """``4``, or ``4-16`` where they differ."""
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-")
