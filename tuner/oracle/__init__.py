"""The oracle: the real libnccl, run without a GPU in a child process on simulated hardware.

The oracle answers what NCCL itself computes and picks for one communicator: ``Oracle(OracleConfiguration(...))``. No
number of NCCL is computed here: the oracle asks libnccl, reads NCCL's own memory, and records what NCCL launches.
"""
