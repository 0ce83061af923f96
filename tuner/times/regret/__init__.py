"""Computes the regret of NCCL's picks compared with the best measured choice, from forced runs of any origin and from
default runs.

``arms`` reads the runs: an arm is NCCL's own choice, or an algorithm, protocol or number of channels that was forced; a
file of ``measure`` gives arms as well. ``judged`` compares the pick with the best arm by size, given the noise between
two times. ``workflow`` does both, and adds the rows of a decision table that the measurements support and what to force
next.
"""
