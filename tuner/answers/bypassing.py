"""What calls get at single sizes, whether or not they bypass the algorithms."""

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from tuner.answers.symmetric import classic_pick, kernel_times
from tuner.base.dataclass import dataclass
from tuner.base.numerics import SizeArray, f32, is_time, shortest
from tuner.base.records import json_form
from tuner.emulator.call_kind import NonClassicPath
from tuner.emulator.pick import Pick, of_picks
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The fastest combination besides the pick, ``Ring/LL``, and by how much it is slower."""

    name: str
    time_us: float
    slower_percent: float


@dataclass(frozen=True, slots=True)
class NonClassicPick:
    """A call off the classic path: ``bypass_kernel`` names what runs instead; ``channels`` are its blocks.

    ``symmetric_model_us`` is its time by NCCL's model of symmetric kernels, which is another than that of algorithms:
    None of copy engines, which NCCL takes without asking for a time, and of what the real library launched.
    ``runner_up`` is the next kernel by that model, with the share that NCCL adds for each block. ``instead_of`` is what
    the call gets on plain buffers' path; None where NCCL has nothing for it there.
    """

    bypass_kernel: str = field(metadata=json_form("leaves_for"))
    channels: int
    threads: int
    symmetric_model_us: float | None = field(default=None, metadata=json_form(optional=True))
    runner_up: RunnerUp | None = field(default=None, metadata=json_form(optional=True))
    instead_of: Pick | None = field(default=None, metadata=json_form(optional=True))

    @property
    def name(self) -> str:
        """What takes the call."""
        return self.bypass_kernel

    @property
    def time_us(self) -> float | None:
        """By NCCL's model of symmetric kernels."""
        return self.symmetric_model_us


AnyPick: TypeAlias = Pick | NonClassicPick


def picks_of(selection: Selection, request: Request, sizes: SizeArray) -> list[AnyPick]:
    """One a size, in bytes. Errors: those of :meth:`Selection.pick`, but for sizes that leave the classic path."""
    paths = selection.non_classic_paths(request, sizes)
    stays = np.array([path is None for path in paths], bool)
    classic = iter(of_picks(selection.classic_pick(request, sizes[stays])) if stays.any() else ())
    return [
        next(classic) if path is None else bypassing_pick(selection, request, size, path)
        for size, path in zip(sizes.tolist(), paths, strict=True)
    ]


def times_us(selection: Selection, request: Request, sizes: SizeArray, picks: Sequence[AnyPick]) -> list[float | None]:
    """How long each pick takes at its size of ``sizes`` (bytes), by this communicator's models, [size].

    None where it cannot run, or no model says.
    """
    staying = any(isinstance(pick, Pick) for pick in picks)
    names = [f"{algorithm.name}/{protocol.name}" for algorithm, protocol in selection.candidates(request)]
    table_us = selection.times_us(request, sizes) if staying and names else None
    found: list[float | None] = []
    for row, (size, pick) in enumerate(zip(sizes.tolist(), picks, strict=True)):
        if not isinstance(pick, Pick):
            kernels = kernel_times(selection, request, size)
            named = {NonClassicPath(each.kernel, 0, 0).name: each.time_us for each in kernels}
            found.append(named.get(pick.name))
        else:
            known = table_us is not None and pick.name in names
            found.append(shortest(table_us[row, names.index(pick.name)]) if known and table_us is not None else None)
    return found


def ratio(old: tuple[AnyPick, float | None], new: tuple[AnyPick, float | None]) -> float | None:
    """The new pick's time over the old one's; None without both times, and where they are of two models."""
    (was, was_us), (becomes, becomes_us) = old, new
    if not (is_time(was_us) and is_time(becomes_us)) or isinstance(was, Pick) is not isinstance(becomes, Pick):
        return None
    return shortest(f32(becomes_us) / f32(was_us))


def bypassing_pick(selection: Selection, request: Request, size: int, path: NonClassicPath) -> NonClassicPick:
    """A call of ``size`` bytes (nBytes) that goes by ``path``, with its time and what it would get instead."""
    instead_of = classic_pick(selection, request, size)
    if path.kernel is None:
        return NonClassicPick(path.name, path.blocks, path.threads, instead_of=instead_of)
    own, *others = kernel_times(selection, request, size)
    slower = [RunnerUp(each.kernel, each.time_us, 100 * (each.score_us / own.score_us - 1)) for each in others[:1]]
    return NonClassicPick(path.name, path.blocks, path.threads, own.time_us, slower[0] if slower else None, instead_of)
