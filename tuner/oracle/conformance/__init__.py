"""Compares the emulator with the real libnccl and with what real runs printed."""
