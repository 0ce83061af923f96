"""Faults of a topology and what is unusual in it, by the parts that are recognised, what it costs, and its repair."""

from tuner.answers.doctor.examine import Examination, examine

__all__ = ["Examination", "examine"]
