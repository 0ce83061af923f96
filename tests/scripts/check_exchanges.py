"""Sends and receives: the emulator against the live libnccl, in random groups.

    python -m tests.scripts.check_exchanges --launches 500              500 groups of each kind, of every release
    python -m tests.scripts.check_exchanges 2.18.1 2.32.3 --seed 7      these releases, other groups

Exit code 1 where anything differs or could not be asked. Kinds, machines and variables:
tests/support/random_exchanges.py.
"""

import random
import sys
from collections import Counter
from dataclasses import replace

import click

from tests.support.random_exchanges import KINDS, SETTINGS, SHAPES, draw
from tests.support.random_groups import random_groups
from tuner import release
from tuner.base.errors import TunerError
from tuner.cli.output import print_table
from tuner.conformance.check_exchange import compare_mixed
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.exchange import situation
from tuner.scenario.resolved import ResolvedScenario

SHOWN, LONGEST = 3, 300
BESIDE = "beside collectives"  # with roots of any rank


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--launches", default=100, help="of each kind and release")
@click.option("--seed", default=20)
def main(names: tuple[str, ...], launches: int, seed: int) -> None:
    rows, failed = [], False
    for name in names or release.names():
        compared, equal = check(name, launches, seed)
        failed |= compared != equal
        rows.append((name, *(f"{equal[kind]}/{compared[kind]}" for kind in (*KINDS, BESIDE))))
        click.echo(" ".join(rows[-1]), err=True)
    print_table("groups equal / launched by libnccl", ("release", *KINDS, BESIDE), rows)
    sys.exit(1 if failed else 0)


def check(name: str, launches: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Groups that were compared, and those that are equal, by kind."""
    compared, equal = Counter[str](), Counter[str]()
    shapes = [shape for shape in SHAPES if name in catalogue.load(shape[0]).releases]
    cases = [(shape, settings) for settings in SETTINGS for shape in shapes]
    generator = random.Random(f"{seed} {name}")
    generator.shuffle(cases)
    cases = cases[: max(1, min(len(cases), launches // 5))]
    kinds = [kind for kind in KINDS if release.load(name).exchange.own_functions or not kind.startswith("nccl")]
    for number, (shape, settings) in enumerate(cases):
        share = launches * (number + 1) // len(cases) - launches * number // len(cases)
        machine, nodes, gpus = shape
        scenario = Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=settings)
        resolved, title = ResolvedScenario(scenario), f"{name} {machine} {nodes}x{gpus} {settings}"
        try:
            with Oracle(scenario.oracle_configuration()) as oracle:
                selection = Selection(resolved.views[0])
                groups = random_groups(selection, share, most=40, seed=generator.randrange(1 << 30))
                for kind in [*kinds * share, *[BESIDE] * share]:
                    rank = generator.randrange(nodes * gpus)
                    drawn = generator.choice(("alone", "all-to-all", "random")) if kind == BESIDE else kind
                    calls = draw(drawn, rank, nodes * gpus, generator)
                    given = next(groups, []) if kind == BESIDE else []
                    group = [replace(each, root=generator.randrange(nodes * gpus)) for each in given], calls
                    different = compare_mixed(selection, situation(resolved, rank), oracle, group)
                    compared[kind] += 1
                    equal[kind] += not different
                    if different and compared[kind] - equal[kind] <= SHOWN:
                        where, (ours, theirs) = next(iter(different.items()))
                        says = f"{where}: emulator {str(ours)[:LONGEST]}, libnccl {str(theirs)[:LONGEST]}"
                        click.echo(f"MISMATCH {title} rank {rank} {kind}: {says}")
        except TunerError as error:
            compared["not asked"] += 1
            click.echo(f"NOT ASKED {title}: {error}")
    return compared, equal


if __name__ == "__main__":
    main()
