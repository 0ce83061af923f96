"""Fitted constants: they replace those constants of a release that measured times contradict. ``tables/nccl`` keeps
NCCL's own.

A file of fitted constants has tables with the names of those in ``tables/nccl``, plus ``efficiency``: the measured
share of the model's bandwidth, by algorithm and protocol. docs/measuring.md describes the file.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner import release
from tuner.base.bounds import ReaderBounds, factor
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadConstants, BadInput, UnknownRelease, one_of
from tuner.base.files import contents, write_text
from tuner.base.names import Algorithm
from tuner.base.spelling import option
from tuner.emulator.rules.bandwidth import measured_efficiency
from tuner.release import ALGORITHM_NAMES, PROTOCOL_KEYS, Release
from tuner.release.convert import plain
from tuner.release.schema import RuleNames

VERSION = 1
TABLES = ("base_latency_us", "hw_latency_us", "cap_gbs", "tree_correction", "ring_plateau")
PROVENANCE: Mapping[str, type] = {
    "machine": str,
    "topology": str,
    "gpus_per_node": int,
    "nodes": list,
    "measurements": list,  # {file, sha256} of each file of measurements
    "times": str,  # "measured", or "simulated" if no machine took them
    "date": str,
    "command": str,
    "holdout_mape_percent": float,
    "nccl_holdout_mape_percent": float,  # error of NCCL's own constants on the same times
    "residuals": list,  # mean absolute error of each combination, percent
    "kept_as_alike": list,  # constants kept at NCCL's value because others have the same effect
}
_FLOAT32 = np.finfo(np.float32)


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """Fitted constants by table, as in a release's file; ``file`` is the file that they were read from, if any."""

    nccl: str
    constants: Mapping[str, Any]
    provenance: Mapping[str, Any]
    file: str | None = None

    @property
    def record(self) -> dict[str, Any]:
        """What an answer says about the constants it was computed with."""
        return {"file": self.file, "nccl": self.nccl, **self.provenance}


FILE = ReaderBounds("fitted constants", file_bytes=1 << 20)


def read(path: Path) -> FittedConstants:
    """Reads fitted constants. BadConstants names file and key of what is wrong, or what the release lacks."""
    try:
        table = tomllib.loads(contents(path, int((FILE.file_bytes or 0) * factor())).decode("utf-8"))
    except OSError as error:
        raise BadConstants(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        hint = f"; calibrated times are another thing, for {option('calibration')}" if path.suffix == ".json" else ""
        raise BadConstants(f"{path}: not TOML: {' '.join(str(error).split())}{hint}") from None
    head = table.pop("layer", None)
    if not isinstance(head, dict) or head.pop("version", None) != VERSION:
        raise BadConstants(f"{path}: not fitted constants: no version = {VERSION} in a table [layer]")
    name = head.pop("nccl", None)
    try:
        own = _valid(release.load(str(name)))
    except UnknownRelease as error:
        raise BadConstants(f"{path}: layer.nccl: {error}") from None
    for wrong in (*_provenance(head), *_wrong(table, own, "")):
        raise BadConstants(f"{path}: {wrong}")
    return FittedConstants(str(name), table, head, str(path))


def write(path: Path, fitted: FittedConstants) -> None:
    """Writes constants so that they read back with the same bits."""
    write_text(path, to_text(fitted))


def to_text(fitted: FittedConstants) -> str:
    """The constants in TOML, the text of their file."""
    head = {"version": VERSION, "nccl": fitted.nccl, **fitted.provenance}
    lines = ["[layer]", *(f"{key} = {_value(value)}" for key, value in head.items())]
    for name, rows in fitted.constants.items():
        nested = name in ("hw_latency_us", "cap_gbs")
        for part, values in rows.items() if nested else [(None, rows)]:
            lines += ["", f"[{name}.{part}]" if part else f"[{name}]"]
            lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


def apply(nccl: Release, fitted: FittedConstants) -> Release:
    """The release with these constants. BadInput if they were fitted for another release."""
    if nccl.name != fitted.nccl:
        name = fitted.file or "constants"
        raise BadInput(f"{name} was fitted to NCCL {fitted.nccl}, not {nccl.name}: use it with {fitted.nccl}")
    return changed(nccl, fitted.constants)


def changed(nccl: Release, constants: Mapping[str, Any]) -> Release:
    """The release with these constants, which may include ``efficiency``: {algorithm: {protocol: share}}."""
    return _measured(nccl, release.changed(nccl, constants))


def _measured(nccl: Release, other: Release) -> Release:
    if not other.efficiency:
        return other
    return replace(other, rules=_with_efficiency(nccl.rules, frozenset(other.efficiency)))


class Changes:
    """Makes releases from successive sets of constants. Tables that did not change are not read again."""

    def __init__(self, nccl: Release) -> None:
        self._nccl = nccl
        self._read: dict[str, tuple[Any, Any]] = {}  # each table as it was given, and as the release has it

    def release(self, constants: Mapping[str, Any]) -> Release:
        """The release with these constants, given as in :func:`changed`."""
        for name, table in constants.items():
            if name not in self._read or self._read[name][0] != table:
                self._read[name] = table, getattr(release.changed(self._nccl, {name: table}), name)
        other = replace(self._nccl, **{name: self._read[name][1] for name in constants})
        return _measured(self._nccl, other)


@lru_cache
def _with_efficiency(rules: RuleNames, algorithms: frozenset[Algorithm]) -> RuleNames:
    """The rules with one more rule for these algorithms, which applies the measured share of the bandwidth."""
    names = {
        algorithm: (*own, measured_efficiency.__name__) if algorithm in algorithms else own
        for algorithm, own in rules.bandwidth.items()
    }
    return replace(rules, bandwidth=names)


def _valid(nccl: Release) -> dict[str, Any]:
    """All tables that fitted constants may change, with NCCL's values, in the form of a release's file."""
    tables = {name: plain(getattr(nccl, name)) for name in TABLES}
    tables["ring_plateau"] = dict(nccl.ring_plateau.factors)
    tables["efficiency"] = {
        ALGORITHM_NAMES[algorithm]: dict.fromkeys(PROTOCOL_KEYS, 1.0) for algorithm in nccl.rules.bandwidth
    }
    return tables


def _provenance(head: Mapping[str, Any]) -> Iterator[str]:
    for key, value in head.items():
        if key not in PROVENANCE:
            yield f"layer.{key}: unknown key; {one_of(('version', 'nccl', *PROVENANCE))}"
        elif not isinstance(value, PROVENANCE[key]):
            yield f"layer.{key}: {value!r}; valid: {PROVENANCE[key].__name__}"


def _wrong(given: Any, own: Any, where: str) -> Iterator[str]:
    """The errors in ``given``, by comparison with NCCL's tables ``own``."""
    if isinstance(own, Mapping):
        if not isinstance(given, Mapping):
            yield f"{where}: {given!r}; valid: a table of {', '.join(own)}"
            return
        for key, value in given.items():
            path = f"{where}.{key}" if where else str(key)
            if key in own:
                yield from _wrong(value, own[key], path)
            else:
                yield f"{path}: unknown {'key' if where else 'table'}; {one_of(own)}"
    elif isinstance(own, list):
        if not isinstance(given, list) or len(given) != len(own):
            yield f"{where}: {given!r}; valid: a list of {len(own)} numbers"
            return
        for index, (value, number) in enumerate(zip(given, own, strict=True)):
            yield from _wrong(value, number, f"{where}[{index}]")
    else:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        off = number and given == own == 0  # NCCL's "disabled" stays as it is
        if not number or not (off or float(_FLOAT32.tiny) <= given <= float(_FLOAT32.max)):
            yield f"{where}: {given!r}; valid: a positive finite number"


def _value(value: Any) -> str:
    """A value in TOML. Strings are written as in JSON, except for the character DEL."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
