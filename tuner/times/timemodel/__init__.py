"""Models times of calls on the hardware: a form with physical parameters, calibrated to measured times, with intervals.

``features`` are what a call's time depends on, taken from the emulator: steps, channels, threads, bandwidths of the
graphs. ``form`` computes times from these and from parameters; a surface adds what measurements say beyond the form;
``intervals`` say how far off a time may be. A ``calibration`` has all of these for one machine, with what it was fitted
to; ``predict`` answers with it. None of this affects picks: picks are NCCL's, by NCCL's own numbers.
"""
