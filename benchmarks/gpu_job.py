"""A job on the GPUs at hand that the plugin measures from inside, as NCCL's tuner and profiler; with arms, or by masks.

    python benchmarks/gpu_job.py profile --out FILE [--library FILE] [--ranks-per-gpu 2]
    python benchmarks/gpu_job.py explore --out FILE [--beside] [--capture]
    python benchmarks/gpu_job.py masks   --out FILE [--profiler none|idle|job]
    python benchmarks/gpu_job.py step    --out FILE [--table FILE]
    python benchmarks/gpu_job.py gain    --out FILE

'profile': collectives of several sizes outside CUDA graphs, in graphs and in groups, timed by CUDA events as well.
Sizes in graphs are 512 B larger, so that each kind of call has its own. 'explore': calls in a drawn order under a table
with arms, until exploring has ended; --beside: while another stream's kernel works on the same GPU; --capture: some
calls of each kind are captured in the middle. 'masks': times of calls under event masks of NCCL's profiler, each block
under the next of a drawn order; 'idle' is this project's profiler without a folder, which takes no event. 'step': a
training step on all GPUs, the AllReduce of each layer's gradients beside the computing of the next layers, under NCCL's
own choices or a decision table; adds a line of JSON. 'gain': by how much the table shortens the step, from processes
with it and without it by turns, with its 95 % interval.

The plugin writes to the folder FILE.job, and 'nccl-tuner job read' reads it. What is compared here at once: what ran
against the emulator's picks, and between the ranks. Exit code 1 where something differs, a result is wrong, or nothing
was measured; of 'gain' where the table makes the step longer.
"""

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tuner import plugin
from tuner.base.errors import BadInput, BadMeasurement, MeasuringFailed, TunerError
from tuner.base.names import Collective
from tuner.bench.gpu.nccl import _offset
from tuner.bench.gpu.process import within
from tuner.jobs.inside.files import JobFile, files_of, read_file
from tuner.jobs.inside.joined import job_call
from tuner.times.compare import FEWEST_UNITS, paired
from tuner.times.measured import samples
from tuner.times.measured.header import GPU, Header
from tuner.times.measured.samples import Combination, Point, SampleBlock
from tuner.times.verify import EmulatedModel, model_of

sys.path.append(str(Path(__file__).parent))  # the program lies beside, also where Python leaves a script's folder out

from gpu_calls import UnloggedGpu

PROFILED = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter, Collective.Broadcast)
PROFILED_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 8 << 20, 64 << 20, 256 << 20)
IN_GRAPH, IN_GROUP = 512, 1024  # bytes beyond
REPEATS, ROUNDS, GROUPS = 5, 2, 20
AGREE_S = 3.0  # before the first call: ranks read each other's files by the first of their rounds then
BLOCK, EVERY = 10, 2
EXPLORED: Mapping[Collective, tuple[int, ...]] = {
    Collective.AllReduce: (1 << 14, 1 << 20, 8 << 20, 64 << 20),
    Collective.AllGather: (1 << 20, 8 << 20, 64 << 20),
    Collective.ReduceScatter: (1 << 20, 8 << 20, 64 << 20),
}  # as many as the calls of a block
ARMS = {Collective.AllReduce: "ring/ll | ring/ll128 | ring/simple | tree/ll | tree/simple | nccl"}
RING_ARMS = "ring/ll | ring/ll128 | ring/simple | nccl"
ITERATIONS, ENDS_AFTER, WAIT_EACH, CHECK_EACH = 2500, 2000, 4, 250
CAPTURED_AT, CAPTURING = 900, 1200  # iterations
MASKED_SIZES = (8, 1 << 10, 1 << 14, 1 << 17, 1 << 20)
# ncclProfileColl, ncclProfileKernelCh: src/include/plugin/nccl_profiler.h, v2.26.2-1 and later.
MASKS = {"0": 0, "coll": 2, "coll+kernelCh": 2 | 64, "all": 0xFFF}
MASK_ROUNDS = 14
MASK_VARIABLE = "ncclProfilerEventMask"  # src/plugin/profiler.cc
BUSY = """
extern "C" __global__ void busy(float4 *data, unsigned long long count, unsigned long long rounds) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x * 4;
    for (unsigned long long round = 0; round < rounds; round++) {
        for (unsigned long long i = (blockIdx.x * blockDim.x + threadIdx.x) * 4ull; i + 3 < count; i += stride) {
            float4 a = data[i], b = data[i + 1], c = data[i + 2], d = data[i + 3];
            a.x = a.x * 1.0001f + 0.5f, b.y = b.y * 1.0001f + 0.5f;
            c.z = c.z * 1.0001f + 0.5f, d.w = d.w * 1.0001f + 0.5f;
            data[i] = a, data[i + 1] = b, data[i + 2] = c, data[i + 3] = d;
        }
    }
}
"""
LAYERS = (8 << 20, 64 << 20) * 4  # bytes of each layer's gradients, the last layer's first
STEPS, STEPS_BEFORE = 40, 5
BUSY_BYTES, BUSY_ROUNDS, BUSY_THREADS = 128 << 20, 3, 64  # few threads: NCCL's blocks fit beside them


class JobGpu(UnloggedGpu):
    """The GPUs with the variables of a job; calls in a row that nobody times, and calls in groups."""

    @cached_property
    def _mask(self) -> Any:
        """Where NCCL has the mask of its profiler's events. BadInput without the symbol."""
        base = self._nccl.ffi.cast("uintptr_t", self._nccl.ffi.addressof(self._nccl._library, "ncclGetVersion"))
        offset, known = (_offset(self._nccl.path, name) for name in (MASK_VARIABLE, "ncclGetVersion"))
        if offset is None or known is None:
            raise BadInput(f"{self._nccl.path} has no {MASK_VARIABLE}; valid: NCCL 2.26 and later, not stripped")
        return self._nccl.ffi.cast("int *", int(base) - known + offset)

    def mask_events(self, mask: int) -> None:
        """Sets which events NCCL's profiler has, for all later calls of the process."""
        self._mask[0] = mask

    def in_one_group(self, points: Sequence[Point]) -> None:
        """All of them on all ranks in one group, and waits for it. MeasuringFailed past the limit."""
        prepared = self._all_prepared(points).values()

        def launch() -> None:
            self._nccl.start_group()
            for each in prepared:
                for once in each:
                    once()
            self._nccl.end_group()

        self._wait_for(launch)

    def _all_prepared(self, points: Sequence[Point]) -> dict[Point, list[Callable[[], None]]]:
        """Each call on all ranks; prepared twice, for a buffer that grows moves, which the calls before don't know."""
        different = dict.fromkeys(points)
        for point in different:
            self._calls._prepared(point)
        return {point: self._calls._prepared(point) for point in different}

    def _wait_for(self, launch: Any, beside: "Beside | None" = None) -> None:
        def done() -> None:
            deadline_s = time.monotonic() + self._options.limit_s
            with self._local[0].lane.current():
                launch()
            marks = [(rank, self._calls._marks(rank, 1)[0]) for rank in self._local]
            for rank, mark in marks:
                with rank.lane.current():
                    rank.lane.record(mark)
            while beside is not None and not all(rank.lane.done(mark) for rank, mark in marks):
                beside.feed()
                if time.monotonic() > deadline_s:
                    break
            self._calls._wait(marks, deadline_s)

        within(self._options.limit_s + 5, "calls", done)

    def in_a_drawn_order(self, order: Sequence[Point], beside: "Beside | None") -> None:
        """One after the other on all ranks, and waits for all."""
        prepared = self._all_prepared(order)

        def launch() -> None:
            for point in order:
                self._calls._several(prepared[point], 1)
                if beside is not None:
                    beside.feed()

        self._wait_for(launch, beside)

    def beside(self) -> "Beside":
        """Work on another stream of the first rank's GPU."""
        return Beside(self._cuda, self._local[0].lane.device)

    def layers(self) -> "list[Layer]":
        """The computing of each rank, on a stream of its own."""
        return [Layer(self._cuda, rank.lane.device) for rank in self._local]

    def step_us(self, gradients: Sequence[Point], computing: "Sequence[Layer]") -> float:
        """Time in us of one training step on the slowest rank: each collective begins when its layer is computed, and
        the next layers are computed meanwhile. Without ``computing`` it is that of the collectives, without
        ``gradients`` that of the layers.
        """
        prepared, both = self._all_prepared(gradients), list(zip(self._local, computing, strict=bool(computing)))
        begins, ends = ([self._calls._marks(rank, 1)[0] for rank in self._local] for _ in range(2))

        def launch() -> None:
            for rank, mark in zip(self._local, begins, strict=True):
                with rank.lane.current():
                    rank.lane.record(mark)
            for (rank, layer), begin in zip(both, begins, strict=bool(both)):
                with rank.lane.current():
                    layer.lane.wait(begin)
            for point in gradients or [None] * len(LAYERS):
                for rank, layer in both:
                    with rank.lane.current():
                        rank.lane.wait(layer.compute())
                if point is not None:
                    with self._local[0].lane.current():
                        self._calls._several(prepared[point], 1)
            for rank, mark in zip(self._local, ends, strict=True):
                with rank.lane.current():
                    rank.lane.record(mark)
            self._calls._wait(list(zip(self._local, ends, strict=True)), time.monotonic() + self._options.limit_s)

        within(self._options.limit_s + 5, "a training step", launch)
        spans = zip(self._local, begins, ends, strict=True)
        return max(rank.lane.between_us(begin, end) for rank, begin, end in spans)


class Layer:
    """A kernel that reads and writes memory, on a stream of its own."""

    def __init__(self, cuda: Any, device: int) -> None:
        self.lane = cuda.lane(device)
        self._grid = cuda.multiprocessors(device)
        with self.lane.current():
            numbers = (self.lane.buffer("busy", BUSY_BYTES), BUSY_BYTES // 16, BUSY_ROUNDS)
            self._arguments = tuple(map(cuda.cupy.uint64, numbers))
            self._kernel = cuda.cupy.RawModule(code=BUSY).get_function("busy")

    def compute(self) -> Any:
        """Launches it on the current device; the mark of its end."""
        self._kernel((self._grid,), (BUSY_THREADS,), self._arguments, stream=self.lane._stream)
        done = self.lane.mark()
        self.lane.record(done)
        return done


class Beside:
    """The computing of a layer again and again: two of it are always queued."""

    def __init__(self, cuda: Any, device: int) -> None:
        self._layer = Layer(cuda, device)
        self._queued: list[Any] = []
        self.launched = 0
        self.feed()
        lane = self._layer.lane
        with lane.current():
            start = lane.mark()
            lane.record(start)
            end = self._layer.compute()
            self.launched += 1
            while not lane.done(end):
                time.sleep(1e-3)
            self.alone_us = lane.between_us(start, end)

    def feed(self) -> None:
        """Launches more where fewer than two are not done."""
        with self._layer.lane.current():
            self._queued = [mark for mark in self._queued if not self._layer.lane.done(mark)]
            while len(self._queued) < 2:
                self._queued.append(self._layer.compute())
                self.launched += 1


def job_folder(out: Path) -> Path:
    """What the plugin writes while a file is measured."""
    return out.with_name(f"{out.name}.job")


PROFILES_BROADCASTS = {"NCCL_ALLGATHERV_ENABLE": "0"}  # without it the plugin measures nothing under 2.29 and 2.30


def job_variables(out: Path) -> dict[str, str]:
    """The plugin as tuner and profiler, which writes every second."""
    shared = str(plugin.path())
    folder = {"NCCL_TUNER_JOB": str(job_folder(out).resolve()), "NCCL_TUNER_JOB_SECONDS": "1"}
    return {"NCCL_TUNER_PLUGIN": shared, "NCCL_PROFILER_PLUGIN": shared, **folder, **PROFILES_BROADCASTS}


def profile(given: argparse.Namespace) -> tuple[str, bool]:
    """Measures into a file as 'measure' does, NCCL's own choices without what ran; what the profiler says of it."""
    gpu = JobGpu.opened(given, job_variables(given.out))
    header, wrong = gpu.describe(), 0
    with samples.Writer(given.out, header) as writer:
        for number, beyond in product(range(ROUNDS), (0, IN_GRAPH)):
            for size, collective in product(PROFILED_SIZES, PROFILED):
                point = Point(collective, size + beyond, graph=beyond == IN_GRAPH)
                ran = gpu.run(point, None, REPEATS)
                wrong += ran.wrong
                writer.add(SampleBlock(point, None, None, ran.times_us, number, wrong=ran.wrong, host_us=ran.host_us))
    if has_counters(header):  # what stands in for GPUs in tests has a launch for each call as well
        for size, _ in product(PROFILED_SIZES[:-1], range(GROUPS)):
            gpu.in_one_group([Point(collective, size + IN_GROUP) for collective in PROFILED])
    gpu.close()
    found = list(compared(given.out))
    exact = sum(calls for calls, _, same in found if same)
    differing = [text for _, text, same in found if not same]
    whole = sum(calls for calls, _, _ in found)
    said = f"{exact} of {whole} records of calls, of {len(found)} kinds, are the emulator's; {wrong} results are wrong"
    return "\n".join([*differing, said]), (whole > 0 or not has_counters(header)) and not differing and not wrong


def has_counters(header: Header) -> bool:
    """Whether kernels write the counters of NCCL's profiler: those that stand in for GPUs in tests do not."""
    return header.backend == GPU


def job_files(out: Path) -> list[JobFile]:
    """Those of the plugin beside a file; none where it wrote none."""
    return [read_file(path) for path in files_of(job_folder(out))] if job_folder(out).is_dir() else []


def picks_of(out: Path) -> EmulatedModel:
    """The emulator on the communicator of a file. BadMeasurement where the header has none."""
    model = model_of(samples.read(out))
    if model is None:
        raise BadMeasurement(f"{out}: the header has no communicator, so that nothing can be compared")
    return model


def compared(out: Path) -> Iterator[tuple[int, str, bool]]:
    """Of each kind of call at each rank: how many have a record, what ran and what the emulator picks; of calls in a
    group the algorithm and the protocol alone, as their channels are shared.
    """
    model = picks_of(out)
    for file in job_files(out):
        counts = np.bincount(file.records()["kind"], minlength=int(file.places.max(initial=0)) + 1)
        for kind, calls in zip(file.kinds, counts[file.places], strict=True):
            ranks = int(file.communicators[kind["communicator"]]["ranks"])
            call = job_call(kind, ranks)
            if call is None or call.executed is None or not calls:
                continue
            pick = model.pick(Point(call.collective, call.bytes, call.dtype))
            grouped = call.bytes - IN_GROUP in PROFILED_SIZES
            same = pick is not None and (
                call.executed.algo_proto == pick.algo_proto if grouped else call.executed == pick
            )
            yield int(calls), f"{call.collective.name} {call.bytes} B: ran {call.executed}, picked {pick}", same


def table_of(ends_after: int) -> str:
    """Arms for every size."""
    each = (
        f"{collective.name.lower()} -> explore {ARMS.get(collective, RING_ARMS)} every={EVERY} block={BLOCK} "
        f"calls={ends_after}\n"
        for collective in EXPLORED
    )
    return "nccl-tuner-table 1\n" + "".join(each)


def explore(given: argparse.Namespace) -> tuple[str, bool]:
    """Runs until exploring has ended, or a graph has ended it, and some calls more; whether ranks ran the same."""
    points = [Point(collective, size) for collective, sizes in EXPLORED.items() for size in sizes]
    iterations, ends_after, captured_at = (
        max(WAIT_EACH, int(each * given.share) // WAIT_EACH * WAIT_EACH)
        for each in (CAPTURING if given.capture else ITERATIONS, ENDS_AFTER, CAPTURED_AT)
    )
    table = given.out.with_name(f"{given.out.stem}.table")
    table.write_text(table_of(10**6 if given.capture else ends_after * len(points)))
    gpu = JobGpu.opened(given, {**job_variables(given.out), "NCCL_TUNER_TABLE": str(table.resolve())})
    header = gpu.describe()
    time.sleep(AGREE_S)
    beside = gpu.beside() if given.beside else None
    drawn, wrong, waiting = random.Random(1), 0, []
    called: list[int] = []  # place in points; -1 - place: so many calls in a graph
    start_s = time.monotonic()
    for iteration in range(iterations):
        order = drawn.sample(range(len(points)), len(points))
        called += order
        waiting += order
        if iteration % WAIT_EACH == WAIT_EACH - 1:
            gpu.in_a_drawn_order([points[place] for place in waiting], beside)
            waiting = []
        if iteration % CHECK_EACH == CHECK_EACH - 1 and not waiting:
            for place, point in enumerate(points):
                wrong += gpu.run(point, None, 0).wrong
                called.append(place)
        if given.capture and iteration == captured_at - 1:
            for place, point in enumerate(points):
                ran = gpu.run(Point(point.collective, point.bytes + IN_GRAPH, graph=True), None, REPEATS)
                wrong += ran.wrong
                called.append(-1 - place)
    elapsed_s = time.monotonic() - start_s
    gpu.close()
    with samples.Writer(given.out, header):
        pass
    said: dict[str, Any] = {
        "points": [[point.collective.name, point.bytes] for point in points],
        "called": called,
        "wrong": wrong,
        "elapsed_s": elapsed_s,
        "beside": None if beside is None else {"launched": beside.launched, "alone_us": beside.alone_us},
    }
    given.out.with_name(f"{given.out.stem}.called.json").write_text(json.dumps(said))
    records, arms, parted, frozen = arms_seen(given.out)
    text = (
        f"{records} records of calls, {arms} other than the emulator's picks; {parted} calls parted, {frozen} arms in "
        f"graphs, {wrong} results are wrong; {elapsed_s:.1f} s"
    )
    return text, (arms > 0 or not has_counters(header)) and not (parted or frozen or wrong)


def arms_seen(out: Path) -> tuple[int, int, int, int]:
    """Records of calls, how many of them ran something else than the emulator's pick, how many calls ranks ran
    otherwise than others, and how many in graphs ran something else than the pick.
    """
    model = picks_of(out)
    in_graphs = {size + IN_GRAPH for sizes in EXPLORED.values() for size in sizes}
    count = arms = frozen = 0
    calls: dict[tuple[int, str, int], set[Combination]] = defaultdict(set)
    for file in job_files(out):
        kinds = {}
        for place, kind in zip(file.places, file.kinds, strict=True):
            one = file.communicators[kind["communicator"]]
            call = job_call(kind, int(one["ranks"]))
            pick = model.pick(Point(call.collective, call.bytes, call.dtype)) if call else None
            kinds[place] = int(one["id"]), call, call is not None and call.executed != pick
        for record in file.records():
            number, call, other = kinds[record["kind"]]
            if call is not None and call.executed is not None:
                count += 1
                arms += other
                frozen += other and call.bytes in in_graphs
                calls[number, call.collective.name, int(record["sequence"])].add(call.executed)
    return count, arms, sum(len(each) > 1 for each in calls.values()), frozen


def masks(given: argparse.Namespace) -> tuple[str, bool]:
    """Adds a line of JSON for each block: its mask, times of a call in us by events and on the host, and CPU time of
    all threads.
    """
    shared = str(plugin.path())
    none = {"NCCL_TUNER_PLUGIN": "none", "NCCL_PROFILER_PLUGIN": "none", **PROFILES_BROADCASTS}
    variables = {"none": none, "idle": {**none, "NCCL_PROFILER_PLUGIN": shared}, "job": job_variables(given.out)}
    gpu = JobGpu.opened(given, variables[given.profiler])
    names: Sequence[str] = list(MASKS) if given.profiler == "idle" else [given.profiler]
    drawn, blocks = random.Random(), 0
    todo = [(name, size, graph) for size in MASKED_SIZES for name in names for graph in (False, True)]
    for size in MASKED_SIZES:
        gpu.run(Point(Collective.AllReduce, size), None, 1)
    with given.out.open("a", encoding="utf-8") as file:
        for _ in range(max(1, int(MASK_ROUNDS * given.share))):
            for name, size, graph in drawn.sample(todo, len(todo)):
                if name in MASKS:
                    gpu.mask_events(MASKS[name])
                cpu_s = time.process_time()
                ran = gpu.run(Point(Collective.AllReduce, size, graph=graph), None, REPEATS)
                cpu_s = time.process_time() - cpu_s
                if ran.wrong:
                    raise MeasuringFailed(f"{ran.wrong} results are wrong")
                said = {"profiler": given.profiler, "mask": name, "ranks": gpu.ranks, "bytes": size, "graph": graph}
                times = {"events_us": ran.times_us, "host_us": ran.host_us, "cpu_us": cpu_s * 1e6}
                print(json.dumps({**said, **times}), file=file, flush=True)
                blocks += 1
    if given.profiler == "idle":
        gpu.mask_events(0)
    gpu.close()
    return f"{blocks} blocks under {', '.join(names)}", True


def step(given: argparse.Namespace) -> tuple[str, bool]:
    """Adds a line of JSON: times of training steps in us, of their computing alone and of their collectives alone, and
    whether under the table.
    """
    if given.table is not None and not given.table.is_file():
        return f"{given.table}: no row was decided, so that there is nothing to compare", True
    shared = str(plugin.path())
    own = {"NCCL_TUNER_PLUGIN": "none", "NCCL_PROFILER_PLUGIN": "none", **PROFILES_BROADCASTS}
    decided = (
        {} if given.table is None else {"NCCL_TUNER_PLUGIN": shared, "NCCL_TUNER_TABLE": str(given.table.resolve())}
    )
    gpu = JobGpu.opened(given, {**own, **decided})
    gradients, computing = [Point(Collective.AllReduce, size) for size in LAYERS], gpu.layers()
    steps = max(3, int(STEPS * given.share))
    wrong = sum(gpu.run(point, None, 0).wrong for point in dict.fromkeys(gradients))

    def times_us(*what: Any) -> list[float]:
        return [gpu.step_us(*what) for _ in range(STEPS_BEFORE + steps)][STEPS_BEFORE:]

    said: dict[str, Any] = {
        "table": given.table is not None,
        "ranks": gpu.ranks,
        "step_us": times_us(gradients, computing),
        "computing_us": times_us((), computing),
        "collectives_us": times_us(gradients, ()),
    }
    gpu.close()
    with given.out.open("a", encoding="utf-8") as file:
        print(json.dumps(said), file=file, flush=True)
    return f"{steps} steps of {gpu.ranks} ranks, {median(said['step_us']):.1f} us; {wrong} results are wrong", not wrong


def gain(given: argparse.Namespace) -> tuple[str, bool]:
    """By how much a table shortens the step of :func:`step`: from the n-th process with it and the n-th without."""
    lines = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()]
    sides = {table: [line for line in lines if line["table"] is table] for table in (True, False)}
    pairs = list(zip(sides[True], sides[False], strict=False))
    if len(pairs) < FEWEST_UNITS:
        return f"{len(pairs)} processes with a decided table: nothing to compare", True

    def typical(table: bool, key: str) -> float:
        return median(median(line[key]) for line in sides[table])

    logs = np.log([median(without["step_us"]) / median(under["step_us"]) for under, without in pairs])
    found = paired(logs)
    low, high = (100 * each for each in found.interval)
    alone = ", ".join(f"{typical(False, f'{key}_us'):.1f} us of {key} alone" for key in ("computing", "collectives"))
    says = "faster" if found.is_beyond() else "slower" if found.high < 0 else "not told apart"
    return (
        f"{says}: a training step of {lines[0]['ranks']} ranks takes {typical(True, 'step_us'):.1f} us with the table "
        f"and {typical(False, 'step_us'):.1f} us without ({alone}): {100 * found.gain:+.2f} % of speed, 95 % interval "
        f"{low:+.2f} to {high:+.2f} %, {len(pairs)} pairs of processes"
    ), says != "slower"


def main() -> int:
    """Runs what the command line names; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("profile", "explore", "masks", "step", "gain"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--capture", action="store_true")
    parser.add_argument("--table", type=Path, help="the decision table of 'step'")
    parser.add_argument("--profiler", choices=("none", "idle", "job"), default="none")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls that the others make")
    given = parser.parse_args()
    run = {"profile": profile, "explore": explore, "masks": masks, "step": step, "gain": gain}[given.what]
    try:
        said, good = run(given)
    except (TunerError, OSError) as error:
        print(f"gpu_job: {error}", file=sys.stderr)
        return 2
    print(said)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
