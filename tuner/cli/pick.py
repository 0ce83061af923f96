"""``nccl-tuner pick``: what NCCL picks, or libnccl itself, for a call or for several in a group."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tuner.answers import picks
from tuner.answers.picks import PickAnswer
from tuner.answers.symmetric import NonClassicPick
from tuner.base.errors import BadInput
from tuner.base.names import Collective, PeerCall
from tuner.base.numerics import is_time
from tuner.cli import options
from tuner.cli.command import Parsed
from tuner.cli.options import CALL, ROOTED
from tuner.cli.output import human_bytes, json_wanted, number, print_csv, print_table, say, shown_as_json
from tuner.emulator.group import Operation
from tuner.emulator.selection import Pick
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.cli.group import GivenCall

TABLES = ("NCCL_TUNER_TABLE", "NCCL_TUNER_CONFIG_FILE")
NOT_OF_LIBNCCL = ("rank", "peer", "parts", "in_full", "as_csv", "tuner", "time", "calibration")
NOT_OF_GROUPS = ("sizes", "peer", "parts", "as_csv", "time", "calibration")


class CallOrCalls(options.AnyCall):
    """One call by its name, or several as :class:`tuner.cli.group.AnyCalls`, which have sizes or are in a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (":" in value or value.startswith("@")):
            from tuner.cli.group import AnyCalls  # one call does without

            return AnyCalls().convert(value, param, ctx)
        return super().convert(value, param, ctx)


def _parts(text: str) -> list[int]:
    """Sizes, of which some may be 0."""
    return [0 if word.strip() == "0" else options.size_list(word)[0] for word in text.split(",")]


@click.command(name="pick", cls=options.Command)
@click.argument("collective", type=CallOrCalls(Collective, "collective"), metavar="COLLECTIVE|CALLS")
@options.bytes_option
@options.option(
    "--rank", "Whose launch, of sends and receives or with --launch. [default: 0]", type=int, metavar="N", heading=CALL
)
@options.option(
    "--peer",
    "--root",
    "Of send and recv the peer, of gather, scatter and, with --launch, broadcast and reduce the root. "
    "[default: 1, or 0]",
    type=int,
    metavar="N",
    heading=CALL,
)
@options.option(
    "--parts",
    "Of alltoall with unequal parts: bytes that every rank sends to each rank, or what each sends to each, the "
    "first rank's first.",
    type=Parsed("parts", _parts),
    heading=CALL,
    metavar="BYTES,...",
)
@options.launch_option
@options.csv_option
@options.question(changes=True, times="nccl", libnccl="What libnccl launches instead: of collectives, of root 0.")
def command(
    collective: "Collective | PeerCall | list[GivenCall]",
    sizes: list[int],
    rank: int | None,
    peer: int | None,
    parts: list[int] | None,
    in_full: bool,
    as_csv: bool,
    asked: options.CommunicatorQuestion,
) -> None:
    """Show what NCCL picks for COLLECTIVE: algorithm, protocol, channels, threads and its predicted time.

    CALLS are several in one ncclGroupStart and ncclGroupEnd: CALL[@PEER]:BYTES[:TYPE[:OP]][*TIMES], with commas between
    them. BYTES is NCCL's nBytes; of send and recv those of the message, of alltoall, gather and scatter those of all
    messages of a rank, or of the root. PEER is a rank, the root of broadcast, reduce, gather and scatter, or counts
    from --rank, such as +1. Or CALLS is @FILE: a JSON list of objects with the keys call, peer, bytes, type, op, times.

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
    if asked.libnccl is not None:
        options.refuse_with("--libnccl", NOT_OF_LIBNCCL)
    if isinstance(collective, list):
        from tuner.cli.group import show_group

        options.refuse_with("several calls, which have their own sizes and roots", NOT_OF_GROUPS)
        show_group(collective, _described(asked), asked, rank or 0, in_full)
        return
    if as_csv and (in_full or json_wanted()):
        raise BadInput("--csv cannot be combined with --launch or --json")
    if parts is not None and (collective is not PeerCall.AllToAll or times is not None or peer is not None):
        raise BadInput("--parts is of alltoall, which has no time then; remove it, or --time, --calibration and --peer")
    if asked.libnccl is not None:
        _show_libnccl(collective, sizes, asked)
        return
    if isinstance(collective, PeerCall):
        if in_full or as_csv:
            option = "--launch" if in_full else "--csv"
            raise BadInput(
                f"{option} has no meaning for {collective.name}, which says its launch without, and with --json"
            )
        from tuner.answers.exchanges import of_rank
        from tuner.cli import exchanges

        if call.in_place:
            raise BadInput(f"--in-place has no meaning for {collective.name}; remove it")
        if parts is not None:
            exchanges.show_uneven(asked.scenario(), parts, call.dtype, rank or 0)
            return
        query = of_rank(collective, sizes, call.dtype, rank, peer)
        query = replace(query, buffers=call.buffers, windows=call.windows)
        exchanges.show(asked.scenario(), query, times)
        return
    if not in_full and (rank is not None or peer is not None):
        raise BadInput(
            "--rank and --peer need --launch for collectives; without it they are for send, recv, gather and the like"
        )
    if peer is not None and collective not in ROOTED:
        raise BadInput(f"--root: {collective.name} has none; valid: of broadcast, reduce, gather and scatter")
    described = asked.scenario()
    request = call.request(collective)
    answers = picks.from_emulator(described, request, sizes)
    if times is not None:
        answers = picks.with_times(answers, described, request, times)
    if in_full:
        from tuner.answers.launches import Launches, with_launches

        answers = with_launches(answers, Launches(described, rank or 0), Operation(request, 0, peer or 0))
    if shown_as_json(answers):
        return
    if as_csv:
        print_csv(CSV_COLUMNS, map(partial(_csv_row, described.nccl), answers))
        return
    title = f"{collective.name} on {described.title}"
    if times is None:
        print_answers(title, answers)
    else:
        _print_calibrated(title, answers, times.beside_nccl)
    _print_launches(title if rank is None else f"{title}, rank {rank}", answers)


def _described(asked: options.CommunicatorQuestion) -> Scenario:
    """The communicator, of which no tuner decides where libnccl is asked."""
    if asked.libnccl is None:
        return asked.scenario()
    for name in TABLES:
        if os.environ.get(name) or any(text.startswith(f"{name}=") for text in asked.communicator["env"]):
            plugin = "`nccl-tuner plugin lint --libnccl` loads a table"
            click.echo(f"note: {name} is set, and no plugin reads it here; {plugin}", err=True)
    return asked.communicator.without("tuner").scenario()


def _show_libnccl(function: Collective | PeerCall, sizes: list[int], asked: options.CommunicatorQuestion) -> None:
    """Answer of libnccl, as launched. Errors: BadInput for a call made of sends and receives."""
    from tuner.answers import library

    collective = options.Named(Collective, "collective").convert(function.name, None, None)
    described = _described(asked)
    answers = library.of_sizes(described, asked.call.request(collective), sizes, asked.libnccl or 0)
    if not shown_as_json(answers):
        print_answers(f"{collective.name} on {described.title}: the real libnccl", answers)


def _print_launches(title: str, answers: Sequence[PickAnswer]) -> None:
    for answer in answers:
        if answer.launch is not None:
            from tuner.cli.launches import print_launch

            print_launch(f"{human_bytes(answer.bytes)}: {title}", answer.launch)


def print_answers(title: str, answers: Sequence[PickAnswer]) -> None:
    """The answers as a table, with nccl-tests' bandwidths, the runner-up and its margin."""
    by = _own(answers)
    columns = (*COLUMNS, f"{by} us", "algbw GB/s", "busbw GB/s", "runner-up", "slower by")
    if any(isinstance(answer.pick, NonClassicPick) for answer in answers):
        rows = [(*_row(answer), _instead_of(answer)) for answer in answers]
        print_table(title, (*columns, "instead of, us"), rows, SPARE)
        say(SYMMETRIC_MODEL)
    elif any(answer.alone for answer in answers):
        alone = "NCCL alone", "channels", f"{by} us"
        print_table(title, (*columns[:7], *alone), map(_tuned_row, answers))
    else:
        print_table(title, columns, map(_row, answers), SPARE)
    _print_disagreeing(answers)
    if any(answer.time_us is not None and not is_time(answer.time_us) for answer in answers):
        say("never: NCCL gives it no time and takes it only where it is told to (NCCL_ALGO, a tuner)")


SYMMETRIC_MODEL = (
    "Times of symmetric kernels are by NCCL's own model of them, and their runner-up by that model with CTAs counted; "
    "it is not compared with the model of algorithms, whose pick stands under 'instead of'."
)


def _instead_of(answer: PickAnswer) -> str:
    pick = answer.pick
    if not isinstance(pick, NonClassicPick):
        return "-"
    return "nothing" if pick.instead_of is None else f"{pick.instead_of.name} {pick.instead_of.time_us:.2f}"


def _own(answers: Sequence[PickAnswer]) -> str:
    """Owner of the model's times: NCCL, or those of the constants that were fitted to measurements instead."""
    return "fitted" if any(answer.constants.fitted for answer in answers) else "NCCL"


def _print_disagreeing(answers: Sequence[PickAnswer]) -> None:
    for answer in answers:
        for other in answer.disagreeing:
            pick = f"{other.pick.name}, channels {other.pick.channels}, threads {other.pick.threads}"
            say(f"DISAGREE {human_bytes(answer.bytes)}: ranks on {other.nodes} pick {pick}")


COLUMNS = ("size", "pick", "channels", "threads")
CALIBRATED_SPARE = ("threads", "NCCL busbw GB/s", "channels")
SPARE = ("algbw GB/s", "threads", "slower by", "runner-up")  # on a narrow terminal


def _row(answer: PickAnswer) -> tuple[object, ...]:
    pick, second = answer.pick, answer.runner_up
    return (
        human_bytes(answer.bytes),
        pick.bypass_kernel if isinstance(pick, NonClassicPick) else pick.name,
        pick.channels,
        pick.threads,
        number(answer.time_us, 2),
        number(answer.algbw_gbs, 3),
        number(answer.busbw_gbs, 3),
        second.name if second else "-",
        f"{second.slower_percent:.1f} %" if second and is_time(second.time_us) and is_time(answer.time_us) else "-",
    )


def _tuned_row(answer: PickAnswer) -> tuple[object, ...]:
    """A row with what NCCL would take without its tuner, where that is something else."""
    pick, alone = answer.pick, answer.alone
    same = alone is None or (isinstance(pick, Pick) and (pick.name, pick.channels) == (alone.name, alone.channels))
    others = ("the same", "", "") if same or alone is None else (alone.name, alone.channels, number(alone.time_us, 2))
    return *_row(answer)[:7], *others


CSV_COLUMNS = (
    *("nccl", "collective", "bytes", "algorithm", "protocol", "bypass_kernel", "channels", "threads", "time_us"),
    *("algbw_gbs", "busbw_gbs", "runner_up", "runner_up_slower_percent"),
    *("calibrated_us", "calibrated_low_us", "calibrated_high_us"),
)


def _csv_row(nccl: str, answer: PickAnswer) -> tuple[object, ...]:
    pick, second, time = answer.pick, answer.runner_up, answer.calibrated_pick
    calibrated = (None, None, None) if time is None else (time.time_us, time.low_us, time.high_us)
    head = nccl, answer.collective.name, answer.bytes
    names = (None, None, pick.bypass_kernel) if isinstance(pick, NonClassicPick) else (*pick.name.split("/"), None)
    own = *names, pick.channels, pick.threads, answer.time_us
    runner_up = (None, None) if second is None else (second.name, second.slower_percent)
    return *head, *own, answer.algbw_gbs, answer.busbw_gbs, *runner_up, *calibrated


def _print_calibrated(title: str, answers: Sequence[PickAnswer], beside_nccl: bool) -> None:
    """The picks with calibrated times, or, where none answers, with NCCL's alone."""
    from tuner.cli import times

    used = [answer.calibration for answer in answers if answer.calibration is not None]
    if not used or used[0].name is None:
        print_answers(title, answers)
    else:
        by = _own(answers)
        # What is extrapolated may be further off than NCCL's own time, which then stands beside it.
        beside_nccl = beside_nccl or any(each.calibrated_pick and each.calibrated_pick.extrapolated for each in answers)
        nccl = (f"{by} us", f"{by} busbw GB/s") if beside_nccl else ()
        columns = (*COLUMNS, *nccl, "calibrated us", f"{times.INTERVAL} us", "calibrated busbw GB/s")
        print_table(title, columns, [_calibrated_row(answer, beside_nccl) for answer in answers], CALIBRATED_SPARE)
        _print_disagreeing(answers)
    for one in used[:1]:
        picked = [answer.pick.name for answer in answers if not isinstance(answer.pick, NonClassicPick)]
        never = {name for each in used for name in each.not_measured}
        say(times.whose(replace(one, not_measured=tuple(n for n in dict.fromkeys(picked) if n in never))))


def _calibrated_row(answer: PickAnswer, beside_nccl: bool) -> tuple[object, ...]:
    from tuner.cli import times

    own, time = _row(answer), answer.calibrated_pick
    nccl = (own[4], own[6]) if beside_nccl else ()
    busbw_gbs = answer.calibrated_busbw_gbs
    return (
        *own[:4],
        *nccl,
        times.central(time),
        times.interval(time),
        number(busbw_gbs, 3),
    )
