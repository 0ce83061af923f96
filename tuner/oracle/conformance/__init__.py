"""The emulator compared with the real libnccl and with what real runs printed."""
