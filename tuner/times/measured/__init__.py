"""Measured times as tables: the public tables in ``tables/measured``, and files with the same columns.

``read`` reads any such file, ``load`` a shipped table by one of the ``names``. ``problems`` finds what is wrong with a
table's rows as far as the rows alone show it; ``tuner.times.calibration.plausible`` compares them with a machine's
links.
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
