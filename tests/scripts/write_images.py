"""Writes tables/images.toml: which NCCL NVIDIA's images of frameworks have, of the tags that have no row there.

    python -m tests.scripts.write_images [PAGE ...]

Asks NVIDIA's release notes of PyTorch for each missing month, or reads pages of them that were saved as rel-YY-MM.html.
Rows that stand in the file are kept. Where no page can be had, nothing is written, and it ends with 1.
"""

import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.error import URLError

from tuner.base import tables

FILE = tables.folder() / "images.toml"
PAGES = "https://docs.nvidia.com/deeplearning/frameworks/pytorch-release-notes/rel-{}.html"
OLDEST = (2023, 6)  # the first whose NCCL is 2.18
PAGE = re.compile(r"rel[-_](\d\d)-(\d\d)\.html")
MARKUP = re.compile(r"<[^>]*>|&\w+;")
NCCL = re.compile(r"\bNCCL\b\D{0,40}?(\d+\.\d+\.\d+)")
ROW = re.compile(r'^"(\d\d\.\d\d)" = ', re.MULTILINE)
MOST_BYTES = 1 << 22


def nccl_of(page: str) -> str | None:
    """The release of NCCL that a page of release notes lists among what its image contains; None for none, or two."""
    found = {match[1] for match in NCCL.finditer(MARKUP.sub(" ", page)) if match[1].startswith("2.")}
    return found.pop() if len(found) == 1 else None


def months(until: date) -> Iterator[str]:
    """Tags of all months from the oldest on, as 25.10."""
    year, month = OLDEST
    while (year, month) <= (until.year, until.month):
        yield f"{year % 100:02}.{month:02}"
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def saved(pages: list[str]) -> dict[str, str]:
    """Texts of saved pages by tag. Errors: ValueError for a file of another name."""
    found = {}
    for each in map(Path, pages):
        if (named := PAGE.fullmatch(each.name)) is None:
            raise ValueError(f"{each}: not named rel-YY-MM.html")
        found[f"{named[1]}.{named[2]}"] = each.read_text(encoding="utf-8", errors="replace")
    return found


def fetched(tags: Iterator[str]) -> dict[str, str]:
    """Pages of NVIDIA's release notes by tag, of those that it has."""
    found = {}
    for tag in tags:
        try:
            with urllib.request.urlopen(PAGES.format(tag.replace(".", "-")), timeout=30) as answer:
                found[tag] = answer.read(MOST_BYTES).decode("utf-8", "replace")
        except URLError as error:
            print(f"{tag}: {error}", file=sys.stderr)
    return found


def written(text: str, found: Mapping[str, str], today: date) -> str:
    """The file's text with a row for each NCCL that was found, in the order of tags."""
    head, mark, table = text.partition("[nccl]\n")
    rows = {match[1]: line for line in table.splitlines() if (match := ROW.match(line))}
    for tag, nccl in found.items():
        rows[tag] = (
            f'"{tag}" = {{ nccl = "{nccl}", source = "NVIDIA\'s release notes of pytorch:{tag}-py3, read {today}" }}'
        )
    head = re.sub(r'^date = ".*"$', f'date = "{today}"', head, flags=re.MULTILINE)
    return head + mark + "".join(f"{rows[tag]}\n" for tag in sorted(rows))


def main() -> None:
    text = FILE.read_text(encoding="utf-8")
    today = datetime.now(UTC).date()
    known = set(ROW.findall(text))
    pages = saved(sys.argv[1:]) if sys.argv[1:] else fetched(tag for tag in months(today) if tag not in known)
    found = {tag: nccl for tag, page in pages.items() if tag not in known and (nccl := nccl_of(page)) is not None}
    for tag, nccl in found.items():
        print(tag, nccl)
    if not pages:
        sys.exit(1)
    if found:
        FILE.write_text(written(text, found, today), encoding="utf-8")


if __name__ == "__main__":
    main()
