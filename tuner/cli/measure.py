"""``nccl-tuner measure``: what is really fastest."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.bench.double.settings import DoubleSettings, Fault, FaultKind
from tuner.bench.gpu.options import Options
from tuner.bench.gpu.states import States
from tuner.bench.loop import End, Loop, Settings
from tuner.bench.plan import How, Wanted
from tuner.bench.workflow import DEFAULT, INTERRUPTED, Plan, Progress, double, gpus, measure, simulated
from tuner.cli import measured_results, options
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.gpu_options import gpu_options, noting
from tuner.cli.output import print_json, say
from tuner.plugin.table.records import MAX_CHANNELS

BACKENDS = ("simulated", "gpu", "double")
SAY_EVERY_S = 10.0
_ENDS: dict[str, str] = {
    End.precise: "every median is within --precision",
    End.rounds: "--rounds",
    End.budget: "--budget-s",
    End.process: "this process has its rounds; the same command goes on in another",
    INTERRUPTED: INTERRUPTED,
}


class Names(click.ParamType):  # type: ignore[type-arg]
    """Members of an enumeration, separated by commas."""

    def __init__(self, members: Any, name: str) -> None:
        self._one = options.Named(members, name)
        self.name = f"{name}s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._one.convert(word.strip(), param, ctx) for word in str(value).split(","))


class Channels(click.ParamType):  # type: ignore[type-arg]
    """Numbers of channels, separated by commas."""

    name = "channels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        for word in words:
            if not (word.isdecimal() and 1 <= int(word) <= MAX_CHANNELS):
                raise BadInput(f"channels {word!r}; valid: 1 to {MAX_CHANNELS}, separated by commas")
        return tuple(map(int, words))


@click.command(name="measure", cls=options.Command)
@options.under("What is measured", "--algorithms", "--protocols", "--channels", "--in-place", "--cuda-graph")
@options.under("How long", "--precision", "--rounds", "--rounds-per-process", "--repeats", "--warmup")
@options.under("On GPUs", "--library", "--cuda-graph-below", "--nccl-log")
@options.under("Without GPUs", "--seed", "--nothing-planted", "--process-per-rank", "--fault")
@options.collectives_argument
@click.option(
    "--backend",
    "kind",
    default="gpu",
    show_default=True,
    metavar="|".join(BACKENDS),
    help="The GPUs at hand; a planted truth behind noise; or a rehearsal of gpu without GPUs.",
)
@options.out_option("FILE", "The file of measurements; an existing one is continued.")
@click.option("--bytes", "sizes", type=options.Sizes(), help="NCCL's nBytes. [default: powers of two, 8 to 1G]")
@click.option("--algorithms", type=Names(Algorithm, "algorithm"), default=(), help="Only these, such as ring,tree.")
@click.option("--protocols", type=Names(Protocol, "protocol"), default=(), help="Only these, such as ll,simple.")
@click.option("--channels", type=Channels(), default=(), help="These numbers of channels besides NCCL's own.")
@click.option("--in-place", is_flag=True, help="In place as well.")
@options.option("--cuda-graph", "graph", former="--graph", is_flag=True, help="Inside CUDA graphs.")
@click.option(
    "--precision",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="A median is known when its 95 % confidence interval is within this of it.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="The most sample blocks of each combination.",
)
@click.option(
    "--rounds-per-process",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Rounds until it goes on in a fresh process; how much processes differ takes 3 of them.",
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Runs kept per sample block."
)
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, help="Runs before them.")
@click.option("--budget-s", type=click.FloatRange(min=0), help="Seconds until it stops. [default: no limit]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the order of sample blocks, and of what the backends simulated and double plant.",
)
@gpu_options
@click.option(
    "--nothing-planted",
    is_flag=True,
    help="With --backend simulated or double: the truth is NCCL's own model, so nothing is to be gained.",
)
@click.option(
    "--process-per-rank",
    is_flag=True,
    help="With --backend double: a process for each rank, as a launcher starts them. [default: one for all]",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND:rank=N,after=N,...",
    help=f"With --backend double: what goes wrong: {', '.join(FaultKind)}.",
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
    process_per_rank: bool,
    faults: tuple[str, ...],
    call: options.CallOptions,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """Measures COLLECTIVES (default: AllReduce, AllGather, ReduceScatter) by every algorithm and protocol.

    Ctrl-C keeps what was measured; the same command continues from there.

    \b
    nccl-tuner measure --backend simulated --seed 7 --machine dgx-h100 --nodes 2 --out run.jsonl
    nccl-tuner measure allreduce --backend simulated --machine dgx-h100 --bytes 1M,64M --channels 4,8 --out run.jsonl
    """
    if kind not in BACKENDS:
        raise BadInput(f"unknown backend {kind!r}; {one_of(BACKENDS)}")
    if communicator["constants"] is not None:
        raise BadInput("--constants: what is measured does not depend on them; valid for: pick, table, group")
    if nothing_planted and kind == "gpu":
        raise BadInput(f"--nothing-planted: there is nothing to plant with --backend {kind}; valid: simulated, double")
    if (process_per_rank or faults) and kind != "double":
        raise BadInput(f"--process-per-rank, --fault: not with --backend {kind}; valid: double")
    ranks_per_gpu = communicator["ranks_per_gpu"] or 1
    on_gpus = Options(ranks_per_gpu, library, log=nccl_log, graphs_below_bytes=graphs_below, registered=graph)
    if kind == "gpu":
        opener = gpus(on_gpus)
    elif kind == "simulated":
        opener = simulated(communicator.scenario(), seed, nothing_planted=nothing_planted)
    else:
        settings = DoubleSettings(
            communicator.scenario(),
            seed,
            planted=not nothing_planted,
            process_per_rank=process_per_rank,
            faults=tuple(map(Fault.parsed, faults)),
        )
        opener = double(settings, on_gpus)
    plan = Plan(
        collectives or DEFAULT,
        sizes,
        How(call.dtype, call.op, (False, True) if in_place else (False,), graph),
        Wanted(algorithms, protocols, channels),
        Settings(precision / 100, rounds, repeats, warmup, budget_s, seed, rounds_per_process),
    )
    progress: Progress = partial(_progress, quiet=as_json)
    if kind == "gpu":
        progress = noting(progress, States(out.with_name(f"{out.name}.gpu-states.jsonl")))
    measured = measure(out, opener, plan, progress)
    if measured is None:  # a rank other than 0 has served it to the end
        sys.exit(0)
    wrong = [result for result in measured.summaries if result.wrong]
    said = [f"{len(wrong)} of {len(measured.summaries)} rows have wrong results: GPUs, links or libnccl fail"] * bool(
        wrong
    )
    said += [
        f"rank {late.rank} is late: it ends {late.late:.2f} of a call after the middle of the ranks, in "
        f"{late.late_blocks} of {late.blocks} sample blocks"
        for late in measured.late_ranks
    ]
    if as_json:
        print_json(measured)
    else:
        for line in said:
            say(f"# {line}")
        say(f"# {measured.title}; backend {measured.backend}")
        say("# times are medians, +- half of their 95 % confidence interval; *: NCCL's own choice")
        if any(result.host_bound for result in measured.summaries):
            say(f"# {measured_results.HOST_BOUND}")
        say("\n".join(measured_results.lines(measured.summaries, measured.ranks)))
        say(
            f"# {out}: {measured.blocks} sample blocks, {measured.new_blocks} of them new; "
            f"ended: {_ENDS[measured.ended]}" + (", of what had no wrong results" if wrong else "")
        )
    if measured.ended == INTERRUPTED:
        say(f"nccl-tuner: interrupted; {out} keeps what was measured; the same command continues", err=True)
        sys.exit(130)
    if wrong:
        say(f"nccl-tuner: {said[0]}; no time of such sample blocks counts", err=True)
        sys.exit(1)


@contextmanager
def _progress(loop: Loop, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with the time left on a terminal, else a line every so often, on stderr; takes the blocks so far."""
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
    return f"round {loop.round + 1}: {len(loop.open)} of {len(loop.known)} not known yet"


def _seldom(show: Callable[[int], None], every_s: float) -> Callable[[int], None]:
    last_s = time.monotonic()

    def maybe(blocks: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            show(blocks)

    return maybe
