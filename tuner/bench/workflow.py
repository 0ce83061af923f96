"""Measures into a file, on a simulated machine or on GPUs: the workflow of ``nccl-tuner measure``."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tuner.base.errors import BadMeasurement
from tuner.base.files import write_text
from tuner.base.frames import Rows
from tuner.base.names import Collective
from tuner.base.records import json_form
from tuner.bench.backend import Backend, Options
from tuner.bench.loop import PLAIN_CALLS, How, Loop, Settings, Wanted, points, tasks
from tuner.scenario import Scenario
from tuner.times.measured import samples
from tuner.times.measured.header import noting, scenario_of
from tuner.times.results import LateRank, MeasuredResult, Result, late_ranks, record, results

DEFAULT = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
INTERRUPTED = "interrupted"

Opener = Callable[[Path, int], Backend | None]  # gets the file, and the number of its sample blocks
# The inner function gets the number of blocks so far
Progress = Callable[[Loop], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls to measure, and how precisely. Without ``sizes`` (nBytes): powers of two from 8 B to 1 GiB."""

    collectives: Sequence[Collective] = DEFAULT
    sizes: Sequence[int] | None = None
    how: How = PLAIN_CALLS
    wanted: Wanted = field(default_factory=Wanted)
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class MeasuringResult:
    """What a file holds after a measurement.

    ``ended`` says why measuring stopped: ``precise``, ``rounds``, ``budget`` or ``interrupted``. ``blocks`` counts the
    sample blocks of the whole file, ``new_blocks`` the blocks that this run added. ``results`` are the results of the
    plan's calls, in us; they can be made into a data frame. ``late_ranks`` are the ranks that end later than the others
    in most sample blocks.
    """

    file: Path
    ended: str
    blocks: int
    new_blocks: int
    ranks: int
    results: Rows[MeasuredResult] = field(metadata=json_form(convert=list))
    backend: str
    late_ranks: tuple[LateRank, ...]
    scenario: Scenario = field(repr=False, metadata=json_form(omitted=True))
    title: str = field(repr=False, metadata=json_form(omitted=True))  # title of the communicator
    # The results with their estimates
    summaries: tuple[Result, ...] = field(repr=False, metadata=json_form(omitted=True))


def simulated(scenario: Scenario, seed: int = 0, *, nothing_planted: bool = False) -> Opener:
    """Opens a simulated machine whose hidden times the seed draws; with ``nothing_planted``, its times are those of
    NCCL's model.
    """

    def opened(out: Path, blocks: int) -> Backend:
        from tuner.bench.simulated import Simulated

        return Simulated(scenario, seed, {} if nothing_planted else None, after=blocks)

    return opened


def gpus(options: Options | None = None) -> Opener:
    """Opens the available GPUs. NCCL's view of the machine is written beside the file of measurements."""

    def opened(out: Path, blocks: int) -> Backend | None:
        from tuner.bench.opened import fresh

        return fresh(replace(options or Options(), topology=topology_beside(out)))

    return opened


def topology_beside(out: Path) -> Path:
    """Path of NCCL's view of the machine, beside the file of measurements."""
    return out.with_name(f"{out.name}.topology.xml")


def _silent(loop: Loop) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda blocks: None)


def measure(out: Path, opener: Opener, plan: Plan = Plan(), progress: Progress = _silent) -> MeasuringResult | None:
    """Measures into ``out`` and continues an existing file; None on ranks other than 0, which only serve.

    After Ctrl-C, what was measured is kept. BadInput for what cannot be measured here, BadMeasurement for a file that
    was measured with other settings, MeasuringFailed if measuring fails.
    """
    there = samples.existing(out)
    before = there.blocks if there else ()
    opened = opener(out, len(before))
    if opened is None:
        return None
    with closing(opened) as backend:
        header = backend.describe()
        if there is not None:
            try:
                samples.check_same(out, there, header)
            except BadMeasurement:
                if there.header.topology_xml is not None:  # NCCL has just dumped another communicator's topology there
                    write_text(topology_beside(out), there.header.topology_xml)
                raise
        calls = points(list(dict.fromkeys(plan.collectives)), plan.sizes, backend.ranks, plan.how)
        wanted = tasks(backend, calls, plan.wanted)
        with samples.Writer(out, noting(header, asdict(plan.settings))) as writer:
            ended = _run(Loop(backend, wanted, plan.settings, writer.add, before), progress)
            # Read from the file, not from the loop: Ctrl-C may come when a block is only in the file
            kept = samples.read(out).blocks
    requested = set(calls)
    summaries = tuple(results(block for block in kept if block.point in requested))
    return MeasuringResult(
        file=out,
        ended=ended,
        blocks=len(kept),
        new_blocks=len(kept) - len(before),
        ranks=backend.ranks,
        results=Rows(tuple(record(each, backend.ranks) for each in summaries)),
        backend=str(header.backend),
        late_ranks=tuple(late_ranks((block for block in kept if block.point in requested), header.launcher)),
        scenario=scenario_of(header),
        title=header.communicator,
        summaries=summaries,
    )


def _run(loop: Loop, progress: Progress) -> str:
    """Measures; returns why there are no more blocks."""
    try:
        with progress(loop) as show:
            for blocks, _ in enumerate(loop.run(), start=1):
                show(blocks)
    except KeyboardInterrupt:
        return INTERRUPTED
    assert loop.end is not None
    return loop.end
