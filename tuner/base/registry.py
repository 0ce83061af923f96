"""Named rules: a function, or a class of rules that belong together, registers itself under its name.

A release's file names it.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Variant:
    """One way in which releases differ that takes several methods: its class's one instance is the rule.

    It is called by what the class's name is in small letters: ``ShrinkOnly`` is ``shrink_only``.
    """

    def __init__(self) -> None:
        self.__name__ = re.sub(r"(?<=.)(?=[A-Z])|(?<=[a-z])(?=\d)", "_", type(self).__qualname__).lower()


class Registry(dict[str, F]):
    """Rules of one kind by name; an instance is the decorator that adds a function."""

    def __call__(self, function: F) -> F:
        self[function.__name__] = function
        return function

    def variant(self, kind: Callable[[], F]) -> Callable[[], F]:
        """The decorator that adds a class of rules."""
        rule = kind()
        self[rule.__name__] = rule
        return kind
