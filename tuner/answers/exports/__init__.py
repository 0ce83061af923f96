"""NCCL's picks and their times in the files that other programs read: a module for each format."""
