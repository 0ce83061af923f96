"""Compares the answers of two builds, byte by byte, over random scenarios. Exit 1 if any differs.

python -m benchmarks.same_answers COMMIT [--now COMMIT] [--scenarios N] [--memory N] [--seed N]

Scenarios are picks with their cost tables, channels and threads; those of ``--memory`` ask libnccl for device memory.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

SIZES = 200  # random ones of each scenario
MEMORY_RELEASES = ("2.18.1", "2.21.5", "2.23.4", "2.27.7", "2.28.9", "2.29.7", "2.32.3")
MEMORY_MACHINES = ("dgx-a100", "dgx-h100", "pcie-l40s", "dgx-1v")


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Scenarios as JSON: a machine of the catalogue, a number of nodes, a release and a call with its sizes."""
    from tuner import release
    from tuner.base.names import Collective, DataType
    from tuner.machine import catalogue

    draw = random.Random(seed)
    return [
        {
            "machine": draw.choice(catalogue.names()),
            "nodes": draw.choice([1, 2, 3, 4, 8, 16, 18, 64]),
            "nccl": draw.choice(release.names()),
            "collective": draw.choice([each.name for each in Collective]),
            "dtype": draw.choice([each.name for each in DataType]),
            "environment": draw.choice(
                [{}, {}, {"NCCL_ALGO": "Ring"}, {"NCCL_PROTO": "Simple"}, {"NCCL_MAX_NCHANNELS": "4"}]
            ),
            "sizes": sorted(int(2 ** draw.uniform(0, 36)) for _ in range(SIZES)),
        }
        for _ in range(count)
    ]


def answer(asked: dict[str, Any]) -> str:
    """Digest of all numbers of the answer, or the error in words."""
    from tuner.base.errors import TunerError
    from tuner.base.names import Collective, DataType, Op
    from tuner.emulator.request import Request
    from tuner.emulator.selection import Selection
    from tuner.scenario import Scenario

    try:
        place = {name: asked[name] for name in ("nccl", "machine", "nodes", "environment")}
        scenario = Scenario(**place)
        selection = Selection(scenario.communicator())
        request = Request(Collective[asked["collective"]], DataType[asked["dtype"]], Op.sum)
        least = request.unit_bytes(selection.communicator.ranks)
        sizes = [max(size // least, 1) * least for size in asked["sizes"]]
        picks = selection.pick(request, sizes)
        columns = picks.algorithm, picks.protocol, picks.time_us, picks.channels, picks.threads
        arrays: list[NDArray[Any]] = [*columns, selection.cost_table(request, sizes)]
        return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()
    except TunerError as error:
        return f"{type(error).__name__}: {error}"


def variables_of(python: Path) -> dict[str, str]:
    """The environment of a build; an installed one's without PYTHONPATH, as another tree would come before its own."""
    own = python == Path(sys.executable)
    return {name: value for name, value in os.environ.items() if own or name != "PYTHONPATH"}


def answers(python: Path, asked: list[dict[str, Any]]) -> list[str]:
    """The answers of the build that this Python has, one a scenario."""
    # By its path and from elsewhere, so that `tuner` is the installed one.
    words = [str(python), str(Path(__file__).resolve()), "--answer"]
    done = subprocess.run(
        words, input=json.dumps(asked), cwd="/", env=variables_of(python), text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{python}:\n{done.stderr}")
    read: list[str] = json.loads(done.stdout)
    return read


def memory(python: Path, seed: int, count: int) -> list[str]:
    """What ``nccl-tuner memory --json`` says by that build, of one and two nodes; exit code and output."""
    draw, said = random.Random(seed), list[str]()
    for _ in range(count):
        place = ["--machine", draw.choice(MEMORY_MACHINES), "--nodes", str(draw.choice([1, 2]))]
        words = ["memory", *place, "--nccl", draw.choice(MEMORY_RELEASES), "--json"]
        command = [str(python.with_name("nccl-tuner")), *words]
        done = subprocess.run(command, cwd="/", env=variables_of(python), text=True, capture_output=True)
        said.append(f"{' '.join(words)}: {done.returncode}\n{done.stdout}")
    return said


def main() -> int:
    from benchmarks.paired import installed  # not in the child, which has no such package

    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("commit")
    options.add_argument("--now", help="the later commit [default: what this Python has installed]")
    options.add_argument("--scenarios", type=int, default=500)
    options.add_argument("--memory", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = drawn(given.seed, given.scenarios)
    with ExitStack() as builds:
        base = builds.enter_context(installed(given.commit))
        later = builds.enter_context(installed(given.now)) if given.now else Path(sys.executable)
        before, now = ([*answers(each, asked), *memory(each, given.seed, given.memory)] for each in (base, later))
    named = [*(str({**each, "sizes": len(each["sizes"])}) for each in asked), *("memory" for _ in range(given.memory))]
    fresh = sum(old.startswith("UnknownMachine: ") and old != new for old, new in zip(before, now, strict=True))
    different = [
        (name, old, new)
        for name, old, new in zip(named, before, now, strict=True)
        if old != new and not old.startswith("UnknownMachine: ")
    ]
    for name, old, new in different[:10]:
        print(f"{name}\n  {given.commit}: {old}\n  {given.now or 'today'}: {new}")
    refused = sum(": " in text for text in now[: len(asked)])
    print(f"{len(different)} of {len(named)} answers differ; the later build refuses {refused} of {len(asked)} picks")
    if fresh:
        print(f"{fresh} were on machines that the earlier build does not have, and are not compared")
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        print(json.dumps([answer(each) for each in json.load(sys.stdin)]))
    else:
        sys.exit(main())
