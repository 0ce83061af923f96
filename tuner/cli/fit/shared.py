"""Measurements that the commands of ``fit`` take, and what they print of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tuner.cli.arm_options import asked, check_place, is_asked
from tuner.cli.output import human_bytes, say
from tuner.times.calibration.workflow import FittedFiles
from tuner.times.records.samples import NEAR, Measurements
from tuner.times.regret import measurements, workflow


def measured_files(
    files: tuple[Path, ...], given: Mapping[str, Any]
) -> tuple[list[Measurements] | None, tuple[Path, ...]]:
    """Measurements of the arms that ``place_options`` describe, None where none does, and the files of either.

    Raises BadInput where a file does not say where it was measured.
    """
    if is_asked(given):
        runs = asked(files, given)
        return measurements.of_arms(workflow.read(runs)), runs.paths
    if not files:
        raise click.UsageError("Missing argument 'FILE...'.")
    check_place(files)
    return None, files


def title_of(files: FittedFiles) -> str:
    return f"{files.calls} calls, {files.times} times, on {'; '.join(files.communicators)}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def print_left_out(files: FittedFiles) -> None:
    for reason, count in sorted(files.left_out.items()):
        say(f"left out: {count} {reason}")
    for floor in files.floors:
        say(
            f"{floor.communicator}: several combinations take the same {floor.floor_us:.1f} us at the least, which is "
            f"the host's time; left out are calls that take less than {NEAR:g} times that, "
            f"to {human_bytes(floor.to_bytes)}"
        )
