"""The whole loop on borrowed GPUs, in stages that each have a time limit: what fails costs seconds, not the session.

    python benchmarks/gpu_loop.py --out FOLDER [--copies FOLDER] [--library libnccl.so.2] [--seconds 540]
                                  [--only gain|job] [--patience 4]

1. Self-tests say which layer fails: driver, NVRTC, libnccl, ranks, a call, a call in a graph, forced calls. Where one
   does, the next tries fewer blocks, no CUDA graphs, no P2P, sockets; what works stays set for all that follows.
2. NCCL's own choices, five collectives at 28 sizes, compared at once with the emulator's, and its log with its tables.
3. Noise: a few points again and again, within a process and in fresh ones.
4. Seven sizes (or --bytes) of three collectives, every combination that NCCL offers; 'decide' with its A/B run. Then a
   training step with overlap on all GPUs, by turns with the decided table and without: the gain and its interval.
5. One channel, small sizes: latency by protocol and ranks. Large sizes by channels: the rate of one.
6. The host's time, with a tuner plugin and without. NCCL's own choices without P2P, and over sockets.
7. The plugin inside a job ('gpu_job.py'): what its profiler sees, arms, arms beside other work, cost by event mask.
8. The A/B run of the decided rows once more. Then all sizes until the time is over, 'verify', 'fit' and 'decide' on it.

On a computer with one GPU several ranks share it, which takes NCCL 2.30.3 or later: 2, then 3, 4 and 8. Stages run in
processes of their own; each writes to FOLDER, and after each all that is there is packed into results.tar.gz in the
folder of --copies. What comes last is left out where the time is over. The same command goes on after the stages that
succeeded: stages.json says which. Exit code 1 where a stage failed, 130 where it was interrupted.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from tuner import plugin
from tuner.base.errors import TunerError
from tuner.base.interrupts import sigterm_interrupts
from tuner.bench.gpu import selftest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # the stages lie beside, also where Python leaves a script's folder out

from gpu_stages import INTERRUPTED, Ended, Stage, Stages  # noqa: E402

SEVEN = "1K,16K,256K,1M,8M,64M,512M"
CLIMB = (2, 3, 4, 8)  # ranks on a GPU
OWN_CHOICES_ALSO_AT = 6
SWEPT = (2, 8)  # ranks on a GPU whose rows are decided
COUNT_GPUS = "from tuner.bench.gpu.cuda import Cuda; print(Cuda().count)"
PYTHON = (sys.executable, "-P")  # not the tuner that may lie in the current folder
NCCL_TUNER = (*PYTHON, "-c", "from tuner.cli import main; main()")
GRAPHS_BELOW = "128M"  # where all ranks are in one process the host needs that long to start a call
NINE_MINUTES_S = 540.0
JOB_S = 100.0  # in which all calls of the stages inside a job can be made
ALL_SIZES_S, ANALYSIS_S = 60.0, 60.0
# A row for sizes that nobody calls: it is looked through, and decides nothing.
NO_ROW = "allreduce bytes={low}..{high} -> ring/ll\n"

ONE_BLOCK = {"NCCL_MAX_CTAS": "1", "NCCL_NVLS_ENABLE": "0"}
NO_P2P = {"NCCL_P2P_DISABLE": "1"}
SOCKETS = {**NO_P2P, "NCCL_SHM_DISABLE": "1"}


@dataclass(frozen=True)
class Setup:
    """Variables under which ranks may work together, and whether in CUDA graphs; its name ends those of its stages."""

    name: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    graphs: bool = True

    def without_graphs(self) -> "Setup":
        return Setup(f"{self.name}-no-graphs", self.variables, graphs=False)


# From what is wanted to what works almost everywhere: all of a GPU's blocks, fewer of them, other ways between ranks.
LADDER = (
    Setup(),
    Setup("-16-blocks", {"NCCL_MAX_CTAS": "16"}),
    Setup("-2-blocks", {"NCCL_MAX_CTAS": "2"}),
    Setup("-1-block", ONE_BLOCK),
    Setup("-no-p2p", {**ONE_BLOCK, **NO_P2P}),
    Setup("-sockets", {**ONE_BLOCK, **SOCKETS}),
)
# What no other variables mend.
NEEDED = (selftest.PACKAGES, selftest.DRIVER, selftest.NVRTC, selftest.LIBNCCL)


@dataclass(frozen=True)
class Run:
    """One number of ranks on a GPU and the setup that they work in: its stages and their files."""

    out: Path
    library: Path | None
    ranks_per_gpu: int
    first_sizes: str
    scale: float = 1.0  # of the times that stages get which could go on for longer
    setup: Setup = Setup()

    @property
    def suffix(self) -> str:
        return f"-{self.ranks_per_gpu}" if self.ranks_per_gpu > 1 else ""

    @property
    def words(self) -> list[str]:
        library = [] if self.library is None else ["--library", str(self.library)]
        return ["--ranks-per-gpu", str(self.ranks_per_gpu), *library]

    @property
    def graphs_below(self) -> str:
        return GRAPHS_BELOW if self.setup.graphs else "0"

    def name(self, stage: str) -> str:
        return f"{stage}{self.suffix}"

    def file(self, stage: str, ending: str) -> Path:
        return self.out / f"{self.name(stage)}{ending}"

    def self_test(self, limit_s: float, again: str = "") -> Stage:
        """Ends itself at its limit, with the places where it hangs."""
        name = f"{self.name('selftest')}{self.setup.name}{again}"
        said = [*self.words, "--limit-s", str(limit_s), *([] if self.setup.graphs else ["--no-graphs"])]
        command = [*PYTHON, "-m", "tuner.bench.gpu.selftest", *said, "--log", str(self.out / f"{name}.nccl.log")]
        return Stage(name, command, limit_s + 2, variables=self.setup.variables, about_s=5)

    def own_choices(
        self, name: str = "own", variables: Mapping[str, str] | None = None, most: str = "1073741824"
    ) -> list[Stage]:
        """NCCL's own choices against the emulator's, and what its log prints against the emulator's tables."""
        log = self.file(name, ".nccl.log")
        said = ["--out", str(self.file(name, ".jsonl")), "--nccl-log", str(log), "--most-bytes", most]
        graphs = str(128 << 20) if self.setup.graphs else "0"
        command = [*PYTHON, str(HERE / "gpu_calls.py"), "own", *self.words, *said, "--graphs-below", graphs]
        check = [*NCCL_TUNER, "log", str(log), "--check", "--topology", f"{self.file(name, '.jsonl')}.topology.xml"]
        check_name = self.name(f"check-log-{name}" if name != "own" else "check-log")
        return [
            Stage(self.name(name), command, 40, variables={**self.setup.variables, **(variables or {})}, about_s=7),
            Stage(check_name, check, 20, about_s=2),
        ]

    def measure(
        self,
        name: str,
        seconds: float,
        *words: str,
        about_s: float,
        into: str = "",
        needs: tuple[str, ...] = (),
        collectives: tuple[str, ...] = (),
    ) -> Stage:
        """A budget that a process of its own, and its start, can keep."""
        said = ["--repeats", "5", "--warmup", "1", "--budget-s", f"{seconds:.1f}"]
        where = ["--out", str(self.file(into or name, ".jsonl")), "--nccl-log", str(self.file(name, ".nccl.log"))]
        command = [*NCCL_TUNER, "measure", *collectives, *self.words, *where, "--cuda-graph-below", self.graphs_below]
        return Stage(
            self.name(name), [*command, *said, *words], seconds + 25, needs, True, self.setup.variables, about_s
        )

    def quick(self) -> Stage:
        words = ("--bytes", self.first_sizes, "--rounds", "6", "--rounds-per-process", "2")
        about_s = 18 if self.ranks_per_gpu < 8 else 31
        return self.measure("quick", 45 * self.scale, *words, into="run", about_s=about_s)

    def gate(self, name: str, needs: str, *words: str, limit_s: float = 100.0) -> Stage:
        # What lasts for longer than the A/B run is seen by the one that comes minutes later.
        apart = ["--apart-s", f"{5 * self.scale:.1f}"]
        apart += ["--rounds", "15", "--repeats", "5"] if self.ranks_per_gpu >= 8 else []
        said = ["--out", str(self.file(name, ".table")), *apart, *self.words[2:], *words]
        command = [*NCCL_TUNER, "decide", str(self.file("run", ".jsonl")), *said]
        needed, variables = (self.name(needs),), self.setup.variables
        return Stage(self.name(name), command, limit_s, needed, variables=variables, about_s=27, answers_no=True)

    def noise(self) -> Stage:
        """Two combinations at six sizes, 20 sample blocks of each in each of 6 processes."""
        which = ("--algorithms", "ring", "--protocols", "simple", "--bytes", "1K,64K,1M,8M,64M,512M")
        often = ("--precision", "0.01", "--rounds", "120", "--rounds-per-process", "20")
        return self.measure("noise", 70 * self.scale, *which, *often, about_s=37, collectives=("allreduce",))

    def gain(self) -> Iterator[Stage]:
        """A training step with overlap under the decided table and without, in processes of their own by turns."""
        table, needed = self.file("gate", ".table"), (self.name("gate"),)
        command = [*PYTHON, str(HERE / "gpu_job.py")]
        words = ["--out", str(self.file("step", ".jsonl")), *self.words, "--share", f"{self.share:.3f}"]
        names = []
        for turn, under in enumerate((True, False, False, True, True, False, False, True), start=1):
            names.append(self.name(f"step-{turn}"))
            said = [*command, "step", *words, *(["--table", str(table)] if under else [])]
            yield Stage(names[-1], said, 30, needed, variables=self.setup.variables, about_s=5)
        yield Stage(self.name("gain"), [*command, "gain", *words[:2]], 20, tuple(names), about_s=2, answers_no=True)

    @property
    def share(self) -> float:
        """The share of their calls that stages inside a job make."""
        return min(1.0, self.scale * NINE_MINUTES_S / JOB_S)

    def latency(self) -> Stage:
        which = ("--algorithms", "ring,tree", "--bytes", "8,64,512,4K,16K,64K", "--channels", "1")
        often = ("--rounds", "4", "--rounds-per-process", "4")
        return self.measure("latency", 20 * self.scale, *which, *often, about_s=10, collectives=("allreduce",))

    def channel_rates(self) -> Stage:
        which = ("--algorithms", "ring", "--bytes", "4M,16M,64M,256M", "--channels", "1,2,4,8,16,32,64")
        return self.measure(
            "channels", 50 * self.scale, *which, "--rounds", "3", about_s=12, collectives=("allreduce",)
        )

    def fewer_blocks(self) -> Iterator[Stage]:
        """The same without the last blocks of a GPU, and without clusters of them: where all of them run at once."""
        which = ("--algorithms", "ring", "--bytes", "2M,4M,8M,16M")
        for name, variables in (
            ("120-blocks", {"NCCL_MAX_CTAS": "60"}),
            ("no-clusters", {"NCCL_CGA_CLUSTER_SIZE": "0"}),
        ):
            stage = self.measure(name, 20 * self.scale, *which, "--rounds", "3", about_s=8, collectives=("allreduce",))
            yield replace(stage, variables={**stage.variables, **variables})

    def host_times(self, settings: Sequence[tuple[str, int | None]]) -> Iterator[Stage]:
        """With no plugin, or this project's and a table of so many rows; into one file."""
        for name, rows in settings:
            words = ["--out", str(self.file("host", ".jsonl"))]
            if rows is not None:
                words += ["--plugin", str(plugin.path()), "--table", str(_table_of(self.out, rows))]
            command = [*PYTHON, str(HERE / "gpu_calls.py"), "host", *self.words, *words]
            yield Stage(self.name(name), command, 20, variables=self.setup.variables, about_s=4)

    def job(self) -> Iterator[Stage]:
        """The plugin as profiler and tuner inside a job, its arms, and what NCCL's profiler costs by event mask."""

        def stage(name: str, limit_s: float, about_s: float, *words: str, into: str = "") -> Stage:
            said = ["--out", str(self.file(into or name, ".jsonl")), *self.words, "--share", f"{self.share:.3f}"]
            command = [*PYTHON, str(HERE / "gpu_job.py"), words[0], *said, *words[1:]]
            return Stage(self.name(name), command, limit_s, variables=self.setup.variables, about_s=about_s)

        yield stage("profile", 40, 12, "profile")
        if self.ranks_per_gpu > 2:
            return
        yield stage("explore", 45, 12, "explore")
        yield stage("captured", 30, 9, "explore", "--capture")
        yield stage("overlap", 60, 15, "explore", "--beside")
        profilers = (("no-masks", "none"), ("masks", "idle"), ("masks-job", "job"))
        for name, profiler in (*profilers, ("masks-again", "idle"), ("no-masks-again", "none")):
            yield stage(name, 40, 7, "masks", "--profiler", profiler, into="masks")

    def analysis(self, command: str, *words: str, needs: str) -> Stage:
        said = [*NCCL_TUNER, *command.split(), str(self.file("run", ".jsonl")), *words, *self.words[2:]]
        return Stage(self.name(command.split()[0]), said, 60, (self.name(needs),), about_s=4)


def _table_of(out: Path, rows: int) -> Path:
    path = out / f"{rows}-rows.table"
    if not path.is_file():
        lows = (2**40 + 8 * row for row in range(rows))
        path.write_text("nccl-tuner-table 1\n" + "".join(NO_ROW.format(low=low, high=low + 4) for low in lows))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copies", type=Path, help="where results.tar.gz is written after each stage")
    parser.add_argument("--ranks-per-gpu", type=int, help="this number alone [default: 1; on a single GPU 2, 3, 4, 8]")
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--bytes", default=SEVEN, help=f"the sizes of the quick sweep [default: {SEVEN}]")
    parser.add_argument("--seconds", type=float, default=NINE_MINUTES_S, help="for all of it [default: 540]")
    parser.add_argument("--only", choices=("gain", "job"), help="one self-test, and 4 or 7 alone")
    parser.add_argument("--patience", type=float, default=1.0, help="of the limits of stages, on a slow computer")
    given = parser.parse_args()
    try:
        with sigterm_interrupts():
            said = partial(print, flush=True)
            stages = Stages(given.out, given.seconds, given.copies, said, given.patience)
            several = (given.ranks_per_gpu,) if given.ranks_per_gpu else climb()
            scale = given.seconds / NINE_MINUTES_S
            runs = [Run(given.out, given.library, ranks, given.bytes, scale) for ranks in several]
            {None: all_of_it, "gain": gain_alone, "job": job_alone}[given.only](stages, runs)
    except (TunerError, OSError) as error:
        print(f"gpu_loop: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"gpu_loop: interrupted; {given.out} keeps what was measured; the same command continues")
        return INTERRUPTED
    bad = [done.name for done in stages.done.values() if done.ended in (Ended.failed, Ended.limit)]
    print(f"== done; failed: {', '.join(bad) or 'nothing'}; in {given.out}", flush=True)
    return 1 if bad else 0


def climb() -> tuple[int, ...]:
    """Ranks on a GPU to try. Where the GPUs cannot be counted the self-test says why."""
    command = [*PYTHON, "-c", COUNT_GPUS]
    try:
        counted = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except subprocess.TimeoutExpired:
        counted = ""
    return (1,) if counted.isdecimal() and int(counted) > 1 else CLIMB


def all_of_it(stages: Stages, several: Sequence[Run]) -> None:
    """Stage by stage, what matters most first; none where no self-test succeeds."""
    working = working_runs(stages, several)
    if not working:
        return
    first = working[0]
    swept = [each for each in working if each.ranks_per_gpu in SWEPT] or [first]
    planned = list(in_order(working, swept))
    stages.plan(planned)
    for stage in planned:
        stages.run(stage)
    for position, each in enumerate(swept):
        left_s = stages.left_s() - ANALYSIS_S
        if left_s > ALL_SIZES_S:
            seconds = left_s / (len(swept) - position)
            stages.run(each.measure("sweep", seconds - 25, into="run", about_s=seconds, needs=(each.name("quick"),)))
    for each in swept:
        stages.run(each.analysis("verify", needs="quick"))
        constants = each.file("constants", ".toml")
        stages.run(each.analysis("fit constants", "--out", str(constants), needs="quick"))
    if stages.succeeded(first.name("sweep")):
        stages.run(first.gate("decide", "sweep", limit_s=150))


def gain_alone(stages: Stages, several: Sequence[Run]) -> None:
    """What the decided table gains, end to end, on the first number of ranks that works."""
    for first in working_runs(stages, several[:1]):
        planned = [first.quick(), first.gate("gate", "quick"), *first.gain()]
        stages.plan(planned)
        for stage in planned:
            stages.run(stage)


def job_alone(stages: Stages, several: Sequence[Run]) -> None:
    """Only what the plugin does inside a job, on the first number of ranks that works and on 8."""
    working = working_runs(stages, several[:1])
    for first in working:
        planned = in_job(
            first, [first, replace(first, ranks_per_gpu=SWEPT[-1])] if first.ranks_per_gpu > 1 else [first]
        )
        stages.plan(planned)
        for stage in planned:
            stages.run(stage)


def in_job(first: Run, several: Sequence[Run]) -> list[Stage]:
    """The stages inside a job, first those of the most ranks that are few."""
    own, *rest = first.job()
    return [own, *chain.from_iterable(each.job() for each in several if each is not first), *rest]


def in_order(working: Sequence[Run], swept: Sequence[Run]) -> Iterator[Stage]:
    """What fits into nine minutes, in the order in which it gives way from the end."""
    first = working[0]
    for each in working:
        yield from each.own_choices()
    if first.ranks_per_gpu > 1:
        yield from replace(first, ranks_per_gpu=OWN_CHOICES_ALSO_AT).own_choices()
    yield first.noise()
    for each in swept:
        yield each.quick()
    for each in swept:
        yield each.gate("gate", "quick")
    yield from swept[0].gain()
    for each in working:
        yield each.latency()
    yield first.channel_rates()
    if first.ranks_per_gpu == 2 and not first.setup.variables:
        yield from first.fewer_blocks()
    plugins = [("host-none", None), ("host-empty", 0), ("host-1000-rows", 1000)]
    yield from first.host_times([*plugins, *((f"{name}-again", rows) for name, rows in reversed(plugins))])
    for each in swept[1:]:
        yield from each.host_times(plugins[:1])
    yield from in_job(first, swept)
    yield from first.own_choices("no-p2p", NO_P2P)
    yield from first.own_choices("sockets", SOCKETS, str(64 << 20))
    for each in swept:
        yield each.gate("again", "gate", "--seed", "1")


def working_runs(stages: Stages, several: Sequence[Run]) -> list[Run]:
    """Each number of ranks in the first setup in which its self-test succeeds; those that have none are left out.

    The first number goes down the whole ladder, the others begin where it ended and try one block besides.
    """
    found: list[Run] = []
    ladder: Sequence[Setup] = LADDER
    for each in several:
        setup = first_that_works(stages, each, ladder)
        if setup is None:
            if not found:
                break
            continue
        found.append(replace(each, setup=setup))
        if len(found) == 1:
            ladder = [setup, *([] if setup.variables else [LADDER[3] if setup.graphs else LADDER[3].without_graphs()])]
    return found


def first_that_works(stages: Stages, run: Run, ladder: Sequence[Setup]) -> Setup | None:
    """Tries setups until a self-test succeeds. One that only fails in a graph is tried without graphs next.

    What takes too long before it comes to the ranks is tried once more: it has loaded the libraries from the disk.
    """
    tries = [[setup, *([setup.without_graphs()] if setup.graphs else [])] for setup in ladder]
    for tried in chain.from_iterable(tries):
        if stages.succeeded(replace(run, setup=tried).self_test(0).name):
            return tried
    for with_graphs_or_not in tries:
        for tried in with_graphs_or_not:
            one = replace(run, setup=tried)
            if stages.run(first := one.self_test(20)):
                return tried
            done = stages.done[first.name]
            layer = selftest.named_in(done.said)
            if layer in NEEDED:
                return tried if done.ended is Ended.limit and stages.run(one.self_test(60, "-again")) else None
            if layer != selftest.CALL_IN_GRAPH:
                break
    return None


if __name__ == "__main__":
    sys.exit(main())
