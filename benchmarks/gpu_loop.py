"""The whole loop on borrowed GPUs, in stages that each have a time limit: what fails costs seconds, not the session.

    python benchmarks/gpu_loop.py --out FOLDER [--copies FOLDER] [--library libnccl.so.2] [--seconds 540]

1. A self-test (20 s) says which layer fails: driver, NVRTC, libnccl, ranks, a call, a call in a graph, forced calls.
2. Seven sizes (or --bytes) of three collectives, every combination that NCCL offers, 3 rounds; then 'verify'.
3. 'decide' with its A/B run.
4. All sizes, 8 B to 1 GiB, until the time is over; then 'verify', 'fit' and 'decide' on all of it.

On a computer with one GPU several ranks share it, which takes NCCL 2.30.3 or later: first 2, then 4, then 8, as long as
the self-test succeeds. Stages run in processes of their own; each writes to FOLDER, and after each all that is there is
packed into results.tar.gz in the folder of --copies. The same command goes on after the stages that succeeded:
stages.json says which. Beside the measurements there are NCCL's log, and clocks, temperatures and what slowed the GPUs
down in each round, where nvidia-ml-py is installed. Exit code 1 where a stage failed.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.bench.gpu.stages import Ended, Stage, Stages

SEVEN = "1K,16K,256K,1M,8M,64M,512M"
CLIMB = (2, 4, 8)
COUNT_GPUS = "from tuner.bench.gpu.cuda import Cuda; print(Cuda().count)"
NCCL_TUNER = (sys.executable, "-c", "from tuner.cli import main; main()")
KEPT_S = 150.0  # of the time for the last 'verify', 'fit' and 'decide'


@dataclass(frozen=True)
class Given:
    """What the command line says, and the folder of one number of ranks on a GPU."""

    out: Path
    library: Path | None
    ranks_per_gpu: int
    first_sizes: str

    @property
    def suffix(self) -> str:
        return f"-{self.ranks_per_gpu}" if self.ranks_per_gpu > 1 else ""

    @property
    def run(self) -> Path:
        return self.out / f"run{self.suffix}.jsonl"

    def of_library(self) -> list[str]:
        return [] if self.library is None else ["--library", str(self.library)]

    def name(self, stage: str) -> str:
        return f"{stage}{self.suffix}"

    def log(self, stage: str) -> Path:
        return self.out / f"{stage}{self.suffix}.nccl.log"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copies", type=Path, help="where results.tar.gz is written after each stage")
    parser.add_argument("--ranks-per-gpu", type=int, help="this number alone [default: 1; on a single GPU 2, 4, 8]")
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--bytes", default=SEVEN, help=f"the sizes that are measured first [default: {SEVEN}]")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all of it [default: 540]")
    given = parser.parse_args()
    stages = Stages(given.out, given.seconds, given.copies, lambda line: print(line, flush=True))
    several = (given.ranks_per_gpu,) if given.ranks_per_gpu else climb()
    all_of_it(stages, [Given(given.out, given.library, ranks, given.bytes) for ranks in several])
    bad = [done.name for done in stages.done.values() if done.ended in (Ended.failed, Ended.limit)]
    print(f"== done; failed: {', '.join(bad) or 'nothing'}; in {given.out}", flush=True)
    return 1 if bad else 0


def climb() -> tuple[int, ...]:
    """Ranks on a GPU to try. Where the GPUs cannot be counted the self-test says why."""
    command = [sys.executable, "-c", COUNT_GPUS]
    try:
        counted = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except subprocess.TimeoutExpired:
        counted = ""
    return (1,) if counted.isdecimal() and int(counted) > 1 else CLIMB


def all_of_it(stages: Stages, several: list[Given]) -> None:
    """Stage by stage, each at all numbers of ranks that the self-test was good for."""
    working = list(while_it_works(stages, several))
    for each in working:
        stages.run(quick(each))
        stages.run(analysis(each, "verify", "verify-quick", needs="quick"))
    for each in working[:1]:
        stages.run(gate(each, "gate", needs="quick", limit_s=150))
    for position, each in enumerate(working):
        left_s = stages.left_s() - KEPT_S
        stages.run(sweep(each, left_s / (len(working) - position)))
    for each in working:
        stages.run(analysis(each, "verify", "verify", needs="sweep"))
        stages.run(analysis(each, "fit", "fit", "--out", str(each.out / f"constants{each.suffix}.toml"), needs="sweep"))
    for each in working[:1]:
        stages.run(gate(each, "decide", needs="sweep", limit_s=KEPT_S))


def while_it_works(stages: Stages, several: list[Given]) -> Iterator[Given]:
    """A self-test that takes too long is tried once more: the first has loaded the libraries from the disk."""
    for each in several:
        first, again = self_test(each, "selftest", 20), self_test(each, "selftest-again", 60)
        if not stages.run(first) and not (stages.done[first.name].ended is Ended.limit and stages.run(again)):
            return
        yield each


def self_test(given: Given, name: str, limit_s: float) -> Stage:
    """Ends itself a little earlier, with the places where it hangs."""
    said = ["--ranks-per-gpu", str(given.ranks_per_gpu), "--limit-s", str(limit_s), *given.of_library()]
    command = [sys.executable, "-m", "tuner.bench.gpu.selftest", *said, "--log", str(given.log(name))]
    return Stage(given.name(name), command, limit_s + 5)


def quick(given: Given) -> Stage:
    return Stage(
        given.name("quick"),
        measure(given, "quick", 60, "--bytes", given.first_sizes, "--rounds", "3"),
        90,
        goes_on=True,
    )


def sweep(given: Given, seconds: float) -> Stage:
    needs = (given.name("quick"),)
    return Stage(given.name("sweep"), measure(given, "sweep", seconds), seconds + 30, needs, goes_on=True)


def measure(given: Given, stage: str, seconds: float, *words: str) -> list[str]:
    """A budget that a process of its own, and its start, can keep."""
    said = ["--repeats", "5", "--warmup", "1", "--budget-s", str(max(1, round(seconds)))]
    where = ["--out", str(given.run), "--nccl-log", str(given.log(stage)), *given.of_library()]
    return [*NCCL_TUNER, "measure", "--ranks-per-gpu", str(given.ranks_per_gpu), *where, *said, *words]


def analysis(given: Given, command: str, name: str, *words: str, needs: str) -> Stage:
    said = [*NCCL_TUNER, command, str(given.run), *words, *given.of_library()]
    return Stage(given.name(name), said, 60, (given.name(needs),))


def gate(given: Given, name: str, *, needs: str, limit_s: float) -> Stage:
    table = given.out / f"{name}{given.suffix}.table"
    said = [*NCCL_TUNER, "decide", str(given.run), "--out", str(table), *given.of_library()]
    return Stage(given.name(name), said, limit_s, (given.name(needs),))


if __name__ == "__main__":
    sys.exit(main())
