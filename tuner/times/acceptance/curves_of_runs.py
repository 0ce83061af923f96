"""Turns measured tables into curves in the form of public runs: with the machine's class and what its links allow."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import numpy as np

from tuner.base.errors import TunerError
from tuner.scenario import Scenario
from tuner.times.acceptance import curves
from tuner.times.acceptance.curves import Curve
from tuner.times.acceptance.expected import Expectation
from tuner.times.acceptance.public_runs import PublicCurve, network_in_words, network_of_names
from tuner.times.measured.header import MeasuredHealth
from tuner.times.measured.samples import Measurements, SampleBlock

_DIGITS = 5  # digits of times
# Variables that change the times of a run so that they say nothing about other runs, whatever their value; algorithm
# and protocol are handled elsewhere.
_ODD = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS")
_ODD_NVLS = "NCCL_NVLS_ENABLE"  # a run that chose by itself with this variable off


def of_table(table: Measurements, scenario: Scenario, *, own: bool = False) -> Iterator[PublicCurve]:
    """The curves of a table that was measured on the machine of ``scenario``.

    Data types of the same size make one curve, and so do repeated rows: each size has the median.
    """
    header = table.header
    # If nobody knows whether the machine is healthy, the typical run is enough
    if header.health is MeasuredHealth.unknown:
        table = _one_run(table)
        header = table.header
    by_run: dict[str, list[SampleBlock]] = defaultdict(list)
    for row in table.blocks:
        by_run[row.run].append(replace(row, executed=None))
    names = network_of_names(scenario.resolve().own.topology)
    for run, rows in by_run.items():
        if set(table.environment_of(rows[0])) & set(_ODD):
            continue
        network = network_in_words(table.network_of(rows[0]), names)
        expectation = Expectation(scenario, network=network)
        of_run = header.runs.get(run)
        health = (of_run.health if of_run else None) or header.health
        note = (of_run.health_note if of_run else "") or header.health_note
        found, _ = curves.of_table(replace(table, blocks=tuple(rows)), table.name, scenario)
        for those in _alike(found).values():
            try:
                curve = _median(those)
                compared = expectation.compared(curve.kind, curve.bytes)
            except TunerError:  # what was forced is not emulated
                continue
            settings = dict(curve.kind.shape.settings)
            if set(settings) & set(_ODD) or (settings.get(_ODD_NVLS) == "0" and not compared.forced):
                continue
            yield PublicCurve(
                table=table.name,
                run=run,
                site=header.site or table.name,
                health=health.value,
                health_note="" if health.value == "healthy" else note,
                gpu=gpu_word(header.gpu),
                adapters=header.adapters.count,
                adapter_gbps=header.adapters.gbps,
                machine=compared.machine,
                nodes=compared.nodes,
                gpus_per_node=compared.gpus_per_node,
                collective=compared.collective,
                forced=compared.forced,
                in_place=curve.kind.in_place,
                bytes=tuple(map(int, curve.bytes)),
                time_us=tuple(_rounded(each) for each in curve.time_us.tolist()),
                model_us=tuple(_rounded(each) for each in compared.model_us.tolist()),
                own=own,
            )


def _one_run(table: Measurements) -> Measurements:
    """The table in which all runs with the same variables and network have the name of the first of these runs."""
    first: dict[object, str] = {}
    rows = []
    for row in table.blocks:
        key = tuple(sorted(table.environment_of(row).items())), table.network_of(row)
        rows.append(replace(row, run=first.setdefault(key, row.run)))
    return replace(table, blocks=tuple(rows))


def gpu_word(gpu: str) -> str:
    """The word of a GPU's name that names its model: ``H100`` in ``NVIDIA H100 80GB HBM3``."""
    words = gpu.split(",")[0].replace("NVIDIA ", "").split()
    return " ".join(words[:3]) if words[:1] == ["RTX"] else words[0].partition("-")[0] if words else ""


def _alike(found: list[Curve]) -> dict[object, list[Curve]]:
    """Groups curves that differ only in their data type."""
    alike: dict[object, list[Curve]] = defaultdict(list)
    for each in found:
        kind = each.kind
        alike[kind.shape, kind.request.collective.name, kind.in_place].append(each)
    return alike


def _median(those: list[Curve]) -> Curve:
    times: dict[int, list[float]] = defaultdict(list)
    for each in those:
        for size, time in zip(each.bytes.tolist(), each.time_us.tolist(), strict=True):
            times[size].append(time)
    sizes = sorted(times)
    us = np.array([median(times[size]) for size in sizes])
    return replace(those[0], bytes=np.array(sizes, np.uint64), time_us=us, lines=((),) * len(sizes), worst=None)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
