"""Measured times as tables: the public ones in ``tables/measured``, and files in the same columns.

``read`` takes any such file, ``load`` a shipped one (``names``). ``problems`` says what is wrong with a table's rows as
far as they show it by themselves; a higher floor judges what a machine's links allow.
"""

from tuner.times.measured.checks import Kind, Problem, problems
from tuner.times.measured.reader import columns_of, file_of, load, named_or_read, names, parse, read, text, write
from tuner.times.measured.records import COLLECTIVES

__all__ = [
    "COLLECTIVES",
    "Kind",
    "Problem",
    "columns_of",
    "file_of",
    "load",
    "named_or_read",
    "names",
    "parse",
    "problems",
    "read",
    "text",
    "write",
]
