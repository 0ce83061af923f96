"""Options that several commands share, and the parsers of their values; the options of communicators and calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.changes import KEYS
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.base.sizes import size_bytes as size_bytes
from tuner.base.sizes import size_list
from tuner.cli.call_options import CallOptions as CallOptions
from tuner.cli.call_options import call_options as call_options
from tuner.cli.command import Command as Command
from tuner.cli.command import F, stacked
from tuner.cli.command import hidden as hidden
from tuner.cli.command import option as option
from tuner.cli.command import under as under
from tuner.cli.communicator_options import CONSTANTS
from tuner.cli.communicator_options import CommunicatorOptions as CommunicatorOptions
from tuner.cli.communicator_options import Numbers as Numbers
from tuner.cli.communicator_options import after as after
from tuner.cli.communicator_options import communicator_options as communicator_options
from tuner.cli.communicator_options import of_nodes_option as of_nodes_option
from tuner.cli.communicator_options import say_whose_parts as say_whose_parts
from tuner.cli.communicator_options import skeleton_options as skeleton_options
from tuner.cli.named import AnyCall as AnyCall
from tuner.cli.named import Named as Named
from tuner.cli.release_names import Change
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated list of sizes, and of ranges of them."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        return value if isinstance(value, list) else size_list(str(value))


def out_option(metavar: str, says: str, former: str | None = None, required: bool = True) -> Callable[[F], F]:
    """The file to write, as the parameter ``out``: ``-o`` and ``--out``, and its ``former`` name with a note."""
    kind = click.Path(path_type=Path)
    return option("-o", "--out", "out", required=required, type=kind, metavar=metavar, help=says, former=former)


def time_options(default: str) -> Callable[[F], F]:
    """Whose times are shown, as one parameter ``times``: None where they are NCCL's alone."""

    def decorated(function: F) -> F:
        @wraps(function)
        def timed(*given: Any, time: str | None, calibration: str | None, **others: Any) -> Any:
            whose = time or (default if calibration is None else "calibrated")
            return function(*given, times=_times_wanted(whose, calibration), **others)

        for each in (
            option(
                "--calibration",
                metavar="NAME|FILE",
                heading=CONSTANTS,
                help="Calibrated times by this calibration; implies --time calibrated. [default: that of the machine, "
                "else of another with GPUs of its generation]",
            ),
            option(
                "--time",
                type=click.Choice(("nccl", "calibrated", "both")),
                metavar="WHOSE",
                help="Times shown: nccl (its own prediction), calibrated (from measurements, with 90 % intervals) or "
                f"both; picks are NCCL's in any case. [default: {default}]",
            ),
        ):
            timed = each(timed)
        return timed  # type: ignore[return-value]

    return decorated


def _times_wanted(whose: str, calibration: str | None) -> "TimesWanted | None":
    if whose == "nccl":
        if calibration is not None:
            raise BadInput(f"--calibration {calibration} with --time nccl; valid with it: --time calibrated, both")
        return None
    from tuner.answers.calibrated import TimesWanted  # plain answers do without it

    return TimesWanted(whose == "both", calibration)


OUTPUT = "Output"
any_call_argument = click.argument("collective", type=AnyCall(Collective, "collective"))
collective_argument = click.argument("collective", type=Named(Collective, "collective"))
collectives_argument = click.argument(
    "collectives", nargs=-1, type=Named(Collective, "collective"), metavar="[COLLECTIVE]..."
)
bytes_option = click.option(
    "--bytes",
    "sizes",
    type=Sizes(),
    default="8,1K,32K,256K,1M,4M,16M,64M,256M,1G",
    show_default=True,
    help="NCCL's nBytes: count x type size, times the ranks for AllGather and ReduceScatter; 64K is 65536; 8..1G*2 as "
    "nccl-tests' -b 8 -e 1G -f 2.",
)
change_option = click.option(
    "--change",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    type=Change(),
    help=f"What is different afterwards: {', '.join(KEYS)}, or a NCCL variable; repeatable.",
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds a libnccl answer may take."
)
csv_option = option(
    "--csv", "as_csv", is_flag=True, heading=OUTPUT, help="Print comma-separated values, for a spreadsheet."
)
launch_option = option(
    "--launch",
    "in_full",
    is_flag=True,
    heading=OUTPUT,
    help="Besides what each block and proxy is handed: elements, chunks, steps, kernels, rings and trees.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def range_options(function: F) -> F:
    """The sizes that ranges are looked for in."""
    return stacked(
        function,
        option("--from", "low", type=size_bytes, metavar="SIZE", help="The least size. [default: one element]"),
        option(
            "--to",
            "high",
            type=size_bytes,
            metavar="SIZE",
            default="1T",
            show_default=True,
            help="The greatest size; NCCL's nBytes, as in pick.",
        ),
    )


def runnable(
    selections: Mapping[str, Selection], collectives: Sequence[Collective], like: Request, everywhere: bool = True
) -> list[Request]:
    """The calls of these collectives; without any, of all that can run, the others named on stderr.

    They are ``like`` that call in all but the collective. ``selections`` are by the words that say which; a call has to
    run in all of them, or in one if not ``everywhere``.
    """
    requests = [replace(like, collective=collective) for collective in dict.fromkeys(collectives or Collective)]
    if collectives:
        return requests
    refused = {request: [of for of, one in selections.items() if not one.usable(request)] for request in requests}
    most = 0 if everywhere else max(len(selections) - 1, 0)
    left = [request for request in requests if len(refused[request]) <= most]
    if not left:
        for selection in selections.values():
            selection.pick(requests[-1], requests[-1].dtype.size_bytes)  # which says why
    for request in requests:
        if request not in left:
            click.echo(f"{request.collective.name}: nothing can run it {' and '.join(refused[request])}", err=True)
    return left
