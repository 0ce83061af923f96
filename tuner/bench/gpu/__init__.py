"""Measuring on GPUs, with cupy and libnccl."""
