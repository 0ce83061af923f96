"""Measuring what is really fastest: every algorithm, protocol and channel count, on GPUs or on a planted truth."""

from tuner.measure.readany import read_any

__all__ = ["read_any"]
