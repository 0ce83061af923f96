"""Finds faults and unusual things in a topology, from the parts that it recognises; tells what they cost and how to
repair them.
"""

from tuner.answers.doctor.examine import Examination, examine

__all__ = ["Examination", "examine"]
