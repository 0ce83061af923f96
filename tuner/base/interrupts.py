"""Ctrl-C, and SIGTERM as Ctrl-C: what a scheduler sends before it kills a command ends it as its user would."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one is not to break off what the first has to end
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """KeyboardInterrupt on SIGINT here, and outside whatever it did before; ignored stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if (
        before in (signal.SIG_IGN, signal.default_int_handler)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """KeyboardInterrupt on SIGTERM, unless something else handles it or this is not the main thread."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    try:
        signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
