"""Schedules the collectives of one group: some are chosen together; they get channels, and are split into kernels."""
