"""What answers take, all in one table with the date: processor time, medians of several runs. Prints; checks nothing.

python -m benchmarks.speed [PART...]

All parts, or of picks, search, files, shown, serving, other, libnccl, plugin, start.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import graphs, libnccl_picks, plugin
from benchmarks.start import milliseconds
from tests.support.preflight_records import AMD, Host, with_processor
from tests.support.preflight_records import write as write_records
from tuner import release
from tuner.answers.choices import choices
from tuner.answers.diff import Side, diff
from tuner.api import communicator as described
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator import compiled
from tuner.emulator.compiled import CompiledSelection
from tuner.emulator.ranges import launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.graphs.graphs import search
from tuner.oracle.api import Oracle
from tuner.plugin.dry_run import DryRun, TunerCall
from tuner.scenario import Scenario
from tuner.times.timemodel import predict

NCCL = "2.28.9"
CASE = Scenario(nccl=NCCL, machine="dgx-h100", nodes=2)
COUNT = 1_000_000
ENGINE_PAIRS = 60
Figure = tuple[str, float, str, str]  # what, how much, its unit, the aim

# 100,000 calls of a job, rows of a table, and lines of a log that repeat: what the files' part reads.
CALLS = 100_000
LOG_BYTES = 20 << 20
LOGGED_CALL = (
    "node0:4121:4133 [0] NCCL INFO AllReduce: opCount 7 sendbuff 0x7f02 recvbuff 0x7f02 count 1048576 datatype 7 op 0 "
    "root 0 comm 0x55d0 [nranks=16] stream 0x55"
)
EXAMPLE_LOG = Path(__file__).parents[1] / "docs" / "examples" / "nccl.log"


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def picks() -> Iterator[Figure]:
    communicator = CASE.communicator()
    yield "one communicator's tables", 1e3 * seconds(lambda: Selection(communicator).tables), "ms", "20"
    sizes = np.exp(np.random.default_rng(1).uniform(0, np.log(16 << 30), COUNT)).astype(np.uint64)
    selection, ns = CompiledSelection(communicator), 1e9 / COUNT
    for collective in (Collective.AllReduce, Collective.AllGather):
        request = Request(collective, DataType.float32, Op.sum)
        table = selection.pick_table(request)
        assert table is not None
        name = collective.name
        own = [libnccl_picks.measure(CASE, request, sizes)[0]]
        yield (
            f"a table of picks, {name}",
            1e3 * seconds(lambda r=request: compiled.pick_table(selection, r)),
            "ms",
            "33",
        )
        ns = 1e9 / COUNT
        yield (
            f"a pick of random sizes, arrays, {name}",
            ns * seconds(lambda r=request: selection.pick(r, sizes)),
            "ns",
            "15",
        )
        yield f"the same looked up alone, {name}", ns * seconds(lambda t=table: t.look_up(sizes)), "ns", "8"
        yield f"the same by NumPy, {name}", ns * seconds(lambda t=table: t._by_numpy(sizes)), "ns", "40"
        yield (
            f"the same by the model, {name}",
            ns * seconds(lambda r=request: selection.model_pick(r, sizes)),
            "ns",
            "-",
        )
        own.append(libnccl_picks.measure(CASE, request, sizes)[0])
        yield f"libnccl's own topoGetAlgoInfo, before and after these, {name}", min(own), "ns", "-"
    planner = described("dgx-h100", nodes=2, nccl=NCCL)
    one_by_one = range(1 << 20, (1 << 20) + 1000)
    planner.pick("allreduce", 1 << 20)
    scalar = seconds(lambda: [planner.pick("allreduce", size) for size in one_by_one])
    yield "one pick of one size, from Python", 1e6 / len(one_by_one) * scalar, "us", "2"
    model = predict.of_communicator(selection, CASE.machine)
    summed = Request(Collective.AllReduce, DataType.float32, Op.sum)
    of_all = selection.pick(summed, sizes)
    yield "a calibrated time with its interval", ns * seconds(lambda: model.of_picks(summed, of_all), 3), "ns", "1000"
    for size in (1 << 26, 100_000):
        alone = selection.pick(summed, np.array([size], np.uint64))
        took = min(seconds(lambda p=alone: [model.of_picks(summed, p) for _ in range(100)]) for _ in range(5))
        yield f"one calibrated time of one size, {size} B on two nodes", 1e6 / 100 * took, "us", "50"


def searches() -> Iterator[Figure]:
    for title, asked, nccl, aim_s in graphs.cases(["dgx-h100", "dgx-b200", "pcie-l40s-4nic", "gb200-nvl72"]):
        yield f"search, {title}", 1e3 * seconds(lambda r=asked, n=nccl: search(r, n), 3), "ms", f"{1e3 * aim_s:.0f}"


def files() -> Iterator[Figure]:
    command = str(Path(sys.executable).with_name("nccl-tuner"))
    place = ["--machine", "dgx-h100", "--nodes", "2", "--json"]
    with TemporaryDirectory() as folder:
        trace, listed, log, table = (
            Path(folder, name) for name in ("trace.json", "list.csv", "nccl.log", "rows.table")
        )
        said = {"Collective name": "allreduce", "dtype": "BFloat16", "Group size": 16, "Out msg nelems": 4}
        launch = {"grid": [16, 1, 1], "block": [544, 1, 1]}
        events = [
            event
            for number in range(CALLS)
            for about in [{**said, "External id": number, "In msg nelems": 1 << number % 20}]
            for event in (
                {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": about},
                {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "dur": 30.5}
                | {"args": {"External id": number, **launch}},
            )
        ]
        trace.write_text(json.dumps({"traceEvents": events}))
        listed.write_text("".join(f"allreduce,{1 << number % 20 + 4},1\n" for number in range(CALLS)))
        rows = (f"allreduce bytes={64 * at}..{64 * at + 63} -> ring/ll channels={at % 16 + 1}" for at in range(CALLS))
        table.write_text("\n".join(["nccl-tuner-table 1", *rows, ""]))
        made = f"{LOGGED_CALL}\n" * (LOG_BYTES // len(LOGGED_CALL))
        log.write_text(EXAMPLE_LOG.read_text() + made)
        from_log = ["--log", str(log), "--comp-cap", "8.0", "--bytes", "1M"]
        yield "budget of 100,000 calls in a trace", milliseconds([command, "budget", str(trace), *place]), "ms", "2000"
        yield "budget of 100,000 calls in a list", milliseconds([command, "budget", str(listed), *place]), "ms", "2000"
        yield "pick by a log of 20 MB", milliseconds([command, "pick", "allreduce", *from_log]), "ms", "-"
        yield "plugin lint of 100,000 rows", milliseconds([command, "plugin", "lint", str(table)]), "ms", "5000"


def shown() -> Iterator[Figure]:
    """A report, and the counts of a job's 512 processes, as the plugin writes them."""
    command = str(Path(sys.executable).with_name("nccl-tuner"))
    costs = np.full((len(Algorithm), len(Protocol)), 10, np.float32)
    with TemporaryDirectory() as folder:
        page = ["report", "--machine", "dgx-h100", "--nodes", "2", "--out", str(Path(folder, "page.html"))]
        yield "report of a machine, 26 releases", milliseconds([command, *page]), "ms", "5000"
        for rows in (100, 10_000):
            table, alone, job = (Path(folder, f"{name}{rows}") for name in ("table", "alone", "job"))
            lines = (
                f"allreduce bytes={64 * at}..{64 * at + 63} -> ring/ll channels={at % 16 + 1}" for at in range(rows)
            )
            table.write_text("\n".join(["nccl-tuner-table 1", *lines, ""]))
            with DryRun(table, ranks=512, nodes=64, env={"NCCL_TUNER_LIVE": str(alone)}) as one:
                for at in range(50):
                    one.ask(TunerCall(Collective.AllReduce, 64 * (at * 7919 % rows) + 1), costs)
                content = next(alone.iterdir()).read_bytes()
            job.mkdir()
            for process in range(512):
                (job / f"host.{process}.0").write_bytes(content)
            took = min(milliseconds([command, "plugin", "stats", str(job)]) for _ in range(3))
            yield f"plugin stats of 512 processes, {rows} rows", took, "ms", "1000"


def serving() -> Iterator[Figure]:
    """Picks from Python with an engine and without, in turn."""
    sizes = np.unique(np.exp(np.random.default_rng(2).uniform(np.log(1024), np.log(1 << 30), 10_000)).astype(np.uint64))
    node = described("dgx-h100")
    for engine in ("vllm@0.33.0", "sglang@0.5.23"):
        served = partial(node.served_by(engine).pick, sizes, "bfloat16")
        plain = partial(node.pick, "allreduce", sizes, dtype="bfloat16")
        pairs = [[seconds(partial(repeated, run), 1) for run in (served, plain)] for _ in range(1 + ENGINE_PAIRS)][1:]
        ratio = statistics.median(one / other for one, other in pairs)
        yield f"picks of {len(sizes):,} sizes with {engine}, of those without", 100 * ratio, "%", "130"


def repeated(run: Callable[[], object]) -> None:
    for _ in range(20):
        run()


def other() -> Iterator[Figure]:
    communicator = CASE.communicator()

    def edges() -> None:
        fresh = Selection(communicator)
        for collective in Collective:
            launches(fresh, Request(collective, DataType.float32, Op.sum))

    yield "edges of all five collectives", 1e3 * seconds(edges), "ms", "500"
    summed = Request(Collective.AllReduce, DataType.float32, Op.sum)
    map_sizes = np.unique(np.geomspace(8, 16 << 30, 400).astype(np.uint64))
    mapped = seconds(lambda: choices(CASE, summed, map_sizes, range(1, 65)), 3)
    yield "choices of 64 node counts x 400 sizes", 1e3 * mapped, "ms", "-"
    for nodes, aim_ms in ((256, "250"), (1024, "1000")):
        across = described("dgx-h100", nodes=nodes, nccl=NCCL)
        yield f"channels across {nodes} nodes", 1e3 * seconds(across.channels_across_nodes, 1), "ms", aim_ms

    def pairs() -> None:
        sides = [Side(replace(CASE, nccl=name)) for name in release.names()]
        for before, after in combinations(sides, 2):
            for collective in Collective:
                diff(before, after, Request(collective, DataType.float32, Op.sum))

    yield "diff of all pairs of releases, five collectives", 1e3 * seconds(pairs, 1), "ms", "30000"
    with TemporaryDirectory() as folder:
        hosts = [Host(f"host{number:03}", nccl="2.21.5") for number in range(125)]
        two = [with_processor(host, AMD) if number % 2 else host for number, host in enumerate(hosts)]
        records = str(write_records(Path(folder), *two))
        python = f"from tuner.cli import main; import sys; sys.argv = ['', 'preflight', 'check', {records!r}]\n"
        checked = milliseconds([sys.executable, "-c", f"{python}try:\n main()\nexcept SystemExit: pass"])
        yield "preflight check of 1,000 ranks of two kinds", checked, "ms", "2000"


def libnccl() -> Iterator[Figure]:
    for nodes in (1, 2):
        configuration = replace(CASE, nodes=nodes).oracle_configuration()
        start = time.perf_counter()
        Oracle(configuration).close()
        yield f"libnccl initialises {8 * nodes} ranks (elapsed)", 1e3 * (time.perf_counter() - start), "ms", "3000"


def plugins() -> Iterator[Figure]:
    calls = plugin.measure()["calls"]
    least_ns = {(call["plugin"], call["rows"]): call["least_ns"] for call in calls}
    for rows in plugin.AIMS_NS:
        counts_ns = least_ns["ours", rows] - least_ns["ours, counting nothing", rows]
        yield f"a call's counts, {rows} rows", counts_ns, "ns at least", "1"
    for call in calls:
        aim = plugin.AIMS_NS.get(call["rows"]) if call["plugin"] == "ours" else None
        yield f"getCollInfo, {call['plugin']}, {call['rows']} rows", call["least_ns"], "ns at least", str(aim or "-")


def start() -> Iterator[Figure]:
    words = ["pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "1M"]
    command = [str(Path(sys.executable).with_name("nccl-tuner")), *words]
    milliseconds(command)
    yield "nccl-tuner pick, cold", statistics.median(milliseconds(command) for _ in range(9)), "ms", "200"


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "picks": picks,
    "search": searches,
    "files": files,
    "shown": shown,
    "serving": serving,
    "other": other,
    "libnccl": libnccl,
    "plugin": plugins,
    "start": start,
}


def main() -> None:
    named = sys.argv[1:] or list(PARTS)
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}\n")
    for part in named:
        for what, value, unit, aim in PARTS[part]():
            print(f"{what:<64}{value:12.1f} {unit:<12} aim {aim}", flush=True)


if __name__ == "__main__":
    main()
