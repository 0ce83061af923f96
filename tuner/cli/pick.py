"""``nccl-tuner pick``: what NCCL picks."""

from typing import Any

import click

from tuner.answers import picks
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table
from tuner.costmodels.bandwidth import algorithm_gbs, bus_factor
from tuner.emulator.request import Request
from tuner.scenario import Scenario


@click.command(name="pick")
@options.collective_argument
@options.bytes_option
@options.case_options
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
    described = options.case_of(**scenario)
    answers = picks.from_emulator(described, Request(collective, dtype, op, buffers=buffers), sizes)
    if as_json:
        print_json(answers)
    else:
        print_answers(f"{collective.name} on {described.title}", described, answers)


def print_answers(title: str, scenario: Scenario, answers: list[dict[str, Any]]) -> None:
    """The answers as a table, with nccl-tests' bandwidths, the runner-up and its margin."""
    print_table(title, COLUMNS, [_row(answered, scenario.ranks) for answered in answers])
    for answered in answers:
        for other in answered.get("disagreeing", []):
            pick = f"{other['algorithm']}/{other['protocol']}, channels {other['channels']}, threads {other['threads']}"
            click.echo(f"DISAGREE {human_bytes(answered['bytes'])}: ranks on {other['nodes']} pick {pick}")


COLUMNS = ("size", "pick", "channels", "threads", "time us", "algbw GB/s", "busbw GB/s", "runner-up", "slower by")


def _row(answered: dict[str, Any], ranks: int) -> tuple[object, ...]:
    pick, nbytes = answered["pick"], answered["bytes"]
    if "leaves_for" in pick:
        return human_bytes(nbytes), pick["leaves_for"], pick["channels"], pick["threads"], *5 * ("-",)
    algbw = algorithm_gbs(nbytes, pick["time_us"])
    busbw = algbw * bus_factor(Collective[answered["collective"]], ranks)
    second = picks.runner_up(answered)
    return (
        human_bytes(nbytes),
        f"{pick['algorithm']}/{pick['protocol']}",
        pick["channels"],
        pick["threads"],
        f"{pick['time_us']:.2f}",
        f"{algbw:.3f}",
        f"{busbw:.3f}",
        second[0] if second else "-",
        f"{second[1]:.1f} %" if second else "-",
    )
