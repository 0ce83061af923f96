"""Judges jobs: reads traces of their calls, says what these cost, whether NCCL chose as it should, and whether all
ranks agree."""
