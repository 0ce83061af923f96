"""How long things take, medians of several runs. Prints; checks nothing."""

import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.support.preflight_records import AMD, Host, with_processor
from tests.support.preflight_records import write as write_records
from tuner import release
from tuner.answers.choices import choices
from tuner.answers.diff import Side, diff
from tuner.base.names import Collective, DataType, Op
from tuner.cli.charts import figures, save
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario
from tuner.times.timemodel import predict

CASE = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(what: str, value_s: float, aim: str) -> None:
    print(f"{what:<58} {value_s * 1e3:10.2f} ms   (aim: {aim})", flush=True)


def main() -> None:
    communicator = CASE.communicator()
    report("one communicator's tables", seconds(lambda: Selection(communicator).tables), "20 ms")

    sizes = np.exp(np.random.default_rng(1).uniform(np.log(4), np.log(16 << 30), 1_000_000)).astype(np.int64)
    selection = Selection(communicator)
    for collective in Collective:
        request = Request(collective, DataType.float32, Op.sum)
        picked = seconds(lambda r=request: selection.pick(r, sizes))
        report(f"picks of a million sizes, {collective.name}", picked, "150 ms")

    model = predict.of_communicator(selection, CASE.machine)
    for collective in Collective:
        request = Request(collective, DataType.float32, Op.sum)
        picks = selection.pick(request, sizes)
        calibrated = seconds(lambda r=request, p=picks: model.of_picks(r, p))
        report(f"a million calibrated times with intervals, {collective.name}", calibrated, "1000 ms")

    def edges() -> None:
        fresh = Selection(communicator)
        for collective in Collective:
            launches(fresh, Request(collective, DataType.float32, Op.sum))

    report("edges of all five collectives", seconds(edges), "500 ms")
    summed = Request(Collective.AllReduce, DataType.float32, Op.sum)
    map_sizes = np.unique(np.geomspace(8, 16 << 30, 400).astype(np.uint64))
    mapped = seconds(lambda: choices(CASE, summed, map_sizes, range(1, 65)))
    report("choices of 64 node counts x 400 sizes", mapped, "-")
    shown = choices(CASE, summed, map_sizes, range(1, 65))
    with TemporaryDirectory() as folder:
        for ending in ("png", "svg"):
            file = Path(folder, f"map.{ending}")
            drawn = seconds(lambda f=file: save(figures.choice_map(shown, "AllReduce", CASE.title), f))
            report(f"the map of them, as {ending}", drawn, "1000 ms with the choices")

    def pairs() -> None:
        sides = [Side(replace(CASE, nccl=name)) for name in release.names()]
        for before, after in combinations(sides, 2):
            for collective in Collective:
                diff(before, after, Request(collective, DataType.float32, Op.sum))

    report("diff of all pairs of releases, five collectives", seconds(pairs, 1), "30000 ms")

    command = Path(sys.executable).with_name("nccl-tuner")
    arguments = shlex.split("pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 8,1K,64MiB --json")
    shell = seconds(lambda: subprocess.run([command, *arguments], check=True, capture_output=True), 9)
    report("nccl-tuner pick from the shell", shell, "400 ms")

    with TemporaryDirectory() as folder:
        hosts = [Host(f"host{number:03}", nccl="2.21.5") for number in range(125)]
        two = [with_processor(host, AMD) if number % 2 else host for number, host in enumerate(hosts)]
        arguments = ["preflight", "check", str(write_records(Path(folder), *two))]
        shell = seconds(lambda: subprocess.run([command, *arguments], check=False, capture_output=True))
        report("nccl-tuner preflight check of 1,000 ranks of two kinds", shell, "2000 ms")

    for nodes in (1, 2, 4):
        configuration = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=nodes).oracle_configuration()
        report(
            f"libnccl initialises {8 * nodes} ranks",
            seconds(lambda s=configuration: Oracle(s).close(), 3),
            "3000 ms" if nodes == 1 else "-",
        )
    with Oracle(CASE.oracle_configuration()) as oracle:
        few = [int(size) // 4 * 4 for size in sizes[:1000]]
        launched = seconds(lambda: oracle.launch(Request(Collective.AllReduce, DataType.float32, Op.sum), few), 3)
    report("libnccl launches a thousand AllReduces", launched, "-")


if __name__ == "__main__":
    main()
