"""Makes signatures that name every argument, for functions whose keywords are the keys of a TypedDict.

Type checkers read ``**given: Unpack[Keys]`` as these keywords; with this module ``help()`` and notebooks show them,
too.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def with_keys(keys: Any, defaults: Mapping[str, Any] | None = None) -> Callable[[F], F]:
    """Makes ``help()`` show the keys of the TypedDict ``keys`` in place of a function's ``**keywords``.

    ``defaults`` are default values by key; the default of any other key is None.
    """

    def decorated(function: F) -> F:
        own = signature(function)
        named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=(defaults or {}).get(name), annotation=kind)
            for name, kind in _keys_of(keys).items()
        ]
        function.__signature__ = Signature([*named, *added], return_annotation=own.return_annotation)  # type: ignore[attr-defined]
        return function

    return decorated


def _keys_of(keys: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = keys.__annotations__
    return found
