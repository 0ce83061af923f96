"""``nccl-tuner group``: what NCCL picks for several collectives in one group."""

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers import mixed
from tuner.answers.mixed import GroupAnswer
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op, PeerCall
from tuner.cli import options
from tuner.cli.options import MOST_CALLS, AnyCalls, GivenCall
from tuner.cli.output import counted, human_bytes, print_json, print_table, say
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.launches import Launches


_CALL = re.compile(
    r"(?P<collective>[^:*]+):(?P<bytes>[^:*]+)(:(?P<dtype>[^:*]+))?(:(?P<op>[^:*]+))?(\*(?P<times>[1-9]\d{0,5}))?"
)


class GroupCalls(click.ParamType):  # type: ignore[type-arg]
    """``COLLECTIVE:BYTES[:TYPE[:OP]][*TIMES]``, comma-separated; types and operations may be left to the options."""

    name = "calls"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, list):
            return value
        calls: list[Any] = []
        for word in str(value).split(","):
            match = _CALL.fullmatch(word.strip())
            if match is None:
                raise BadInput(f"call {word!r}; valid: COLLECTIVE:BYTES[:TYPE[:OP]][*TIMES], as in allreduce:25M*4")
            name, at, peer = match["collective"].partition("@")
            collective = options.Named(Collective, "collective").convert(name, param, ctx)
            if at:
                raise BadInput(f"{collective.name} with root {peer!r}: libnccl is asked with root 0; valid: {name}")
            dtype = match["dtype"] and options.Named(DataType, "type").convert(match["dtype"], param, ctx)
            op = match["op"] and options.Named(Op, "operation").convert(match["op"], param, ctx)
            calls += [(collective, options.size_bytes(match["bytes"]), dtype, op)] * int(match["times"] or 1)
        if len(calls) > MOST_CALLS:
            raise BadInput(f"{len(calls)} calls in a group; valid: up to {MOST_CALLS}")
        return calls


calls_argument = click.argument("calls", type=GroupCalls())


def operations_of(calls: list[Any], like: Request) -> list[Operation]:
    """The calls with what is left to the options, which ``like`` has."""
    operations = []
    for collective, nbytes, own_dtype, own_op in calls:
        dtype, op = own_dtype if own_dtype is not None else like.dtype, own_op if own_op is not None else like.op
        operations.append(Operation(replace(like, collective=collective, dtype=dtype, op=op), nbytes))
    return operations


@click.command(name="group", cls=options.Command)
@click.argument("calls", type=AnyCalls())
@options.communicator_options(tuner=True)
@options.call_options()
@click.option("--rank", type=int, default=0, help="Whose sends and receives, or launch, these are. [default: 0]")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    metavar="TABLE",
    help="With the tuner plugin and this decision table; NCCL 2.21 and later.",
)
@options.launch_option
@options.json_option
def command(
    calls: list[GivenCall],
    call: options.CallOptions,
    rank: int,
    table: Path | None,
    in_full: bool,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """What NCCL makes of CALLS in one ncclGroupStart and ncclGroupEnd: picks, channels, threads and kernels.

    CALLS is CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], separated by commas. BYTES is NCCL's nBytes; of send and recv those
    of the message, of alltoall, gather and scatter those of all messages of a rank, or of the root. PEER is a rank, the
    root of broadcast, reduce, gather and scatter, or counted from --rank, such as +1. Or CALLS is @FILE: a JSON list of
    objects with the keys call, peer, bytes, type, op, times.

    \b
    nccl-tuner group allreduce:25M*4,allreduce:64K,allgather:4M:bfloat16 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner group send@+1:1M,recv@-1:1M --machine dgx-h100 --nodes 2 --rank 7
    nccl-tuner group allreduce:4M,alltoall:64M --machine dgx-h100
    nccl-tuner group allreduce:25M*4,allgather:64M --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner group allgather:64M,allgather:4M --machine dgx-h100 --nccl 2.30.7 --buffers window --windows receive
    nccl-tuner group reduce@3:4M,allgather:1M --machine dgx-h100 --nodes 2 --launch --rank 8
    """
    described = communicator.scenario()
    launches = _launches(described, rank) if in_full else None
    like = call.request()
    exchanged = any(isinstance(call.function, PeerCall) for call in calls)
    if exchanged and in_full:
        raise BadInput("--launch: of collectives; valid without sends and receives")
    if exchanged or (not in_full and any(call.peer is not None for call in calls)):
        if table is not None:
            raise BadInput("--table: sends and receives ask no tuner plugin; valid: of collectives without roots alone")
        from tuner.cli import exchanges

        exchanges.show_group(described, calls, like, rank, as_json)
        return
    if rank != 0 and not in_full:
        raise BadInput("--rank: whose sends and receives these are; valid for collectives alone: 0, or with --launch")
    given = [(call.function, call.bytes, call.dtype, call.op) for call in calls]
    roots = [call.peer_of(rank, described.ranks) for call in calls]
    of_rank_0 = operations_of(given, like)
    operations = [replace(each, root=root) for each, root in zip(of_rank_0, roots, strict=True)]
    if table is None:
        answer = mixed.from_emulator(described, operations)
        answer = replace(answer, launch=launches.of(operations)) if launches else answer
    else:
        from tuner.plugin.asked import opened

        selection = Selection(described.communicator())
        with opened(table, selection) as tuner:
            if tuner.ignored is not None:
                say(f"note: {tuner.ignored}", err=True)
            answer = mixed.described(described, plan(selection, operations, tuner))
            answer = replace(answer, launch=launches.of(operations, tuner)) if launches else answer
    if as_json:
        print_json(answer)
    else:
        title = f"A group of {counted(len(calls), 'call')} on {described.title}" + (f", rank {rank}" if rank else "")
        print_group(title if table is None else f"{title}, with {table}", answer)
        if answer.launch is not None:
            from tuner.cli.launches import print_launch

            print_launch(title[0].lower() + title[1:], answer.launch)


def _launches(scenario: Scenario, rank: int) -> "Launches":
    from tuner.answers.launches import Launches  # with the search, which nothing else here needs

    return Launches(scenario, rank)


BYPASSED = "The calls of a symmetric kernel share its blocks, and are not among what is chosen together."
COLUMNS = ("kernel", "call", "collective", "bytes", "type", "pick", "channels", "from..to", "block", "chosen with")


def print_group(title: str, answer: GroupAnswer) -> None:
    """Kernels with their calls, in NCCL's order, then what was chosen together."""
    rows = [
        (
            number,
            _known(each.call),
            _named(each.collective),
            _size(each.bytes),
            _named(each.dtype),
            kernel.bypass_kernel or f"{_named(each.algorithm)}/{_named(each.protocol)}",
            kernel.channels if kernel.bypass_kernel else len(each.channels),
            _range(each.channels),
            kernel.threads,
            _known(each.choice),
        )
        for number, kernel in enumerate(answer.kernels)
        for each in kernel.calls
    ]
    print_table(title, COLUMNS, rows)
    choices = [
        (number, _named(each.collective), _size(each.bytes), each.pipelined, _known(each.time_us))
        for number, each in enumerate(answer.choices)
    ]
    if choices:
        print_table("Chosen together", ("choice", "collective", "bytes", "numPipeOps", "NCCL us"), choices)
    if any(kernel.bypass_kernel for kernel in answer.kernels):
        say(BYPASSED)


def _known(value: object) -> object:
    return "-" if value is None else value


def _named(value: Enum | None) -> str:
    return "-" if value is None else value.name


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else human_bytes(nbytes)


def _range(channels: Sequence[int]) -> str:
    """``3..7``, or all of them where they are not neighbours; none are those of a whole kernel."""
    if not channels:
        return "-"
    low, high = channels[0], channels[-1]
    return f"{low}..{high}" if len(channels) == high - low + 1 else " ".join(map(str, channels))
