"""Times of calls on the hardware: a form with physical parameters, calibrated to measured times, with intervals.

``features`` are what a call's time depends on, taken from the emulator: steps, channels, threads, bandwidths of the
graphs. ``form`` makes times of them and ``parameters``; ``surface`` adds what measurements say beyond the form;
``intervals`` say how far off a time may be. A ``calibration`` holds all three of one machine, with what it was fitted
to; ``predict`` answers with it. Nothing here reaches a pick: picks are NCCL's, by NCCL's own numbers.
"""
