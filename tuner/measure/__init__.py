"""Measuring what is really fastest: every algorithm, protocol and channel count, on GPUs or on a planted truth.

``verify`` and ``decide`` are what is done with files of measurements, over ``comparison`` and ``decision``;
``evidence`` and ``statistics`` say what is beyond the noise. ``loop`` measures on a ``backend``: ``gpu``,
``simulated``, or ``double``, which runs the code for GPUs without any. ``records`` are measurements as records and
files, ``readers`` take them from other files.
"""

from tuner.measure.readers.any_file import read_any

__all__ = ["read_any"]
