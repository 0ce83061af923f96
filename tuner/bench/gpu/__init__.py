"""Measures on GPUs, with cupy and libnccl."""
