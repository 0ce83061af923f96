"""Calibrated times of a job's calls: what each takes by measurements, beside its price by NCCL's model."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.answers import calibrated
from tuner.answers.calibrated import (
    Answering,
    CalibratedTime,
    CalibrationUsed,
    Estimate,
    NoCalibration,
    TimesWanted,
)
from tuner.base.dataclass import dataclass
from tuner.base.names import AlgoProto, Buffers
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.jobs.workload.count import Entry
from tuner.jobs.workload.price import AnyPrice, Price, Unpriced, Variant
from tuner.jobs.workload.priced import AllToAllBudget
from tuner.times.timemodel.predict import TimeModel


@dataclass(frozen=True, slots=True)
class CalibratedColumn:
    """What answers in a variant, and its estimate of each entry; None of what has no price."""

    answers: Answering
    estimates: Sequence[Estimate | None]

    def used(self, prices: Sequence[AnyPrice | Unpriced]) -> CalibrationUsed:
        """Which calibration answered, with the combinations that it never measured."""
        known = zip(prices, self.estimates, strict=True)
        return calibrated.used(
            self.answers, [(price.name, each) for price, each in known if each and isinstance(price, Price)]
        )


def column(
    variant: Variant, entries: Sequence[Entry], prices: Sequence[AnyPrice | Unpriced], wanted: TimesWanted
) -> CalibratedColumn:
    """Of the picks that ``prices`` have, with their channels. Errors: those of ``calibrated.answering``."""
    selection = Selection(variant.scenario.communicator())
    buffers = next((entry.request.buffers for entry in entries), Buffers.plain)
    model = calibrated.answering(wanted, variant.scenario, selection, buffers)
    estimates: list[Estimate | None] = [None] * len(entries)
    if isinstance(model, NoCalibration):
        return CalibratedColumn(model, estimates)
    alike: dict[tuple[Request, AlgoProto], list[int]] = defaultdict(list)
    for at, (entry, price) in enumerate(zip(entries, prices, strict=True)):
        if isinstance(price, Price):
            alike[entry.request, (price.algorithm, price.protocol)].append(at)
    for (request, algo_proto), places in alike.items():
        sizes = [entries[at].bytes for at in places]
        channels = [price.channels for at in places if isinstance(price := prices[at], Price)]
        for at, each in zip(places, _estimates(model, request, algo_proto, (sizes, channels)), strict=True):
            estimates[at] = each
    return CalibratedColumn(model, estimates)


def _estimates(
    model: TimeModel, request: Request, algo_proto: AlgoProto, launched: tuple[Sequence[int], Sequence[int]]
) -> list[Estimate]:
    """``launched``: sizes and the channels of each, which a decision table may have chosen; threads are NCCL's."""
    sizes, channels = np.array(launched[0], np.uint64), np.array(launched[1], np.int64)
    _, threads = model.selection.launched(request, sizes, algo_proto)
    algorithm, protocol = (np.full(sizes.shape, number, np.int8) for number in algo_proto)
    nccl_us = model.selection.combination_us(request, sizes, algo_proto)
    return calibrated.estimates(model, request, Picks(sizes, algorithm, protocol, nccl_us, channels, threads))


def all_to_all(answers: Answering, calls: Mapping[int, float]) -> AllToAllBudget | None:
    """AllToAlls, as many by the bytes that a rank sends in all; None without any, or without measured times of them."""
    if isinstance(answers, NoCalibration) or not calls or answers.calibration.exchange is None:
        return None
    answer = answers.all_to_all(list(calls))
    several = np.array(list(calls.values()))
    time_us, low_us, high_us = (float(each @ several) for each in (answer.time_us, answer.low_us, answer.high_us))
    return AllToAllBudget(float(several.sum()), CalibratedTime(time_us, low_us, high_us), bool(answer.measured.all()))
