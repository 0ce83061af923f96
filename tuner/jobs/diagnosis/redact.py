"""Removes names of hosts and users, addresses and paths from a report; the same word replaces a name everywhere."""

import re
from collections.abc import Iterable

from tuner.base.expressions import expression

_ADDRESS = expression(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|(?=[0-9a-fA-F:]*::?[0-9a-fA-F]*:)(?:[0-9a-fA-F]{1,4}:){2,7}:?[0-9a-fA-F]{0,4}"
    r"|[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})*::(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})*)?|(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2})"
    r"(?![\w:.]*\w)"
)
_BUS_ID = expression(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")  # which look like addresses
_USER = expression(r"(?<=/home/)[^/\s:;,'\"()]+|(?<=/Users/)[^/\s:;,'\"()]+|\b[a-z_][\w.-]*(?=@[\w.-]+)")
_PATH = expression(r"(?<![\w.<)/])/(?!(?:dev|proc|sys|etc|usr|lib|lib64|opt/nvidia)/)[\w.@+-]+(?:/[\w.@+-]+)+/?")


class Redactor:
    """Replaces private names in texts; ``hosts`` are host names to look for, ``files`` the files of the report."""

    def __init__(self, hosts: Iterable[str], files: Iterable[str]) -> None:
        self._words = dict[str, str]()
        self._counts = dict[str, int]()
        names = sorted({each for each in hosts if each and not each.isdigit()}, key=lambda each: (-len(each), each))
        self._hosts = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])") if names else None
        paths = sorted({each for each in files if "/" in each}, key=lambda each: (-len(each), each))
        self._files = re.compile("|".join(map(re.escape, paths))) if paths else None

    def __call__(self, text: str) -> str:
        """The text with each private name replaced."""
        for kind, pattern in (
            ("file", self._files),
            ("path", _PATH),
            ("user", _USER),
            ("host", self._hosts),
            ("address", _ADDRESS),
        ):
            if pattern is not None:
                text = pattern.sub(lambda found, kind=kind: self._word(kind, found[0]), text)  # type: ignore[misc]
        return text

    def _word(self, kind: str, private: str) -> str:
        if kind == "address" and _BUS_ID.fullmatch(private):
            return private
        if private not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[private] = f"{kind}-{self._counts[kind]}"
        return self._words[private]
