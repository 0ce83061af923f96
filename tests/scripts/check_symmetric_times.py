"""Compares times of every symmetric kernel with those that NCCL 2.31.2 logs, on random machines and variables.

``python -m tests.scripts.check_symmetric_times SEED SCENARIOS``
"""

import random
import sys
from collections import Counter
from dataclasses import replace

import click

from tests.scripts.check_symmetric import SYM_KERNEL, drawn
from tests.support.logged_times import LOGS_TIMES, differing
from tuner.base.errors import BadInput, NoAlgorithm, OracleFailed
from tuner.base.names import Buffers

NO_COPIES = {"NCCL_SYM_CE_THRESHOLD": "-1", "NCCL_CTA_POLICY": "0", "NCCL_WIN_ENABLE": "1"}


@click.command()
@click.argument("seed", type=int)
@click.argument("scenarios", type=int)
def main(seed: int, scenarios: int) -> None:
    """Exit code 1 where any time differs."""
    draw, compared, differ, refused = random.Random(f"{seed} {LOGS_TIMES}"), Counter[str](), 0, 0
    for _ in range(scenarios):
        scenario, request, sizes = drawn(LOGS_TIMES, draw)
        environment = {**(scenario.environment or {}), **NO_COPIES}
        for taken in (SYM_KERNEL, "NCCL_ALGO", "NCCL_PROTO"):
            environment.pop(taken, None)
        scenario = replace(scenario, environment=environment)
        try:
            here, found = differing(scenario, replace(request, buffers=Buffers.window), sizes[::4])
        except (BadInput, NoAlgorithm):
            refused += 1
            continue
        except OracleFailed as error:
            differ += 1
            print(scenario.title, scenario.environment, request.title, error)
            continue
        compared += here
        differ += len(found)
        for each in found[:5]:
            print(scenario.title, scenario.environment, request.title, each)
    kernels = ", ".join(f"{name} {count}" for name, count in sorted(compared.items()))
    print(
        f"{LOGS_TIMES}: {compared.total()} times compared, {differ} differ, {refused} of {scenarios} refused: {kernels}"
    )
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
