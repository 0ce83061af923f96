"""Several options of a command as one decorator."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def stacked(function: F, *options: Callable[[F], F]) -> F:
    """The function with all of them, which its help shows in this order."""
    for option in reversed(options):
        function = option(function)
    return function
