"""Whether everything in a release's file says where it comes from: a file of NCCL's sources, or the binary."""

import re
from collections.abc import Iterator

# src/... of NVIDIA/nccl at the release's tag, or libnccl itself
SOURCE = re.compile(r"(?<![\w/])src/[\w./{},*-]*\.(?:cc|cu|h|in|py)\b|\bfrom the binary\b|\blibnccl\.so\.2\b")
TABLE = re.compile(r"\[(?P<name>[\w.]+)\]")
KEY = re.compile(r"(?P<name>[\w.]+)\s*=")
TEXT = re.compile(r'"[^"]*"')
HEAD = ("release", "parent", "without")


def missing(text: str) -> Iterator[str]:
    """The dotted keys of a release's file that no comment gives a source, in order.

    A comment counts for the key on its line; on a table's line, or on the lines just above that, for the whole table
    and for those below its name.
    """
    table, sourced, above = "", dict[str, bool](), False
    depth = 0  # of brackets that are open: the lines of a list
    for line in text.splitlines():
        code, comment = _split(line)
        source = bool(SOURCE.search(comment))
        if not code:
            above = bool(comment) and (above or source)
            continue
        if depth == 0 and (header := TABLE.fullmatch(code)):
            table = header["name"]
            sourced[table] = source or above or any(sourced.get(parent, False) for parent in _parents(table))
        elif depth == 0 and (key := KEY.match(code)):
            name = f"{table}.{key['name']}" if table else key["name"]
            if not (source or sourced.get(table, False) or name in HEAD):
                yield name
        depth += sum(code.count(mark) for mark in "[{") - sum(code.count(mark) for mark in "]}")
        above = False


def _split(line: str) -> tuple[str, str]:
    """A line's code with its texts blanked, and its comment."""
    code, _, comment = TEXT.sub(lambda text: "_" * len(text[0]), line).partition("#")
    return code.strip(), line[len(code) + 1 :] if comment else ""


def _parents(table: str) -> list[str]:
    parts = table.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
