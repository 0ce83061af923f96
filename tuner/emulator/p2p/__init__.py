"""Sends and receives, and the calls that NCCL makes from them: channels, protocols, chunks, rounds, kernels.

NCCL has no time model for them, so nothing here is a time.
"""
