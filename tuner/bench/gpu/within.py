"""A time limit on what may hang inside CUDA or NCCL, where nothing interrupts it."""

import threading
from collections.abc import Callable
from typing import TypeVar

from tuner.base.errors import MeasuringFailed

T = TypeVar("T")
_LET_END_S = 5.0  # what still runs when somebody interrupts


def within(limit_s: float, what: str, do: Callable[[], T]) -> T:
    """What ``do`` gives, and what it raises, done in a thread of its own.

    MeasuringFailed after ``limit_s``: the thread is left behind then, and ends with the process at the latest.
    """
    given: list[T] = []
    raised: list[BaseException] = []
    ended = threading.Event()  # an interrupted Thread.join takes a running thread for ended

    def run() -> None:
        try:
            given.append(do())
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True, name=what).start()
    try:
        ended.wait(limit_s)
    except BaseException:
        ended.wait(_LET_END_S)  # so that nobody ends a communicator that is being called
        raise
    if raised:
        raise raised[0]
    if not given:
        raise MeasuringFailed(f"{what} took longer than {limit_s:g} s and was given up: a rank is missing or hangs")
    return given[0]
