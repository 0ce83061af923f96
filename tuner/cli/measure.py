"""``nccl-tuner measure``: what is really fastest."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.base.records import to_json
from tuner.cli import measured_results, options
from tuner.cli.output import print_json
from tuner.measure.backend import Backend
from tuner.measure.loop import End, Loop, Settings
from tuner.measure.plan import How, Wanted, points, tasks
from tuner.measure.records import samples
from tuner.measure.records.header import case_of
from tuner.measure.results import results
from tuner.plugin.table.records import MAX_CHANNELS

BACKENDS = ("simulated", "gpu")
DEFAULT = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
SAY_EVERY_S = 10.0
INTERRUPTED = "interrupted"
_ENDS = {
    End.precise: "every median is within --precision",
    End.rounds: "--rounds",
    End.budget: "--budget-s",
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


@click.command(name="measure")
@options.collectives_argument
@click.option(
    "--backend",
    "kind",
    default="gpu",
    show_default=True,
    metavar="|".join(BACKENDS),
    help="The GPUs at hand, or a planted truth behind noise.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The file of measurements; an existing one is continued.",
)
@click.option("--bytes", "sizes", type=options.Sizes(), help="NCCL's nBytes. [default: powers of two, 8 to 1G]")
@click.option("--algorithms", type=Names(Algorithm, "algorithm"), default=(), help="Only these, such as ring,tree.")
@click.option("--protocols", type=Names(Protocol, "protocol"), default=(), help="Only these, such as ll,simple.")
@click.option("--channels", type=Channels(), default=(), help="These numbers of channels besides NCCL's own.")
@click.option("--in-place", is_flag=True, help="In place as well.")
@click.option("--graph", is_flag=True, help="Inside CUDA graphs.")
@click.option(
    "--precision",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
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
    "--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Runs kept per sample block."
)
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True, help="Runs before them.")
@click.option("--budget-s", type=click.FloatRange(min=0), help="Seconds until it stops. [default: no limit]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the order of sample blocks, and of what the simulated backend plants.",
)
@click.option(
    "--ranks-per-gpu",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --backend gpu: several need NCCL 2.30.3 or later.",
)
@click.option(
    "--library",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --backend gpu: this libnccl.so.2. [default: the installed wheel's]",
)
@click.option(
    "--nothing-planted",
    is_flag=True,
    help="With --backend simulated: the truth is NCCL's own model, so nothing is to be gained.",
)
@options.scenario_options
@options.request_options
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
    repeats: int,
    warmup: int,
    budget_s: float | None,
    seed: int,
    ranks_per_gpu: int,
    library: Path | None,
    nothing_planted: bool,
    dtype: DataType,
    op: Op,
    as_json: bool,
    **options_of_case: Any,
) -> None:
    """Measures COLLECTIVES (default: AllReduce, AllGather, ReduceScatter) by every algorithm and protocol.

    Ctrl-C keeps what was measured; the same command continues from there.

    \b
    nccl-tuner measure --backend simulated --seed 7 --machine dgx-h100 --nodes 2 --out run.jsonl
    nccl-tuner measure allreduce --backend simulated --machine dgx-h100 --bytes 1M,64M --channels 4,8 --out run.jsonl
    """
    if kind not in BACKENDS:
        raise BadInput(f"unknown backend {kind!r}; {one_of(BACKENDS)}")
    if options_of_case["constants"] is not None:
        raise BadInput("--constants: what is measured does not depend on them; valid for: pick, table, group")
    if nothing_planted and kind != "simulated":
        raise BadInput(f"--nothing-planted: there is nothing to plant with --backend {kind}; valid: simulated")
    there = samples.existing(out)
    before = there.blocks if there else ()
    opened = (
        _simulated(options_of_case, seed, nothing_planted, len(before))
        if kind == "simulated"
        else _gpu(out, ranks_per_gpu, library)
    )
    with closing(opened) as backend:
        header = backend.describe()
        if there is not None:
            samples.check_same(out, there, header)
        ranks = int(header["ranks"])
        calls = points(
            list(dict.fromkeys(collectives)) or DEFAULT,
            sizes,
            ranks,
            How(dtype, op, (False, True) if in_place else (False,), graph),
        )
        wanted = tasks(backend, calls, Wanted(algorithms, protocols, channels))
        settings = Settings(precision / 100, rounds, repeats, warmup, budget_s, seed)
        with samples.Writer(out, header) as writer:
            loop = Loop(backend, wanted, settings, writer.add, before)
            end = _run(loop, quiet=as_json)
            kept = samples.read(out).blocks  # not what the loop gave: Ctrl-C may come when a block is only in the file
    requested = set(calls)
    blocks = [block for block in kept if block.point in requested]
    new = len(kept) - len(before)
    if as_json:
        print_json(
            {
                "file": str(out),
                "ended": end,
                "visits": len(kept),
                "new_visits": new,
                "ranks": ranks,
                "results": [to_json(measured_results.record(result, ranks)) for result in results(blocks)],
            }
        )
    else:
        click.echo(f"# {case_of(header).title}; backend {kind}")
        click.echo("# times are medians, +- half of their 95 % confidence interval; *: NCCL's own choice")
        click.echo("\n".join(measured_results.lines(results(blocks), ranks)))
        click.echo(f"# {out}: {len(kept)} sample blocks, {new} of them new; ended: {_ENDS[end]}")
    if end == INTERRUPTED:
        click.echo(f"nccl-tuner: interrupted; {out} keeps what was measured; the same command continues", err=True)
        sys.exit(130)


def _simulated(options_of_case: dict[str, Any], seed: int, nothing_planted: bool, after: int) -> Backend:
    from tuner.measure.simulated.backend import Simulated

    return Simulated(options.scenario_of(**options_of_case), seed, {} if nothing_planted else None, after=after)


def _gpu(out: Path, ranks_per_gpu: int, library: Path | None) -> Backend:
    from tuner.measure.gpu.backend import Options
    from tuner.measure.gpu.opening import open_gpus

    backend = open_gpus(Options(ranks_per_gpu, library, topology=out.with_name(f"{out.name}.topology.xml")))
    if backend is None:  # a rank other than 0 has served it to the end
        sys.exit(0)
    return backend


def _run(loop: Loop, quiet: bool) -> str:
    """Measures; why there are no more blocks."""
    try:
        with _progress(loop, quiet) as show:
            for blocks, _ in enumerate(loop.run(), start=1):
                show(blocks)
    except KeyboardInterrupt:
        return INTERRUPTED
    assert loop.end is not None
    return loop.end


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
        yield _seldom(lambda blocks: click.echo(f"{_where(loop)}, {blocks} sample blocks ...", err=True), SAY_EVERY_S)


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
