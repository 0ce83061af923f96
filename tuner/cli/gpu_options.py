"""What the command line says of measuring on GPUs, and what it notes of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.base.sizes import size_bytes
from tuner.bench.gpu.states import States
from tuner.cli.command import F, option, stacked

if TYPE_CHECKING:
    from tuner.bench.loop import Loop
    from tuner.bench.workflow import Progress


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A size, or 0."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else 0 if value == "0" else size_bytes(str(value))


def _give(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is not None:
        from tuner.oracle import library

        library.give(path)


def library_option(function: F) -> F:
    """Which libnccl is asked, and measures again; the callback takes nothing of it."""
    return click.option(
        "--library",
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=_give,
        expose_value=False,
        help="This libnccl.so.2 for its release, whatever its sha256. [default: the installed wheel's, or the cached]",
    )(function)


def gpu_options(function: F) -> F:
    """How GPUs are measured; the callback takes ``library``, ``graphs_below`` and ``nccl_log``."""
    return stacked(
        function,
        click.option(
            "--library",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="With --backend gpu: this libnccl.so.2. [default: the installed wheel's]",
        ),
        option(
            "--cuda-graph-below",
            "graphs_below",
            former="--graphs-below",
            type=_Size(),
            default="64M",
            show_default=True,
            metavar="BYTES",
            help="With --backend gpu: smaller calls are timed inside CUDA graphs: the host's time does not count.",
        ),
        click.option(
            "--nccl-log",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="With --backend gpu: keep NCCL's own log, of rank 0's process.",
        ),
    )


def noting(progress: "Progress", states: States) -> "Progress":
    """The progress of a measurement, with the states noted after the first block of each round."""

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
