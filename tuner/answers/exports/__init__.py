"""Writes NCCL's picks and their times as files that other programs read: one module per format."""
