"""Reads the collectives of a job from any file that has some: lists, NCCL's logs, traces, counters, dumps.

``read`` recognises a file by its content. If a file says what was executed, so do its calls.
"""
