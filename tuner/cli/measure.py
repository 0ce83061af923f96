"""``nccl-tuner measure``: times algorithms, protocols and channels."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, Protocol, by_name
from tuner.base.sizes import size_bytes
from tuner.bench.backend import Options
from tuner.bench.gpu.states import States
from tuner.bench.loop import End, How, Loop, Settings, Wanted
from tuner.bench.workflow import DEFAULT, INTERRUPTED, Opener, Plan, Progress, gpus, measure, simulated
from tuner.cli import options
from tuner.cli.command import F, Parsed, stacked
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.output import human_bytes, json_wanted, print_table, say, shown_as_json
from tuner.emulator.request import Request
from tuner.plugin.table.records import MAX_CHANNELS
from tuner.times.costmodels.operations import algorithm_gbs, bus_factor
from tuner.times.measured.header import DOUBLE
from tuner.times.measured.samples import Combination, Point
from tuner.times.results import Result


def _give(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is not None:
        from tuner.oracle import library

        library.give(path)


def library_option(function: F) -> F:
    """The option for the libnccl with which to measure again; its callback ignores the value."""
    return options.file_option(
        "--library",
        "FILE",
        "The libnccl.so.2 to measure with, even if it is not the published file of its release. [default: that "
        "of the installed wheel, or the cached one]",
        callback=_give,
        expose_value=False,
    )(function)


def gpu_options(function: F) -> F:
    """Options for how GPUs are measured; the callback takes ``library``, ``graphs_below`` and ``nccl_log``."""
    return stacked(
        function,
        options.file_option(
            "--library",
            "FILE",
            "With --backend gpu: the libnccl.so.2 to measure with. [default: that of the installed wheel]",
        ),
        options.option(
            "--cuda-graph-below",
            "graphs_below",
            "With --backend gpu: time calls below this size inside CUDA graphs, so that the host's time does "
            "not count.",
            type=Parsed("size", lambda text: 0 if text == "0" else size_bytes(text)),
            default="64M",
            metavar="BYTES",
        ),
        options.file_option(
            "--nccl-log", "FILE", "With --backend gpu: write the NCCL log of rank 0's process to this file."
        ),
    )


def noting(progress: "Progress", states: States) -> "Progress":
    """Wraps the progress of a measurement: notes states of the GPUs after the first block of each round."""

    @contextmanager
    def both(loop: "Loop") -> Iterator[Callable[[int], None]]:
        noted: set[int] = set()
        with progress(loop) as show:

            def shown(blocks: int) -> None:
                if loop.round not in noted:
                    noted.add(loop.round)
                    states.note(loop.round)
                show(blocks)

            yield shown

    return both


HOST_BOUND = "h (host-bound): a call takes as long as the host needs to start it, so the time on the GPUs is not known"
_Row = dict[bool, Result]  # by in_place
COLUMNS = ("us", "+- %", "algbw GB/s", "busbw GB/s", "wrong")
IN_PLACE = "in place "
SPARE = ("algbw GB/s", "in place algbw GB/s", "in place +- %", "in place busbw GB/s")  # where little room is


def print_results(results: Iterable[Result], ranks: int) -> None:
    """Prints a table for each collective; if in-place times were measured, they are beside the others."""
    rows: dict[tuple[Collective, str], dict[tuple[Point, Combination | None], _Row]] = {}
    for result in results:
        point = replace(result.point, in_place=False)
        title = f"{point.collective.name} of {point.dtype.name}"
        title += "" if point.request.moves_only else f", {point.op.name}"
        alike = rows.setdefault((point.collective, title), {}).setdefault((point, result.requested), {})
        alike[bool(result.point.in_place)] = result
    wrong = any(result.wrong for own in rows.values() for row in own.values() for result in row.values())
    for (_, title), own in rows.items():
        placements = sorted({placement for row in own.values() for placement in row})
        timed = COLUMNS if wrong else COLUMNS[:-1]
        columns = [f"{IN_PLACE if placement else ''}{name}" for placement in placements for name in timed]
        cells = [
            (human_bytes(point.bytes), _pick(requested, row), *(_timed(row, placements, len(timed), ranks)))
            for (point, requested), row in own.items()
        ]
        print_table(title, ("size", "run", *columns), cells, SPARE)


def _pick(requested: Combination | None, row: _Row) -> str:
    executed = next(iter(row.values())).executed
    shown = requested or executed
    if shown is None:
        return "*?"
    count = shown.channels or (executed.channels if executed else 0)
    channels = f" x{count}" if count else ""
    return f"{'' if requested else '*'}{shown.algorithm.name}/{shown.protocol.name}{channels}"


def _timed(row: _Row, placements: Sequence[bool], columns: int, ranks: int) -> Iterator[str]:
    for placement in placements:
        result, known = row.get(placement), None
        if result is not None and (known := result.estimate) is not None:
            algbw = algorithm_gbs(result.point.bytes, known.median_us)
            busbw = algbw * bus_factor(result.point.collective, ranks)
            within = f"{100 * known.half_width:.2f}" if known.is_bounded else "?"
            mark = "h" if result.host_bound else ""
            cells = [f"{known.median_us:.2f}{mark}", within, f"{algbw:.2f}", f"{busbw:.2f}", str(result.wrong)]
        elif result is not None:
            cells = ["replaced" if result.replaced else "-", "-", "-", "-", str(result.wrong)]
        else:
            cells = ["-"] * len(COLUMNS)
        yield from cells[:columns]


# A backend by the communicator, the seed of planted times, whether nothing is planted, and how GPUs are measured.
BACKENDS: dict[str, Callable[[options.CommunicatorOptions, int, bool, Options], Opener]] = {
    "simulated": lambda communicator, seed, unplanted, _: simulated(
        communicator.scenario(), seed, nothing_planted=unplanted
    ),
    "gpu": lambda _communicator, _seed, _unplanted, on_gpus: gpus(on_gpus),
}
REHEARSED = "tests.support.double.nccl_tuner"  # where the double is, which the wheel has not
SAY_EVERY_S = 10.0
_ENDS: dict[str, str] = {
    End.precise: "every median is within --precision",
    End.rounds: "--rounds",
    End.budget: "--budget-s",
    End.process: "this process has done its rounds; run the same command again, which continues in a fresh process",
    INTERRUPTED: INTERRUPTED,
}


def _names(members: Any, name: str) -> Parsed:
    """Reads members of an enumeration, separated by commas."""
    return Parsed(f"{name}s", lambda text: tuple(by_name(members, word.strip(), name) for word in text.split(",")))


def _channels(text: str) -> tuple[int, ...]:
    """Reads numbers of channels, separated by commas."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isdecimal() and 1 <= int(word) <= MAX_CHANNELS):
            raise BadInput(f"channels {word!r}: expected numbers from 1 to {MAX_CHANNELS}, separated by commas")
    return tuple(map(int, words))


@click.command(name="measure", cls=options.Command)
@options.under("What is measured", "--algorithms", "--protocols", "--channels", "--in-place", "--cuda-graph")
@options.under("How long", "--precision", "--rounds", "--rounds-per-process", "--repeats", "--warmup")
@options.under("On GPUs", "--library", "--cuda-graph-below", "--nccl-log")
@options.under("Without GPUs", "--seed", "--nothing-planted")
@options.collectives_argument
@options.option(
    "--backend",
    "kind",
    "Measure the GPUs of this computer, or a simulation in which known times are planted under noise.",
    default="gpu",
    metavar="|".join(BACKENDS),
)
@options.out_option("FILE", "The file of measurements to write; an existing file is continued.")
@options.sizes_option("Sizes as NCCL's nBytes. [default: powers of two, 8 to 1G]")
@options.option(
    "--algorithms", "Only measure these algorithms, such as ring,tree.", type=_names(Algorithm, "algorithm"), default=()
)
@options.option(
    "--protocols", "Only measure these protocols, such as ll,simple.", type=_names(Protocol, "protocol"), default=()
)
@options.option("--channels", "Also force these numbers of channels.", type=Parsed("channels", _channels), default=())
@options.flag("--in-place", "Measure calls in place as well.")
@options.flag("--cuda-graph", "graph", "Time calls inside CUDA graphs.")
@options.option(
    "--precision",
    "Measure each combination until the 95 % confidence interval of its median is within this percentage of the "
    "median.",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    metavar="PERCENT",
)
@options.option(
    "--rounds", "The highest number of sample blocks per combination.", type=click.IntRange(min=1), default=30
)
@options.option(
    "--rounds-per-process",
    "Number of rounds after which a fresh process continues; 3 processes are needed to tell how much processes differ.",
    type=click.IntRange(min=1),
    default=3,
)
@options.option("--repeats", "Number of timed runs per sample block.", type=click.IntRange(min=1), default=10)
@options.option("--warmup", "Number of warm-up runs before each sample block.", type=click.IntRange(min=0), default=5)
@options.option(
    "--budget-s", "Number of seconds after which measuring stops. [default: no limit]", type=click.FloatRange(min=0)
)
@options.option(
    "--seed",
    "Seed of the random order of sample blocks, and of the planted times.",
    type=click.IntRange(min=0),
    default=0,
)
@gpu_options
@options.flag(
    "--nothing-planted",
    "With --backend simulated: plant the times of NCCL's own model, so that no other choice is faster.",
)
@of_all_ranks
@options.communicator_options()
@options.call_options(buffers=False, in_place=False, windows=False)
@options.json_option
def command(
    collectives: tuple[Collective, ...],
    kind: str,
    out: Path,
    sizes: list[int] | None,
    algorithms: tuple[Algorithm, ...],
    protocols: tuple[Protocol, ...],
    channels: tuple[int, ...],
    in_place: bool,
    graph: bool,
    precision: float,
    rounds: int,
    rounds_per_process: int,
    repeats: int,
    warmup: int,
    budget_s: float | None,
    seed: int,
    library: Path | None,
    graphs_below: int,
    nccl_log: Path | None,
    nothing_planted: bool,
    call: Request,
    communicator: options.CommunicatorOptions,
) -> None:
    """Measures COLLECTIVES (default: AllReduce, AllGather, ReduceScatter) with every algorithm and protocol.

    Ctrl-C keeps what was measured so far; the same command continues from there.

    \b
    nccl-tuner measure --backend simulated --seed 7 --machine dgx-h100 --nodes 2 --out run.jsonl
    nccl-tuner measure allreduce --backend simulated --machine dgx-h100 --bytes 1M --channels 4,8 --out allreduce.jsonl
    """
    if kind not in BACKENDS:
        moved = f"; in a checkout: python -m {REHEARSED} measure --backend double" if kind == DOUBLE else ""
        raise BadInput(f"unknown backend {kind!r}; {one_of(BACKENDS)}{moved}")
    if communicator["constants"] is not None:
        raise BadInput("--constants has no effect on measured times: remove it ('pick' and 'table' take it)")
    if nothing_planted and kind == "gpu":
        raise BadInput(f"--nothing-planted only applies with --backend simulated, not {kind}")
    ranks_per_gpu = communicator["ranks_per_gpu"] or 1
    on_gpus = Options(ranks_per_gpu, library, log=nccl_log, graphs_below_bytes=graphs_below, registered=graph)
    opener = BACKENDS[kind](communicator, seed, nothing_planted, on_gpus)
    plan = Plan(
        collectives or DEFAULT,
        sizes,
        How(call.dtype, call.op, (False, True) if in_place else (False,), graph),
        Wanted(algorithms, protocols, channels),
        Settings(precision / 100, rounds, repeats, warmup, budget_s, seed, rounds_per_process),
    )
    progress: Progress = partial(_progress, quiet=json_wanted())
    if kind == "gpu":
        progress = noting(progress, States(out.with_name(f"{out.name}.gpu-states.jsonl")))
    measured = measure(out, opener, plan, progress)
    if measured is None:  # a rank other than 0 has served it to the end
        sys.exit(0)
    wrong = [result for result in measured.summaries if result.wrong]
    said = [
        f"{len(wrong)} of {len(measured.summaries)} rows have wrong results: a GPU, a link or libnccl is faulty"
    ] * bool(wrong)
    said += [
        f"rank {late.rank} is late: in {late.late_blocks} of {late.blocks} sample blocks it ends after the median rank "
        f"by {late.late:.2f} of a call's time"
        for late in measured.late_ranks
    ]
    if not shown_as_json(measured):
        for line in said:
            say(line)
        say(f"{measured.title}; backend {measured.backend}")
        say("times are medians, with +- half of their 95 % confidence interval; * marks NCCL's own choice")
        if any(result.host_bound for result in measured.summaries):
            say(HOST_BOUND)
        say()
        print_results(measured.summaries, measured.ranks)
        say(
            f"{out}: {measured.blocks} sample blocks, {measured.new_blocks} of them new; "
            f"ended: {_ENDS[measured.ended]}" + (", of what had no wrong results" if wrong else "")
        )
    if measured.ended == INTERRUPTED:
        say(f"nccl-tuner: interrupted; {out} keeps what was measured; the same command continues", err=True)
        sys.exit(130)
    if wrong:
        say(f"nccl-tuner: {said[0]}; the times of these sample blocks are not counted", err=True)
        sys.exit(1)


@contextmanager
def _progress(loop: Loop, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Makes a function that shows progress on stderr from the number of blocks: a bar with the time left on a terminal,
    else a line from time to time."""
    if quiet:
        yield lambda blocks: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("about"), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task(_where(loop), total=1.0)

            def show(blocks: int) -> None:
                progress.update(bar, completed=loop.share_done(), description=_where(loop))

            yield _seldom(show, 0.2)
    else:
        yield _seldom(lambda blocks: say(f"{_where(loop)}, {blocks} sample blocks ...", err=True), SAY_EVERY_S)


def _where(loop: Loop) -> str:
    return f"round {loop.round + 1}: {len(loop.open)} of {len(loop.known)} combinations not yet precise enough"


def _seldom(show: Callable[[int], None], every_s: float) -> Callable[[int], None]:
    last_s = time.monotonic()

    def maybe(blocks: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            show(blocks)

    return maybe
