"""cupy.cuda.memory."""

from tests.support.double.computer import computer

from .device import Device


class OutOfMemoryError(MemoryError):
    """The device has no such memory."""


class Memory:
    """Memory of the current device, as long as the object lives."""

    def __init__(self, size: int) -> None:
        if not isinstance(size, int):
            raise TypeError(f"an int is required, not {type(size).__name__}")
        here = computer()
        self.size, self.ptr = size, 0
        self.device_id = here.gpu
        if size:
            address = here.allocate(size)
            if address is None:
                raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes.")
            self.ptr = address

    @property
    def device(self) -> Device:
        """Where it lies."""
        return Device(self.device_id)

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            computer().release(self.ptr, self.size, self.device_id)


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        if not isinstance(mem, Memory) or not isinstance(offset, int):
            raise TypeError("Memory and int are required")
        self.mem, self.ptr = mem, mem.ptr + offset
