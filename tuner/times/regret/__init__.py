"""What NCCL's picks lose against the best that was measured, from forced runs of any origin and from default runs.

``arms`` reads them: an arm is NCCL's own choice, or an algorithm, protocol or number of channels that was forced.
``noise`` is what two times may differ by chance. ``judged`` holds the pick against the best arm by size, ``executed``
says by its time which arm NCCL's own choice was, ``halves`` where two smaller calls would be faster, ``kinks`` whether
measured curves bend where NCCL's pick changes, ``next_runs`` what to force to know more, ``rows`` which rows of a
decision table the measurements support. ``workflow`` does all of it. ``measurements`` makes of arms what a file
of ``measure`` holds, ``decide`` a decision table.
"""
