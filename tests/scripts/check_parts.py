"""Communicators of some ranks of others: the emulator against what libnccl makes by ncclCommSplit and ncclCommShrink.

    python -m tests.scripts.check_parts --communicators 100        of every release
    python -m tests.scripts.check_parts 2.18.1 2.32.3 --seed 7     these releases, other communicators

Compared are graphs, channels of every rank, tables, cells, picks, launches, groups, and sends and receives. Exit code 1
where anything differs or could not be asked. Machines, ranks and variables: tests/support/random_parts.py.
"""

import random
import sys
from collections import Counter

import click

from tests.support import random_exchanges, random_parts
from tests.support.check_exchange import compare
from tuner import release
from tuner.base.errors import BadInput, TunerError
from tuner.cli.output import print_table
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import KINDS, check
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context

SIZES = [1 << power for power in range(10, 31, 4)]
EXCHANGES = "sends"
SHOWN, LONGEST = 3, 300


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--communicators", default=20, help="of each release")
@click.option("--seed", default=20)
def main(names: tuple[str, ...], communicators: int, seed: int) -> None:
    rows, failed = [], False
    for name in names or release.names():
        compared, equal = of_release(name, communicators, seed)
        failed |= compared != equal
        rows.append((name, *(f"{equal[kind]}/{compared[kind]}" for kind in ("communicators", *KINDS, EXCHANGES))))
        click.echo(" ".join(rows[-1]), err=True)
    print_table("equal / compared with libnccl", ("release", "communicators", *KINDS, EXCHANGES), rows)
    sys.exit(1 if failed else 0)


def of_release(name: str, communicators: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """What was compared, and what of it is equal, by kind."""
    compared, equal = Counter[str](), Counter[str]()
    generator = random.Random(f"{seed} {name}")
    while compared["communicators"] < communicators:
        scenario = random_parts.draw(name, generator)
        try:
            scenario.communicator()
        except BadInput as error:
            click.echo(f"refused {_title(scenario)}: {error}")
            continue
        compared["communicators"] += 1
        try:
            report = check(scenario, sizes=[size * scenario.ranks for size in SIZES])
        except TunerError as error:
            click.echo(f"NOT ASKED {_title(scenario)}: {error}")
            continue
        compared.update(report.compared)
        equal.update(report.matched)
        for each in report.mismatches[:SHOWN]:
            says = f"emulator {str(each.emulator)[:LONGEST]}, libnccl {str(each.libnccl)[:LONGEST]}"
            click.echo(f"MISMATCH {_title(scenario)}: {each.what} {each.where}: {says}")
        different = _sends(scenario, generator, compared, equal)
        equal["communicators"] += not report.mismatches and not different
    return compared, equal


def _sends(scenario: Scenario, generator: random.Random, compared: Counter[str], equal: Counter[str]) -> bool:
    """A few groups of sends and receives of one rank; whether any differs."""
    resolved, anything = scenario.resolve(), False
    rank = generator.randrange(resolved.ranks)
    with Oracle(scenario.oracle_configuration()) as oracle:
        for kind in ("alone", "all-to-all", "random"):
            calls = random_exchanges.draw(kind, rank, resolved.ranks, generator)
            different = compare(p2p_context(resolved, rank), oracle, calls)
            compared[EXCHANGES] += 1
            equal[EXCHANGES] += not different
            if different:
                where, (ours, theirs) = next(iter(different.items()))
                says = f"{where}: emulator {str(ours)[:LONGEST]}, libnccl {str(theirs)[:LONGEST]}"
                click.echo(f"MISMATCH {_title(scenario)} rank {rank} {kind}: {says}")
                anything = True
    return anything


def _title(scenario: Scenario) -> str:
    made = scenario.members
    assert made is not None
    how = f"{made.by}{' sharing' if made.shares else ''}"
    names = " + ".join(f"{one.nodes} x {one.machine}" for one in scenario.kinds)
    return f"{scenario.nccl} ranks {made.ranks} of {names} ({how}) {scenario.environment}"


if __name__ == "__main__":
    main()
