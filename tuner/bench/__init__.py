"""Measuring what is really fastest: every algorithm, protocol and channel count, on GPUs or on a planted truth.

``verify`` and ``decide`` are what is done with files of measurements, ``decision`` has the parts of a decision.
``loop`` measures on a ``backend``: ``gpu`` or ``simulated``; tests/support/double runs the code for GPUs without any.
"""
