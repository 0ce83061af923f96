"""Regret of NCCL's picks against the best that was measured, from forced runs of any origin and from default runs.

``arms`` reads them: an arm is NCCL's own choice, or an algorithm, protocol or number of channels that was forced; it
also makes arms from a file of ``measure``. ``judged`` compares the pick with the best arm by size, given the noise
between two times. ``workflow`` does all of it, with the rows of a decision table that the measurements support and what
to force next.
"""
