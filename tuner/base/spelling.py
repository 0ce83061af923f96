"""How options are spelled in messages: ``--gpus-per-node`` for the command line, ``gpus_per_node=`` for Python."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from enum import Enum

OTHERWISE = {  # parameters whose command-line option has another name
    "graphs": "topo-graphs",
    "net_gbps": "nic-gbps",
    "net_gbs": "slowest-path-gbs",
    "net_latency_us": "nic-latency-us",
    "env_files": "env-file",
}


class Spelling(Enum):
    """How an option is spelled: for the command line, or for a caller in Python."""

    COMMAND_LINE = "command line"
    PYTHON = "Python"

    def option(self, name: str) -> str:
        """The option of this name as the reader spells it: ``--gpus-per-node``, or ``gpus_per_node=``."""
        if self is Spelling.PYTHON:
            return f"{name.replace('-', '_')}="
        return f"--{OTHERWISE.get(name, name.replace('_', '-'))}"


_READER: ContextVar[Spelling] = ContextVar("reader", default=Spelling.PYTHON)


@contextlib.contextmanager
def spelled_for(reader: Spelling) -> Iterator[None]:
    """Inside the block, messages spell options for this reader."""
    before = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(before)


def reader() -> Spelling:
    """The reader for whom messages are made at present: Python, unless :func:`spelled_for` says otherwise."""
    return _READER.get()


def option(name: str) -> str:
    """The name of an option as the reader of messages spells it."""
    return _READER.get().option(name)


class _Option:
    def __format__(self, name: str) -> str:
        return option(name)


def spelled(text: str) -> str:
    """A stored text in which a placeholder such as ``{option:topology}`` is replaced by the option or parameter as the
    current reader spells it.
    """
    return text.format(option=_Option())
