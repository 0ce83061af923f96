"""The emulator held against the real libnccl and against what real runs printed."""
