"""Sends and receives: the emulator against the live libnccl, in random groups.

    python -m tests.scripts.check_exchanges --launches 500              500 groups of each kind, of every release
    python -m tests.scripts.check_exchanges 2.18.1 2.32.3 --seed 7      these releases, other groups

Exit code 1 where anything differs, or libnccl failed to answer. Communicators that the oracle cannot make, such as of
nodes with and without peer-to-peer, are told and counted beside them. Kinds, machines and variables:
tests/support/random_exchanges.py.
"""

import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice

import click

from tests.support.check_exchange import compare_mixed
from tests.support.random_exchanges import KINDS, draw, scenarios
from tests.support.random_groups import random_groups, rings_of_works
from tests.support.random_windows import GIN_TYPE, drawn_windows
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, TunerError
from tuner.base.names import Buffers
from tuner.base.windows import SYMMETRIC, Windows
from tuner.cli.options import Named
from tuner.cli.output import print_table
from tuner.emulator.group import Operation, not_emulated
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.rules.schedule.cells import NOT_DONE
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context

SHOWN, LONGEST = 3, 300
MOST_COMMUNICATORS, EACH = 200, 5  # of a release; groups of a kind on one of them
BESIDE = "beside collectives"  # with roots of any rank
REFUSED = "refused"  # by the emulator
BEYOND = "not to be asked"  # communicators that the oracle cannot make


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--launches", default=100, help="of each kind and release")
@click.option("--seed", default=20)
@click.option("--buffers", type=Named(Buffers, "kind of buffers"), default="plain", show_default=True)
def main(names: tuple[str, ...], launches: int, seed: int, buffers: Buffers) -> None:
    rows, failed = [], False
    for name in names or release.names():
        if missing(release.load(name), buffers):
            continue
        compared, equal = check(name, launches, seed, buffers)
        beyond = compared.pop(BEYOND, 0)
        failed |= compared != equal
        refused = compared.pop(REFUSED, 0)
        rows.append(
            (name, *(f"{equal[kind]}/{compared[kind]}" for kind in (*KINDS, BESIDE)), str(refused), str(beyond))
        )
        click.echo(" ".join(rows[-1]), err=True)
    print_table("groups equal / launched by libnccl", ("release", *KINDS, BESIDE, REFUSED, BEYOND), rows)
    sys.exit(1 if failed else 0)


def check(name: str, launches: int, seed: int, buffers: Buffers) -> tuple[Counter[str], Counter[str]]:
    """Groups that were compared, and those that are equal, by kind."""
    compared, equal = Counter[str](), Counter[str]()
    generator = random.Random(f"{seed} {name}")
    count = max(1, min(MOST_COMMUNICATORS, launches // EACH))
    kinds = [kind for kind in KINDS if release.load(name).exchange.own_functions or not kind.startswith("nccl")]
    for number, scenario in enumerate(islice(scenarios(name, f"{seed} {name}"), count)):
        scenario = _on(scenario, buffers, generator)
        windows = drawn_windows(name, generator) if buffers is Buffers.window else SYMMETRIC
        share = launches * (number + 1) // count - launches * number // count
        resolved, title = scenario.resolve(), f"{scenario.title} {scenario.environment}"
        try:
            with _asked(scenario) as oracle:
                groups = _groups(Selection(resolved.views[0]), share, generator, buffers, windows)
                for kind in [*kinds * share, *[BESIDE] * len(groups)]:
                    rank = generator.randrange(scenario.ranks)
                    if kind == BESIDE and buffers is not Buffers.plain:
                        rank = 0  # whose buffers are registered
                    drawn = generator.choice(("alone", "all-to-all", "random")) if kind == BESIDE else kind
                    calls = draw(drawn, rank, scenario.ranks, generator)
                    given = groups.pop() if kind == BESIDE else []
                    group = [replace(each, root=generator.randrange(scenario.ranks)) for each in given], calls
                    selection = Selection(resolved.view_of(rank))
                    try:
                        different = compare_mixed(
                            selection, p2p_context(resolved, rank), oracle, group, (buffers, windows)
                        )
                    except BadInput as error:
                        if "never returns" in str(error) or NOT_DONE in str(error):
                            continue
                        if kind == BESIDE and "not emulated" in str(error):
                            compared[REFUSED] += 1
                            continue
                        raise
                    except NoAlgorithm:
                        continue
                    compared[kind] += 1
                    equal[kind] += not different
                    if different and compared[kind] - equal[kind] <= SHOWN:
                        where, (ours, theirs) = next(iter(different.items()))
                        says = f"{where}: emulator {str(ours)[:LONGEST]}, libnccl {str(theirs)[:LONGEST]}"
                        click.echo(f"MISMATCH {title}{windows.words} rank {rank} {kind}: {says}")
        except _NotToBeAskedError as error:
            compared[BEYOND] += 1
            click.echo(f"{BEYOND.upper()} {title}: {error}")
        except TunerError as error:
            compared["not asked"] += 1
            click.echo(f"NOT ASKED {title}: {error}")
    return compared, equal


class _NotToBeAskedError(TunerError):
    """The oracle refuses the communicator before it begins libnccl."""


def _asked(scenario: Scenario) -> Oracle:
    try:
        return Oracle(scenario.oracle_configuration())
    except BadInput as error:
        raise _NotToBeAskedError(str(error)) from None


def _on(scenario: Scenario, buffers: Buffers, generator: random.Random) -> Scenario:
    """With variables that reach such buffers; of windows between nodes they say whether there is GIN."""
    drawn: dict[str, str] = {}
    if buffers is Buffers.window and scenario.nodes > 1:
        drawn[GIN_TYPE] = generator.choice("03")
    if buffers is Buffers.graph and generator.random() < 0.3:  # does not reach works of graphs
        drawn |= (
            {"NCCL_WORK_FIFO_DEPTH": "128"}
            if rings_of_works(release.load(scenario.nccl))
            else {"NCCL_WORK_FIFO_BYTES": "512"}
        )
    if buffers is not Buffers.plain and release.load(scenario.nccl).rules.symmetric_low_latency:
        drawn |= {WITHOUT_WINDOWS: "1"} if generator.random() < 0.2 else {}
    return replace(scenario, environment={**(scenario.environment or {}), **drawn}) if drawn else scenario


def _groups(
    selection: Selection, count: int, generator: random.Random, buffers: Buffers, windows: Windows
) -> list[list[Operation]]:
    """Groups of collectives; none where groups are not emulated beside sends and receives."""
    groups = random_groups(
        selection, count, most=40, seed=generator.randrange(1 << 30), on=(buffers, False), windows=windows
    )
    return [each for each in groups if _emulated(selection, each[0].request)]


def _emulated(selection: Selection, request: Request) -> bool:
    try:
        return not_emulated(selection, [request]) is None
    except BadInput:
        return False


if __name__ == "__main__":
    main()
