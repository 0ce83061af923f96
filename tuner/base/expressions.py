"""Regular expressions that are compiled when they are first used, for the modules that every command loads.

The readers of logs and tables declare some 280 expressions, of which a command uses about a fifth. Compiling all took a
fifth of the time of ``diagnose`` on a small log.
"""

import re
from typing import Any, AnyStr, Generic, cast


class _Expression(Generic[AnyStr]):
    """A regular expression that is not compiled yet. Each method is looked up once in the compiled expression, and then
    kept here."""

    def __init__(self, pattern: AnyStr, flags: int) -> None:
        self._given: tuple[AnyStr, int] = pattern, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found


def expression(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like :func:`re.compile`, but compiles (and raises ``re.error``) when the expression is first used."""
    return cast("re.Pattern[AnyStr]", _Expression(pattern, flags))
