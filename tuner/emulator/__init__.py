"""What NCCL computes at a communicator's init and at every call, bit for bit: tables, picks, launches, steps."""
