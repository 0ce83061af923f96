"""Launches with the plugin and a decision table: the emulator against the live libnccl, alone and in random groups.

    python -m tests.scripts.check_table_launches --seed a --launches 2000                    every release with plugins
    python -m tests.scripts.check_table_launches --seed a --launches 5000 2.20.5 2.21.5      these

Compared is all that tests/scripts/check_launches.py compares: kernels, blocks, works and operations of the network.
Exit code 1 where anything differs or libnccl failed. Communicators and calls: tests/support/random_launches.py.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import click

from tests.support.random_launches import drawn
from tests.support.table_launches import compared, rows_of, unforced
from tuner import release
from tuner.base.errors import TunerError
from tuner.cli.output import print_table

WITH_PLUGINS = [name for name in release.names() if release.load(name).plugin is not None]
ALONE, GROUPS = 20, 10  # of a communicator
FORCED = 0.2  # communicators on which NCCL_ALGO and NCCL_PROTO may be set
SHOWN, LONGEST = 3, 400


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(WITH_PLUGINS), metavar="[RELEASE]...")
@click.option("--launches", default=200, help="So many of each release at least.")
@click.option("--seed", default="a")
def main(names: tuple[str, ...], launches: int, seed: str) -> None:
    rows, failed = [], False
    for name in names or WITH_PLUGINS:
        counts = of_release(name, seed, launches)
        failed |= counts["launches"] != counts["equal"] or counts["failed"] > 0
        told = ("communicators", "failed", "refused", "groups", "named", "values", "differing")
        rows.append((name, f"{counts['equal']}/{counts['launches']}", *(counts[what] for what in told)))
        click.echo(f"{name}: {dict(counts)}", err=True)
    columns = ("release", "launches equal", "communicators", "failed", "refused", "groups", "channels named")
    print_table("launches with a table", (*columns, "values", "values that differ"), rows)
    sys.exit(1 if failed else 0)


def of_release(name: str, seed: str, launches: int) -> Counter[str]:
    """Communicators of one release, each with a table, until there are enough launches."""
    counts, random = Counter[str](), Random(f"{seed} {name}")
    for forced in drawn(name, seed, ALONE, GROUPS):
        communicator = forced if random.random() < FORCED else unforced(forced)
        rows = rows_of(random)
        title = f"{communicator.scenario.title} rank {communicator.rank} {communicator.scenario.environment} {rows}"
        counts["communicators"] += 1
        try:
            with tempfile.TemporaryDirectory() as folder:
                for launch in compared(communicator, rows, Path(folder)):
                    if launch is None:
                        counts["refused"] += 1
                        continue
                    differing = {what: both for what, both in launch.values.items() if both[0] != both[1]}
                    groups = len(launch.operations) > 1
                    counts.update(launches=1, groups=groups, named=launch.named, values=len(launch.values))
                    counts.update(equal=not differing, differing=len(differing))
                    if differing and counts["launches"] - counts["equal"] <= SHOWN:
                        _show(title, len(launch.operations), differing)
        except TunerError as error:
            counts["failed"] += 1
            click.echo(f"NOT ASKED {title}: {error}")
        if counts["launches"] >= launches:
            break
    return counts


def _show(title: str, calls: int, differing: dict[str, tuple[object, object]]) -> None:
    click.echo(f"MISMATCH {title}: {calls} calls")
    for what, (ours, theirs) in list(differing.items())[:SHOWN]:
        click.echo(f"  {what}: emulator {str(ours)[:LONGEST]}, libnccl {str(theirs)[:LONGEST]}")


if __name__ == "__main__":
    main()
