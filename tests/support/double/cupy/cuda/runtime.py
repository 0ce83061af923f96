"""cupy.cuda.runtime: functions of CUDA by cupy's names."""

import time
from typing import Any

import numpy as np
from tuner._native._sim import ffi

from tests.support.double import errors
from tests.support.double.computer import (
    MEMORY_BYTES,
    MULTIPROCESSORS,
    NOT_READY,
    AfterMark,
    Again,
    Mark,
    Own,
    computer,
)

_POLL_S = 1e-3
DRIVER_VERSION = RUNTIME_VERSION = 13000


class CUDARuntimeError(RuntimeError):
    """An error of the runtime, with its name."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(errors.text(status))


def check_status(status: int) -> None:
    """CUDARuntimeError for what is not success."""
    if status:
        raise CUDARuntimeError(status)


def _invalid(name: str) -> CUDARuntimeError:
    return CUDARuntimeError(errors.number(name))


# --- devices ---


def getDeviceCount() -> int:
    """The GPUs of this process' node."""
    return computer().machine.gpus


def getDevice() -> int:
    """The current one."""
    return computer().gpu


def setDevice(device: int) -> None:
    """Makes it the thread's."""
    if not 0 <= device < getDeviceCount():
        raise _invalid("cudaErrorInvalidDevice")
    computer().use(device)


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Name, compute capability, multiprocessors, memory."""
    if not 0 <= device < getDeviceCount():
        raise _invalid("cudaErrorInvalidDevice")
    gpu = computer().machine.start.machine.kind[0].gpus[device]
    major, minor = divmod(gpu.compute_capability, 10)
    return {
        "name": f"simulated GPU sm_{major}{minor}".encode(),
        "major": major,
        "minor": minor,
        "multiProcessorCount": MULTIPROCESSORS,
        "totalGlobalMem": MEMORY_BYTES,
    }


def memGetInfo() -> tuple[int, int]:
    """Free and total memory of the current device, bytes."""
    return computer().free_bytes[computer().gpu], MEMORY_BYTES


def driverGetVersion() -> int:
    """As CUDA numbers versions."""
    return DRIVER_VERSION


def runtimeGetVersion() -> int:
    """As CUDA numbers versions."""
    return RUNTIME_VERSION


# --- memory ---


def memsetAsync(address: int, value: int, size_bytes: int, stream: int) -> None:
    """Bytes of the same value, when the stream is there."""
    here = computer()
    here.put(here.stream(stream), Own(lambda: here.fill(address, value, size_bytes)))


def read(address: int, size_bytes: int, dtype: Any) -> Any:
    """What is at an address now; no function of cupy's."""
    computer().go_on()
    return np.frombuffer(bytes(ffi.buffer(ffi.cast("char *", address), size_bytes)), dtype)


# --- streams and events ---


def streamSynchronize(stream: int) -> None:
    """Waits, for ever where nothing more comes."""
    here = computer()
    while True:
        here.go_on()
        found = here.stream(stream)
        check_status(found.error)
        if not found.busy:
            here.host_us = max(here.host_us, found.at_us)
            return
        time.sleep(_POLL_S)


def streamQuery(stream: int) -> int:
    """0, cudaErrorNotReady, or what went wrong."""
    here = computer()
    here.go_on()
    found = here.stream(stream)
    return found.error or (NOT_READY if found.busy else 0)


def streamBeginCapture(stream: int) -> None:
    """What is put on it goes into a graph from here on."""
    here = computer()
    here.take_launches()
    if here.stream(stream).captured is not None:
        raise _invalid("cudaErrorIllegalState")
    here.begin_capture(stream)


def streamEndCapture(stream: int) -> tuple[Again, int]:
    """The graph's work, and its address for :func:`graphDestroy`."""
    here = computer()
    here.take_launches()
    if here.stream(stream).captured is None:
        raise _invalid("cudaErrorIllegalState")
    return here.end_capture(stream)


def graphUpload(graph: int, stream: int) -> None:
    """The graph is on the stream's device; this takes no time here."""
    if not graph:
        raise _invalid("cudaErrorInvalidValue")
    if streamIsCapturing(stream):
        raise _invalid("cudaErrorStreamCaptureUnsupported")


def streamIsCapturing(stream: int) -> bool:
    """Whether what is put on it goes into a graph."""
    return computer().stream(stream).captured is not None


def eventQuery(event: int) -> int:
    """0, cudaErrorNotReady, or what went wrong: cupy raises nothing here."""
    here = computer()
    here.go_on()
    mark = here.marks.get(event)
    if mark is None:
        return 0  # never recorded
    if mark.at_us is not None:
        here.host_us = max(here.host_us, mark.at_us)
        return 0
    return next((stream.error for stream in here.streams.values() if stream.error), NOT_READY)


def eventRecord(event: int, stream: int) -> None:
    """Where the stream is then."""
    here = computer()
    found = here.stream(stream)
    if here.event_device[event] != found.device:
        raise _invalid("cudaErrorInvalidResourceHandle")
    mark = here.marks[event] = Mark()
    here.put(found, mark)


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    """Later work on the stream waits for what was recorded; an event that never was is not waited for."""
    here = computer()
    if (mark := here.marks.get(event)) is not None:
        here.put(here.stream(stream), AfterMark(mark))


def eventSynchronize(event: int) -> None:
    """Waits, for ever where nothing more comes."""
    while (status := eventQuery(event)) == NOT_READY:
        time.sleep(_POLL_S)
    check_status(status)


def eventElapsedTime(start: int, end: int) -> float:
    """Between two events of one device, ms, as CUDA's float32."""
    here = computer()
    for event in (start, end):
        check_status(eventQuery(event))
    first, last = here.marks[start].at_us, here.marks[end].at_us
    if first is None or last is None or here.event_device[start] != here.event_device[end]:
        raise _invalid("cudaErrorInvalidResourceHandle")
    return float(np.float32((last - first) * 1e-3))
