"""NCCL's environment variables as the library reads them: integers, lists, and the NCCL_ALGO / NCCL_PROTO grammar."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from typing import TypeVar

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, NcclFails, Remedy, one_of
from tuner.base.expressions import expression
from tuner.base.names import Collective
from tuner.base.numerics import int32, parse_long
from tuner.base.registry import Registry, Source
from tuner.base.spelling import option

NAME = expression(r"[A-Za-z_]\w*", re.ASCII)
BEGINS_NUMBER = expression(r"\s*[+-]?\d", re.ASCII)
E = TypeVar("E", bound=IntEnum)
Grammar = Callable[[str, str, type[IntEnum], Collective], dict[IntEnum, bool]]
GRAMMARS: Registry[Grammar] = Registry()


@dataclass(frozen=True, slots=True)
class Environment:
    """The NCCL_* variables a communicator was started with."""

    values: Mapping[str, str] = field(default_factory=dict)
    searched: frozenset[str] = frozenset()  # those of the search of graphs, where libnccl has searched with them
    configured: frozenset[str] = frozenset()  # those that stand for fields of the communicator's configuration
    non_numeric_is_default: bool = False  # as the release reads an integer parameter without a digit; else it is 0

    def text(self, name: str) -> str | None:
        """A variable's value as it was set; None if it is not set."""
        return self.values.get(name)

    def number(self, name: str, default: int) -> int:
        """An integer parameter: NCCL's default if unset or empty; a value beyond 64 bits counts as unset."""
        value = self._requested(name)
        return default if value is None else value

    def _requested(self, name: str) -> int | None:
        text = self.values.get(name)
        if not text or (self.non_numeric_is_default and not BEGINS_NUMBER.match(text)):
            return None
        value = parse_long(text)
        return value if -(2**63) <= value < 2**63 else None

    def of_process(self, name: str) -> int | None:
        """Like :meth:`optional`, for a variable that NCCL looks up again later: configuration fields do not count."""
        return None if name in self.configured else self.optional(name)

    def c_int(self, name: str, default: int) -> int:
        """The number as NCCL assigns it to an int: larger numbers wrap around (sic)."""
        return int32(self.number(name, default))

    def optional(self, name: str) -> int | None:
        """An integer parameter like :meth:`c_int`; None if NCCL's default applies."""
        value = self._requested(name)
        return None if value is None else int32(value)


def parse_assignments(
    assignments: tuple[str, ...], key: str = "env", form: str = "NCCL_NAME=VALUE, such as NCCL_ALGO=Ring"
) -> dict[str, str]:
    """``NAME=VALUE`` strings to a dictionary. BadInput for other forms, other names, and two values of one name."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or NAME.fullmatch(name) is None:
            raise BadInput(f"{option(key)} {assignment!r}: expected {form}")
        if values.setdefault(name, value) != value:
            raise BadInput(f"{option(key)} {name}={values[name]} and {assignment}: valid: one of them")
    return values


def allowed(text: str, variable: str, elements: type[IntEnum]) -> dict[Collective, dict[IntEnum, bool]]:
    """Names that a list ``[func:]a,b;func:^c`` allows, for every collective it names.

    The first entry may lack the collective and then holds for all; a later entry overwrites the row of the collective
    it names; ``^`` inverts a list. Collectives that no entry names are absent. C's strtok is kept: empty entries and
    empty elements vanish. Source: parseList, src/graph/tuning.cc, v2.28.9-1.
    """
    rows: dict[Collective, dict[IntEnum, bool]] = {}
    for collectives, chosen, inverted in _entries(text, variable, elements):
        for collective in collectives:
            rows[collective] = {element: (element in chosen) != inverted for element in elements}
    return rows


def forced(text: str, variable: str, elements: type[IntEnum]) -> set[Collective]:
    """The collectives for which a list as in :func:`allowed` names any element at all."""
    entries = _entries(text, variable, elements)
    return {collective for collectives, chosen, _ in entries if chosen for collective in collectives}


def _entries(
    text: str, variable: str, elements: type[IntEnum]
) -> Iterator[tuple[list[Collective], list[IntEnum], bool]]:
    """Entries, each with the collectives it is for, the elements it names, and whether ``^`` inverts it."""
    for position, entry in enumerate(part for part in text.split(";") if part):
        fields = [part for part in entry.split(":") if part]
        if not fields:
            raise _refused(variable, text, f"an entry has no list; {one_of(e.name for e in elements)}")
        if len(fields) == 1:
            # C compares the token's address with the string's start, so a leading ';' makes even the first entry later.
            if position > 0 or text.startswith(";"):
                raise _refused(variable, text, "every entry but the first needs a collective, as in 'allreduce:'")
            collectives, names = list(Collective), fields[0]
        else:
            collectives, names = [_match(fields[0], Collective, variable, text)], fields[1]
        chosen = [_match(name, elements, variable, text) for name in names.removeprefix("^").split(",") if name]
        yield collectives, chosen, names.startswith("^")


@GRAMMARS(
    Source("src/graph/tuning.cc", "parseList", since="2.24.3"),
    Source("src/tuning/cost_model.cc", "parseList", since="2.31.2"),
)
def by_collective(text: str, variable: str, elements: type[IntEnum], collective: Collective) -> dict[IntEnum, bool]:
    """Names that :func:`allowed` gives one collective; empty if no entry names the collective."""
    return allowed(text, variable, elements).get(collective, {})


@GRAMMARS(Source("src/graph/tuning.cc", "parseList", since="2.18.1"))
def one_list(text: str, variable: str, elements: type[IntEnum], collective: Collective) -> dict[IntEnum, bool]:
    """One list ``a,b`` or ``^a,b`` for all collectives; unknown names are ignored, an empty list allows nothing.

    Source: parseList, src/graph/tuning.cc, v2.23.4-1.
    """
    names = text.removeprefix("^").lower().split(",")
    return {element: (element.name.lower() in names) != text.startswith("^") for element in elements}


def _match(token: str, elements: type[E], variable: str, text: str) -> E:
    for element in elements:
        if element.name.lower() == token.lower():
            return element
    raise _refused(variable, text, f"unknown {token!r}; {one_of(e.name for e in elements)}")


def _refused(variable: str, text: str, why: str) -> NcclFails:
    """Error for a list with which NCCL refuses to make a communicator."""
    return NcclFails(f"{variable}={text!r}: {why}").cured(Remedy("env", None, variable))
