"""What NCCL picks, why, and whether that is best: an exact emulator of NCCL's tuning, proven against libnccl."""
