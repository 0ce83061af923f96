"""cupy.cuda.device."""

from typing import Any

from tests.support.double.computer import computer

from . import runtime


class Device:
    """A GPU, which is the thread's inside of a ``with``."""

    def __init__(self, device: int) -> None:
        if not isinstance(device, int):
            raise TypeError(f"an int is required, not {type(device).__name__}")
        self.id = device
        self._before: list[int] = []

    def __enter__(self) -> "Device":
        self._before.append(computer().gpu)
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *_: Any) -> None:
        runtime.setDevice(self._before.pop())

    def use(self) -> None:
        """Makes it the thread's."""
        runtime.setDevice(self.id)
