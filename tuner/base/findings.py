"""Findings: what a check found, as a code with facts. This module is the only place where a code becomes text.

A check yields :class:`Finding` objects. Code decides only on ``code``, ``severity`` and ``facts``. People read the text
that :func:`words` makes from these three and ``tables/findings/ROOM.toml``. The part of a finding's code before the
first dot is the room, the name of a TOML file. The part after it is the name of a table in that file: ``accept.step``
is the table ``[step]`` in ``accept.toml``. An entry of a table has

======== ============================================================================================================
says     what is the matter, one sentence; ``{fact}`` stands for a fact
cause    where it comes from, optional
costs    what it costs, optional
do       what to do next, optional
also     a table of facts and sentences: each sentence is added to ``says`` where its fact is there and not false
======== ============================================================================================================

A fact may name its form: ``{bytes:size}`` is ``64 MiB``, ``{sizes:sizes}`` a list of sizes, ``{ranks:ranges}`` is
``0-3,7``, ``{names:list}`` is ``a, b and c``, ``{texts:joined}`` is ``a; b``, ``{line:count}`` has commas between
thousands, ``{most:factor}`` is ``1.3`` or ``2,400``, ``{text:quoted}`` is in quotes, ``{gpus:counted GPU}`` is
``1 GPU`` or ``8 GPUs``, and ``{ranks:named rank}`` is ``rank 7`` or ``ranks 0-3``. Any other form is Python's own, as
``{busbw_gbs:.1f}``.
``{option:topology}`` is an option in the reader's own spelling: ``--topology`` or ``topology=``.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.sizes import as_ranges, human_bytes, plural
from tuner.base.spelling import Spelling as Spelling

FOLDER = "findings"
PARTS = ("says", "cause", "costs", "do")


class Severity(StrEnum):
    """How much a finding matters, in descending order."""

    FAULT = "fault"  # something is wrong
    UNKNOWN = "unknown"  # it cannot be judged, because something is missing
    UNLIKE = "unlike"  # something differs from what it is compared with, but need not be like it
    NOTE = "note"  # something that is good to know


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: ``code`` is ``room.name``, ``facts`` are the values that the finding's text names.

    Facts are texts, numbers, booleans, None, and lists or mappings of these.
    """

    code: str
    severity: Severity
    facts: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The code, severity and facts for JSON, and ``text``: the sentences in the command line's spelling."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "facts": dict(self.facts),
            "text": words(self),
        }


@dataclass(frozen=True, slots=True)
class Words:
    """The text of a finding. ``says`` is what is the matter; ``cause``, ``costs`` and ``do`` are the other entries of
    the finding's table, each None if the table lacks it.
    """

    says: str
    cause: str | None = None
    costs: str | None = None
    do: str | None = None


def in_words(severity: Severity, text: str) -> Finding:
    """A finding whose text is the given sentence, such as an error's message."""
    return Finding("diagnose.in_words", severity, {"text": text})


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The severity that matters most among the findings; None if there are no findings."""
    found = {each.severity for each in findings}
    return next((each for each in Severity if each in found), None)


def words(finding: Finding, spelling: Spelling = Spelling.COMMAND_LINE) -> str:
    """What the finding says, in one or more sentences. KeyError if the code or a fact is not known."""
    return explained(finding, spelling).says


def explained(finding: Finding, spelling: Spelling = Spelling.COMMAND_LINE) -> Words:
    """The finding's text with its cause, what it costs and what to do. KeyError if the code or a fact is not known."""
    entry = entry_of(finding.code)
    form = _Form(spelling)
    made = {part: form.vformat(entry[part], (), finding.facts) for part in PARTS if part in entry}
    for fact, sentence in entry.get("also", {}).items():
        value = finding.facts.get(fact)
        if value is not None and value is not False and value != [] and value != ():
            made["says"] += " " + form.vformat(sentence, (), finding.facts)
    return Words(**made)


def entry_of(code: str) -> Mapping[str, Any]:
    """The entry of a code in its table. KeyError if no table has the code."""
    room, _, name = code.partition(".")
    entry: Mapping[str, Any] = _table(room)[name]
    return entry


def codes() -> tuple[str, ...]:
    """All codes that have a text, in the order of the tables."""
    rooms = sorted(each.stem for each in (tables.folder() / FOLDER).glob("*.toml"))
    return tuple(f"{room}.{name}" for room in rooms for name in _table(room))


@cache
def _table(room: str) -> Mapping[str, Any]:
    try:
        return tables.toml(tables.folder() / FOLDER / f"{room}.toml")
    except FileNotFoundError:
        raise KeyError(room) from None


class _Form(string.Formatter):
    """A formatter of facts, with the forms that this module's docstring lists."""

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The fact of this name; the name ``option`` stands for the reader's spelling of options. KeyError if there is
        no such fact."""
        return self.spelling if key == "option" and "option" not in kwargs else kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        """The text of a fact in the form that its placeholder names, such as ``size`` in ``{bytes:size}``."""
        if isinstance(value, Spelling):
            return value.option(format_spec)
        form, _, noun = format_spec.partition(" ")
        if form == "counted":
            return plural(value, noun)
        if form == "named":
            return f"{noun if len(value) == 1 else noun + 's'} {FORMS['ranges'](value)}"
        return FORMS[form](value) if form in FORMS else str(super().format_field(value, format_spec))


def listed(values: Iterable[object]) -> str:
    """The texts as an enumeration in a sentence: ``a``, ``a and b``, or ``a, b and c``."""
    texts = [str(each) for each in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


FORMS: Mapping[str, Callable[[Any], str]] = {
    "size": human_bytes,
    "sizes": lambda values: listed(human_bytes(each) for each in values),
    "ranges": lambda values: as_ranges(sorted(set(values))),
    "list": listed,
    "joined": "; ".join,
    "count": lambda value: f"{value:,}",
    "factor": lambda value: f"{value:.2g}" if value < 10 else f"{value:,.0f}",
    "quoted": lambda value: f"{str(value)!r}",
}
