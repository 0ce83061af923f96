"""Compares calls on symmetric windows with libnccl on random machines, types, sizes and variables; prints counts.

``python -m tests.scripts.check_symmetric SEED SCENARIOS [RELEASE ...]``; without releases all that have windows.
"""

import random
import sys

from tests.support.available_releases import HERE
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.conformance.check import check
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

MACHINES = {"dgx-h100": 8, "dgx-b200": 8, "dgx-a100": 8}
COLLECTIVES = (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter)
VALUES = {
    "NCCL_SYM_CTAS": ("0", "1", "2", "7", "16", "64", "65", "-3", "4294967299"),
    "NCCL_SYM_CE_THRESHOLD": ("0", "1", "4096", "100000", "-1", ""),
    "NCCL_SYM_TMA_ENABLE": ("0", "1"),
    "NCCL_MIN_CTAS": ("2", "5", "33"),
    "NCCL_MAX_CTAS": ("1", "6", "20"),
    "NCCL_NVLS_ENABLE": ("0", "1"),
    "NCCL_CTA_POLICY": ("1", "2"),
}
SIZES = 120


def drawn(name: str, draw: random.Random) -> tuple[Scenario, Request, list[int]]:
    """A scenario with some variables, one request, and sizes of it, as NCCL's nBytes."""
    machine = draw.choice(list(MACHINES))
    names = draw.sample(list(VALUES), draw.randint(0, 3))
    environment = {variable: draw.choice(VALUES[variable]) for variable in names}
    gpus = draw.randint(2, MACHINES[machine])
    request = Request(draw.choice(COLLECTIVES), draw.choice(list(DataType)), Op.sum, buffers=Buffers.window)
    unit = request.unit_bytes(gpus)
    sizes = sorted({unit * max(1, int(2 ** draw.uniform(0, 31)) // unit) for _ in range(SIZES)})
    return Scenario(nccl=name, machine=machine, nodes=1, gpus_per_node=gpus, environment=environment), request, sizes


def main(seed: int, scenarios: int, releases: list[str]) -> int:
    """Returns how many answers differ."""
    differ = 0
    for name in releases:
        draw, compared, refused = random.Random(f"{seed} {name}"), 0, 0
        for _ in range(scenarios):
            scenario, request, sizes = drawn(name, draw)
            try:
                Selection(scenario.communicator()).non_classic_paths(request, sizes)
            except (BadInput, NoAlgorithm):
                refused += 1
                continue
            report = check(scenario, [request], sizes)
            compared += sum(report.compared[what] for what in ("picks", "channels", "threads"))
            differ += len(report.mismatches)
            for mismatch in report.mismatches[:5]:
                print(scenario.title, scenario.environment, mismatch)
        print(
            f"{name}: {compared} compared, {refused} of {scenarios} scenarios refused, {differ} differ so far",
            flush=True,
        )
    return differ


if __name__ == "__main__":
    with_windows = [name for name in HERE if release.load(name).rules.non_classic_path != "classic_path_only"]
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or with_windows)))
