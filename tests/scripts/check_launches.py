"""Launches in full against the live libnccl on random communicators: every work structure and operation of the network.

    python -m tests.scripts.check_launches --seed a --launches 50000             every release
    python -m tests.scripts.check_launches --seed a --launches 2000 2.18.1 2.32.3
    python -m tests.scripts.check_launches --seed a --buffers registered       whose buffers are

A seed is always the same communicators and calls. Prints, by release, how many launches were compared by algorithm and
how many were equal, and the first differences. Exit code 1 where anything differs or a communicator could not be asked.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import click

from tests.support import check_launch, random_launches
from tests.support.random_launches import Drawn, drawn
from tuner import release
from tuner.base.errors import BadInput, TunerError
from tuner.base.names import Algorithm, Buffers
from tuner.cli.options import Named
from tuner.cli.output import print_table
from tuner.emulator.group import Operation
from tuner.emulator.launches import Launch
from tuner.emulator.rules.registered import missing

ALONE, GROUPS = 1000, 10  # of each communicator
FEWER, FEWER_GROUPS = 40, 5  # on registered buffers, where more goes by the machine
SHOWN = 5
SYMMETRIC = "symmetric"


@dataclass
class Totals:
    """Of one release: collectives by algorithm, groups and values."""

    communicators: int = 0
    groups: int = 0
    values: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--seed", default="", help="Other communicators and calls.")
@click.option("--launches", default=1000, help="So many collectives of each release at least.")
@click.option("--buffers", type=Named(Buffers, "kind of buffers"), default=Buffers.plain.name)
def main(names: tuple[str, ...], seed: str, launches: int, buffers: Buffers) -> None:
    having = [name for name in names or release.names() if not missing(release.load(name), buffers)]
    totals = {name: compared(name, seed, launches, buffers) for name in having}
    columns = [*(algorithm.name for algorithm in Algorithm), SYMMETRIC]
    rows = [
        (
            name,
            each.communicators,
            f"{each.matched.total()}/{each.compared.total()}",
            each.groups,
            each.values,
            *(f"{each.matched[name]}/{each.compared[name]}" for name in columns),
        )
        for name, each in totals.items()
    ]
    print_table(
        "equal / compared with libnccl", ("release", "communicators", "launches", "groups", "values", *columns), rows
    )
    sys.exit(1 if any(each.failed or each.matched != each.compared for each in totals.values()) else 0)


def compared(name: str, seed: str, launches: int, buffers: Buffers = Buffers.plain) -> Totals:
    """Communicators of one release until there are enough launches."""
    totals, start = Totals(), time.monotonic()
    alone, groups = (ALONE, GROUPS) if buffers is Buffers.plain else (FEWER, FEWER_GROUPS)
    for communicator in drawn(name, seed, alone, groups, buffers):
        scenario = communicator.scenario
        title = f"{scenario.title} rank {communicator.rank} {scenario.environment or ''}".strip()
        try:
            _compare(communicator, totals, title)
        except BadInput as error:
            if buffers is Buffers.plain:
                totals.failed.append(title)
            click.echo(f"REFUSED {title}: {error}")
        except TunerError as error:
            totals.failed.append(title)
            click.echo(f"NOT ASKED {title}: {error}")
        if totals.compared.total() >= launches:
            break
    click.echo(f"{name}: {totals.compared.total()} launches in {time.monotonic() - start:.0f} s", err=True)
    return totals


def _compare(communicator: Drawn, totals: Totals, title: str) -> None:
    totals.communicators += 1
    for operations, ours, values in random_launches.compared(communicator):
        totals.groups += len(operations) > 1
        totals.values += len(values)
        differing = {what: both for what, both in values.items() if both[0] != both[1]}
        names = [work.algorithm.name for kernel in ours.kernels for work in kernel.works]
        names += [SYMMETRIC for kernel in ours.kernels if kernel.symmetric for _ in kernel.symmetric.works]
        totals.compared.update(names)
        if not differing:
            totals.matched.update(names)
        elif totals.compared.total() - totals.matched.total() <= SHOWN * len(names):
            _show(title, operations, ours, differing)


def _show(title: str, operations: tuple[Operation, ...], ours: Launch, differing: dict[str, check_launch.Both]) -> None:
    click.echo(
        f"MISMATCH {title}: {len(operations)} calls, {operations[0].request.title} of {operations[0].bytes} bytes, "
        f"{ours.kernels[0].name}"
    )
    for what, (own, real) in list(differing.items())[:SHOWN]:
        if isinstance(own, dict) and isinstance(real, dict):
            own = {key: value for key, value in own.items() if real.get(key) != value}
            real = {key: real.get(key) for key in own}
        click.echo(f"  {what}: emulator {own}, libnccl {real}")


if __name__ == "__main__":
    main()
