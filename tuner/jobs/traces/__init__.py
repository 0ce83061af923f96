"""Collectives that a job made, from any file that has some: lists, NCCL's logs, traces, counters, dumps.

``read`` recognises a file by its content. Where a file says what was executed, its calls have it, too.
"""
