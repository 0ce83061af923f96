"""Collectives that a job made, from whatever file has some: lists, NCCL's logs, traces, counters, dumps.

``read`` finds out by its content what a file is. Where a file says what ran, its calls have it, too.
"""
