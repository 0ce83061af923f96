"""NCCL's own logs (NCCL_DEBUG=INFO): read them, and compare what they print with the emulator."""
