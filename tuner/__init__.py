"""What NCCL picks, why, and whether that is best: an exact emulator of NCCL's tuning, proven against libnccl.

:func:`communicator` is where to begin; ``docs/python.md`` shows the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.api import communicator as communicator

__all__ = ["communicator"]


def __dir__() -> list[str]:
    return [*globals(), *__all__]  # for help(), which would not find what is not loaded yet


def __getattr__(name: str) -> Any:
    if name == "communicator":  # only when asked for, so that importing a part does not load the whole
        from tuner.api import communicator

        return communicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")
