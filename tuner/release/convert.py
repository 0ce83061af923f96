"""Converts tables of TOML to frozen dataclasses and checks keys, types, units and lengths.

A release's file only says what differs from its parent, which schema libraries cannot check. So the merged table is
converted here, and :mod:`tuner.release.reader` says which of the files has the wrong key.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tuner.base.errors import one_of
from tuner.base.names import Algorithm, Collective, Protocol

Record = TypeVar("Record")
PARTIAL: Final = "partial"  # marks Annotated[Mapping[...], PARTIAL]: the mapping may leave out keys
UNITS = ("_us", "_ns", "_ms", "_gbs", "_mbps", "_bytes", "_kib", "_mib")

ALGORITHM_KEYS = {
    "tree": Algorithm.Tree,
    "ring": Algorithm.Ring,
    "collnet_direct": Algorithm.CollNetDirect,
    "collnet_chain": Algorithm.CollNetChain,
    "nvls": Algorithm.NVLS,
    "nvls_tree": Algorithm.NVLSTree,
    "pat": Algorithm.PAT,
}
PROTOCOL_KEYS = {"ll": Protocol.LL, "ll128": Protocol.LL128, "simple": Protocol.Simple}
COLLECTIVE_KEYS = {collective.name: collective for collective in Collective}
KEYS: Mapping[Any, Mapping[str, Any]] = {
    Algorithm: ALGORITHM_KEYS,
    Protocol: PROTOCOL_KEYS,
    Collective: COLLECTIVE_KEYS,
}
ALGORITHM_NAMES = {algorithm: key for key, algorithm in ALGORITHM_KEYS.items()}
PROTOCOL_NAMES = {protocol: key for key, protocol in PROTOCOL_KEYS.items()}


# Converted values by the identity of their table or list and their key, so that releases share what they inherit from
# the same parent.
Shared = dict[tuple[int, str], tuple[Any, Any]]


class WrongValue(Exception):
    """The value of a dotted key is wrong; the message says what is wrong and what is valid."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key


def record(kind: type[Record], given: Any, key: str, shared: Shared | None = None) -> Record:
    """``given`` as a dataclass of this kind; a field with a default may be left out. Raises WrongValue."""
    table = _table(given, key)
    of_kind: Any = kind
    hints = annotations(of_kind)
    _check_names(table, hints, key)
    for field in fields(of_kind):
        if field.name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise WrongValue(below(key, field.name), f"missing from {f'[{key}]' if key else 'the file'}")
    return kind(**{name: value(hints[name], each, below(key, name), shared) for name, each in table.items()})


def value(kind: Any, given: Any, key: str, shared: Shared | None = None) -> Any:
    """``given`` converted to the annotation ``kind``. Raises WrongValue.

    If ``shared`` has the result of an earlier conversion of the same table or list, that is returned.
    """
    if shared is None or not isinstance(given, dict | list):
        return _value(kind, given, key, shared)
    if (known := shared.get((id(given), key))) is None:
        # The table is kept alive, so that no other object gets its id
        known = shared[id(given), key] = given, _value(kind, given, key, shared)
    return known[1]


def _value(kind: Any, given: Any, key: str, shared: Shared | None) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return record(kind, given, key, shared)  # type: ignore[arg-type]
    if origin is Annotated:
        return _mapping(get_args(arguments[0]), given, key, PARTIAL not in arguments, shared)
    if origin in (Union, UnionType):
        (some,) = (argument for argument in arguments if argument is not NoneType)
        return None if given == [] else _value(some, given, key, shared)
    if origin is tuple:
        return _tuple(arguments, given, key, shared)
    if origin is Literal:
        return _one_of(dict(zip(arguments, arguments, strict=True)), given, key)
    if kind in KEYS:
        return _one_of(KEYS[kind], given, key)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments, given, key, True, shared)
    return _plain(kind, given, key)


@cache
def annotations(kind: Any) -> Mapping[str, Any]:
    """The fields of a dataclass with their annotations."""
    return MappingProxyType(get_type_hints(kind, include_extras=True))


def laid_over(kind: Any, own: Any, given: Any, key: str) -> Any:
    """``own``, of the annotation ``kind``, overlaid with ``given``; lists and values are replaced as a whole.

    Raises WrongValue.
    """
    if is_dataclass(own):
        own_kind: Any = type(own)
        hints, table = annotations(own_kind), _table(given, key)
        _check_names(table, hints, key)
        new = {name: laid_over(hints[name], getattr(own, name), each, below(key, name)) for name, each in table.items()}
        return replace(own, **new)  # type: ignore[type-var]
    if isinstance(own, Mapping):
        names, values = get_args(get_args(kind)[0] if get_origin(kind) is Annotated else kind)
        table = _table(given, key)
        valid = _names(names)
        changed = dict(own)
        if valid is not None:
            _check_names(table, valid, key)
        for name, each in table.items():
            member = name if valid is None else valid[name]
            changed[member] = laid_over(values, own.get(member), each, below(key, name))
        return MappingProxyType(changed)
    return value(kind, given, key)


def below(key: str, name: object) -> str:
    """The dotted key of the entry ``name`` in the table whose own dotted key is ``key``."""
    return f"{key}.{name}" if key else str(name)


def _table(given: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise WrongValue(key, f"{given!r}; valid: a table")
    return given


def _check_names(table: Mapping[str, Any], valid: Mapping[str, Any], key: str) -> None:
    if unknown := [name for name in table if name not in valid]:
        raise WrongValue(below(key, unknown[0]), _unknown(unknown[0], valid))


def _unknown(name: str, valid: Iterable[str]) -> str:
    valid = list(valid)
    same = [other for other in valid if _without_unit(other) == _without_unit(name)]
    return f"wrong unit; {one_of(same)}" if same else f"unknown key; {one_of(valid)}"


def _without_unit(name: str) -> str:
    return next((name.removesuffix(unit) for unit in UNITS if name.endswith(unit)), name)


def _one_of(valid: Mapping[str, Any], given: Any, key: str) -> Any:
    if not isinstance(given, str) or given not in valid:
        raise WrongValue(key, f"{given!r}; {one_of(valid)}")
    return valid[given]


def _tuple(kinds: tuple[Any, ...], given: Any, key: str, shared: Shared | None) -> tuple[Any, ...]:
    several = len(kinds) == 2 and kinds[1] is ...
    if not isinstance(given, list):
        raise WrongValue(key, f"{given!r}; valid: a list")
    if not several and len(given) != len(kinds):
        raise WrongValue(key, f"{len(given)} values; valid: {len(kinds)}")
    return tuple(
        value(kinds[0] if several else kinds[index], each, f"{key}[{index}]", shared)
        for index, each in enumerate(given)
    )


def _mapping(kinds: tuple[Any, ...], given: Any, key: str, whole: bool, shared: Shared | None) -> Mapping[Any, Any]:
    names, kind = kinds
    table = _table(given, key)
    valid = _names(names)
    if valid is None:
        return MappingProxyType({name: value(kind, each, below(key, name), shared) for name, each in table.items()})
    _check_names(table, valid, key)
    if whole and (missing := [name for name in valid if name not in table]):
        raise WrongValue(below(key, missing[0]), f"missing from [{key}]")
    return MappingProxyType({valid[name]: value(kind, each, below(key, name), shared) for name, each in table.items()})


def _names(kind: Any) -> Mapping[str, Any] | None:
    """The keys that a mapping may have, each with its meaning; None if any name is valid."""
    if get_origin(kind) is Literal:
        return dict(zip(get_args(kind), get_args(kind), strict=True))
    return KEYS.get(kind)


def _plain(kind: Any, given: Any, key: str) -> Any:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if kind is float and number and not math.isnan(given) and given >= 0:
        return float(given)
    if kind is int and number and isinstance(given, int) and given >= 0:
        return given
    if kind in (bool, str) and isinstance(given, kind):
        return given
    names = {float: "a number of 0 or more", int: "a whole number of 0 or more", bool: "true, false", str: "a text"}
    raise WrongValue(key, f"{given!r}; valid: {names[kind]}")


def plain(given: Any) -> Any:
    """The inverse of :func:`value`: converts to tables, lists, texts and numbers as a release's file has them."""
    if is_dataclass(given):
        values = {field.name: (field.default, getattr(given, field.name)) for field in fields(given)}
        return {name: plain(value) for name, (default, value) in values.items() if value is not None or default}
    if given is None:
        return []
    if isinstance(given, Mapping):
        return {_key(name): plain(each) for name, each in given.items()}
    if isinstance(given, tuple):
        return [plain(each) for each in given]
    return _key(given)


def _key(name: Any) -> Any:
    if not isinstance(name, Enum):
        return name
    return next(key for key, member in KEYS[type(name)].items() if member is name)
