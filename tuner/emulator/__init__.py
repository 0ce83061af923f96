"""Emulates what NCCL computes at a communicator's init and each call, bit for bit: tables, picks, launches, steps."""
