"""Draws what was judged: results among the runs of their class, and a topology before and after its repair."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tuner.answers.changes import AtSize
from tuner.answers.charts import parts
from tuner.answers.charts.parts import NotebookFigure, heading, legend, size_axis
from tuner.base.sizes import human_bytes
from tuner.times.acceptance import accept, public_runs
from tuner.times.acceptance.accept import Acceptance, JudgedSize
from tuner.times.acceptance.public_runs import PublicCurve

OWN, FAILS = "#00487A", "#C62828"
BAND, OTHERS = "#9ECAE1", "#8C8C8C"
MOST_CURVES = 6  # of one picture, one below the other
MARGIN = 1.2  # of the axis of sizes
MOST_SHARE = 300.0  # of the expected bandwidth that is drawn, in percent


def of_acceptance(result: Acceptance) -> NotebookFigure:
    """Draws judged results, one panel per kind of call: bandwidth by size, the band that passes, the healthy public
    runs of the class, and the size from which on all sizes are too slow.
    """
    kinds = [list(sizes) for _, sizes in groupby(result.sizes, accept.suite)]
    failing = [each for each in kinds if any(size.verdict.fails for size in each)]
    shown = sorted(failing or kinds, key=lambda each: each[0].in_place)[:MOST_CURVES]
    canvas = NotebookFigure(figsize=(11, 1.5 + 4.2 * len(shown)), layout="constrained")
    drawn = canvas.subplots(len(shown), squeeze=False)[:, 0]
    with_class = with_step = 0
    for axes, sizes in zip(drawn, shown, strict=True):
        others, step = of_class(result, sizes[0]), slow_from(sizes)
        with_class = max(with_class, len({each.name for curves in others.values() for each in curves}))
        with_step += step is not None
        _draw(axes, sizes, others, step)
        last = sizes[-1]
        said = f"; {human_bytes(last.bytes)}: {last.busbw_gbs:.4g} GB/s"
        said += f", expected {last.busbw_gbs * last.time_us / last.expected_us:.4g}"
        said += f"; slow from {human_bytes(step)} on" if step is not None else ""
        axes.set_title(f"{accept.suite(sizes[0])}{said}", loc="left", fontsize="medium", parse_math=False)
    handles: list[Any] = [
        Line2D([], [], color=OWN, marker="o", label="this run"),
        Line2D([], [], color=FAILS, marker="o", linestyle="", label="sizes that fail"),
        Line2D([], [], color=OTHERS, linestyle="dashed", label="expected"),
        Patch(color=BAND, alpha=0.5, label="the band that passes"),
    ]
    if with_class:
        label = f"healthy public runs\nof the class ({with_class})"
        handles.append(Line2D([], [], color=OTHERS, linewidth=0.8, label=label))
    if with_step:
        handles.append(Line2D([], [], color=FAILS, linestyle="dotted", label="slow from here on"))
    legend(canvas, handles, "")
    left_out = f", {len(shown)} of {len(kinds)} kinds of calls" if len(shown) < len(kinds) else ""
    canvas.suptitle(f"{result.verdict}: {result.machine}{left_out}", x=0.01, horizontalalignment="left", weight="bold")
    return canvas


def of_class(result: Acceptance, size: JudgedSize) -> Mapping[str, Sequence[PublicCurve]]:
    """The bandwidths of the healthy runs, public or kept by the user, with which a kind of call was compared; the keys
    are the names of the runs' tables.
    """
    found: dict[str, list[PublicCurve]] = {}
    for ranked in result.comparisons:
        of_call = (ranked.collective, ranked.nodes, ranked.gpus_per_node)
        ranks = size.nodes * size.gpus_per_node
        if ranked.collective != size.collective or ranked.nodes * ranked.gpus_per_node != ranks:
            continue
        for each in (*public_runs.own(), *public_runs.shipped()):
            same = (each.collective, each.nodes, each.gpus_per_node) == of_call
            if same and each.table in ranked.names and each.is_healthy and not each.forced:
                found.setdefault(each.table, []).append(each)
    return found


def slow_from(sizes: Sequence[JudgedSize]) -> int | None:
    """The size in bytes from which on all sizes fail, except for single sizes between two that fail. None if there is
    no such size.
    """
    first, passed = None, 0
    for each in reversed(sizes):
        passed = 0 if each.verdict.fails else passed + 1
        if passed > (first is not None):
            break
        first = each.bytes if each.verdict.fails else first
    return first


def _draw(
    axes: Any, sizes: Sequence[JudgedSize], others: Mapping[str, Sequence[PublicCurve]], step: int | None
) -> None:
    """Draws bandwidths as parts of the expected one, because that differs by decades from small sizes to large."""
    at = np.array([each.bytes for each in sizes], np.float64)
    expected = np.array([each.expected_us for each in sizes])
    taken, low, high = (np.array([getattr(each, of) for each in sizes]) for of in ("time_us", "high_us", "low_us"))
    axes.fill_between(at, 100 * expected / low, 100 * expected / high, color=BAND, alpha=0.5, linewidth=0)
    axes.axhline(100, color=OTHERS, linestyle="dashed", linewidth=1.2)
    for each in (curve for curves in others.values() for curve in curves):
        there, us = np.array(each.bytes, np.float64), np.array(each.time_us)
        inside = (there >= at[0]) & (there <= at[-1])
        wanted = np.exp(np.interp(np.log(there[inside]), np.log(at), np.log(expected)))
        axes.plot(there[inside], 100 * wanted / us[inside], color=OTHERS, linewidth=0.8, alpha=0.8)
    own = 100 * expected / taken
    axes.plot(at, own, color=OWN, linewidth=1.8)
    fails = np.array([each.verdict.fails for each in sizes])
    for failed, colour in ((False, OWN), (True, FAILS)):
        axes.plot(at[fails == failed], own[fails == failed], "o", color=colour, zorder=3)
    if step is not None:
        axes.axvline(step, color=FAILS, linestyle="dotted")
    axes.set_ylim(0, min(max(150.0, float(np.nanmax(own, initial=0.0)) * 1.1), MOST_SHARE))
    axes.set_ylabel("% of the expected bandwidth")
    axes.grid(color=parts.GRID)
    size_axis(axes, np.array([each.bytes for each in sizes], np.uint64), margin=MARGIN)


def repaired(sizes: Sequence[AtSize], what: str, where: str) -> NotebookFigure:
    """Draws the bandwidth by size that NCCL predicts on a topology, before and after its repair."""
    canvas = NotebookFigure(figsize=(11, 6), layout="constrained")
    axes = canvas.subplots()
    at = [each.bytes for each in sizes]
    before, after = (
        np.array([getattr(each, f"busbw_gbs_{side}") for each in sizes], np.float64) for side in ("before", "after")
    )  # NaN where no model gives a time
    axes.fill_between(at, before, after, color=FAILS, alpha=0.15, linewidth=0)
    axes.plot(at, after, color=OWN, marker="o", label="repaired")
    axes.plot(at, before, color=FAILS, marker="o", label="as it is")
    axes.set_yscale("log")
    axes.set_ylabel("bus bandwidth that NCCL predicts, GB/s")
    axes.grid(color=parts.GRID)
    size_axis(axes, np.array(at, np.uint64), margin=MARGIN)
    legend(canvas, axes.get_legend_handles_labels()[0], "")
    heading(canvas, axes, what, where)
    return canvas
