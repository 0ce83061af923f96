"""The double: GPUs and CUDA stood in for, under the real libnccl, so that the code for GPUs runs without any.

A process of the double finds a stand-in ``cupy`` on its path, and libnccl calls a simulated CUDA (csrc/sim). Kernels
that libnccl launches take planted times, by algorithm, protocol and channels of the launch; data move as formulas.
"""
