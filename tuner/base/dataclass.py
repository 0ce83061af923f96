"""Dataclasses whose methods are made at their first call, for the modules that every command loads.

The standard library compiles six methods for each frozen dataclass while its module loads: a third of a millisecond per
class, which was a fifth of the time of a ``pick``, although most of the classes never get an object. All classes that
use this module's decorator share these methods, except ``__init__``. A class's ``__init__`` is compiled when its first
object is made. The fields are those of the standard library, so ``fields``, ``replace`` and ``asdict`` of
:mod:`dataclasses` accept these classes.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter, ge, gt, le, lt
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)
# Attribute of a class: the function that gets an object's field values, made when first needed
_GETTER = "__field_values__"


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
    kw_only: bool = False,
) -> Callable[[C], C]:
    """A decorator like :func:`dataclasses.dataclass`; subclasses have to use it, too."""

    def decorated(plain: C) -> C:
        own = vars(plain)
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(plain)
        if "__init__" not in own:
            made.__init__ = _first_init(made)
        if repr and "__repr__" not in own:
            made.__repr__ = _repr
        if eq:
            made.__eq__ = own.get("__eq__", _equal)
            made.__hash__ = own.get("__hash__") or (_first_hash(made) if frozen else None)
        if order:
            made.__lt__, made.__le__, made.__gt__, made.__ge__ = map(_ordered, (lt, le, gt, ge))
        if frozen:
            made.__setattr__, made.__delattr__ = _set, _delete
            made.__getstate__, made.__setstate__ = _get_state, _set_state
        kept: C = made
        return kept

    return decorated


def _first_init(kind: Any) -> Callable[..., None]:
    """An ``__init__`` that compiles the real one, replaces itself with that in the class, and calls it."""

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        kind.__init__ = _init(kind)
        kind.__init__(self, *arguments, **named)

    return init


def _init(kind: Any) -> Any:
    """The source of the ``__init__`` of a class, equal to the standard library's."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    taken: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(kind):
        name, value = field.name, field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"], default = field.default, f" = _default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"], default = field.default_factory, " = _missing"
            value = f"_make_{name}() if {name} is _missing else {name}"
        if field.init:
            (by_name if field.kw_only else taken).append(f"{name}{default}")
        elif default == " = _missing":
            value = f"_make_{name}()"
        elif default:
            value = f"_default_{name}"
        else:
            continue
        body.append(f"_set(self, {name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    given = ", ".join(["self", *taken, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({given}):\n " + "\n ".join(body or ["pass"]), names)
    made = names["__init__"]
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made


def _values(kind: Any) -> Callable[[Any], Any]:
    compared = [each.name for each in dataclasses.fields(kind) if each.compare]
    getter: Callable[[Any], Any] = attrgetter(*compared) if len(compared) > 1 else lambda self: _tuple(self, compared)
    setattr(kind, _GETTER, staticmethod(getter))
    return getter


def _tuple(self: Any, names: list[str]) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in names)


def _of(kind: Any) -> Callable[[Any], Any]:
    return vars(kind).get(_GETTER) or _values(kind)


def _equal(self: Any, other: object) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    values = _of(type(self))
    return values(self) == values(other)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, object], Any]:
    def compared(self: Any, other: object) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        values = _of(type(self))
        return compare(values(self), values(other))

    return compared


def _first_hash(kind: Any) -> Callable[[Any], int]:
    """A ``__hash__`` that replaces itself with one that knows the fields of its class, and calls that."""

    def first(self: Any) -> int:
        values = _of(kind)
        kind.__hash__ = lambda self: hash(values(self))
        return hash(values(self))

    return first


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def _get_state(self: Any) -> list[Any]:
    kind: Any = type(self)
    return [getattr(self, name) for name in _names(kind)]


def _set_state(self: Any, state: list[Any]) -> None:
    kind: Any = type(self)
    for name, value in zip(_names(kind), state, strict=True):
        object.__setattr__(self, name, value)
