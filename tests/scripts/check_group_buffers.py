"""Groups of calls on registered buffers and windows, against what the live libnccl launches for them.

    python -m tests.scripts.check_group_buffers                              every release
    python -m tests.scripts.check_group_buffers 2.30.7 --communicators 40     this one

Each communicator (machine, nodes, GPUs, variables that reach registered buffers, windows or what a kernel holds) is
drawn, and groups on each kind of buffers, out of place or in place. Prints by release how many groups were compared,
with how many values, how many of their kernels were symmetric, how many calls copy engines did, and what was refused.
Exit code 1 where anything differs.
"""

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterator

import click

from tests.scripts import check_registered
from tests.support import random_windows
from tests.support.random_groups import random_groups
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.base.windows import Sides
from tuner.cli.output import print_table
from tuner.emulator.call_kind import COPY_ENGINES
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.rules.registered import missing
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import compare
from tuner.scenario import Scenario

ROOM = {"NCCL_WORK_ARGS_BYTES": ("600", "1000", "2000"), "NCCL_WORK_FIFO_BYTES": ("4096", "65536")}
COUNTED = ("groups", "values", "symmetric kernels", "copied calls", "differ", "refused")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--communicators", type=int, default=10, show_default=True, help="Of each release.")
@click.option("--groups", type=int, default=6, show_default=True, help="Of each kind of buffers.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(names: tuple[str, ...], communicators: int, groups: int, seed: int) -> None:
    rows, differs = [], False
    for nccl in names or release.names():
        draw, counted, why = random.Random(f"{seed} {nccl}"), Counter[str](), Counter[str]()
        for _ in range(communicators):
            _compare(_drawn(draw, nccl), draw, groups, counted, why)
        differs |= counted["differ"] > 0
        rows.append((nccl, communicators, *(counted[what] for what in COUNTED)))
        for words, times in why.most_common():
            click.echo(f"refused {times} times: NCCL {nccl}: {words}")
        click.echo(f"{nccl}: {dict(counted)}")
    header = ("release", "communicators", *COUNTED)
    print_table("groups on registered buffers and windows, compared with libnccl", header, rows)
    sys.exit(differs)


def _compare(scenario: Scenario, draw: random.Random, groups: int, counted: Counter[str], why: Counter[str]) -> None:
    try:
        selection = Selection(scenario.communicator())
    except BadInput as error:
        why[str(error)] += 1
        return
    planned = list(_planned(selection, draw, groups, counted, why))
    for windows in (False, True):  # a communicator that has had windows knows more, of which the others' order depends
        same = [each for each in planned if (each[0].request.buffers is Buffers.window) == windows]
        if same:
            _compare_all(scenario, selection, same, counted)


def _compare_all(
    scenario: Scenario, selection: Selection, planned: list[list[Operation]], counted: Counter[str]
) -> None:
    asked = {WITHOUT_WINDOWS, random_windows.SYM_KERNEL} & set(scenario.environment or ())
    with Oracle(scenario.oracle_configuration()) as oracle:
        if asked and not planned[0][0].request.symmetric:
            _note_multicast(selection, oracle)
        for operations in planned:
            ours = plan(selection, operations)
            request = operations[0].request
            try:
                values = compare(selection, oracle, ours)
            except OracleFailed as error:
                values = {"libnccl": ("launches", str(error).splitlines()[0])}
            different = {where: both for where, both in values.items() if both[0] != both[1]}
            counted["groups"] += 1
            counted["values"] += len(values)
            counted["symmetric kernels"] += sum(bool(kernel.path and kernel.path.kernel) for kernel in ours.kernels)
            counted["copied calls"] += sum(kernel.path is COPY_ENGINES for kernel in ours.kernels)
            counted["differ"] += bool(different)
            for where, both in list(different.items())[:3]:
                click.echo(f"DIFFERS: {scenario.title} {scenario.environment} {request.title}: {where}: {both}")
            if "libnccl" in values:
                return  # it may be gone


def _note_multicast(selection: Selection, oracle: Oracle) -> None:
    """One call on plain buffers: until then a communicator takes symmetric kernels without multicast."""
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    with contextlib.suppress(BadInput, NoAlgorithm):
        compare(selection, oracle, plan(selection, [Operation(request, 1024)]))


def _planned(
    selection: Selection, draw: random.Random, groups: int, counted: Counter[str], why: Counter[str]
) -> Iterator[list[Operation]]:
    """Groups that are emulated, on all kinds of buffers of the release."""
    for buffers in Buffers:
        if missing(selection.communicator.release, buffers):
            continue
        windows = random_windows.drawn_windows(selection.communicator.release.name, draw)
        on = buffers, windows.sides is Sides.both and draw.random() < 0.3
        most, seed = draw.choice((3, 12, 40, 90)), draw.randrange(1 << 30)
        for operations in random_groups(selection, groups, most, seed, on, windows):
            try:
                plan(selection, operations)
            except (BadInput, NoAlgorithm) as error:
                counted["refused"] += 1
                why[str(error)] += 1
            else:
                yield operations


def _drawn(draw: random.Random, nccl: str) -> Scenario:
    machine = draw.choice((*check_registered.MACHINES, *random_windows.MACHINES, *random_windows.MACHINES))
    nodes, gpus = draw.choice((1, 1, 1, 2, 2, 3)), draw.choice((1, 2, 4, 4, 8, 8))
    gpus = min(gpus, 4) if "4x" in machine or "nvl72" in machine else gpus
    gpus = 2 if nodes == 1 and gpus == 1 else gpus
    environment = dict(draw.choice(check_registered.SETTINGS)) if draw.random() < 0.3 else {}
    variables = {**random_windows.VALUES, **ROOM}  # up to 2.21 nobody empties the ring of works here
    environment |= {name: draw.choice(variables[name]) for name in draw.sample(list(variables), draw.randint(0, 2))}
    if draw.random() < 0.25:
        environment[random_windows.SYM_KERNEL] = random_windows.kernels(nccl, draw)
    if draw.random() < 0.2:
        environment[WITHOUT_WINDOWS] = "1"
    if nodes > 1:
        environment[random_windows.GIN_TYPE] = draw.choice(("0", "3"))
    trays = draw.randint(1, 2) if machine.endswith("nvl72") else None
    per_process = draw.choice((1, 1, 1, 2))
    return Scenario(
        nccl=nccl,
        machine=machine,
        nodes=nodes,
        trays=trays,
        gpus_per_node=gpus,
        gpus_per_process=per_process if gpus % per_process == 0 else 1,
        environment=environment,
    )


if __name__ == "__main__":
    main()
