"""Schedules the collectives of one group: some are chosen together; all of them get channels, and are distributed over
kernels."""
