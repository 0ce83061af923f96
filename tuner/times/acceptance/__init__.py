"""Acceptance of a cluster: compares measured times with those of a healthy machine, and names the faults to which a
loss points.

``accept`` judges files of results, ``floors`` computes the least bandwidths that a gate can require of runs. Expected
times come from a calibration, or from NCCL's own model with its known error; ``diagnosis`` compares a loss with how
single faults would slow the same calls.
"""
