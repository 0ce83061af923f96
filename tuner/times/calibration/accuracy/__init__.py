"""How accurate calibrated times are: the frozen splits, what other models reach on them, and files of one's own.

``splits`` reads ``tables/splits.toml``, which was written before anything was fitted. ``evaluate`` fits to what a split
keeps and predicts what it holds out, ``baselines`` do the same with simpler means, ``widths`` learn the intervals from
the errors on other machines, ``of_file`` compares a calibration with a file.
"""
