"""Measured times: how they are recorded, read and modelled, and what they say about machines and NCCL's picks.

``measured`` has the records of measured times and reads them from files. ``statistics``, ``compare`` and ``evidence``
distinguish differences from noise; ``picks`` compares NCCL's picks with the fastest choices. ``calibration`` fits
``timemodel`` to measured times; ``costmodels`` has textbook formulas. ``acceptance`` judges a machine, ``regret``
judges NCCL's choices.
"""
