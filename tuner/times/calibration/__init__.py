"""Fits models to measured times: ``workflow`` fits the constants of NCCL's model, or alpha and beta, to files.

``observations`` prepares the times to fit to. ``forward`` is the model as a function of its constants. ``fit`` chooses
the constants that the times determine and fits them. ``sweep`` reads a sweep over sizes and fits alpha and beta to it;
``plausible`` compares times with what the links allow. ``time_fit`` fits the time model, ``calibrate`` makes
calibrations.
"""
