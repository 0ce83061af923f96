"""Measurements from whatever file has some."""
