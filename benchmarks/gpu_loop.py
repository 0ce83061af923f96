"""The whole loop on the GPUs at hand, in one bounded call: measure, verify, fit, decide with the gate.

    python benchmarks/gpu_loop.py --out FOLDER                        all GPUs here
    python benchmarks/gpu_loop.py --out FOLDER --ranks-per-gpu 4      several ranks on each, NCCL 2.30.3 and later

Every combination that NCCL offers, AllReduce, AllGather and ReduceScatter, 8 B to 1 GiB as far as memory goes. A
step that cannot be done says so in one line, and the others go on with what there is; what was measured is on the disk
after every block. FOLDER then holds run.jsonl, topology.xml, verify.json, constants.toml, fit.json, decided.table,
decide.json and steps.json (what was done, with versions), to be committed under tables/measured/. Exit code 1 where a
step failed.

On a machine without a network the plugin has to come along built (tuner/_native), and libnccl as --library.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tuner.base.errors import TunerError

PACKAGES = (
    "nccl-tuner",
    "numpy",
    "scipy",
    "cffi",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter")
MEASURED_SHARE = 0.6  # of the time; the gate's A/B run and the fit have the rest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--seconds", type=float, default=510.0, help="for all of it [default: 510]")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    loop = Steps(given)
    loop.step("versions", versions)
    loop.step("measure", lambda: measure(given, loop.left_s() * MEASURED_SHARE))
    run = given.out / "run.jsonl"
    if run.is_file() and run.stat().st_size > 0:
        loop.step("verify", lambda: command(loop, "verify", str(run)))
        loop.step("fit", lambda: command(loop, "fit", str(run), "--out", str(given.out / "constants.toml")))
        loop.step("decide", lambda: command(loop, "decide", str(run), "--out", str(given.out / "decided.table")))
    return loop.end()


class Steps:
    """Does one after the other, and writes down after each what came of them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.out: Path = given.out
        self._end_s = time.monotonic() + given.seconds
        self._done: list[dict[str, Any]] = []

    def left_s(self) -> float:
        return max(1.0, self._end_s - time.monotonic())

    def step(self, name: str, do: Callable[[], Any]) -> None:
        start_s = time.monotonic()
        print(f"== {name}", flush=True)
        record: dict[str, Any] = {"step": name}
        try:
            record["said"] = do()
        except (TunerError, OSError, ImportError, subprocess.SubprocessError) as error:
            record["failed"] = " ".join(str(error).split())
        except KeyboardInterrupt:
            record["failed"] = "interrupted"
        record["seconds"] = round(time.monotonic() - start_s, 1)
        print(json.dumps(record, indent=1) if name == "versions" else f"{name}: {record}", flush=True)
        self._done.append(record)
        (self.out / "steps.json").write_text(json.dumps(self._done, indent=1) + "\n")

    def end(self) -> int:
        failed = [record["step"] for record in self._done if "failed" in record]
        print(f"== done; failed: {', '.join(failed) or 'nothing'}; in {self.out}", flush=True)
        return 1 if failed else 0


def versions() -> dict[str, Any]:
    from tuner.measure.gpu.cuda import Cuda

    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    print(json.dumps(found, indent=1), flush=True)  # what there is, should CUDA be missing
    cuda = Cuda()
    return {**found, "gpus": [cuda.name(device) for device in range(cuda.count)], **cuda.noted()}


def measure(given: argparse.Namespace, budget_s: float) -> str:
    from tuner.base.names import Collective
    from tuner.measure.gpu.backend import Options
    from tuner.measure.gpu.opening import open_gpus
    from tuner.measure.loop import Loop, Settings
    from tuner.measure.plan import Wanted, points, tasks
    from tuner.measure.records import samples

    start_s = time.monotonic()
    options = Options(given.ranks_per_gpu, given.library, given.out / "topology.xml")
    backend = open_gpus(options)
    if backend is None:  # another rank, which has served until rank 0 was done
        sys.exit(0)
    with closing(backend):
        calls = points([Collective[name] for name in COLLECTIVES], None, backend.ranks)
        wanted = tasks(backend, calls, Wanted())
        print(f"{backend.ranks} ranks, NCCL {backend.release}: {len(wanted)} combinations", flush=True)
        settings = Settings(budget_s=max(1.0, budget_s - (time.monotonic() - start_s)), repeats=5, warmup=1)
        with samples.Writer(given.out / "run.jsonl", backend.describe()) as writer:
            loop = Loop(backend, wanted, settings, writer.add)
            blocks = sum(1 for _ in loop.run())
    return f"{blocks} blocks of {len(wanted)} combinations; ended: {loop.end}"


def command(loop: Steps, *words: str) -> str:
    """One of nccl-tuner's, in what time is left; its JSON goes beside the other results, its errors are passed on."""
    call = [sys.executable, "-c", "from tuner.cli import main; main()", *words, "--json"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=loop.left_s(), check=False)
    if done.stdout:
        (loop.out / f"{words[0]}.json").write_text(done.stdout)
    if done.returncode not in (0, 1):  # 1 is an answer: "no"
        raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
    return f"exit code {done.returncode}; {words[0]}.json"


if __name__ == "__main__":
    sys.exit(main())
