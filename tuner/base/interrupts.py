"""Handles Ctrl-C, and treats SIGTERM and SIGHUP as Ctrl-C, so that a scheduler's warning ends a command in the same way
as its user would."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up after the first
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt inside the block, and restores the former handling of the signal after it.
    An ignored SIGINT stays ignored.
    """
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


_ENDING = ("SIGTERM", "SIGHUP")  # SIGHUP is sent when a terminal is closed; Windows has no such signal


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt on SIGTERM and SIGHUP inside the block, unless the signal is handled elsewhere or
    ignored, as SIGHUP is under nohup.

    Does nothing outside the main thread.
    """
    of_system = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    numbers = [number for number in of_system if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
