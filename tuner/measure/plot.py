"""Measured times over sizes as a picture: a panel for each kind of call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import BadInput
from tuner.measure.compare import Comparison, kind_of
from tuner.measure.samples import Combination, Point

# Okabe and Ito's, which colour-blind people tell apart; more combinations than these differ by their lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
LINES = ("-", "--", ":")


def save(compared: Sequence[Comparison], path: Path) -> None:
    """By the suffix of ``path``. BadInput where matplotlib is not installed, or the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--plot needs matplotlib; 'pip install nccl-tuner[plot]' installs it") from None
    panels = [(comparison, kind) for comparison in compared for kind in comparison.kinds]
    figure = Figure(figsize=(9, 5 * len(panels)), layout="constrained")
    for axes, (comparison, kind) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _panel(axes, comparison, kind)
    try:
        figure.savefig(path)
    except OSError as error:
        raise BadInput(f"--plot {path}: {error.strerror}") from error


def _panel(axes: Any, comparison: Comparison, kind: Point) -> None:
    times: dict[Combination, list[tuple[int, float, float, float]]] = {}
    for point, evidence in comparison.evidence.items():
        if kind_of(point) == kind:
            for column in evidence.columns:
                if column is not None:
                    times.setdefault(column, []).append((point.bytes, *evidence.band_us(column)))
    for number, (combination, rows) in enumerate(sorted(times.items())):
        sizes, middle_us, low_us, high_us = np.array(rows).T
        colour, line = COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]
        axes.plot(sizes, middle_us, line, color=colour, linewidth=1, label=str(combination))
        axes.fill_between(sizes, low_us, high_us, color=colour, alpha=0.25, linewidth=0)
    judged = comparison.kinds[kind]
    sizes = [one.point.bytes for one in judged]
    axes.plot(sizes, [one.pick_us for one in judged], "ks", markersize=7, fillstyle="none", label="NCCL's pick")
    axes.plot(sizes, [one.best_us for one in judged], "k+", markersize=7, label="best")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("size (bytes)")
    axes.set_ylabel("time (us), median and 95 % interval")
    placed = "in place" if kind.in_place else "out of place"
    axes.set_title(f"{kind.collective.name}, {kind.dtype.name}, {placed}{', CUDA graph' if kind.graph else ''}")
    axes.legend(fontsize="small", ncols=2)
