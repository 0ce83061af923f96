"""Builds the native parts; everything else is in pyproject.toml.

The simulated GPUs and the tuner plugin are plain shared objects: libnccl loads them, so they must not be Python
extension modules. Those are cffi's, each linked with a shared object (csrc/bindings.py). Only Linux has a libnccl, so
elsewhere the package is pure Python; so it is where NCCL_TUNER_PURE is set, for a wheel that any computer takes.
"""

import os
import runpy
import shlex
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("csrc")
SOURCES = runpy.run_path(str(CSRC / "sources.py"))

HAS_NATIVE = sys.platform == "linux" and not os.environ.get("NCCL_TUNER_PURE")


class SharedObject(Extension):
    """A shared object without a Python module in it: what the C compiler makes of the arguments in csrc/*.args."""

    def __init__(self, name: str, arguments: Path) -> None:
        super().__init__(f"tuner._native.{name}", sources=[str(arguments)])


def words(arguments: Path) -> list[str]:
    """What a file of arguments says, with those that it names: not every compiler takes such files in each other."""
    said = shlex.split(arguments.read_text())
    return [word for each in said for word in (words(Path(each[1:])) if each.startswith("@") else [each])]


class BuildExt(build_ext):
    """Builds the shared objects first, by their plain names (no ``.cpython-311-...`` in them)."""

    def get_ext_filename(self, fullname: str) -> str:
        plain = [extension.name for extension in self.extensions if isinstance(extension, SharedObject)]
        # Asked with the dotted name, or for an editable install with its last part.
        if any(name == fullname or name.endswith(f".{fullname}") for name in plain):
            return str(Path(*fullname.split("."))) + ".so"
        return super().get_ext_filename(fullname)

    def build_extensions(self) -> None:
        self.extensions.sort(key=lambda extension: not isinstance(extension, SharedObject))
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if isinstance(ext, SharedObject):
            target.parent.mkdir(parents=True, exist_ok=True)
            compiler = " ".join(
                [os.environ.get("CC", "cc"), *(os.environ.get(name, "") for name in ("CFLAGS", "LDFLAGS"))]
            )
            macros = [SOURCES["macro"](CSRC), ("NCCL_TUNER_VERSION", f'"{self.distribution.get_version()}"')]
            given = ["-D{}={}".format(*macro) for macro in macros]
            self.spawn([*shlex.split(compiler), *given, *words(Path(ext.sources[0])), "-o", str(target)])
        else:
            ext.define_macros.append(SOURCES["macro"](CSRC))
            ext.depends = list(map(str, SOURCES["files"](CSRC)))
            ext.library_dirs.append(str(target.parent))  # of the shared objects, which were built before
            super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        Path("tuner", "_native").mkdir(exist_ok=True)  # not in the repository: it holds only what is built
        super().copy_extensions_to_source()


NATIVE = {
    "ext_modules": [
        SharedObject("libnccl_tuner_plugin", Path("csrc/plugin.args")),
        SharedObject("libnccl_tuner_force", Path("csrc/force.args")),
        SharedObject("libnccl_tuner_sim", Path("csrc/sim.args")),
        SharedObject("libnccl_tuner_picks", Path("csrc/picks.args")),
    ],
    "cffi_modules": ["csrc/bindings.py:plugin", "csrc/bindings.py:force", "csrc/bindings.py:sim"],
}

setup(
    packages=[*find_packages(include=["tuner", "tuner.*", "nccl_tuner"]), "tuner.tables"],
    data_files=[("share/man/man1", sorted(map(str, Path("man").glob("*.1"))))],  # none unless `make man` wrote them
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_NATIVE else {},  # as cffi's modules are
    **(NATIVE if HAS_NATIVE else {}),
)
