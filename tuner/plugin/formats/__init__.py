"""Reads and writes decision tables in the formats of NVIDIA's and NCCLX's tuners."""
