"""Measures how accurate calibrated times are: on the frozen splits, compared with other models, and on a user's files.

``splits`` reads ``tables/splits.toml``, which was written before anything was fitted. ``evaluate`` fits to what a split
keeps and predicts what it holds out, does the same with simpler models, and learns the intervals' widths from the
errors on other machines; ``of_file`` compares a calibration with a file.
"""
