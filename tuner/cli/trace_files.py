"""Reading the files of a job's collectives, with a line on a terminal for large ones."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tuner.cli.output import human_bytes
from tuner.traces.calls import CallList
from tuner.traces.read import read

LARGE_BYTES = 16 << 20  # from which reading takes long enough to be said


def read_files(files: Sequence[Path], ranks: int) -> list[CallList]:
    """The calls of each file; ``ranks`` are those of files that do not say theirs. Errors: those of ``read``."""
    lists = []
    for number, path in enumerate(files, start=1):
        size = path.stat().st_size if path.is_file() else 0
        if size >= LARGE_BYTES and sys.stderr.isatty():
            click.echo(f"reading {path}, {human_bytes(size)} (file {number} of {len(files)}) ...", err=True)
        lists.append(read(path, ranks))
    return lists
