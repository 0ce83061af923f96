"""Computations of NCCL at a communicator's init and at every call, bit for bit: tables, picks, launches, steps."""
