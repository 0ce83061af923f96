"""Named rules: a function registers itself under its own name, and a release table names it."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Registry(dict[str, F]):
    """Rules of one kind by name; an instance is the decorator that adds one."""

    def __call__(self, function: F) -> F:
        self[function.__name__] = function
        return function
