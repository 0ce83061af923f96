"""Textbook formulas for times of collectives, without anything specific to NCCL."""
