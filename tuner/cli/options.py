"""Options that several commands share, and the parsers of their values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tuner.answers.changes import KEYS
from tuner.base import findings
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy, did_you_mean, one_of
from tuner.base.expressions import expression
from tuner.base.names import (
    Buffers,
    Collective,
    DataType,
    Op,
    PeerCall,
    WindowFlag,
    by_name,
    flag_words,
    flags_of,
    peer_call,
    windows_of,
)
from tuner.base.sizes import size_bytes as size_bytes
from tuner.base.sizes import size_list as size_list
from tuner.cli.command import Command as Command
from tuner.cli.command import F, Parsed, completing, needs, packing, stacked, stands
from tuner.cli.command import file_option as file_option
from tuner.cli.command import flag as flag
from tuner.cli.command import option as option
from tuner.cli.command import under as under
from tuner.cli.communicator_options import CONFIGURED, CONSTANTS, LIBNCCL, Change
from tuner.cli.communicator_options import NUMBERS as NUMBERS
from tuner.cli.communicator_options import CommunicatorOptions as CommunicatorOptions
from tuner.cli.communicator_options import after as after
from tuner.cli.communicator_options import communicator_options as communicator_options
from tuner.cli.communicator_options import of_nodes_option as of_nodes_option
from tuner.cli.communicator_options import say_whose_parts as say_whose_parts
from tuner.cli.communicator_options import skeleton_options as skeleton_options
from tuner.cli.output import JSON, note_after, progress
from tuner.emulator.request import Request, parse_call_configuration
from tuner.emulator.rules import call_configuration, symmetric_variables
from tuner.emulator.selection import Selection
from tuner.release.environment import parse_assignments
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


TAKING_ANY_CALL = "pick, diff, export"
ROOTED = (Collective.Broadcast, Collective.Reduce)
ROOTED_WORDS = "broadcast, reduce, gather and scatter"


def note_call(described: Scenario, request: Request, grouped: bool = False) -> None:
    """Prints on stderr, when the command ends, what NCCL silently does with the call and its configuration."""
    if request.configuration is not None:
        for note in call_configuration.notes(described.communicator(), request):
            note_after(note)
    in_windows = request.buffers is Buffers.window
    if (in_windows or grouped) and (taken := symmetric_variables.taken_gin(described.communicator(), in_windows)):
        note_after(findings.words(taken))


PREMULTIPLIED = expression("pre_?mul_?sum", re.IGNORECASE)


class Named(click.ParamType):  # type: ignore[type-arg]
    """A click type: a member of one of the enumerations, by NCCL's name in upper or lower case."""

    def __init__(self, members: Any, name: str) -> None:
        self.members = members
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.members is Collective and (call := peer_call(value)) is not None:
            raise BadInput(
                f"{call.name}: NCCL makes it from sends and receives and picks no algorithm; these commands take it: "
                f"{TAKING_ANY_CALL}; valid here: {', '.join(each.name for each in Collective)}"
            )
        if self.members is Op and isinstance(value, str) and PREMULTIPLIED.fullmatch(value):
            raise BadInput(
                f"--op {value}: for a sum made by ncclRedOpCreatePreMulSum, NCCL picks the same as for an average of "
                "the same floating-point type; use avg"
            ).cured(Remedy("op", "avg"))
        return by_name(self.members, value, self.name)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = (each.name.lower() for kind in self.completed for each in kind)
        return completing(names, incomplete.lower())

    @property
    def completed(self) -> tuple[Any, ...]:
        """The enumerations whose names a shell offers as completions."""
        return (self.members,)


class AnyCall(Named):
    """A click type: a collective, or a call that NCCL makes of sends and receives, for which it picks no algorithm."""

    @property
    def completed(self) -> tuple[Any, ...]:
        return Collective, PeerCall

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if (call := peer_call(value)) is not None:
            return call
        if str(value).lower().replace("_", "").replace("-", "") == "alltoallv":
            raise BadInput(f"{value} is an AllToAll of unequal parts: use 'pick alltoall' with the parts in --parts")
        try:
            return super().convert(value, param, ctx)
        except BadInput:
            names = [each.name for kind in (Collective, PeerCall) for each in kind]
            raise BadInput(f"unknown {self.name} {value!r}{did_you_mean(str(value), names)}; {one_of(names)}") from None


CALL = "The call"
PLAIN = Request(Collective.AllReduce, DataType.float32, Op.sum)  # what :func:`call_options` give by default


def call_options(buffers: bool = True, in_place: bool = True, windows: bool = True) -> Callable[[F], F]:
    """Options for data type and operation, and for buffers, in-place calls and windows unless these are switched off.

    The command gets them as the parameter ``call``: the request for an AllReduce, for any other collective to replace.
    """

    names = ["dtype", "op", *(["buffers"] if buffers else []), *(["in_place"] if in_place else [])]
    names += ["windows", "configuration"] if windows else []

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        if windows:
            given["windows"] = windows_of(given["buffers"], given["windows"], given.pop("window_flags"))
            form = "FIELD=VALUE, such as algSelection=RING"
            fields = parse_assignments(given.pop("call_config"), "call_config", form)
            given["configuration"] = parse_call_configuration(fields)
        return {"call": replace(PLAIN, **{name: given.pop(name) for name in names})}

    return lambda function: packing(
        function,
        packed,
        option("--dtype", "Data type, by NCCL's name.", type=Named(DataType, "type"), default="float32", heading=CALL),
        option("--op", "Reduction operation.", type=Named(Op, "operation"), default="sum", heading=CALL),
        *([_BUFFERS] if buffers else ()),
        *((*_WINDOWS, _CALL_CONFIG) if windows else ()),
        *([_IN_PLACE] if in_place else ()),
    )


_BUFFERS = option(
    "--buffers",
    "How the buffers are registered: plain (not at all), registered (ncclCommRegister), window "
    "(ncclCommWindowRegister, symmetric), graph (by NCCL, as the call is captured into a CUDA graph).",
    type=Named(Buffers, "kind of buffers"),
    default="plain",
    metavar="KIND",
    heading=CALL,
)
_CALL_CONFIG = option(
    "--call-config",
    "A field of ncclCollConfig_t that the call sets (2.31.2 and later): algSelection, forceAlgSelection, minCTAs, "
    "maxCTAs, nvlsCTAs; repeatable.",
    multiple=True,
    metavar="FIELD=VALUE",
    heading=CONFIGURED,
)
_WINDOWS = (
    option(
        "--windows",
        "With --buffers window: which buffers are in windows, the send or the receive buffer; the other one is "
        "plain. [default: both]",
        type=click.Choice(("send", "receive", "both")),
        heading=CALL,
    ),
    option(
        "--window-flags",
        "Flags (NCCL_WIN_*) with which these windows are registered: "
        f"{', '.join(map(flag_words, WindowFlag.__members__.values()))}. [default: coll-symmetric]",
        type=Parsed("flags", flags_of),
        metavar="FLAG[,FLAG...]",
        heading=CALL,
    ),
)
_IN_PLACE = flag(
    "--in-place",
    "The call uses one buffer for sending and receiving (in place); this only changes choices on registered buffers.",
    heading=CALL,
)


SIZES = Parsed("sizes", size_list)  # and ranges of sizes


def sizes_option(says: str, default: str | None = None) -> Callable[[F], F]:
    """The option ``--bytes`` for several sizes, for the parameter ``sizes``."""
    return option("--bytes", "sizes", says, type=SIZES, default=default)


def collective_option(says: str) -> Callable[[F], F]:
    """The option ``--collective`` for a collective that files may not name."""
    return option("--collective", says, type=Named(Collective, "collective"))


def program_option(says: str) -> Callable[[F], F]:
    """The option ``--collective`` for the parameter ``program``, a name that files are read with."""
    return option("--collective", "program", says, default="", show_default=False, metavar="NAME")


def calibration_option(says: str, otherwise: str = "", heading: str | None = None) -> Callable[[F], F]:
    """The option ``--calibration``; ``otherwise``: what is the default where no calibration fits the machine."""
    default = f"the machine's own, else that of a machine with GPUs of the same generation{otherwise}"
    return option("--calibration", f"{says} [default: {default}]", metavar="NAME|FILE", heading=heading)


def out_option(metavar: str, says: str, required: bool = True) -> Callable[[F], F]:
    """The option ``-o``, ``--out`` for the file to write, for the parameter ``out``."""
    return file_option("-o", "--out", "out", metavar, says, required=required)


def steps_options(function: F) -> F:
    """Options for when a job's steps ended, for the parameters ``steps`` and ``name``."""
    named = option("--range", "name", "Name of the NVTX ranges that are steps.", default="step", metavar="NAME")
    says = (
        "A file that says when the job's steps ended or how long they took: seconds per line, JSON lines, or NVTX "
        "ranges that nsys exported (SQLite, CSV)."
    )
    return file_option("--steps", "FILE", says)(named(function))


def time_options(default: str, said: str | None = None) -> Callable[[F], F]:
    """Options that choose which times are shown, for the parameter ``times`` (None: only NCCL's).

    ``said`` describes the default, if it is not the same in all cases.
    """

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        time, calibration = given.pop("time"), given.pop("calibration")
        whose = time or (default if calibration is None else "calibrated")
        return {"times": _times_wanted(whose, calibration)}

    return lambda function: packing(
        function,
        packed,
        option(
            "--time",
            "Which times are shown: nccl (NCCL's own prediction), calibrated (from measurements, with 90 % "
            f"intervals) or both; the picks are always NCCL's. [default: {said or default}]",
            type=click.Choice(("nccl", "calibrated", "both")),
            metavar="WHOSE",
        ),
        calibration_option(
            "Take calibrated times from this calibration; implies --time calibrated.", heading=CONSTANTS
        ),
    )


def _times_wanted(whose: str, calibration: str | None) -> "TimesWanted | None":
    if whose == "nccl":
        if calibration is not None:
            raise BadInput(
                f"--calibration {calibration} cannot be used with --time nccl: use --time calibrated or both"
            )
        return None
    from tuner.answers.calibrated import TimesWanted  # plain answers do without it

    return TimesWanted(whose == "both", calibration)


def times_or_both(times: "TimesWanted | None") -> "TimesWanted | None":
    """The requested times; by default both NCCL's and calibrated ones."""
    if is_given("time"):
        return times
    return times or _times_wanted("both", None)


OUTPUT = "Output"
collective_argument = click.argument("collective", type=Named(Collective, "collective"))
collectives_argument = click.argument(
    "collectives", nargs=-1, type=Named(Collective, "collective"), metavar="[COLLECTIVE]..."
)
bytes_option = sizes_option(
    "Sizes as NCCL's nBytes: count x type size, times the ranks for AllGather and ReduceScatter; 64K is 65536; "
    "8..1G*2 means nccl-tests' -b 8 -e 1G -f 2.",
    default="8,1K,32K,256K,1M,4M,16M,64M,256M,1G",
)


class CallOrChange(AnyCall):
    """A click type: a collective, or a change KEY=VALUE as in ``--change``."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            *super().shell_complete(ctx, param, incomplete),
            *Change().shell_complete(ctx, param, incomplete),
        ]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Change().convert(value, param, ctx) if "=" in str(value) else super().convert(value, param, ctx)


change_option = option(
    "--change",
    "assignments",
    f"What changes, as KEY=VALUE; a key is one of {', '.join(KEYS)}, or a NCCL variable. Repeatable.",
    multiple=True,
    metavar="KEY=VALUE",
    type=Change(),
)
MOST_TIMEOUT_S = 7 * 86400
timeout_option = option(
    "--timeout",
    "timeout_s",
    "How many seconds to wait for an answer of libnccl.",
    type=click.FloatRange(0, MOST_TIMEOUT_S, min_open=True),
    default=120.0,
)


LIBNCCL_ASKED = needs("--libnccl", "timeout_s", "build")


def libnccl_option(says: str) -> Callable[[F], F]:
    """The options ``--libnccl`` and ``--timeout``, for the parameter ``libnccl``: how many seconds an answer may take
    (None without --libnccl)."""

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        libnccl, timeout_s = given.pop("libnccl"), given.pop("timeout_s")
        if libnccl:
            progress("asking the real libnccl")
        else:
            LIBNCCL_ASKED.check(click.get_current_context())
        return {"libnccl": timeout_s if libnccl else None}

    own = flag("--libnccl", says, heading=LIBNCCL), timeout_option
    return lambda function: under(LIBNCCL, "--timeout")(packing(function, packed, *own))


csv_option = flag("--csv", "as_csv", "Print the answer as comma-separated values, for a spreadsheet.", heading=OUTPUT)
launch_option = flag(
    "--launch",
    "in_full",
    "Also show what each block and proxy thread receives: elements, chunks, steps, kernels, rings and trees.",
    heading=OUTPUT,
)


def json_option(function: F, says: str = "Print JSON.") -> F:
    """The option ``--json``. :func:`tuner.cli.output.json_wanted` reads it, so commands get no parameter for it."""
    return flag("--json", says, expose_value=False, callback=_want_json)(function)


def _want_json(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    ctx.meta[JSON] = given


def is_given(name: str) -> bool:
    """Whether the option of this parameter is on the command line."""
    return stands(click.get_current_context(), name)


def range_options(function: F) -> F:
    """Options for the smallest and the largest size of ranges."""
    return stacked(
        function,
        option("--from", "low", "The smallest size. [default: one element]", type=size_bytes, metavar="SIZE"),
        option(
            "--to",
            "high",
            "The largest size, as NCCL's nBytes.",
            type=size_bytes,
            metavar="SIZE",
            default="1T",
        ),
    )


@dataclass(frozen=True, slots=True)
class CommunicatorQuestion:
    """What most commands are asked: the communicator, the calls and sizes, and how the answer is made.

    ``times``: which times are shown (None: only NCCL's). ``libnccl``: how many seconds libnccl may take (None: it is
    not asked).
    """

    communicator: CommunicatorOptions
    call: Request
    times: "TimesWanted | None" = None
    low: int | None = None
    high: int = 0
    libnccl: float | None = None

    def scenario(self) -> Scenario:
        """The described communicator; see :meth:`CommunicatorOptions.scenario`."""
        return self.communicator.scenario()

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL's own times are shown."""
        return self.times is None or self.times.beside_nccl

    @property
    def whose_times_said(self) -> bool:
        """Whether the user asked for only calibrated times, or named a calibration."""
        return self.times is not None and (self.times.calibration is not None or not self.times.beside_nccl)


def question(
    ranges: bool = False,
    changes: bool = False,
    times: str | None = None,
    times_said: str | None = None,
    libnccl: str | None = None,
) -> Callable[[F], F]:
    """The options of a :class:`CommunicatorQuestion`, for the command's parameter ``asked``.

    ``times``: which times are shown by default (None: the command has no options for this); ``times_said`` describes it
    in help. ``libnccl``: the help of --libnccl, if the command has that option.
    """

    names = ["communicator", "call", *(["low", "high"] if ranges else [])]
    names += [*(["times"] if times else []), *(["libnccl"] if libnccl else [])]

    return lambda function: packing(
        function,
        lambda given: {"asked": CommunicatorQuestion(**{name: given.pop(name) for name in names})},
        *([range_options] if ranges else []),
        communicator_options(changes=changes, tuner=True, build=libnccl is not None),
        call_options(),
        *([time_options(times, times_said)] if times else []),
        *([libnccl_option(libnccl)] if libnccl else []),
        json_option,
    )


def runnable(
    selections: Mapping[str, Selection], collectives: Sequence[Collective], like: Request, everywhere: bool = True
) -> list[Request]:
    """Requests for those of these collectives (default: all) that can run; prints on stderr which cannot.

    Requests are equal to ``like`` except for the collective. ``selections`` are keyed by their names; a call has to run
    in all of them, or, unless ``everywhere``, in at least one.
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
