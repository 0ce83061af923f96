"""Finds faults and unusual things in a topology by the parts that it recognises, what they cost, and how to repair
them.
"""

from tuner.answers.doctor.examine import Examination, examine

__all__ = ["Examination", "examine"]
