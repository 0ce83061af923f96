"""Measurements as records and as files."""
