"""Records of measured arms: a call, an arm of it, and all arms of a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tuner.base.names import Collective, DataType
from tuner.base.records import json_form
from tuner.times.calibration.measured_calls import Site
from tuner.times.records.samples import Combination

DEFAULT = "default"


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """What was measured; ``bytes`` is NCCL's nBytes. ``setting`` is the run's network and its other variables."""

    collective: Collective
    dtype: DataType
    nodes: int
    gpus_per_node: int
    in_place: bool
    setting: str
    bytes: int

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def curve(self) -> tuple[object, ...]:
        """What calls share that differ in size alone."""
        return (self.collective, self.dtype, self.nodes, self.gpus_per_node, self.in_place, self.setting)


@dataclass(frozen=True)
class Arm:
    """Times of one call, us: NCCL's own choice (``label`` default), or with something forced, which the label names.

    ``combination`` is what NCCL ran: as logged, else as emulated under the arm's variables; its channels are those that
    were forced, else 0. ``logged`` is what NCCL's log says, with the channels there; None without one.
    """

    label: str
    combination: Combination = field(metadata=json_form(convert=str))
    times_us: tuple[float, ...]
    logged: Combination | None = field(metadata=json_form(convert=lambda logged: logged and str(logged)))

    @property
    def is_default(self) -> bool:
        """Whether NCCL chose by itself."""
        return self.label == DEFAULT

    @cached_property
    def log_us(self) -> float:
        """Logarithm of the typical time: the median of the repeats."""
        return float(np.median(np.log(self.times_us)))

    @property
    def time_us(self) -> float:
        """The typical time, us."""
        return float(np.exp(self.log_us))


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """All arms of a call. ``pick`` is NCCL's with its channels, as emulated with the variables ``environment``."""

    call: Call
    pick: Combination
    default: Arm | None
    forced: tuple[Arm, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The default first."""
        return (*([self.default] if self.default else []), *self.forced)


@dataclass(frozen=True, slots=True)
class MeasuredArms:
    """All calls of one machine and release, sorted. ``skipped`` counts rows that could not be placed, by reason.

    ``noise_percent`` is what the source says of its noise, by the number of nodes from which it holds. ``simulated``
    are the files whose times no machine took.
    """

    site: Site
    calls: tuple[MeasuredCall, ...]
    skipped: Mapping[str, int]
    noise_percent: Mapping[str, float]
    simulated: tuple[str, ...] = ()
