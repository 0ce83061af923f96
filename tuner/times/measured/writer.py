"""Writes a table in our columns, with its head in comments."""

import csv
import io
from pathlib import Path

from tuner.base.files import write_text
from tuner.times.measured import header
from tuner.times.measured.reader import OWN_COLUMNS
from tuner.times.measured.records import MeasuredRow, MeasuredTable


def write(path: Path, table: MeasuredTable) -> None:
    """BadInput where the file cannot be written."""
    write_text(path, text(table))


def text(table: MeasuredTable) -> str:
    """The file's text; ``read`` makes the same table of it, but for the lines' numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(OWN_COLUMNS)
    writer.writerows(map(_cells, table.rows))
    return "\n".join([*header.lines(table.header), file.getvalue()])


def _cells(row: MeasuredRow) -> tuple[object, ...]:
    return (
        row.collective,
        row.dtype.name,
        row.nodes,
        row.gpus_per_node,
        row.bytes,
        f"{row.time_us:.10g}",
        "" if row.in_place is None else int(row.in_place),
        row.algorithm.name if row.algorithm is not None else "",
        row.protocol.name if row.protocol is not None else "",
        row.channels or "",
        row.run,
    )
