"""What is compiled when the package is installed (``csrc``): shared objects, and their Python side by cffi."""

from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.base import extras
from tuner.base.errors import TunerError

FOLDER = Path(__file__).resolve().parent.parent / "_native"


class NotBuilt(TunerError):
    """A shared object is not there."""


def shared_object(name: str) -> Path:
    """``lib<name>.so``, as libnccl loads it. NotBuilt where it is not there."""
    file = FOLDER / f"lib{name}.so"
    if not file.is_file():
        raise NotBuilt(f"no {file}: it is compiled when the package is installed, on Linux only")
    return file


def bindings(module: str) -> Any:
    """A module of ``csrc/bindings.py``: its ``lib`` are the functions, its ``ffi`` the types. NotBuilt as above.

    MissingExtra without cffi.
    """
    extras.require("_cffi_backend", f"{FOLDER / module}")
    try:
        return import_module(f"tuner._native.{module}")
    except ImportError as error:
        raise NotBuilt(f"{FOLDER / module} cannot be loaded: {error}") from error
