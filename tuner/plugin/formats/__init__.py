"""Reads and writes decision tables in the file formats of the tuners of NVIDIA and of NCCLX."""
