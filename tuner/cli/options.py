"""Options that several commands share, and the parsers of their values."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.changes import KEYS
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.files import read_bytes
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall, by_name, peer_call
from tuner.base.sizes import size_bytes as size_bytes
from tuner.base.sizes import size_list
from tuner.base.windows import WindowFlag, Windows, flag_words, flags_of, windows_of
from tuner.cli.command import Command as Command
from tuner.cli.command import F, stacked
from tuner.cli.command import hidden as hidden
from tuner.cli.command import option as option
from tuner.cli.command import under as under
from tuner.cli.communicator_options import CONSTANTS, Change
from tuner.cli.communicator_options import CommunicatorOptions as CommunicatorOptions
from tuner.cli.communicator_options import Numbers as Numbers
from tuner.cli.communicator_options import after as after
from tuner.cli.communicator_options import communicator_options as communicator_options
from tuner.cli.communicator_options import of_nodes_option as of_nodes_option
from tuner.cli.communicator_options import say_whose_parts as say_whose_parts
from tuner.cli.communicator_options import skeleton_options as skeleton_options
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


TAKING_ANY_CALL = "pick, group, diff, whatif, schedule"


class Named(click.ParamType):  # type: ignore[type-arg]
    """A member of one of the enumerations, by NCCL's name in any case."""

    def __init__(self, members: Any, name: str) -> None:
        self.members = members
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.members is Collective and (call := peer_call(value)) is not None:
            raise BadInput(
                f"{call.name}: NCCL makes it of sends and receives, and picks no algorithm; valid for it: "
                f"{TAKING_ANY_CALL}; valid here: {', '.join(each.name for each in Collective)}"
            )
        return by_name(self.members, value, self.name)


class AnyCall(Named):
    """A collective, or a call that NCCL makes of sends and receives, for which it picks no algorithm."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if (call := peer_call(value)) is not None:
            return call
        if str(value).lower().replace("_", "").replace("-", "") == "alltoallv":
            raise BadInput(f"{value}: AllToAll with unequal parts; valid: alltoall, and its parts by `pick --parts`")
        try:
            return super().convert(value, param, ctx)
        except BadInput:
            names = [each.name for kind in (Collective, PeerCall) for each in kind]
            raise BadInput(f"unknown {self.name} {value!r}{did_you_mean(str(value), names)}; {one_of(names)}") from None


CALL = "The call"
_DEFAULT = Request(Collective.AllReduce, DataType.float32, Op.sum)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Values of :func:`call_options`; what a command has no option for is as NCCL's plain calls have it."""

    dtype: DataType = _DEFAULT.dtype
    op: Op = _DEFAULT.op
    buffers: Buffers = _DEFAULT.buffers
    in_place: bool = _DEFAULT.in_place
    windows: Windows = _DEFAULT.windows

    def request(self, collective: Collective = Collective.AllReduce, pipelined: int = 1) -> Request:
        """The call of this collective, with ``pipelined`` operations that NCCL counts together."""
        return Request(
            collective,
            self.dtype,
            self.op,
            pipelined=pipelined,
            buffers=self.buffers,
            in_place=self.in_place,
            windows=self.windows,
        )


class Flags(click.ParamType):  # type: ignore[type-arg]
    """Flags of windows, with commas between them."""

    name = "flags"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WindowFlag:
        return flags_of(value)


def call_options(buffers: bool = True, in_place: bool = True, windows: bool = True) -> Callable[[F], F]:
    """Options for type and operation, and unless they are off for ``buffers``, in place, and windows.

    The command takes them as the parameter ``call``.
    """

    def decorated(function: F) -> F:
        @wraps(function)
        def with_call(*arguments: Any, dtype: DataType, op: Op, **given: Any) -> Any:
            said: dict[str, Any] = {"dtype": dtype, "op": op}
            if buffers:
                said["buffers"] = given.pop("buffers")
            if in_place:
                said["in_place"] = given.pop("in_place")
            if windows:
                said["windows"] = windows_of(said["buffers"], given.pop("windows"), given.pop("window_flags"))
            return function(*arguments, call=CallOptions(**said), **given)

        made: F = with_call  # type: ignore[assignment]
        return stacked(
            made,
            option(
                "--dtype",
                type=Named(DataType, "type"),
                default="float32",
                show_default=True,
                heading=CALL,
                help="Data type, NCCL's name.",
            ),
            option(
                "--op",
                type=Named(Op, "operation"),
                default="sum",
                show_default=True,
                heading=CALL,
                help="Reduction operation.",
            ),
            *([_BUFFERS] if buffers else ()),
            *(_WINDOWS if windows else ()),
            *([_IN_PLACE] if in_place else ()),
        )

    return decorated


_BUFFERS = option(
    "--buffers",
    type=Named(Buffers, "kind of buffers"),
    default="plain",
    show_default=True,
    metavar="KIND",
    heading=CALL,
    help="How the buffers are registered: plain (not at all), registered (ncclCommRegister), window "
    "(ncclCommWindowRegister, symmetric), graph (by NCCL, as the call is captured into a CUDA graph).",
)
_WINDOWS = (
    option(
        "--windows",
        type=click.Choice(("send", "receive", "both")),
        heading=CALL,
        help="Which buffers are in windows, with --buffers window; the other is plain. [default: both]",
    ),
    option(
        "--window-flags",
        type=Flags(),
        metavar="FLAG[,FLAG...]",
        heading=CALL,
        help=f"Flags of these windows, NCCL_WIN_*: {', '.join(map(flag_words, WindowFlag.__members__.values()))}. "
        "[default: coll-symmetric]",
    ),
)
_IN_PLACE = option(
    "--in-place",
    is_flag=True,
    heading=CALL,
    help="What is received replaces what is sent; only calls on registered buffers differ.",
)


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


class CallOrChange(AnyCall):
    """A collective, or what has a ``=``: a change, KEY=VALUE, as of ``--change``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Change().convert(value, param, ctx) if "=" in str(value) else super().convert(value, param, ctx)


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


_CALL_WORD = re.compile(
    r"(?P<call>[^:*@]+)(@(?P<peer>[+-]?\d+))?:(?P<bytes>[^:*]+)(:(?P<type>[^:*]+))?(:(?P<op>[^:*]+))?"
    r"(\*(?P<times>[1-9]\d{0,5}))?"
)
CALL_FORM = "CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], as in allreduce:25M*4 or send@3:1M"
CALL_KEYS = ("call", "peer", "bytes", "type", "op", "times")
MOST_CALLS = 10_000
ROOTED = (Collective.Broadcast, Collective.Reduce)
ROOTED_WORDS = "broadcast, reduce, gather and scatter"


@dataclass(frozen=True, slots=True)
class GivenCall:
    """One call as it is written; ``relative``: the peer counts from the rank that calls."""

    function: Collective | PeerCall
    bytes: int
    dtype: DataType | None
    op: Op | None
    peer: int | None
    relative: bool

    def peer_of(self, rank: int, ranks: int) -> int:
        """The peer, or the root; the root is rank 0 where none is given."""
        if self.peer is None:
            return 0
        return (rank + self.peer) % ranks if self.relative else self.peer


class AnyCalls(click.ParamType):  # type: ignore[type-arg]
    """``CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES]``, comma-separated, or ``@FILE``, a JSON list of objects."""

    name = "calls"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, list):
            return value
        text = str(value)
        rows = _of_file(Path(text[1:])) if text.startswith("@") else _of_words(text)
        calls: list[GivenCall] = []
        for where, row in rows:
            calls += [_call(where, row)] * _times(where, row)
            if len(calls) > MOST_CALLS:
                raise BadInput(f"{where}: more than {MOST_CALLS} calls in a group; valid: up to {MOST_CALLS}")
        if not calls:
            raise BadInput(f"{text}: no call; valid: one or more")
        return calls


def _of_words(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for word in text.split(","):
        match = _CALL_WORD.fullmatch(word.strip())
        if match is None:
            raise BadInput(f"call {word!r}; valid: {CALL_FORM}")
        yield repr(word), match.groupdict()


def _of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = json.loads(read_bytes(path, BadInput))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path}: valid: a list of objects with the keys {', '.join(CALL_KEYS)}")
    for number, row in enumerate(rows, start=1):
        if unknown := sorted(set(row) - set(CALL_KEYS)):
            raise BadInput(f"{path}: object {number}: unknown key {unknown[0]!r}; valid: {', '.join(CALL_KEYS)}")
        yield f"{path}: object {number}", row


def _times(where: str, row: Mapping[str, Any]) -> int:
    given = row.get("times")
    if given is None:
        return 1
    text = str(given)
    if not text.isdecimal() or len(text) > 6 or isinstance(given, bool) or int(text) < 1:
        raise BadInput(f"{where}: times {given!r}; valid: a whole number, 1 to {MOST_CALLS}")
    return int(text)


def _call(where: str, row: Mapping[str, Any]) -> GivenCall:
    if row.get("call") is None or row.get("bytes") is None:
        raise BadInput(f"{where}: without a call or bytes; valid: {CALL_FORM}")
    function = AnyCall(Collective, "collective").convert(row["call"], None, None)
    dtype = None if row.get("type") is None else Named(DataType, "type").convert(row["type"], None, None)
    op = None if row.get("op") is None else Named(Op, "operation").convert(row["op"], None, None)
    peer = row.get("peer")
    text = "" if peer is None else str(peer)
    if text and not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise BadInput(f"{where}: peer {peer!r}; valid: a rank, or +1, -1 from the rank that calls")
    if function in (PeerCall.Send, PeerCall.Recv) and not text:
        raise BadInput(f"{where}: {function.name} without a peer; valid: send@3:1M, recv@-1:1M")
    if text and isinstance(function, Collective) and function not in ROOTED:
        raise BadInput(f"{where}: {function.name} with a peer; valid: of send, recv, and as the root of {ROOTED_WORDS}")
    relative = text[:1] in ("+", "-")
    return GivenCall(function, size_bytes(str(row["bytes"])), dtype, op, int(text) if text else None, relative)
