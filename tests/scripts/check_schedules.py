"""Schedules of random calls by NVLS, CollNet and PAT against those of the works and channels of the live libnccl.

    python -m tests.scripts.check_schedules                      every release, a part of `make test-releases`
    python -m tests.scripts.check_schedules 2.28.9 --calls 200   this one

Both must be equal, step by step, and are carried out on numbers: every rank must end with what the collective gives it.
Prints what was compared by release. Exit code 1 where anything differs.
"""

import sys
from collections import Counter

import click
import numpy as np

from tests.support import scheduled_calls
from tuner import release
from tuner.cli.output import print_table
from tuner.oracle.api import Oracle

CALLS_EACH = 4  # on a communicator
KINDS = tuple(algorithm.name for algorithm in scheduled_calls.ALGORITHMS)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--calls", type=int, default=20, show_default=True, help="Calls of each release.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(names: tuple[str, ...], calls: int, seed: int) -> None:
    rows, differs = [], False
    for nccl in names or release.names():
        random, equal, asked = np.random.default_rng([seed, *map(int, nccl.split("."))]), 0, 0
        kinds = Counter[str]()
        while asked < calls:
            scenario, drawn = scheduled_calls.drawn_calls(random, nccl, min(CALLS_EACH, calls - asked))
            with Oracle(scenario.oracle_configuration()) as oracle:
                theirs = oracle.connected()
                for call in drawn:
                    difference = scheduled_calls.compare_with_libnccl(random, oracle, theirs, call)
                    asked, equal = asked + 1, equal + (difference is None)
                    kinds[call.work.algorithm.name] += 1
                    if difference is not None:
                        click.echo(f"DIFFERS {difference}")
        differs |= equal != asked
        rows.append((nccl, f"{equal}/{asked}", *(kinds[kind] for kind in KINDS)))
    print_table("schedules equal / compared with libnccl", ("release", "calls", *KINDS), rows)
    sys.exit(differs)


if __name__ == "__main__":
    main()
