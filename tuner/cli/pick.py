"""``nccl-tuner pick``: what NCCL, or libnccl itself, picks for a call or for several in a group."""

import os
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from tuner.answers import picks
from tuner.answers.picks import PickAnswer
from tuner.answers.symmetric import NonClassicPick, RunnerUp
from tuner.base.errors import BadInput
from tuner.base.names import Collective, PeerCall
from tuner.base.nouns import Choice, TimeInterval
from tuner.base.numerics import is_time
from tuner.base.view import Column, columns_of, number, percent
from tuner.cli import options
from tuner.cli.command import Params, Parsed, excludes, has, needs
from tuner.cli.engine import EngineOptions, engine_options, show_carriers
from tuner.cli.options import CALL, ROOTED
from tuner.cli.output import human_bytes, print_csv, print_view, say, shown_as_json
from tuner.emulator.group import Operation
from tuner.emulator.selection import Pick
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.cli.group import GivenCall

TABLES = ("NCCL_TUNER_TABLE", "NCCL_TUNER_CONFIG_FILE")
NOT_OF_LIBNCCL = ("rank", "peer", "parts", "in_full", "as_csv", "tuner", "time", "calibration")
NOT_OF_ENGINES = ("rank", "peer", "parts", "in_full", "as_csv", "tuner", "time", "calibration", "libnccl")
NOT_OF_GROUPS = ("sizes", "peer", "parts", "as_csv", "time", "calibration")


class CallOrCalls(options.AnyCall):
    """A click type: one call by its name, or several as in :class:`tuner.cli.group.AnyCalls`, with sizes or as a
    file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (":" in value or value.startswith("@")):
            from tuner.cli.group import AnyCalls  # one call does without

            return AnyCalls().convert(value, param, ctx)
        return super().convert(value, param, ctx)


def _parts(text: str) -> list[int]:
    """Reads sizes, some of which may be 0."""
    return [0 if word.strip() == "0" else options.size_list(word)[0] for word in text.split(",")]


BY_LIBNCCL = "Ask libnccl what it launches instead of emulating it (collectives only; root 0)."


def _collective(params: Params) -> bool:
    return isinstance(params["collective"], Collective)


def _exchange(params: Params) -> bool:
    return isinstance(params["collective"], PeerCall) and not params["libnccl"]


RULES = (
    excludes("--engine", *NOT_OF_ENGINES, when=has("engine")),
    excludes("--libnccl", *NOT_OF_LIBNCCL, when=has("libnccl")),
    excludes(
        "a group of calls, which have their own sizes and roots",
        *NOT_OF_GROUPS,
        when=lambda params: isinstance(params["collective"], list),
    ),
    excludes("--csv", "in_full", "json", when=has("as_csv")),
    needs("alltoall", "parts", when=lambda params: params["collective"] is not PeerCall.AllToAll),
    excludes("--parts, for which no time is predicted", "peer", "time", "calibration", when=has("parts")),
    excludes("sends and receives, whose launch is always shown", "in_full", "as_csv", "in_place", when=_exchange),
    needs("--launch", "rank", "peer", when=lambda params: _collective(params) and not params["in_full"]),
)


@click.command(name="pick", cls=options.Command, rules=RULES)
@click.argument("collective", type=CallOrCalls(Collective, "collective"), metavar="COLLECTIVE|CALLS")
@options.bytes_option
@options.option(
    "--rank",
    "Rank whose launch is shown (for sends and receives, or with --launch). [default: 0]",
    type=int,
    metavar="N",
    heading=CALL,
)
@options.option(
    "--peer",
    "--root",
    "The peer of send and recv, or the root of gather, scatter and, with --launch, of broadcast and reduce. "
    "[default: 1 for a peer, 0 for a root]",
    type=int,
    metavar="N",
    heading=CALL,
)
@options.option(
    "--parts",
    "For an alltoall of unequal parts: the bytes that every rank sends to each rank (one number per rank), or that "
    "each rank sends to each rank (row by row, beginning with rank 0).",
    type=Parsed("parts", _parts),
    heading=CALL,
    metavar="BYTES,...",
)
@options.launch_option
@options.csv_option
@engine_options()
@options.question(
    changes=True,
    times="nccl",
    libnccl=BY_LIBNCCL,
)
def command(
    collective: "Collective | PeerCall | list[GivenCall]",
    sizes: list[int],
    rank: int | None,
    peer: int | None,
    parts: list[int] | None,
    in_full: bool,
    as_csv: bool,
    engine: EngineOptions | None,
    asked: options.CommunicatorQuestion,
) -> None:
    """Shows what NCCL picks for COLLECTIVE: algorithm, protocol, channels, threads and NCCL's predicted time.

    CALLS are several calls between one ncclGroupStart and ncclGroupEnd: CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], with
    commas between them. BYTES is NCCL's nBytes; for send and recv the bytes of the message, for alltoall, gather and
    scatter those of all messages of a rank or of the root. PEER is a rank: the other end, or the root of broadcast,
    reduce, gather and scatter; +1 counts from --rank. Or CALLS is @FILE: a JSON list of objects with the keys call,
    peer, bytes, type, op, times.

    \b
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1K,64MiB --json
    nccl-tuner pick allreduce --node dgx-h100:8x2 --node dgx-a100:4 --nccl 2.28.9
    nccl-tuner pick allreduce:25M*4,allreduce:64K,allgather:4M:bfloat16 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner pick send@+1:1M,recv@-1:1M --machine dgx-h100 --nodes 2 --rank 7
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.28.9 --buffers window
    nccl-tuner pick allgather --machine dgx-h100 --nccl 2.30.7 --buffers window --windows receive
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.30.7 --buffers window --window-flags strict-ordering
    nccl-tuner pick allgather --machine dgx-h100 --nccl 2.28.9 --buffers graph --in-place
    nccl-tuner pick allreduce --machine dgx-h100 --gpus-per-node 1 --ranks-per-gpu 2 --nccl 2.32.3
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.28.9 --time both
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.28.9 --bytes 8..1G*2 --csv
    nccl-tuner pick allreduce --machine dgx-h100 --engine vllm@0.33.0 --dtype bfloat16 --bytes 128K,16M,128M
    nccl-tuner pick alltoall --machine dgx-h100
    nccl-tuner pick alltoall --parts 4M,1M,1M,0 --machine dgx-h100 --gpus-per-node 4
    nccl-tuner pick send --peer 8 --machine dgx-h100 --nodes 2 --bytes 1M
    nccl-tuner pick allreduce --log nccl.log --comp-cap 8.0
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 64M --launch
    nccl-tuner pick reduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M --launch --root 3 --rank 8
    nccl-tuner pick allreduce:4M,alltoall:64M --machine dgx-h100
    nccl-tuner pick allgather:64M,allgather:4M --machine dgx-h100 --nccl 2.30.7 --buffers window --windows receive
    nccl-tuner pick reduce@3:4M,allgather:1M --machine dgx-h100 --nodes 2 --launch --rank 8
    nccl-tuner pick allreduce:25M*4,allgather:4M --machine dgx-h100 --nodes 2 --nccl 2.28.9 --libnccl
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1K,64MiB --libnccl --json
    """
    call, times = asked.call, asked.times
    if engine is not None:
        if not isinstance(collective, Collective):
            raise BadInput(
                "--engine only applies to AllReduce, the only call that an engine may carry without NCCL: "
                "remove --engine"
            )
        show_carriers(engine.group(asked.communicator, engine.names[0]), replace(call, collective=collective), sizes)
        return
    if isinstance(collective, list):
        from tuner.cli.group import show_group

        show_group(collective, _described(asked), asked, rank or 0, in_full)
        return
    if asked.libnccl is not None:
        _show_libnccl(collective, sizes, asked)
        return
    if isinstance(collective, PeerCall):
        from tuner.answers.exchanges import of_rank
        from tuner.cli import exchanges

        if parts is not None:
            exchanges.show_uneven(asked.scenario(), parts, call.dtype, rank or 0)
            return
        query = of_rank(collective, sizes, call.dtype, rank, peer)
        query = replace(query, buffers=call.buffers, windows=call.windows)
        exchanges.show(asked.scenario(), query, times)
        return
    if peer is not None and collective not in ROOTED:
        raise BadInput(f"--root: {collective.name} has no root; only broadcast, reduce, gather and scatter have one")
    described = asked.scenario()
    request = replace(call, collective=collective)
    options.note_call(described, request)
    answers = picks.from_emulator(described, request, sizes)
    if times is not None:
        answers = picks.with_times(answers, described, request, times)
    if in_full:
        from tuner.answers.launches import Launches, with_launches

        answers = with_launches(answers, Launches(described, rank or 0), Operation(request, 0, peer or 0))
    if shown_as_json(answers, "picks"):
        return
    if as_csv:
        print_csv((Column("", lambda _: described.nccl, key="nccl"), *CSV), answers)
        return
    title = f"{collective.name} on {described.title}"
    if times is None:
        print_answers(title, answers)
    else:
        _print_calibrated(title, answers, times.beside_nccl)
    _print_launches(title if rank is None else f"{title}, rank {rank}", answers)


def _described(asked: options.CommunicatorQuestion) -> Scenario:
    """The described communicator; without a tuner if libnccl is asked."""
    if asked.libnccl is None:
        return asked.scenario()
    for name in TABLES:
        if os.environ.get(name) or any(text.startswith(f"{name}=") for text in asked.communicator["env"]):
            plugin = "`nccl-tuner plugin lint --libnccl` does"
            click.echo(
                f"note: {name} is set, but libnccl is asked without a tuner plugin, so that no table is loaded; "
                f"{plugin}",
                err=True,
            )
    return asked.communicator.without("tuner").scenario()


def _show_libnccl(function: Collective | PeerCall, sizes: list[int], asked: options.CommunicatorQuestion) -> None:
    """Prints libnccl's answer, as launched. BadInput for a call made of sends and receives."""
    from tuner.answers import library

    collective = options.Named(Collective, "collective").convert(function.name, None, None)
    described = _described(asked)
    answers = library.of_sizes(described, replace(asked.call, collective=collective), sizes, asked.libnccl or 0)
    if not shown_as_json(answers, "picks"):
        print_answers(f"{collective.name} on {described.title}: the real libnccl", answers)


def _print_launches(title: str, answers: Sequence[PickAnswer]) -> None:
    for answer in answers:
        if answer.launch is not None:
            from tuner.cli.launches import print_launch

            print_launch(f"{human_bytes(answer.bytes)}: {title}", answer.launch)


def _columns(answers: Sequence[PickAnswer]) -> tuple[Column, ...]:
    """Columns for size, pick and time, by NCCL's model or by constants that were fitted to measurements."""
    by = "fitted" if any(answer.constants.fitted for answer in answers) else "NCCL"
    time_us, busbw = columns_of(PickAnswer, "time_us", "busbw_gbs")
    return (*SIZE, *PICK, replace(time_us, title=f"{by} us"), ALGBW, busbw)


def _runner_up_slower(answer: PickAnswer) -> float | None:
    second = answer.runner_up
    return second.slower_percent if second and is_time(second.time_us) and is_time(answer.time_us) else None


def _instead_of(answer: PickAnswer) -> str:
    pick = answer.pick
    if not isinstance(pick, NonClassicPick):
        return "-"
    return "nothing" if pick.instead_of is None else f"{pick.instead_of.name} {pick.instead_of.time_us:.2f}"


def _alone(answer: PickAnswer) -> Pick | None:
    """What NCCL picks without its tuner, if that differs."""
    pick, alone = answer.pick, answer.alone
    same = alone is None or (isinstance(pick, Pick) and (pick.name, pick.channels) == (alone.name, alone.channels))
    return None if same else alone


SIZE = columns_of(PickAnswer, "bytes")
PICK = columns_of(Choice, "name", "channels", "threads", of="pick")
(ALGBW,) = columns_of(PickAnswer, "algbw_gbs")
RUNNER_UP = (
    *columns_of(RunnerUp, "name", of="runner_up"),
    Column("slower by", _runner_up_slower, percent, spare=3),
)
INSTEAD_OF = Column("instead of, us", _instead_of)
ALONE = (
    Column("NCCL alone", lambda answer: alone.name if (alone := _alone(answer)) else "the same"),
    Column("channels alone", lambda answer: alone.channels if (alone := _alone(answer)) else ""),
)


def _calibrated(name: str) -> Column:
    times = columns_of(TimeInterval, name, of="calibrated_pick")
    return replace(*times, key=f"calibrated_{name.replace('time_', '')}")


CSV = (
    *columns_of(PickAnswer, "collective", "bytes"),
    *columns_of(Choice, "algorithm", "protocol", "bypass", "channels", "threads", of="pick"),
    *columns_of(PickAnswer, "time_us", "algbw_gbs", "busbw_gbs"),
    *columns_of(RunnerUp, "name", "slower_percent", of="runner_up"),
    *(_calibrated(name) for name in ("time_us", "low_us", "high_us")),
)


def print_answers(title: str, answers: Sequence[PickAnswer]) -> None:
    """Prints the answers as a table, with nccl-tests' bandwidths, the runner-up and its margin."""
    columns = _columns(answers)
    bypassing = any(isinstance(answer.pick, NonClassicPick) for answer in answers)
    if not bypassing and any(answer.alone for answer in answers):
        alone_us = Column(
            f"{columns[4].title} alone", lambda answer: number(alone.time_us, 2) if (alone := _alone(answer)) else ""
        )
        print_view(title, [*map(_kept, columns), *ALONE, alone_us], answers)
    else:
        print_view(title, (*columns, *RUNNER_UP, *([INSTEAD_OF] if bypassing else [])), answers)
    if bypassing:
        say(SYMMETRIC_MODEL)
    _print_disagreeing(answers)
    if any(answer.time_us is not None and not is_time(answer.time_us) for answer in answers):
        say("never: NCCL has no time for this choice, and only picks it if it is forced (NCCL_ALGO, a tuner)")


def _kept(column: Column) -> Column:
    """Makes a column that is shown even on a narrow terminal."""
    return replace(column, spare=0)


SYMMETRIC_MODEL = (
    "Times of symmetric kernels come from NCCL's model of these kernels; the runner-up is the next kernel by this "
    "model, with a surcharge for each CTA. NCCL does not compare this model with its model of algorithms, whose pick "
    "is in the column 'instead of'."
)


def _print_disagreeing(answers: Sequence[PickAnswer]) -> None:
    for answer in answers:
        for other in answer.disagreeing:
            pick = f"{other.pick.name}, channels {other.pick.channels}, threads {other.pick.threads}"
            say(f"DISAGREE {human_bytes(answer.bytes)}: ranks on {other.nodes} pick {pick}")


def _print_calibrated(title: str, answers: Sequence[PickAnswer], beside_nccl: bool) -> None:
    """Prints the picks with calibrated times, or, if no calibration answers, with only NCCL's."""
    from tuner.cli import times

    used = [answer.calibration for answer in answers if answer.calibration is not None]
    if not used or used[0].name is None:
        print_answers(title, answers)
    else:
        # What is extrapolated may be further off than NCCL's own time, which then stands beside it.
        beside_nccl = beside_nccl or any(each.calibrated_pick and each.calibrated_pick.extrapolated for each in answers)
        size, pick, channels, threads, time_us, _, busbw = _columns(answers)
        busbw = replace(busbw, title=f"{time_us.title.removesuffix(' us')} busbw GB/s", spare=2)
        by_calibration = (
            Column("calibrated us", attrgetter("calibrated_pick"), times.central),
            Column(f"{times.INTERVAL} us", attrgetter("calibrated_pick"), times.interval),
            *columns_of(PickAnswer, "calibrated_busbw_gbs"),
        )
        columns = size, pick, replace(channels, spare=3), replace(threads, spare=1)
        print_view(title, (*columns, *((time_us, busbw) if beside_nccl else ()), *by_calibration), answers)
        _print_disagreeing(answers)
    for one in used[:1]:
        picked = [answer.pick.name for answer in answers if not isinstance(answer.pick, NonClassicPick)]
        never = {name for each in used for name in each.not_measured}
        say(times.whose(replace(one, not_measured=tuple(n for n in dict.fromkeys(picked) if n in never))))
