"""Files of measurements from records of them."""

from pathlib import Path

from tuner.times.measured.samples import Measurements, Writer


def write(path: Path, found: Measurements) -> Path:
    with Writer(path, found.header) as file:
        for block in found.blocks:
            file.add(block)
    return path
