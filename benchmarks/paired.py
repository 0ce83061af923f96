"""Processor time of commands, today's beside an earlier build's: pairs run in turn, and the median of their ratios.

python -m benchmarks.paired [ROW...] [--base COMMIT] [--pairs N] [--history FILE]

The earlier build is checked out into a work tree of its own and installed beside this one, whose packages it shares.
Each run appends a line a row to the history, and writes the page of it: ``benchmarks/trend.py``.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from sysconfig import get_paths
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BASE = "a423327c"
HISTORY = ROOT / "benchmarks" / "history.jsonl"
ROWS = {
    "memory": "memory --machine dgx-h100 --nodes 2",
    "fit accuracy": "fit accuracy",
    "plot page": "plot page --machine dgx-h100 --nodes 2 -o page.html",
    "edges over nodes": "edges allreduce --over nodes --bytes 64K,16M --machine dgx-h100",
    "diff of all releases": "diff --machine dgx-h100 --nodes 16 --all-releases",
    "diagnose": f"diagnose {ROOT}/docs/examples/nccl.log",
    "accept": f"accept {ROOT}/docs/examples/all_reduce.log --machine dgx-h100",
    "pick": "pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M",
}
FIRST = "memory, the first time"  # with what was fetched, but nothing that was found out about it
WANTED = {
    FIRST: 3.0,
    "memory": 10.0,
    "fit accuracy": 10.0,
    "plot page": 4.0,
    "edges over nodes": 2.5,
    "diff of all releases": 2.5,
    "diagnose": 1.8,
    "accept": 1.8,
}
ANSWERED = range(4)  # exit codes that are an answer: yes, no, and cannot be judged; 2 is bad input
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class PairedTime:
    """Medians in CPU seconds, and of the ratios of the pairs: how many times faster ``commit`` is than ``base``."""

    date: str
    commit: str
    base: str
    row: str
    pairs: int
    base_cpu_s: float
    cpu_s: float
    ratio: float
    machine: str
    cores: int
    load: float


def git(*words: str, folder: Path = ROOT) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, text=True, capture_output=True).stdout.strip()


@contextmanager
def installed(commit: str) -> Iterator[Path]:
    """The Python of an environment in which that commit is installed; it and the work tree are gone afterwards."""
    with TemporaryDirectory(prefix="nccl-tuner-paired-") as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield _install(tree)
        finally:
            git("worktree", "remove", "--force", str(tree))


def _install(tree: Path) -> Path:
    environment = tree / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    own, paths = get_paths(), get_paths(vars={"base": str(environment), "platbase": str(environment)})
    Path(paths["purelib"], "shared.pth").write_text(own["purelib"] + "\n")  # packages, but no .pth, of this one
    words = ["-m", "pip", "install", "--quiet", "--ignore-installed", "--no-deps", "--editable", str(tree)]
    done = subprocess.run([str(python), *words], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{tree} cannot be installed:\n{done.stderr}")
    return python


def cpu_s(words: list[str], tree: Path, cache: Path | None = None) -> float:
    """User and system time of a process and of all that it waited for, in seconds. It imports the code of ``tree``,
    whatever this process has in PYTHONPATH.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPATH"] = str(tree)
    if cache is not None:
        variables["NCCL_TUNER_CACHE"] = str(cache)
    with TemporaryDirectory() as folder:
        process = subprocess.Popen(
            words, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ANSWERED or process.returncode == BAD_INPUT:
        raise SystemExit(f"{words}: {process.returncode}")
    return usage.ru_utime + usage.ru_stime


@contextmanager
def fresh_cache(kept: Path) -> Iterator[Path]:
    """A cache folder that has the fetched libraries of ``kept`` and nothing else."""
    with TemporaryDirectory() as folder:
        for fetched in kept.glob("[0-9]*"):
            Path(folder, fetched.name).symlink_to(fetched)
        yield Path(folder)


def measured(row: str, python: Path) -> float:
    """CPU seconds of one run of a row by the command of that environment."""
    from tuner.base.files import cache_folder

    command = [str(python.with_name("nccl-tuner")), *ROWS["memory" if row == FIRST else row].split()]
    tree = ROOT if python == Path(sys.executable) else python.parents[2]
    if row != FIRST:
        return cpu_s(command, tree)
    with fresh_cache(cache_folder()) as cache:
        return cpu_s(command, tree, cache)


def paired(row: str, base: Path, pairs: int, measure: Callable[[str, Path], float] = measured) -> list[list[float]]:
    """CPU seconds [pair][base, today], after a run of each that counts for nothing; who begins alternates."""
    both, times = [base, Path(sys.executable)], []
    for python in both:
        measure(row, python)
    for pair in range(pairs):
        found = [0.0, 0.0]
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            found[side] = measure(row, both[side])
        times.append(found)
    return times


def summary(row: str, base: str, times: list[list[float]]) -> PairedTime:
    """Medians of the pairs, with the machine and its load now."""
    return PairedTime(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        commit=git("describe", "--always", "--dirty", "--exclude", "*"),
        base=base,
        row=row,
        pairs=len(times),
        base_cpu_s=round(statistics.median(before for before, _ in times), 3),
        cpu_s=round(statistics.median(now for _, now in times), 3),
        ratio=round(statistics.median(before / now for before, now in times), 2),
        machine=platform.machine(),
        cores=os.cpu_count() or 0,
        load=round(os.getloadavg()[0], 1),
    )


def line(found: PairedTime) -> str:
    """A row of the printed table."""
    wanted = f"{WANTED[found.row]:.1f}" if found.row in WANTED else "-"
    return f"{found.row:<24}{found.base_cpu_s:>10.2f}{found.cpu_s:>10.2f}{found.ratio:>8.2f}{wanted:>8}{found.load:>7}"


def main() -> None:
    from benchmarks import trend  # which reads these records

    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    rows = [FIRST, *ROWS]
    options.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(rows)} [default: all]")
    options.add_argument("--base", default=BASE, help="the earlier commit")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--history", type=Path, default=HISTORY, help="file that gets a line a row")
    given = options.parse_args()
    if unknown := sorted(set(given.rows) - set(rows)):
        options.error(f"{', '.join(unknown)}; valid: {', '.join(rows)}")
    if shutil.which("git") is None:
        options.error("git is not installed")
    print(f"{'CPU s, median':<24}{given.base:>10}{'today':>10}{'ratio':>8}{'wanted':>8}{'load':>7}")
    with installed(given.base) as base:
        for row in given.rows or rows:
            found = summary(row, given.base, paired(row, base, given.pairs))
            print(line(found), flush=True)
            with given.history.open("a", encoding="utf-8") as history:
                history.write(json.dumps(asdict(found)) + "\n")
    given.history.with_suffix(".md").write_text(trend.page(trend.read(given.history)), "utf-8")


if __name__ == "__main__":
    main()
