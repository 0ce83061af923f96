"""A file of measurements, judged: NCCL's pick against the measured best, and the model against the times.

``compared`` has the whole comparison of a file, ``judged`` that of one call, ``model`` what the emulator says of the
measured communicator, ``model_errors`` how far that is off.
"""
