"""Named rules: a function, or a class of functions that belong together, is registered under its name.

A release's file names the rules that it uses. Every rule says where NCCL's code has it.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from tuner.base.dataclass import dataclass

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The place of a rule in NCCL's code from the release ``since`` on, up to the release from which the rule has
    another source.

    ``file`` and ``function`` are in NCCL's tag ``v<release>-1`` of each of these releases. If NCCL has a rule once for
    each algorithm, both texts list them in braces: the first function is in the first file, and so on.
    """

    file: str
    function: str
    since: str

    def text(self, nccl: str) -> str:
        """The source as a text, for the release ``nccl``."""
        return f"{self.function}, {self.file}, v{nccl.partition('@')[0]}-1"


class FromBinary(Source):
    """The place of a rule that is in no public source from the release ``since`` on. It was read from libnccl.so.2
    instead.
    """

    __slots__ = ()

    def text(self, nccl: str) -> str:
        """A text that says what was read from libnccl.so.2, and of which release."""
        return f"{self.function}, read from the binary, {self.file} {nccl}"


class NotNccl(Source):
    """A rule that is not in NCCL: this project adds it."""

    __slots__ = ()

    def text(self, nccl: str) -> str:
        """A text that says who added the rule; it is the same for every release."""
        return self.function


class Variant:
    """A class of methods that make one rule; its only instance is registered.

    The rule's name is the class's name in small letters, with an underscore between words: ``ShrinkOnly`` is
    ``shrink_only``.
    """

    def __init__(self) -> None:
        self.__name__ = re.sub(r"(?<=.)(?=[A-Z])|(?<=[a-z])(?=\d)", "_", type(self).__qualname__).lower()


class Registry(dict[str, F]):
    """The rules of one kind, by name. A registry makes the decorators that add rules with their sources."""

    def __call__(self, *sources: Source) -> Callable[[F], F]:
        """Makes a decorator that adds a function as a rule. TypeError without a source."""
        note_sources = found_in(*sources)

        def add(function: F) -> F:
            self[function.__name__] = note_sources(function)
            return function

        return add

    def variant(self, *sources: Source) -> Callable[[Callable[[], F]], Callable[[], F]]:
        """Makes a decorator that registers a class of methods (a :class:`Variant`) as a rule. TypeError without a
        source.
        """
        note_sources = found_in(*sources)

        def add(kind: Callable[[], F]) -> Callable[[], F]:
            rule = note_sources(kind())
            self[rule.__name__] = rule
            return kind

        return add


_SOURCES: dict[Rule, tuple[Source, ...]] = {}


def found_in(*sources: Source) -> Callable[[F], F]:
    """Makes a decorator for a step that every release has. Unlike a rule, such a step is named in no release's file;
    like a rule, it has a source.

    TypeError without a source, ValueError if the sources are not in the order of releases.
    """
    if not sources or not all(isinstance(source, Source) for source in sources):
        raise TypeError("a rule needs a source: the file and function of NCCL that has it, and since which release")
    if any(_order(later.since) <= _order(earlier.since) for earlier, later in pairwise(sources)):
        raise ValueError(f"sources are out of order: {', '.join(source.since for source in sources)}")

    def add(function: F) -> F:
        _SOURCES[function] = sources
        return function

    return add


def sources_of(rule: Rule) -> tuple[Source, ...]:
    """All sources of a rule, that of the earliest release first. LookupError if the function has no source."""
    if rule not in _SOURCES:
        raise LookupError(f"{rule.__name__} has no source")
    return _SOURCES[rule]


@cache
def source_of(rule: Rule, nccl: str) -> Source:
    """The source that applies to a release. LookupError if the rule has no source for so early a release."""
    held = [source for source in sources_of(rule) if _order(source.since) <= _order(nccl)]
    if not held:
        raise LookupError(f"{rule.__name__} has no source in NCCL {nccl}")
    return held[-1]


def _order(nccl: str) -> tuple[int, ...]:
    # For a learnt release, the version that its library reports
    return tuple(int(part) for part in nccl.partition("@")[0].split("."))
