"""Compares the emulator with the real libnccl, and with the logs of real runs."""
