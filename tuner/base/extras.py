"""Optional parts of an installation: the extras of pyproject.toml, and the error if one is missing."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra, which ``pip install 'nccl-tuner[name]'`` installs."""

    name: str
    gives: str
    modules: Mapping[str, str]  # what it installs: the name to import in Python, and the distribution's name

    @property
    def install(self) -> str:
        """The command that installs the extra."""
        return f"pip install 'nccl-tuner[{self.name}]'"

    @property
    def missing(self) -> tuple[str, ...]:
        """The distributions of the extra that Python does not find."""
        return tuple(dict.fromkeys(name for module, name in self.modules.items() if not _found(module)))

    def as_json(self) -> dict[str, object]:
        """What the extra gives and what is missing of it, for JSON."""
        return {"name": self.name, "gives": self.gives, "missing": self.missing, "install": self.install}


_CFFI = {"cffi": "cffi", "_cffi_backend": "cffi"}
_ELFTOOLS = {"elftools": "pyelftools"}
_SCIPY = {"scipy": "scipy"}
# If several extras install a module, the first is named: it installs least else.
EXTRAS = (
    Extra("plugin", "plugin dry-run: asking the tuner plugin without NCCL", _CFFI),
    Extra(
        "fit",
        "fit, decide, verify and accept: fitted curves, and tests of significance",
        _SCIPY,
    ),
    Extra("plot", "plot: pictures as PNG, SVG and PDF", {"matplotlib": "matplotlib"}),
    Extra("report", "plot page: the HTML page of a machine", {"bokeh": "bokeh"}),
    Extra("parquet", "answers as parquet, and tables of measured times in it", {"polars": "polars"}),
    Extra("chakra", "export to chakra: execution traces for ASTRA-sim", {"google.protobuf": "protobuf"}),
    Extra(
        "oracle",
        "check, oracle, memory, fetch-nccl, and whatever asks libnccl: the real libnccl on simulated GPUs",
        _ELFTOOLS | _CFFI,
    ),
    Extra("gpu", "measure, on GPUs", {"cupy": "cupy-cuda12x", "pynvml": "nvidia-ml-py"} | _ELFTOOLS | _CFFI | _SCIPY),
)


class MissingExtra(BadInput):
    """The request needs a package of an extra that is not installed."""


def missing(module: str | None, what: str) -> MissingExtra | None:
    """The error that ``module`` is not installed, with the command that installs it; None if no extra installs the
    module.

    ``what`` is what needs the module, such as "a picture".
    """
    for extra in EXTRAS:
        for name, distribution in extra.modules.items():
            if module == name or (module or "").startswith(f"{name}."):
                return MissingExtra(f"{what} needs {distribution}: {extra.install}")
    return None


def require(module: str, what: str) -> None:
    """Raises the error of :func:`missing` if Python does not find the module."""
    if not _found(module) and (error := missing(module, what)) is not None:
        raise error


def _found(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False
    except ValueError:  # the module is loaded, but has no spec
        return True


FOLDER = Path(__file__).resolve().parent.parent / "_native"


class NotBuilt(TunerError):
    """A shared object of this project is missing."""


def shared_object(name: str) -> Path:
    """Path of ``lib<name>.so``, which libnccl loads. NotBuilt if it does not exist."""
    file = FOLDER / f"lib{name}.so"
    if not file.is_file():
        raise NotBuilt(f"no {file}: it is compiled when the package is installed, on Linux only")
    return file


def bindings(module: str) -> Any:
    """A compiled module of ``csrc/bindings.py``: its ``lib`` has the functions, its ``ffi`` the types. NotBuilt if it
    is missing.

    MissingExtra without cffi.
    """
    require("_cffi_backend", f"{FOLDER / module}")
    try:
        return import_module(f"tuner._native.{module}")
    except ImportError as error:
        raise NotBuilt(f"{FOLDER / module} cannot be loaded: {error}") from error
