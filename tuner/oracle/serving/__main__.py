"""The child that runs an engine's own functions: questions on standard input, answers on standard output, in JSON."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def answers(asked: dict[str, Any]) -> list[Any]:
    """The answers to the questions of a parent, in their order; the text of its error where the engine ends."""
    from tuner.oracle.serving import ENGINES  # after the input is read: a child without one says so

    engine, folder = ENGINES[asked["engine"]], Path(asked["folder"])
    found: list[Any] = []
    for each in asked["questions"]:
        try:
            found.append(list(engine.carriers(folder, each)))
        except ValueError as error:  # what the engine raises for settings that it refuses
            found.append(str(error) or type(error).__name__)
    return found


def main() -> None:
    """Reads, answers, and leaves: what the engine's code prints goes nowhere."""
    asked = json.load(sys.stdin)
    for name in list(os.environ):
        if name.startswith(("VLLM_", "SGLANG_", "PYTORCH_")):
            del os.environ[name]
    with contextlib.redirect_stdout(sys.stderr):
        found = answers(asked)
    json.dump(found, sys.stdout)


main()
