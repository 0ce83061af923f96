"""Textbook formulas of collectives: no NCCL in them."""
