"""A command that compares random calls with the live libnccl, release by release."""

import sys
from collections import Counter
from types import ModuleType

import click
import numpy as np

from tuner import release
from tuner.cli.output import print_table
from tuner.oracle.api import Oracle

CALLS_EACH = 4  # on a communicator


def comparing(what: str, of: ModuleType) -> click.Command:
    """``of`` draws communicators with calls (``drawn_calls``), compares one of them and names ALGORITHMS to count."""
    kinds = [algorithm.name for algorithm in of.ALGORITHMS]

    @click.command()
    @click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
    @click.option("--calls", type=int, default=20, show_default=True, help="Calls of each release.")
    @click.option("--seed", type=int, default=1, show_default=True)
    def command(names: tuple[str, ...], calls: int, seed: int) -> None:
        rows, differs = [], False
        for nccl in names or release.names():
            random, equal, asked = np.random.default_rng([seed, *map(int, nccl.split("."))]), 0, 0
            counted = Counter[str]()
            while asked < calls:
                scenario, drawn = of.drawn_calls(random, nccl, min(CALLS_EACH, calls - asked))
                with Oracle(scenario.oracle_configuration()) as oracle:
                    theirs = oracle.connected()
                    for call in drawn:
                        difference = of.compare_with_libnccl(random, oracle, theirs, call)
                        asked, equal = asked + 1, equal + (difference is None)
                        counted[call.work.algorithm.name] += 1
                        if difference is not None:
                            click.echo(f"DIFFERS {difference}")
            differs |= equal != asked
            rows.append((nccl, f"{equal}/{asked}", *(counted[kind] for kind in kinds)))
        print_table(f"{what} equal / compared with libnccl", ("release", "calls", *kinds), rows)
        sys.exit(differs)

    return command
