"""Where two smaller calls would beat one, which default runs alone show: t(2 B) > 2 t(B) beyond the noise."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tuner.base.names import Collective, DataType
from tuner.base.records import json_form
from tuner.times.records.samples import Combination
from tuner.times.regret.noise import Group, Noise, group_of
from tuner.times.regret.records import Arm, Call, MeasuredCall


@dataclass(frozen=True, slots=True)
class SplitGain:
    """``parts`` calls of ``part_bytes``, one after the other, take ``parts_us`` together: less than one of ``bytes``.

    ``gain`` is the one's time over theirs, minus 1; ``low`` where its 95 % interval begins. ``pick`` and ``part_pick``
    are NCCL's picks at both sizes, as emulated.
    """

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    in_place: bool
    setting: str
    bytes: int
    part_bytes: int
    parts: int
    time_us: float
    parts_us: float
    gain: float
    low: float
    pick: Combination = field(metadata=json_form(convert=str))
    part_pick: Combination = field(metadata=json_form(convert=str))


def split_gains(calls: Sequence[MeasuredCall], noises: Mapping[Group, Noise]) -> list[SplitGain]:
    """Between neighbouring sizes of NCCL's own choices, where the larger is a multiple of the smaller."""
    curves: dict[tuple[object, ...], list[tuple[MeasuredCall, Arm]]] = defaultdict(list)
    for one in calls:
        if one.default is not None and group_of(one.call) in noises:
            curves[one.call.curve].append((one, one.default))
    return [each for curve in curves.values() for each in _of_curve(curve, noises[group_of(curve[0][0].call)])]


def _of_curve(curve: Sequence[tuple[MeasuredCall, Arm]], noise: Noise) -> Iterator[SplitGain]:
    for (small, part), (large, whole) in pairwise(curve):
        call: Call = large.call
        parts, rest = divmod(call.bytes, small.call.bytes)
        log_gain = whole.log_us - part.log_us - float(np.log(parts))
        half = noise.between(whole, part, len(curve) - 1)
        if rest or log_gain <= half:
            continue
        yield SplitGain(
            call.collective,
            call.dtype,
            call.nodes,
            call.gpus_per_node,
            call.in_place,
            call.setting,
            call.bytes,
            small.call.bytes,
            parts,
            whole.time_us,
            parts * part.time_us,
            float(np.expm1(log_gain)),
            float(np.expm1(log_gain - half)),
            large.pick.plain,
            small.pick.plain,
        )
