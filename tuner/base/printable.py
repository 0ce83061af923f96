"""Makes text from elsewhere printable just before it is output, by a rule for each kind of output.

Names of hosts, calls, GPUs and files are from logs, traces and records. Such names may contain characters that move a
cursor, change a terminal's title or reverse the order of letters. Text for people and text files goes through
:func:`printable`; the command line's streams call it by themselves (:class:`PrintableStream`). In JSON the encoder
escapes such characters, in HTML the templates do.
"""

import io
import os
import re
import sys
from typing import Any, TextIO

from tuner.base.expressions import expression

# Control characters except line ends and tabs, characters that are invisible or reverse the order of letters, and
# unpaired surrogates.
_HIDDEN = expression(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_IN_A_LINE = expression(f"[\n\t{_HIDDEN.pattern[1:]}")
_FORMULA = expression(r"[=+\-@\t\r]")
_NUMBER = expression(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|[+-]?(inf|nan)", re.IGNORECASE)

# Marks of the program's own styles, in a form that no file can have. Only at the output they become what a terminal
# understands.
_OWN = f"\ue000{os.urandom(6).hex()}"
_STYLES = {"bold": "1", "green": "32;1", "red": "31;1", "yellow": "33;1", "end": "0"}
_STYLED = expression(rf"{_OWN}<(\w+)>")
RETURN = f"{_OWN}<return>"  # back to the beginning of the line, for progress messages


def printable(text: str) -> str:
    """The text with invisible characters escaped, as in ``\u001b``; line ends and tabs stay."""
    return _HIDDEN.sub(_escape, text)


def in_a_line(text: str) -> str:
    """Like :func:`printable`, for a text inside a line: a cell of a table, a label."""
    return _IN_A_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def csv_cell(value: Any) -> Any:
    """A cell of CSV: a text that a spreadsheet would read as a formula gets a ' in front, which makes it a text."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def label(text: str) -> str:
    """The value of a label in Prometheus' text format, without its quotes."""
    return _HIDDEN.sub(_escape, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))


def styled(text: str, style: str) -> str:
    """The program's own text in a style that is seen on a terminal: bold, green, red or yellow.

    Returns the plain text unless the output is a :class:`PrintableStream`, which turns the marks into a style.
    """
    return text if not isinstance(sys.stdout, PrintableStream) else f"{_OWN}<{style}>{text}{_OWN}<end>"


def unstyled(text: str) -> str:
    """The text without the program's own styles."""
    return _STYLED.sub("", text)


class PrintableStream(io.TextIOBase):
    """A stream that makes text printable when it is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text, with styles as terminal codes if styles are shown, else without."""
        pieces = _STYLED.split(text)
        for place in range(0, len(pieces), 2):
            pieces[place] = printable(pieces[place])
        for place in range(1, len(pieces), 2):
            name = pieces[place]
            pieces[place] = "\r" if name == "return" else f"\x1b[{_STYLES[name]}m" if self._coloured() else ""
        self._stream.write("".join(pieces))
        return len(text)

    def _coloured(self) -> bool:
        """Whether styles are shown. As in click, they are shown on a terminal or with FORCE_COLOR, but not with
        NO_COLOR."""
        return not os.environ.get("NO_COLOR") and (self.isatty() or bool(os.environ.get("FORCE_COLOR")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The file descriptor of the stream."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """True: text can be written."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the stream treats characters that its encoding lacks."""
        return self._stream.errors


def raw(stream: TextIO) -> TextIO:
    """The raw stream behind this one, for a progress bar that moves the cursor and prints nothing but the program's own
    text."""
    return stream._stream if isinstance(stream, PrintableStream) else stream
