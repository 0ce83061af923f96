"""Records as JSON: one function, which every ``--json`` goes through; the day and the files that records were made of.

A record's keys are its fields' names, in their order. Where the form of the JSON is older than the record, the field
says so with :func:`json_form`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput

_METADATA = "json"
_PLAIN = frozenset({type(None), bool, str, int, float})  # as JSON has them


@dataclass(frozen=True, slots=True)
class _Form:
    """Form of a field, as :func:`json_form` says it."""

    key: str | None
    convert: Callable[[Any], Any] | None
    merged: bool
    omitted: bool
    optional: bool
    former: str | None


def json_form(
    key: str | None = None,
    *,
    convert: Callable[[Any], Any] | None = None,
    merged: bool = False,
    omitted: bool = False,
    optional: bool = False,
    former: str | None = None,
) -> Mapping[str, object]:
    """A dataclass field's ``metadata``: JSON holds it under another ``key``, or as what ``convert`` makes of it.

    ``merged``: the keys of this record stand among those of the one around it. ``omitted``: JSON has nothing of it.
    ``optional``: JSON has nothing of it where it is None or empty. ``former``: the key of 0.1, which JSON has as well
    for one release.
    """
    return {_METADATA: _Form(key, convert, merged, omitted, optional, former)}


def to_json(value: Any) -> Any:
    """Value for ``json.dumps``: records and mappings as dictionaries, sequences and arrays as lists.

    Enumerations are their names (text enumerations their text), paths their text; None stays, and so do numbers, but
    for numpy's, which become Python's. TypeError for anything else.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, bool | str | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if isinstance(value, Mapping):
        return {_key(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON: {value!r}")


def _record(record: Any) -> dict[str, Any]:
    converted: dict[str, Any] = {}
    kind: Any = type(record)
    for name, form in _forms(kind):
        value = getattr(record, name)
        if form.optional and (value is None or value == ()):
            continue
        made = to_json(value if form.convert is None else form.convert(value))
        if form.merged:
            converted |= made
        else:
            converted[form.key or name] = made
            if form.former is not None:
                converted[form.former] = made
    return converted


@cache
def _forms(kind: Any) -> tuple[tuple[str, _Form], ...]:
    """The fields of a dataclass that JSON has, by name."""
    plain = _Form(None, None, False, False, False, None)
    named = ((each.name, each.metadata.get(_METADATA) or plain) for each in fields(kind))
    return tuple((name, form) for name, form in named if not form.omitted)


def _key(key: object) -> str:
    return key.name if isinstance(key, Enum) else str(key)


Files: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]


def today() -> str:
    """The date, UTC, as in 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes. OSError where it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def paths(files: Files) -> tuple[Path, ...]:
    """One file or several, as paths. BadInput for none."""
    several = (Path(files),) if isinstance(files, str | PathLike) else tuple(map(Path, files))
    if not several:
        raise BadInput("no files; valid: one at least")
    return several
