"""Builds the native parts; everything else is in pyproject.toml.

The simulated GPUs and the tuner plugin are plain shared objects: libnccl loads them, so they must not be Python
extension modules. Only Linux has a libnccl, so elsewhere the package is pure Python.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("csrc")


class SharedObject(Extension):
    """A shared object without a Python module in it."""

    def __init__(
        self, name: str, sources: Iterable[Path], optimise: str = "-O2", libraries: tuple[str, ...] = ()
    ) -> None:
        sources = sorted(sources)
        folders = {path.parent for path in sources}
        super().__init__(
            f"tuner._native.{name}",
            sources=list(map(str, sources)),
            depends=sorted(str(path) for folder in folders for path in folder.glob("*.h")),
            extra_compile_args=["-std=c11", optimise, "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"],
            # By its name a process that holds the object already gets the same one, wherever it lies.
            extra_link_args=[f"-Wl,-soname,{name}.so"],
            libraries=list(libraries),
        )


class BuildExt(build_ext):
    """Keeps the plain name of a shared object (no ``.cpython-311-...`` in it)."""

    def get_ext_filename(self, fullname: str) -> str:
        plain = [extension.name for extension in self.extensions if isinstance(extension, SharedObject)]
        # Asked with the dotted name, or for an editable install with its last part.
        if any(name == fullname or name.endswith(f".{fullname}") for name in plain):
            return str(Path(*fullname.split("."))) + ".so"
        return super().get_ext_filename(fullname)

    def copy_extensions_to_source(self) -> None:
        Path("tuner", "_native").mkdir(exist_ok=True)  # not in the repository: it holds only what is built
        super().copy_extensions_to_source()

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


PLUGIN = set(CSRC.glob("plugin/*.c"))

extensions = [
    SharedObject("libnccl_tuner_plugin", PLUGIN, optimise="-O3"),  # NCCL calls it for every collective
    # The same behind the same adapters, but for where the table comes from.
    SharedObject("libnccl_tuner_force", PLUGIN - {CSRC / "plugin" / "tuner.c"} | set(CSRC.glob("force/*.c"))),
    SharedObject("libnccl_tuner_sim", CSRC.glob("sim/*.c"), libraries=("dl", "pthread")),
]

setup(
    packages=[*find_packages(include=["tuner", "tuner.*"]), "tuner.tables"],
    ext_modules=extensions if sys.platform == "linux" else [],
    cmdclass={"build_ext": BuildExt},
)
