"""Examples in docstrings as blocks of code: in Markdown their lines are quotations, and lists in them links."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.M)


class FencedDoctests(griffe.Extension):
    """Griffe's extension that fences each run of examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    return f"```pycon\n{example[0].rstrip()}\n```\n"
