"""Compares calls with a decision table, on windows and wherever symmetric kernels may run, with libnccl; prints counts.

``python -m tests.scripts.check_window_tables SEED SCENARIOS [RELEASE]...``; without releases all that have windows.
Machines, types, sizes and variables are drawn as by ``check_symmetric``, the rows of a table beside them.
"""

import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from tests.scripts.check_symmetric import WITH_WINDOWS, drawn
from tests.support.available_releases import is_here
from tests.support.tables_on_windows import differing
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Algorithm, Buffers, Protocol
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS

CHOICES = [
    f"{algorithm.name.lower()}/{protocol.name.lower()}"
    for algorithm in (Algorithm.Ring, Algorithm.Tree, Algorithm.NVLS)
    for protocol in Protocol
]


def rows(draw: random.Random) -> list[str]:
    """Rows of a table for any collective, some for one number of operations that NCCL counts together."""
    made = []
    for _ in range(draw.randint(1, 4)):
        low, high = sorted(int(2 ** draw.uniform(3, 33)) for _ in range(2))
        sizes = draw.choice(("", f"bytes={low}..{high}", f"bytes=..{high}", f"bytes={low}.."))
        collective = draw.choice(("allreduce", "allgather", "reducescatter"))
        pipelined = draw.choice(("", "", "", "pipelined=0", "pipelined=1"))
        choices, channels = " | ".join(draw.sample(CHOICES, 2)), draw.choice(("", "", "channels=2", "channels=5"))
        made.append(" ".join(f"{collective} {sizes} {pipelined} -> {choices} {channels}".split()))
    return made


@click.command()
@click.argument("seed", type=int)
@click.argument("scenarios", type=int)
@click.argument("names", nargs=-1, type=click.Choice(WITH_WINDOWS), metavar="[RELEASE]...")
def main(seed: int, scenarios: int, names: tuple[str, ...]) -> None:
    """Exit code 1 where anything differs."""
    differ = 0
    for name in names or filter(is_here, WITH_WINDOWS):
        draw, says, refused = random.Random(f"{seed} {name}"), Counter[str](), 0
        for _ in range(scenarios):
            scenario, request, sizes = drawn(name, draw)
            table = rows(draw)
            sizes = sizes[::2]
            if request.buffers is not Buffers.window:  # as registered ones: :func:`tests.scripts.check_registered`
                request = replace(request, buffers=Buffers.plain)
                scenario = replace(scenario, environment={**(scenario.environment or {}), WITHOUT_WINDOWS: "1"})
            with tempfile.TemporaryDirectory() as folder:
                try:
                    compared, found = differing(scenario, request, sizes, Path(folder), table)
                except (BadInput, NoAlgorithm):
                    refused += 1
                    continue
                except OracleFailed as error:
                    differ += 1
                    print(scenario.title, scenario.environment, request.title, table, error)
                    continue
            says += compared
            differ += len(found)
            for each in found[:5]:
                print(scenario.title, scenario.environment, request.title, table, each)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(says.items()))
        print(f"{name}: {counts}, {refused} of {scenarios} scenarios refused, {differ} differ so far", flush=True)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
