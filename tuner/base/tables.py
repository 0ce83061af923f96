"""Reads files of ``tuner.tables``, the repository's folder ``tables``; TOML files are parsed once and kept compiled."""

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from math import inf, nan
from pathlib import Path
from types import CodeType
from typing import Any


@cache
def folder() -> Path:
    """The folder with this installation's tables."""
    return Path(import_module("tuner.tables").__path__[0])


def toml(file: Path, check: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Reads a TOML file and returns a new object at each call. OSError if the file cannot be read, tomllib's
    TOMLDecodeError (a ValueError) if it is not TOML.

    A file of :func:`folder` is cached as Python caches compiled modules, in the folder's ``__pycache__``, by CRC-32 and
    size: parsing NCCL's constants takes longer than picking with them. ``check`` gets the text before it is cached, and
    raises if it must not be cached.
    """
    loader = _Loader(file, check)
    kept = file.is_relative_to(folder())
    code = loader.get_code(loader.name) if kept else loader.source_to_code(file.read_bytes(), loader.name)
    assert code is not None
    table: dict[str, Any] = eval(code, {"inf": inf, "nan": nan})
    return table


class _Loader(SourceFileLoader):
    """A loader for a module that consists of one expression: the dictionary of a TOML file.

    The module is named like a file outside the folders of tables, so that these contain only tables.
    """

    def __init__(self, file: Path, check: Callable[[str], None] | None) -> None:
        self.file, self.check = str(file), check
        name = str(folder() / "-".join(file.parts[len(folder().parts) :]))
        super().__init__(name, name)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """The checksum and the size of the file, which identify the cached code. The time of the last change would not
        identify it, because two changes within a second have the same time.
        """
        data = self.get_data(path)
        return {"mtime": zlib.crc32(data), "size": len(data)}

    def get_data(self, path: str) -> bytes:
        """The bytes of the table, or of its cached form."""
        return super().get_data(self.file if path == self.path else path)

    def source_to_code(self, data: Any, path: Any, *_: Any, **__: Any) -> CodeType:  # type: ignore[override]
        """The compiled code that makes the dictionary of the TOML text ``data``. Raises TOMLDecodeError, and whatever
        ``check`` raises.
        """
        import tomllib

        text = bytes(data).decode()
        if self.check is not None:
            self.check(text)
        return compile(repr(tomllib.loads(text)), path, "eval")
