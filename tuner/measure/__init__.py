"""Measuring what is really fastest: every algorithm, protocol and channel count, on GPUs or on a planted truth."""
