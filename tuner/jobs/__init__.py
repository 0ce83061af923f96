"""Jobs: traces of their calls, what these cost, whether NCCL chose as it should, whether all ranks agree."""
