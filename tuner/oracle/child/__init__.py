"""The process that holds the real libnccl: one communicator, driven by requests from the parent.

``python -m tuner.oracle.child FD`` with a connected socket. The process imports little, so that it starts fast.
"""
