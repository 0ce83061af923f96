"""Printing: JSON, and tables for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tuner.base.records import to_json
from tuner.base.sizes import human_bytes as human_bytes


def print_json(value: Any) -> None:
    """Records, or what is JSON already."""
    click.echo(json.dumps(to_json(value), indent=1))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain aligned table; columns whose cells are all numbers are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    body = [[str(cell) for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in body)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    # Wide enough for any table: a cell is never cut, and a line ends where its text does.
    console = Console(width=400, highlight=False)
    with console.capture() as captured:
        console.print(table)
    if title:  # not the table's own, which breaks at the table's width
        click.echo(title)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()) + "\n")


def span(values: Sequence[int]) -> str:
    """``4``, or ``4-16`` where they differ."""
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-")
