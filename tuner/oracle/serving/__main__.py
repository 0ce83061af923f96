"""The child process that runs an engine's own functions. The process reads questions from standard input and writes
answers to standard output, in JSON."""

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def answers(asked: dict[str, Any]) -> list[Any]:
    """The answers to the parent's questions, in their order; the text of an error for a question that the engine
    refuses."""
    # Imported after the input is read, so that a child without an engine can say so
    from tuner.oracle.serving import ENGINES

    engine, folder = ENGINES[asked["engine"]], Path(asked["folder"])
    found: list[Any] = []
    for each in asked["questions"]:
        os.environ.update(each["environment"])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(list(engine.carriers(folder, each)))
        except ValueError as error:  # raised by the engine for settings that it refuses
            found.append(str(error) or type(error).__name__)
        for name in each["environment"]:
            del os.environ[name]
    return found


def main() -> None:
    """Reads the questions and writes the answers. What the engine's code prints goes to standard error."""
    asked = json.load(sys.stdin)
    for name in list(os.environ):
        if name.startswith(("VLLM_", "SGLANG_", "PYTORCH_")):
            del os.environ[name]
    with contextlib.redirect_stdout(sys.stderr):
        found = answers(asked)
    json.dump(found, sys.stdout)


main()
