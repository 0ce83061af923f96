"""Explains a call on symmetric windows: the times of NCCL's symmetric kernels, and the pick on the classic path."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Collective
from tuner.base.nouns import Choice
from tuner.base.numerics import SizeArray, f32, is_time, shortest
from tuner.base.records import json_form
from tuner.base.view import column
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Pick, Selection, of_picks
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A symmetric kernel with the number of blocks that NCCL's model chooses for it.

    NCCL takes the kernel with the lowest ``score_us``: the time, raised by a share for each block.
    """

    kernel: str
    blocks: int
    time_us: float
    score_us: float


@dataclass(frozen=True, slots=True)
class WindowExplanation:
    """A call of ``bytes`` (NCCL's nBytes) on symmetric windows.

    ``taken_by`` names the symmetric kernel or the copy engines; it is None if the call stays on the classic path.
    ``blocks`` and ``threads`` are what is launched, so they are those of the classic pick on the classic path.
    ``kernels`` are the symmetric kernels that can execute the call, the lowest score first. ``classic`` is NCCL's pick
    for the call without windows; None if nothing can run it. The times of ``kernels`` and ``classic`` are from two
    models, which NCCL never compares.
    """

    collective: Collective
    bytes: int
    taken_by: str | None
    blocks: int
    threads: int
    kernels: tuple[KernelTime, ...]
    classic: Pick | None


def explain_window(scenario: Scenario, request: Request, size: int) -> WindowExplanation:
    """Explains one call. BadInput for what is not emulated, NoAlgorithm if nothing can execute the call."""
    return _explained(Selection(scenario.communicator()), request, size)


def explain_windows(scenario: Scenario, like: Request, sizes: Sequence[int]) -> tuple[WindowExplanation, ...]:
    """Explains a call of each collective that has symmetric kernels, at each of the ``sizes`` (nBytes) that are not too
    small for the collective.

    The calls equal ``like`` except for the collective. BadInput for what is not emulated, NoAlgorithm if nothing can
    execute any of the calls.
    """
    selection = Selection(scenario.communicator())
    selection.check_buffers(like.buffers)
    found: list[WindowExplanation] = []
    refused: NoAlgorithm | None = None
    for collective in sorted(selection.communicator.release.symmetric.kernels):
        request = replace(like, collective=collective)
        unit = request.unit_bytes(scenario.ranks)
        for size in sizes:
            try:
                found += [_explained(selection, request, size)] if size >= unit else []
            except NoAlgorithm as error:
                refused = error
    if not found and refused is not None:
        raise refused
    return tuple(found)


def _explained(selection: Selection, request: Request, size: int) -> WindowExplanation:
    (path,) = selection.non_classic_paths(request, size)
    classic = classic_pick(selection, request, size)
    if path is None and classic is None:
        selection.pick(request, size)  # which says why
    launched = (path.blocks, path.threads) if path else (classic.channels, classic.threads) if classic else (0, 0)
    return WindowExplanation(
        collective=request.collective,
        bytes=size,
        taken_by=None if path is None else path.name,
        blocks=launched[0],
        threads=launched[1],
        kernels=kernel_times(selection, request, size),
        classic=classic,
    )


def kernel_times(selection: Selection, request: Request, size: int) -> tuple[KernelTime, ...]:
    """The symmetric kernels that can execute a call of ``size`` bytes (nBytes), the lowest score first.

    BadInput for what is not emulated.
    """
    weighed = symmetric.weighed(selection.communicator, request, size)
    kernels = [KernelTime(each.kernel, each.blocks, shortest(each.time_us), shortest(each.score)) for each in weighed]
    return tuple(sorted(kernels, key=lambda each: each.score_us))


def classic_pick(selection: Selection, request: Request, size: int) -> Pick | None:
    """What NCCL picks for a call on the classic path, even if another path takes it; None if nothing can run it
    there.
    """
    try:
        return of_picks(selection.classic_pick(request, size))[0]
    except NoAlgorithm:
        return None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The fastest combination besides the pick, such as ``Ring/LL``, and by how much it is slower than the pick."""

    name: str = field(metadata=column("runner-up", spare=4, key="runner_up"))
    time_us: float
    slower_percent: float = field(metadata=column(key="runner_up_slower_percent"))


@dataclass(frozen=True, slots=True)
class NonClassicPick(Choice):
    """A call that bypasses algorithm and protocol; ``bypass`` says what executes it.

    ``symmetric_model_us`` is its time by NCCL's model of symmetric kernels, not by the model of algorithms; None for
    copy engines, which NCCL uses without predicting a time, and for what the real library launched. ``runner_up`` is
    the symmetric kernel that comes next by that model; NCCL compares kernels by time plus a share that it adds for each
    block. ``instead_of`` is NCCL's pick for the call on plain buffers; None if nothing can run it there.
    """

    symmetric_model_us: float | None = field(default=None, metadata=json_form(optional=True))
    runner_up: RunnerUp | None = field(default=None, metadata=json_form(optional=True))
    instead_of: Pick | None = field(default=None, metadata=json_form(optional=True))

    @classmethod
    def by(cls, path: NonClassicPath, *more: Any) -> "NonClassicPick":
        """The pick of a call that takes the non-classic ``path``; ``more`` has the values of the fields from
        ``symmetric_model_us`` on.
        """
        return cls(None, None, path.blocks, path.threads, *more, bypass=path.name)

    @property
    def time_us(self) -> float | None:
        """Time by NCCL's model of symmetric kernels."""
        return self.symmetric_model_us


AnyPick: TypeAlias = Pick | NonClassicPick


def picks_of(selection: Selection, request: Request, sizes: SizeArray) -> list[AnyPick]:
    """The pick of each size, in bytes, including sizes that bypass the algorithms. NoAlgorithm if nothing can run,
    BadInput for what is not emulated.
    """
    paths = selection.non_classic_paths(request, sizes)
    stays = np.array([path is None for path in paths], bool)
    classic = iter(of_picks(selection.classic_pick(request, sizes[stays])) if stays.any() else ())
    return [
        next(classic) if path is None else bypassing_pick(selection, request, size, path)
        for size, path in zip(sizes.tolist(), paths, strict=True)
    ]


def times_us(selection: Selection, request: Request, sizes: SizeArray, picks: Sequence[AnyPick]) -> list[float | None]:
    """The time of each pick at its size in ``sizes`` (bytes), by this communicator's models, [size].

    The time is None if the pick cannot run on this communicator, or if no model has a time.
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
    """The new pick's time divided by the old pick's; None if either time is missing, or if the times are from two
    models.
    """
    (was, was_us), (becomes, becomes_us) = old, new
    if not (is_time(was_us) and is_time(becomes_us)) or isinstance(was, Pick) is not isinstance(becomes, Pick):
        return None
    return shortest(f32(becomes_us) / f32(was_us))


def bypassing_pick(selection: Selection, request: Request, size: int, path: NonClassicPath) -> NonClassicPick:
    """The pick of a call of ``size`` bytes (nBytes) that takes ``path`` instead of an algorithm: its time, the next
    kernel, and the classic pick that it replaces.
    """
    instead_of = classic_pick(selection, request, size)
    if path.kernel is None:
        return NonClassicPick.by(path, None, None, instead_of)
    own, *others = kernel_times(selection, request, size)
    slower = [RunnerUp(each.kernel, each.time_us, 100 * (each.score_us / own.score_us - 1)) for each in others[:1]]
    return NonClassicPick.by(path, own.time_us, slower[0] if slower else None, instead_of)
