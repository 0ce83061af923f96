"""Measuring what is really fastest: every algorithm, protocol and channel count, on GPUs or on a planted truth."""

from tuner.measure.readers.any_file import read_any

__all__ = ["read_any"]
