"""Calls on registered buffers of random communicators, against what the live libnccl launches for them.

    python -m tests.scripts.check_registered                           every release
    python -m tests.scripts.check_registered 2.28.9 --communicators 20   this one

Each communicator (machine, nodes, GPUs, variables that reach registered buffers) is drawn, and all collectives are
compared over sizes. Prints by release what was compared and what was refused. Exit code 1 where anything differs.
"""

import sys
from collections import Counter

import click
import numpy as np

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.cli.output import print_table
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.check import check, sizes_bytes
from tuner.scenario import Scenario

MACHINES = (
    "dgx-1v",
    "dgx-a100",
    "dgx-h100",
    "pcie-l40s",
    "pcie-l40s-no-p2p",
    "pcie-l40s-4nic",
    "a100-4x-1nic",
    "gh200-4x",
)
SHAPES = ((1, 2), (1, 4), (1, 8), (2, 1), (3, 1), (2, 4))  # nodes, GPUs of each
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
CHANNELS = {"NCCL_MIN_NCHANNELS": "20", "NCCL_MAX_NCHANNELS": "20"}
SETTINGS: tuple[dict[str, str], ...] = (  # of every other communicator
    RING,
    RING | CHANNELS,
    {"NCCL_ALGO": "Ring,Tree"} | CHANNELS,
    {"NCCL_LOCAL_REGISTER": "0"},
    {"NCCL_GRAPH_REGISTER": "0"},
    {"NCCL_MIN_CTAS": "3"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NET_GDR_READ": "0"},
    {"NCCL_NET_GDR_C2C": "0"},
    RING | CHANNELS | {"NCCL_P2P_LEVEL": "PIX"},
    RING | CHANNELS | {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_ALGO": "Ring,Tree"} | CHANNELS | {"NCCL_P2P_DISABLE": "1"},
)
COMPARED = ("picks", "channels", "threads")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
@click.option("--communicators", type=int, default=10, show_default=True, help="Of each release.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(names: tuple[str, ...], communicators: int, seed: int) -> None:
    rows, differs = [], False
    for nccl in names or release.names():
        random = np.random.default_rng([seed, *map(int, nccl.split("."))])
        compared, refused, differing = Counter[str](), 0, 0
        for _ in range(communicators):
            scenario = _drawn(random, nccl)
            taken, why = _taken(scenario, _requests(scenario))
            refused += len(why)
            for request, words in why.items():
                click.echo(f"refused: NCCL {nccl}, {request.title}, {scenario.machine}: {words}")
            report = check(scenario, taken)
            compared.update(report.compared)
            differing += len(report.mismatches)
            for mismatch in report.mismatches[:3]:
                click.echo(f"DIFFERS: NCCL {nccl}, {scenario}: {mismatch}")
        differs |= differing > 0
        rows.append((nccl, communicators, *(compared[kind] for kind in COMPARED), differing, refused))
    header = ("release", "communicators", *COMPARED, "differ", "calls refused")
    print_table("registered buffers, compared with libnccl", header, rows)
    sys.exit(differs)


def _drawn(random: np.random.Generator, nccl: str) -> Scenario:
    nodes, gpus = SHAPES[random.integers(len(SHAPES))]
    machine = MACHINES[random.integers(len(MACHINES))]
    settings = SETTINGS[random.integers(len(SETTINGS))] if random.integers(2) else {}
    gpus = min(gpus, 4) if "4x" in machine else gpus
    return Scenario(
        nccl=nccl,
        machine=machine,
        nodes=nodes,
        gpus_per_node=gpus,
        environment=settings,
        gpus_per_process=min(gpus, (1, 2, 8)[random.integers(3)]),
    )


def _requests(scenario: Scenario) -> list[Request]:
    """All collectives that the variables leave an algorithm, on each kind of buffers, out of place and in place."""
    selection = Selection(scenario.communicator())
    every = [
        Request(each, DataType.float32, Op.sum, buffers=buffers, in_place=in_place)
        for each in Collective
        for buffers in (Buffers.registered, Buffers.graph)
        for in_place in (False, True)
        if buffers is Buffers.graph or release.load(scenario.nccl).rules.registered
    ]
    return [request for request in every if selection.usable(request)]


def _taken(scenario: Scenario, requests: list[Request]) -> tuple[list[Request], dict[Request, str]]:
    """Those that are emulated, and of the others why not."""
    selection, why = Selection(scenario.communicator()), dict[Request, str]()
    for request in requests:
        try:
            selection.pick(request, sizes_bytes(request, selection.communicator.ranks))
        except BadInput as error:
            why[request] = str(error)
    return [request for request in requests if request not in why], why


if __name__ == "__main__":
    main()
