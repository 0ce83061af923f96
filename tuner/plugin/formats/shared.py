"""What NVIDIA's and NCCLX's files share: names, strict numbers, lines."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from tuner.base.errors import BadTable, one_of
from tuner.base.names import Collective
from tuner.plugin.table import values
from tuner.plugin.table.fall_through import Place
from tuner.plugin.table.records import MAX_CHANNELS, Choice, Decision, Interval
from tuner.plugin.table.values import Mistake
from tuner.release import ALGORITHM_KEYS, PROTOCOL_KEYS

COLLECTIVE_KEYS = {collective.name.lower(): collective for collective in Collective}
_WHOLE = re.compile(r"0*([0-9]{1,20})")
_Value = TypeVar("_Value")


@contextmanager
def at(place: str) -> Iterator[None]:
    """Mistakes become a BadTable that names the place."""
    try:
        yield
    except Mistake as mistake:
        raise BadTable(f"{place}: {mistake}") from None


def text_of(content: bytes, name: str) -> str:
    """One character a byte: only ASCII has a meaning in these files. BadTable for a zero byte."""
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise BadTable(f"{name}:{line}: a zero byte: this is not a text file")
    return content.decode("latin-1")


def data_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip(" \t\r")
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def named(valid: Mapping[str, _Value], word: str, what: str) -> _Value:
    """Exactly as spelled there: other readers take what they do not know for something else."""
    if word not in valid:
        raise Mistake(f"unknown {what} '{shown(word)}' ({one_of(valid)})")
    return valid[word]


def whole(word: str, what: str, least: int, most: int) -> int:
    """A whole number in words from ``least`` to ``most``; Mistake for others."""
    match = _WHOLE.fullmatch(word)
    number = int(match[1]) if match else None
    if number is None or not least <= number <= most:
        raise Mistake(f"{what} '{shown(word)}' is not a number from {least} to {most}")
    return number


def any_or(word: str, what: str, least: int, most: int) -> int | None:
    """None for -1."""
    return None if word == "-1" else whole(word, f"{what}, if not -1 for any,", least, most)


def choice(algorithm: str, protocol: str, channels: str, chunk_bytes: int | None = None) -> Choice:
    """``channels`` of -1, and of 0 that NCCL takes for none, are NCCL's own."""
    count = None if re.fullmatch("0+", channels) else any_or(channels, "channels", 1, MAX_CHANNELS)
    return Choice(
        named(ALGORITHM_KEYS, algorithm, "algorithm"), named(PROTOCOL_KEYS, protocol, "protocol"), count, chunk_bytes
    )


def exactly(number: int | None, any_number: Interval) -> Interval:
    """The interval of one number; ``any_number`` where there is none."""
    return any_number if number is None else Interval(number, number)


def cell_keys(choice: Choice) -> tuple[str, str]:
    """The names of algorithm and protocol."""
    algorithm = next(key for key, value in ALGORITHM_KEYS.items() if value is choice.algorithm)
    return algorithm, next(key for key, value in PROTOCOL_KEYS.items() if value is choice.protocol)


def columns(rows: Iterable[Decision], render: Callable[[Decision], list[str]], place: Place) -> Iterator[str]:
    """A line a row; what the format has no word for is refused, by its place."""
    for row in rows:
        with at(place(row.line)):
            yield ",".join(render(row))


def shown(word: str) -> str:
    """A word as errors show it."""
    return values.shown(word.encode("latin-1", "replace"))
