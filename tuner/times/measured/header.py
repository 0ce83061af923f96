"""The head of a file of measured times: TOML in comment lines, above the columns."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from tuner.base.errors import BadMeasurement, one_of
from tuner.base.records import to_json
from tuner.times.measured.records import Launch, MeasuredHeader, MeasuredRun, MeasuredSource

Record = TypeVar("Record")
_TABLES = ("source", "environment", "noise_percent", "left_out", "runs")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(name: str, comments: Iterable[str]) -> MeasuredHeader:
    """The head from the comment lines above the columns, each with its ``#``. ``name`` is the file's, for messages.

    BadMeasurement where they are not TOML, or hold an unknown key or a value of another type.
    """
    try:
        facts = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in comments))
    except tomllib.TOMLDecodeError as error:
        raise BadMeasurement(f"{name}: the comments above the columns are not TOML: {error}") from None
    try:
        runs = {key: _run(f"runs.{key}", run) for key, run in _mapping("runs", facts.pop("runs", {})).items()}
        source = MeasuredSource(**_known(MeasuredSource, "source", facts.pop("source", {})))
        given = _known(MeasuredHeader, "", {**facts, "runs": runs, "source": source})
        return MeasuredHeader(**{**given, **_typed(given)})
    except _WrongValue as error:
        raise BadMeasurement(f"{name}: the comments above the columns: {error}") from None


def lines(header: MeasuredHeader) -> list[str]:
    """The head as comment lines; what is empty is left out."""
    text: list[str] = []
    for key, value in to_json(header).items():
        if key not in _TABLES and value not in ("", [], False):
            text += [f"{key} = {_value(value)}"]
    for key in ("source", "environment", "noise_percent", "left_out"):
        if inside := {name: value for name, value in to_json(getattr(header, key)).items() if value != ""}:
            text += ["", f"[{key}]", *(f"{_key(name)} = {_value(value)}" for name, value in inside.items())]
    if header.runs:
        text += ["", "[runs]"]
    for key, run in header.runs.items():
        there = {name: value for name, value in to_json(run).items() if value not in ("", None, [], {})}
        text += [f"{_key(key)} = {_value(there)}"]
    return [f"# {line}".rstrip() for line in text]


class _WrongValue(Exception):
    """A key that is unknown, or a value of another type."""


def _run(where: str, facts: Any) -> MeasuredRun:
    given = _known(MeasuredRun, where, facts)
    if not isinstance(given.setdefault("what", ""), str):
        raise _WrongValue(f"{where}.what: {given['what']!r}; expected a text")
    return MeasuredRun(**{**given, **_typed(given)})


def _known(record: type[Record], where: str, facts: Any) -> dict[str, Any]:
    """The facts, where every key is a field of the record, texts where it has texts."""
    texts = {each.name for each in fields(record) if each.type is str}  # type: ignore[arg-type]
    names = [each.name for each in fields(record)]  # type: ignore[arg-type]
    for key, value in _mapping(where, facts).items():
        dotted = f"{where}.{key}".lstrip(".")
        if key not in names:
            raise _WrongValue(f"{dotted}: unknown key; {one_of(names)}")
        if key in texts and not isinstance(value, str):
            raise _WrongValue(f"{dotted}: {value!r}; expected a text")
    return dict(facts)


def _typed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are no texts, checked and converted."""
    typed: dict[str, Any] = {}
    if "launch" in facts:
        if facts["launch"] not in list(Launch):
            raise _WrongValue(f"launch: {facts['launch']!r}; {one_of(repr(each.value) for each in Launch)}")
        typed["launch"] = Launch(facts["launch"])
    for key, kind in (("traps", str), ("devices", int)):
        values = facts.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise _WrongValue(f"{key}: {values!r}; expected a list of {kind.__name__}")
        if key in facts:
            typed[key] = tuple(values)
    inside: dict[str, type] = {"environment": str, "noise_percent": float, "left_out": int}
    for key, of in inside.items():
        for name, value in _mapping(key, facts.get(key, {})).items():
            if not isinstance(value, of):
                raise _WrongValue(f"{key}.{name}: {value!r}; expected {of.__name__}")
    if not isinstance(facts.get("cuda_graph", False), bool):
        raise _WrongValue(f"cuda_graph: {facts['cuda_graph']!r}; expected true or false")
    return typed


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongValue(f"{where}: {value!r}; expected a table")
    return value


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
