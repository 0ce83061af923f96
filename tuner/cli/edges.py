"""``nccl-tuner edges``: where NCCL's choice changes."""

from collections.abc import Sequence
from itertools import groupby

import click

from tuner.base.names import Collective
from tuner.base.sizes import about
from tuner.cli import options
from tuner.cli.output import human_bytes, print_json, print_table, span
from tuner.emulator.ranges import SizeRange, answers, goes_on
from tuner.emulator.selection import Selection


@click.command(name="edges", cls=options.Command)
@options.collectives_argument
@click.option("--every", is_flag=True, help="Print every range; without it, those of an algorithm and protocol as one.")
@options.question(ranges=True)
def command(collectives: tuple[Collective, ...], every: bool, asked: options.CommunicatorQuestion) -> None:
    """The size ranges in which NCCL's choice for COLLECTIVE (all five by default) stays the same, to the byte.

    \b
    nccl-tuner edges allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner edges --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    nccl-tuner edges allreduce --machine dgx-h100 --nccl 2.30.7 --buffers window
    """
    described, low, high = asked.scenario(), asked.low, asked.high
    selection = Selection(described.communicator())
    requests = options.runnable({"here": selection}, collectives, asked.call.request())
    records = {request.collective: answers(selection, request, low, high).records(request) for request in requests}
    if asked.as_json:
        print_json([record for of_one in records.values() for record in of_one])
    for request in requests:
        of_one = records[request.collective]
        if not asked.as_json:
            rows = [_row([record]) for record in of_one] if every else _by_combination(of_one)
            print_table(f"{request.collective.name} on {described.title}", COLUMNS, rows)
        if goes_on(selection, request, of_one[-1].to_bytes, high):
            after = human_bytes(of_one[-1].to_bytes + 1)
            click.echo(f"{request.collective.name}: from {after} on channels change too often to be listed", err=True)


COLUMNS = ("from", "to", "about", "pick", "channels", "threads", "ranges")


def _by_combination(records: Sequence[SizeRange]) -> list[tuple[object, ...]]:
    together = groupby(records, key=lambda record: record.name)
    return [_row(list(same)) for _, same in together]


def _row(records: Sequence[SizeRange]) -> tuple[object, ...]:
    first, last = records[0], records[-1]
    return (
        human_bytes(first.from_bytes),
        human_bytes(last.to_bytes),
        about(last.to_bytes),
        first.name,
        span([record.channels for record in records]),
        span([record.threads for record in records]),
        len(records),
    )
