"""Converts records to JSON and back, with the one function behind every ``--json``; also dates, and the files that
records name.

A record's keys are its fields' names, in their order. If JSON has to keep another form than the record has, the field
declares it with :func:`json_form`.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput

_METADATA = "json"
_PLAIN = frozenset({type(None), bool, str, int, float})  # types that JSON has as they are


@dataclass(frozen=True, slots=True)
class _Form:
    """How JSON represents a field, as :func:`json_form` declares it."""

    key: str | None
    convert: Callable[[Any], Any] | None
    merged: bool | str
    omitted: bool
    optional: bool


def json_form(
    key: str | None = None,
    *,
    convert: Callable[[Any], Any] | None = None,
    merged: bool | str = False,
    omitted: bool = False,
    optional: bool = False,
) -> Mapping[str, object]:
    """A dataclass field's ``metadata``: JSON has the field under another ``key``, or converted by ``convert``.

    ``merged``: JSON has the keys of the field's record among those of the enclosing record. If ``merged`` is a text
    such as ``{}_bytes``, each key is put in place of ``{}``. ``omitted``: JSON does not have the field. ``optional``:
    JSON does not have the field if it is None or empty.
    """
    return {_METADATA: _Form(key, convert, merged, omitted, optional)}


def to_json(value: Any) -> Any:
    """Converts a value for ``json.dumps``: records and mappings to dictionaries, sequences and arrays to lists.

    A record with a method ``as_json`` becomes what that method returns; findings use it, because their text is not a
    field. Enumerations become their names (text enumerations their text), paths become text, NumPy's numbers become
    Python's; None and numbers stay. TypeError for a value of any other type.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if isinstance(value, bool | str | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        own = getattr(value, "as_json", None)
        return _record(value) if own is None else to_json(own())
    if isinstance(value, Mapping):
        return {(key.name if isinstance(key, Enum) else str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    # Until numpy is imported, no value can be of its types, so commands that only print JSON need not import it.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON: {value!r}")


VERSION_KEY = "nccl_tuner_json"
VERSION = 1  # the version of the form of all printed JSON; docs/json.md says what may change without a new version


def versioned(value: Any, several: str | None = None) -> dict[str, Any]:
    """JSON object of a record or mapping, or of a list under the key ``several``, with the version of the JSON form as
    its first key.

    TypeError if ``value`` is not an object in JSON and ``several`` is None: other keys could not be added to a list
    later.
    """
    made = to_json(value)
    if several is not None:
        made = {several: made}
    if not isinstance(made, dict):
        raise TypeError(f"JSON that is printed is an object; {type(value).__name__} needs a key")
    return {VERSION_KEY: VERSION, **made}


def _record(record: Any) -> dict[str, object]:
    converted: dict[str, object] = {}
    kind: Any = type(record)
    for name, form in _forms(kind):
        value = getattr(record, name)
        if form.optional and (value is None or value == ()):
            continue
        made = to_json(value if form.convert is None else form.convert(value))
        if isinstance(form.merged, str):
            converted |= {form.merged.format(key): item for key, item in made.items()}
        elif form.merged:
            converted |= made
        else:
            converted[form.key or name] = made
    return converted


@cache
def _forms(kind: Any) -> tuple[tuple[str, _Form], ...]:
    """The fields of a dataclass that JSON contains, as pairs of name and form."""
    plain = _Form(None, None, False, False, False)
    named = ((each.name, each.metadata.get(_METADATA) or plain) for each in fields(kind))
    return tuple((name, form) for name, form in named if not form.omitted)


def from_json(kind: Any, value: Any) -> Any:
    """A value of a type from its JSON, the inverse of :func:`to_json` for records that convert and leave out nothing.

    Whether numbers and texts have the right type is not checked. KeyError, TypeError or ValueError if the JSON has
    another structure than ``kind``.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if NoneType in arguments:
        return None if value is None else from_json(arguments[0], value)
    if origin is tuple and arguments[-1] is not ...:
        return tuple(from_json(each, item) for each, item in zip(arguments, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        key, of_values = arguments
        return {int(name) if key is int else name: from_json(of_values, item) for name, item in value.items()}
    if origin is not None:
        return (list if origin is list else tuple)(from_json(arguments[0], item) for item in value)
    if is_dataclass(kind) and isinstance(kind, type):
        hints, forms = _hints(kind), _forms(kind)
        return kind(
            **{name: from_json(hints[name], value if form.merged else value[form.key or name]) for name, form in forms}
        )
    if issubclass(kind, Enum):
        return kind(value) if issubclass(kind, str) else kind[value]
    return value


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


Files: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]


def today() -> str:
    """The date, UTC, as in 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes. OSError if it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def paths(files: Files) -> tuple[Path, ...]:
    """One file or several, as a list of paths. BadInput if there is no file."""
    several = (Path(files),) if isinstance(files, str | PathLike) else tuple(map(Path, files))
    if not several:
        raise BadInput("no files were given: name at least one")
    return several
