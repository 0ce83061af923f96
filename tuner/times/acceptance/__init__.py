"""Acceptance of a cluster: measured times against what a healthy machine takes, and what a loss points to.

``accept`` judges files of results, ``floors`` makes the bandwidths that a gate can hold runs against. Expected times
are calibrated, or NCCL's own with their known error; ``diagnosis`` compares a loss with what single faults make of the
same calls.
"""
