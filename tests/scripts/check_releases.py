"""`make test-releases`: the emulator against the live libnccl of every release, and docs/releases.toml from that.

    python -m tests.scripts.check_releases                    every release
    python -m tests.scripts.check_releases 2.18.1 2.32.3      these; what the file says of others stays

Every machine on 1 and 2 whole nodes; two machines each, others in every release, on 3, 4 and 8 nodes with as many GPUs
as make up to 16 ranks; one each with a setting; four machines with ranks that share GPUs, where the release has them.
One node is asked about several types and operations.
Exit code 1 where anything differs or could not be asked.
"""

import json
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import click

from tuner import release
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.cli.output import print_table
from tuner.conformance.check import ALL_COLLECTIVES, KINDS, check
from tuner.conformance.mismatches import MatchReport
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.machine.graph_tables import release_key
from tuner.oracle import library
from tuner.scenario import Scenario

FILE = Path(__file__).parents[2] / "docs" / "releases.toml"
MOST_RANKS = 16  # on 3 and more nodes
TYPES_AND_OPS = [  # what a release or a machine has not is refused by both
    (DataType.float32, Op.sum),
    (DataType.bfloat16, Op.avg),
    (DataType.float8e4m3, Op.sum),
    (DataType.int8, Op.max),
    (DataType.float64, Op.prod),
]
REQUESTS = [Request(collective, dtype, op) for dtype, op in TYPES_AND_OPS for collective in Collective]
SETTINGS = [
    {"NCCL_ALGO": "Tree"},
    {"NCCL_ALGO": "^Ring"},
    {"NCCL_PROTO": "^LL"},
    {"NCCL_PROTO": "Simple"},
    {"NCCL_MAX_NCHANNELS": "3"},
    {"NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_NTHREADS": "256"},
    {"NCCL_NVLS_ENABLE": "0"},
]
SHARED = ("dgx-h100", "dgx-a100", "pcie-l40s", "dgx-b200")  # on 1 and 2 nodes, in each of these
GPUS_AND_RANKS = ((1, 2), (1, 4), (1, 8), (2, 2), (8, 2))  # GPUs per node, ranks per GPU
SHOWN = 20

Row: TypeAlias = dict[str, Any]  # of one release in the file


@dataclass
class Totals:
    """Of one release, by what was compared."""

    sha256: str
    communicators: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def add(self, report: MatchReport) -> None:
        self.communicators += 1
        self.compared.update(report.compared)
        self.matched.update(report.matched)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
def main(names: tuple[str, ...]) -> None:
    totals = {}
    for name in names or release.names():
        start = time.monotonic()
        totals[name] = compare(name)
        write(name, totals[name])
        click.echo(f"{name}: {totals[name].communicators} communicators in {time.monotonic() - start:.0f} s", err=True)
    rows = [(name, each.communicators, *(share(each, kind) for kind in KINDS)) for name, each in totals.items()]
    print_table("matched / compared with libnccl", ("release", "communicators", *KINDS), rows)
    click.echo(f"wrote {FILE}; `make docs` puts it into the documentation", err=True)
    sys.exit(1 if any(each.failed or each.matched != each.compared for each in totals.values()) else 0)


def share(totals: Totals, kind: str) -> str:
    return f"{totals.matched[kind]}/{totals.compared[kind]}"


def compare(name: str) -> Totals:
    totals = Totals(library.find(name).sha256)
    planned = list(plan(name))
    for number, scenario in enumerate(planned, start=1):
        title = f"{scenario.title} {scenario.environment or ''}".strip()
        click.echo(f"[{number}/{len(planned)}] {title}: {totals.matched['cells']} cells so far", err=True)
        try:
            report = check(scenario, REQUESTS if scenario.nodes == 1 else ALL_COLLECTIVES, timeout_s=600)
        except TunerError as error:
            totals.failed.append(title)
            click.echo(f"NOT ASKED {title}: {error}")
            continue
        totals.add(report)
        for mismatch in report.mismatches[:SHOWN]:
            click.echo(
                f"MISMATCH {title}: {mismatch.what} {mismatch.where}: "
                f"emulator {mismatch.emulator}, libnccl {mismatch.libnccl}"
            )
    return totals


def plan(name: str) -> Iterator[Scenario]:
    here = [machine for machine in catalogue.names() if name not in catalogue.load(machine).crashes]
    connected = [machine for machine in here if catalogue.load(machine).topology.nets]
    for machine in here:
        yield Scenario(nccl=name, machine=machine, nodes=1)
        if machine in connected:
            yield Scenario(nccl=name, machine=machine, nodes=2)
    start = release.names().index(name)  # other machines for these in every release
    for at, nodes in enumerate((3, 4, 8) * 2, start=start):
        machine = connected[at % len(connected)]
        most = max(count for count in catalogue.load(machine).gpu_counts if count * nodes <= MOST_RANKS)
        yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=most)
    for at, settings in enumerate(SETTINGS, start=start):
        machine = connected[at % len(connected)]
        gpus = min(catalogue.load(machine).gpus_per_node, 4)
        yield Scenario(nccl=name, machine=machine, nodes=2, gpus_per_node=gpus, environment=settings)
    if release.load(name).environment.shares_gpus is None:
        return
    for machine, nodes, (gpus, per_gpu) in product(SHARED, (1, 2), GPUS_AND_RANKS):
        yield Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=gpus, ranks_per_gpu=per_gpu)


def write(name: str, totals: Totals) -> None:
    """Replaces the release's part of the file."""
    found = read()
    found[name] = {
        "libnccl_sha256": totals.sha256,
        "machines": list(catalogue.names()),
        "communicators": totals.communicators,
        "failed": len(totals.failed),
        **{kind: {"compared": totals.compared[kind], "matched": totals.matched[kind]} for kind in KINDS},
    }
    lines = ["# Autogenerated by 'make test-releases'; do not edit. Emulator against the live libnccl of each release."]
    for each in sorted(found, key=release_key):
        lines += ["", f'["{each}"]', *(f"{key} = {_value(value)}" for key, value in found[each].items())]
    FILE.write_text("\n".join(lines) + "\n")


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def read() -> dict[str, Row]:
    """What the file says of each release, oldest first."""
    return tomllib.loads(FILE.read_text()) if FILE.is_file() else {}


if __name__ == "__main__":
    main()
