"""Calls on registered buffers of random communicators, against what the live libnccl launches for them.

    python -m tests.scripts.check_registered                           every release that registers buffers
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
from tuner.conformance.check import check
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

MACHINES = ("dgx-1v", "dgx-a100", "dgx-h100", "pcie-l40s", "pcie-l40s-no-p2p", "a100-4x-1nic", "gh200-4x")
SHAPES = ((1, 2), (1, 4), (1, 8), (2, 1), (3, 1), (2, 4))  # nodes, GPUs of each
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
CHANNELS = {"NCCL_MIN_NCHANNELS": "20", "NCCL_MAX_NCHANNELS": "20"}
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    RING,
    RING | CHANNELS,
    {"NCCL_ALGO": "Ring,Tree"} | CHANNELS,
    {"NCCL_LOCAL_REGISTER": "0"},
    {"NCCL_MIN_CTAS": "3"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NET_GDR_READ": "0"},
    {"NCCL_NET_GDR_C2C": "0"},
)
COMPARED = ("picks", "channels", "threads")
NAMES = tuple(name for name in release.names() if release.load(name).rules.registered)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[RELEASE]...")
@click.option("--communicators", type=int, default=10, show_default=True, help="Of each release.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(names: tuple[str, ...], communicators: int, seed: int) -> None:
    rows, differs = [], False
    for nccl in names or NAMES:
        random = np.random.default_rng([seed, *map(int, nccl.split("."))])
        compared, refused, differing = Counter[str](), 0, 0
        for _ in range(communicators):
            scenario = _drawn(random, nccl)
            for request in _requests(scenario):
                try:
                    report = check(scenario, [request])
                except BadInput as why:
                    refused += 1
                    click.echo(f"refused: NCCL {nccl}, {request.title}, {scenario.machine}: {why}")
                    continue
                compared.update(report.compared)
                differing += len(report.mismatches)
                for mismatch in report.mismatches[:1]:
                    click.echo(f"DIFFERS: NCCL {nccl}, {request.title}, {scenario}: {mismatch}")
        differs |= differing > 0
        rows.append((nccl, communicators, *(compared[kind] for kind in COMPARED), differing, refused))
    header = ("release", "communicators", *COMPARED, "differ", "calls refused")
    print_table("registered buffers, compared with libnccl", header, rows)
    sys.exit(differs)


def _drawn(random: np.random.Generator, nccl: str) -> Scenario:
    nodes, gpus = SHAPES[random.integers(len(SHAPES))]
    machine = MACHINES[random.integers(len(MACHINES))]
    settings = SETTINGS[random.integers(len(SETTINGS))]
    gpus = min(gpus, 4) if "4x" in machine else gpus
    return Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus, environment=settings)


def _requests(scenario: Scenario) -> list[Request]:
    """All collectives that the variables leave an algorithm."""
    selection = Selection(scenario.communicator())
    every = [Request(each, DataType.float32, Op.sum, buffers=Buffers.registered) for each in Collective]
    return [request for request in every if selection.usable(request)]


if __name__ == "__main__":
    main()
