"""Measures which choice is really fastest: every algorithm, protocol and channel count, on GPUs or with simulated
("planted") times.

``loop`` measures on a ``backend``: ``gpu`` or ``simulated``; tests/support/double runs the code for GPUs without any.
``decide`` makes decision tables from files of measurements; ``decision`` contains its parts.
"""
