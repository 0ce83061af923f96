"""NCCL's environment variables as the library reads them: integers, lists, and the grammar of NCCL_ALGO and
NCCL_PROTO."""

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
    # The variables that the search of graphs reads, if libnccl has searched with them
    searched: frozenset[str] = frozenset()
    configured: frozenset[str] = frozenset()  # the variables that stand for fields of the communicator's configuration
    # Whether a text without a digit means the default of an integer parameter; otherwise it means 0
    non_numeric_is_default: bool = False

    def text(self, name: str) -> str | None:
        """A variable's value as it was set; None if it is not set."""
        return self.values.get(name)

    def number(self, name: str, default: int) -> int:
        """The value of an integer parameter. NCCL takes the default if it is unset, empty, or beyond 64 bits."""
        value = self._requested(name)
        return default if value is None else value

    def _requested(self, name: str) -> int | None:
        text = self.values.get(name)
        if not text or (self.non_numeric_is_default and not BEGINS_NUMBER.match(text)):
            return None
        value = parse_long(text)
        return value if -(2**63) <= value < 2**63 else None

    def of_process(self, name: str) -> int | None:
        """Like :meth:`optional`, for a variable that NCCL reads again later: fields of a communicator's configuration
        are left out.

        None if such a field set the variable.
        """
        return None if name in self.configured else self.optional(name)

    def c_int(self, name: str, default: int) -> int:
        """The number as NCCL assigns it to a C int: larger numbers wrap around (sic)."""
        return int32(self.number(name, default))

    def optional(self, name: str) -> int | None:
        """An integer parameter like :meth:`c_int`; None if the variable leaves NCCL's default in effect."""
        value = self._requested(name)
        return None if value is None else int32(value)


def parse_assignments(
    assignments: tuple[str, ...], key: str = "env", form: str = "NCCL_NAME=VALUE, such as NCCL_ALGO=Ring"
) -> dict[str, str]:
    """Converts ``NAME=VALUE`` strings to a dictionary. BadInput for another form, another kind of name, or two values
    of one name."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or NAME.fullmatch(name) is None:
            raise BadInput(f"{option(key)} {assignment!r} is not of the form {form}")
        if values.setdefault(name, value) != value:
            raise BadInput(
                f"{option(key)} {name}={values[name]} and {assignment} contradict each other: give one of them"
            )
    return values


def allowed(text: str, variable: str, elements: type[IntEnum]) -> dict[Collective, dict[IntEnum, bool]]:
    """The names that a list ``[func:]a,b;func:^c`` allows, by collective.

    The first entry may name no collective and then applies to all collectives. A later entry overwrites what earlier
    entries say about the collective that it names. ``^`` inverts a list. Collectives that no entry names are absent
    from the result. As with C's strtok, empty entries and empty elements are ignored. Source: parseList,
    src/graph/tuning.cc, v2.28.9-1.
    """
    rows: dict[Collective, dict[IntEnum, bool]] = {}
    for collectives, chosen, inverted in _entries(text, variable, elements):
        for collective in collectives:
            rows[collective] = {element: (element in chosen) != inverted for element in elements}
    return rows


def forced(text: str, variable: str, elements: type[IntEnum]) -> set[Collective]:
    """The collectives for which a list, written as in :func:`allowed`, names any element."""
    entries = _entries(text, variable, elements)
    return {collective for collectives, chosen, _ in entries if chosen for collective in collectives}


def _entries(
    text: str, variable: str, elements: type[IntEnum]
) -> Iterator[tuple[list[Collective], list[IntEnum], bool]]:
    """The entries of a list: the collectives that each is for, the elements that it names, and whether ``^`` inverts
    it."""
    for position, entry in enumerate(part for part in text.split(";") if part):
        fields = [part for part in entry.split(":") if part]
        if not fields:
            raise _refused(variable, text, f"an entry has no list; {one_of(e.name for e in elements)}")
        if len(fields) == 1:
            # C compares the token's address with the string's start, so after a leading ';' even the first entry counts
            # as a later one.
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
    """The names that :func:`allowed` returns for one collective; empty if no entry names the collective."""
    return allowed(text, variable, elements).get(collective, {})


@GRAMMARS(Source("src/graph/tuning.cc", "parseList", since="2.18.1"))
def one_list(text: str, variable: str, elements: type[IntEnum], collective: Collective) -> dict[IntEnum, bool]:
    """The names that one list ``a,b`` or ``^a,b`` allows for all collectives.

    Unknown names are ignored; an empty list allows nothing.

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
    """The error for a list because of which NCCL refuses to make a communicator."""
    return NcclFails(f"{variable}={text!r}: {why}").cured(Remedy("env", None, variable))
