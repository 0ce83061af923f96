"""Textbook formulas for the times of collectives; nothing in them is specific to NCCL."""
