"""The processor time that starting takes: least and median of several runs, in ms. Prints; checks nothing.

python benchmarks/start.py [PYTHON]        of an installation from a wheel; else of the one that runs this
"""

import os
import statistics
import sys
from pathlib import Path

RUNS = 20
SNIPPETS = ("", "import tuner", "import nccl_tuner", "import nccl_tuner; nccl_tuner.communicator")
COMMANDS = ("--help", "pick --help", "pick allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 1M")


def milliseconds(words: list[str]) -> float:
    """User and system time of a process and of those that it waited for."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    _, status, usage = os.wait4(os.posix_spawn(words[0], words, os.environ, file_actions=quiet), 0)
    if status:
        raise SystemExit(f"{words}: {os.waitstatus_to_exitcode(status)}")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    os.chdir("/")  # no folder of that name to import from
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as for whoever does not set it
    cases = {f"python -c {text!r}": [python, "-c", text] for text in SNIPPETS}
    cases |= {f"nccl-tuner {text}": [str(Path(python).with_name("nccl-tuner")), *text.split()] for text in COMMANDS}
    for name, words in cases.items():
        milliseconds(words)
        times = [milliseconds(words) for _ in range(RUNS)]
        print(f"{name:<90} {min(times):6.0f} {statistics.median(times):6.0f}", flush=True)


if __name__ == "__main__":
    main()
