"""Measured times as tables: the public ones in ``tables/measured``, and files in the same columns.

``read`` takes any such file, ``load`` one that is shipped (``names``). ``problems`` says what is wrong with the rows of
a table as far as they alone show it; what the links of a machine allow is judged on a higher floor.
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
