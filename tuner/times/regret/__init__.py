"""Regret of NCCL's picks over the best that was measured, from forced runs of any origin and from default runs.

``arms`` reads them: an arm is NCCL's own choice, or an algorithm, protocol or number of channels that was forced; it
also makes of arms what a file of ``measure`` holds. ``judged`` holds the pick against the best arm by size, behind the
noise that two times may differ by. ``workflow`` does all of it, with the rows of a decision table that the measurements
support and what to force next.
"""
