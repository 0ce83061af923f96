"""NCCL's own logs (NCCL_DEBUG=INFO): reads them, and compares what they print with the emulator."""
