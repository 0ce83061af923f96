"""Readers on damaged files, so many runs: ``make hostile``.

    python -m tests.scripts.hostile_files [RUNS] [SEED]

Exit code 1 where one ends in a traceback, or takes more memory or time than a reader may; its file is kept in
build/hostile.
"""

import sys
import time
from collections import Counter
from pathlib import Path

from tests.support.hostile_runs import DAMAGES, READERS, files, runs


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    print(f"{count} runs of {len(READERS)} readers, seed {seed}", flush=True)
    wrong, most_mb, slowest = Counter[str](), 0.0, None
    for run in runs(count, seed, Path("build") / "hostile"):
        most_mb = max(most_mb, run.mb)
        slowest = run if slowest is None or run.seconds > slowest.seconds else slowest
        if run.says:
            wrong[run.reader] += 1
            print(f"\n{run.reader}, {run.file.name}, {run.damage}: {run.says}", flush=True)
    print(
        f"{count} runs over {len(files())} files damaged in {len(DAMAGES)} ways: {wrong.total()} wrong; none took more "
        f"than {most_mb:.0f} MB"
    )
    if slowest is not None:
        print(f"slowest: {slowest.seconds:.1f} CPU seconds, {slowest.reader}, {slowest.file.name}, {slowest.damage}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
