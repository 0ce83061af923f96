"""`make readme`: writes README's table of releases from docs/releases.toml, which `make test-releases` writes."""

from pathlib import Path

import releases

from tuner.check import KINDS

FILE = Path(__file__).parents[1] / "README.md"
START, END = "<!-- releases: written by make readme -->\n", "<!-- end of releases -->\n"


def table(found: dict[str, releases.Row]) -> str:
    lines = [
        "| NCCL | communicators | cost cells | picks, channels, threads | matched |",
        "|---|--:|--:|--:|--:|",
        *(_line(name, row) for name, row in found.items()),
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, row: releases.Row) -> str:
    compared, matched = (sum(row[kind][what] for kind in KINDS) for what in ("compared", "matched"))
    cells, picks = row["cells"]["compared"], row["picks"]["compared"]
    return f"| {name} | {row['communicators']} | {cells:,} | {picks:,} | {share(matched, compared)} |"


def share(matched: int, compared: int) -> str:
    """Per cent, rounded down: 100 only where all of them match."""
    hundredths = matched * 10_000 // compared
    return "100 %" if matched == compared else f"{hundredths // 100}.{hundredths % 100:02} %"


def with_table(text: str, found: dict[str, releases.Row]) -> str:
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{FILE} lacks {START.strip()} or {END.strip()}")
    return before + start + table(found) + end + after


if __name__ == "__main__":
    FILE.write_text(with_table(FILE.read_text(), releases.read()))
