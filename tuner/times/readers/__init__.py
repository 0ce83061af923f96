"""Measurements from whatever file has some: ``any_file`` recognizes it.

``nccl_tests`` reads what nccl-tests prints or writes, ``nccl_log`` the choices in a NCCL log; files of our own are
those of ``tuner.times.records.samples``.
"""
