"""Measures what is really fastest: every algorithm, protocol and channel count, on GPUs or on simulated ("planted")
times.

``loop`` measures on a ``backend``: ``gpu`` or ``simulated``; tests/support/double runs the code for GPUs without any.
``decide`` makes decision tables from files of measurements; ``decision`` has the parts that it uses.
"""
