"""The history of paired times by commit, as a page: python -m benchmarks.trend [HISTORY] [PAGE]

Writes ``benchmarks/history.md`` from ``benchmarks/history.jsonl``, to which each run of ``benchmarks.paired`` appends.
"""

import json
import sys
from pathlib import Path

from benchmarks.paired import HISTORY, WANTED, PairedTime

PAGE = HISTORY.with_suffix(".md")
HEAD = """\
# Processor time by commit

Written by `python -m benchmarks.trend` from `history.jsonl`, to which each `python -m benchmarks.paired` appends. CPU
seconds are medians of pairs of runs; the ratio says how many times faster the commit is than its base, both run in turn
on the same machine.
"""


def read(history: Path) -> list[PairedTime]:
    """Every line of the history, oldest first."""
    return [PairedTime(**json.loads(text)) for text in history.read_text("utf-8").splitlines() if text.strip()]


def page(times: list[PairedTime]) -> str:
    """A table a row of the benchmark, with a line a run."""
    parts = [HEAD]
    for row in dict.fromkeys(each.row for each in times):
        wanted = f"; wanted: {WANTED[row]:g} times faster" if row in WANTED else ""
        parts.append(f"\n## {row}\n\nBy commit{wanted}.\n")
        parts.append("| date | commit | base | base CPU s | CPU s | ratio | pairs | cores | load |")
        parts.append("|---|---|---|--:|--:|--:|--:|--:|--:|")
        parts += [
            f"| {one.date} | {one.commit} | {one.base} | {one.base_cpu_s:.2f} | {one.cpu_s:.2f} | {one.ratio:.2f} | "
            f"{one.pairs} | {one.cores} | {one.load} |"
            for one in times
            if one.row == row
        ]
    return "\n".join(parts) + "\n"


def main() -> None:
    given = [Path(word) for word in sys.argv[1:]]
    history, target = [*given, *(HISTORY, PAGE)[len(given) :]]
    target.write_text(page(read(history)), "utf-8")
    print(target)


if __name__ == "__main__":
    main()
