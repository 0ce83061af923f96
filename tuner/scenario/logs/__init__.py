"""Reads NCCL's own logs (NCCL_DEBUG=INFO)."""
