"""Why a call on symmetric windows runs as it does: the times of NCCL's symmetric kernels beside the classic pick."""

from collections.abc import Sequence
from dataclasses import replace

from tuner.base.dataclass import dataclass
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Collective
from tuner.base.numerics import shortest
from tuner.emulator.pick import Pick, of_picks
from tuner.emulator.request import Request
from tuner.emulator.rules import symmetric
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A symmetric kernel on the blocks that NCCL's model asks for.

    NCCL takes the kernel of the least ``score_us``: the time, raised by a share for each block.
    """

    kernel: str
    blocks: int
    time_us: float
    score_us: float


@dataclass(frozen=True, slots=True)
class WindowExplanation:
    """A call of ``bytes`` (NCCL's nBytes) on symmetric windows.

    ``taken_by`` is the symmetric kernel or the copy engines, None where the call stays on the classic path; ``blocks``
    and ``threads`` are those of the launch, of the classic pick where it stays. ``kernels`` are those that can do the
    call, the least score first. ``classic`` is what the call gets without windows: None where NCCL has nothing for it.
    The times of ``kernels`` and ``classic`` are of two models, and NCCL does not compare them with each other.
    """

    collective: Collective
    bytes: int
    taken_by: str | None
    blocks: int
    threads: int
    kernels: tuple[KernelTime, ...]
    classic: Pick | None


def explain_window(scenario: Scenario, request: Request, size: int) -> WindowExplanation:
    """Errors: those of :meth:`Selection.non_classic_paths`; NoAlgorithm where nothing can do the call."""
    return _explained(Selection(scenario.communicator()), request, size)


def explain_windows(scenario: Scenario, like: Request, sizes: Sequence[int]) -> tuple[WindowExplanation, ...]:
    """Of the collectives that have symmetric kernels, each of these sizes that it can have (nBytes).

    The calls are ``like`` that one in all but the collective. Errors: those of :meth:`Selection.non_classic_paths`;
    NoAlgorithm where nothing can do any of the calls.
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
    """The symmetric kernels that can do a call of ``size`` bytes (nBytes), the least score first.

    Errors: those of :meth:`Selection.non_classic_paths`.
    """
    weighed = symmetric.weighed(selection.communicator, request, size)
    kernels = [KernelTime(each.kernel, each.blocks, shortest(each.time_us), shortest(each.score)) for each in weighed]
    return tuple(sorted(kernels, key=lambda each: each.score_us))


def classic_pick(selection: Selection, request: Request, size: int) -> Pick | None:
    """What a call gets on the classic path, whatever takes it; None where NCCL has nothing for it there."""
    try:
        return of_picks(selection.classic_pick(request, size))[0]
    except NoAlgorithm:
        return None
