"""cupy.cuda: devices, memory, streams, events and graphs."""

from . import compiler, driver, memory, runtime
from .device import Device
from .memory import Memory, MemoryPointer
from .stream import Event, Stream, get_elapsed_time

__all__ = [
    "Device",
    "Event",
    "Memory",
    "MemoryPointer",
    "Stream",
    "compiler",
    "driver",
    "get_elapsed_time",
    "memory",
    "runtime",
]
