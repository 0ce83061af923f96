"""Jobs: traces of their calls, what these cost, whether NCCL chose in them as it should, whether all ranks agree."""
