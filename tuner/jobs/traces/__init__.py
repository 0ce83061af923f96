"""Reads the collectives of a job from any file that has some: lists, NCCL's logs, traces, counters, dumps.

``read`` recognises a file by its content. If a file says how calls were executed, the calls that ``read`` returns say
it, too.
"""
