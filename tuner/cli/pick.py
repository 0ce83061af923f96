"""``nccl-tuner pick``: what NCCL picks."""

from collections.abc import Sequence
from typing import Any

import click

from tuner.answers import picks
from tuner.answers.picks import NonClassicPick, PickAnswer
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.emulator.request import Request


@click.command(name="pick")
@options.collective_argument
@options.bytes_option
@options.scenario_options
@options.request_options
@options.buffers_option
@options.json_option
def command(
    collective: Collective, sizes: list[int], dtype: DataType, op: Op, buffers: Buffers, as_json: bool, **scenario: Any
) -> None:
    """What NCCL picks for COLLECTIVE: algorithm, protocol, channels, threads and its predicted time.

    \b
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1K,64MiB --json
    nccl-tuner pick allreduce --node dgx-h100:8x2 --node dgx-a100:4 --nccl 2.28.9
    nccl-tuner pick allreduce --machine dgx-h100 --nccl 2.28.9 --buffers window
    """
    described = options.scenario_of(**scenario)
    answers = picks.from_emulator(described, Request(collective, dtype, op, buffers=buffers), sizes)
    if as_json:
        print_json(answers)
    else:
        print_answers(f"{collective.name} on {described.title}", answers)


def print_answers(title: str, answers: Sequence[PickAnswer]) -> None:
    """The answers as a table, with nccl-tests' bandwidths, the runner-up and its margin."""
    print_table(title, COLUMNS, map(_row, answers))
    for answer in answers:
        for other in answer.disagreeing:
            pick = f"{other.pick.name}, channels {other.pick.channels}, threads {other.pick.threads}"
            click.echo(f"DISAGREE {human_bytes(answer.bytes)}: ranks on {other.nodes} pick {pick}")


COLUMNS = ("size", "pick", "channels", "threads", "time us", "algbw GB/s", "busbw GB/s", "runner-up", "slower by")


def _row(answer: PickAnswer) -> tuple[object, ...]:
    pick, size = answer.pick, human_bytes(answer.bytes)
    if isinstance(pick, NonClassicPick):
        return size, pick.bypass_kernel, pick.channels, pick.threads, *5 * ("-",)
    second = answer.runner_up
    return (
        size,
        pick.name,
        pick.channels,
        pick.threads,
        f"{pick.time_us:.2f}",
        f"{answer.algbw_gbs:.3f}",
        f"{answer.busbw_gbs:.3f}",
        second.name if second else "-",
        f"{second.slower_percent:.1f} %" if second else "-",
    )
