"""Measuring without GPUs: a planted truth behind the noise of a real machine."""
