"""cupy.cuda.stream: streams, events, and the graphs that streams capture."""

from tuner._native._sim import ffi, lib

from tests.support.double.computer import Again, computer

from . import runtime


class Stream:
    """A stream on the current device. Only streams that do not block are stood in for."""

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        if null or ptds or not non_blocking:
            raise NotImplementedError("the double has streams that do not block: Stream(non_blocking=True)")
        self.device_id = runtime.getDevice()
        self.ptr = computer().new_stream()

    def synchronize(self) -> None:
        """Waits for all work."""
        runtime.streamSynchronize(self.ptr)

    @property
    def done(self) -> bool:
        """Whether all work is done; False where it failed, as with cupy."""
        return runtime.streamQuery(self.ptr) == 0

    def record(self, event: "Event | None" = None) -> "Event":
        """An event, recorded here."""
        event = event or Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: "Event") -> None:
        """Lets later work wait for an event, as it was recorded last."""
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        """Lets what is put on it become a graph."""
        runtime.streamBeginCapture(self.ptr)

    def end_capture(self) -> "Graph":
        """The graph."""
        return Graph(*runtime.streamEndCapture(self.ptr))

    def is_capturing(self) -> bool:
        """Whether it becomes a graph."""
        return runtime.streamIsCapturing(self.ptr)


class Event:
    """An event of the current device."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        if disable_timing or interprocess:
            raise NotImplementedError("the double has events with times, of one process")
        self.ptr = computer().new_event()

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            computer().forget_event(self.ptr)

    @property
    def done(self) -> bool:
        """Whether it has been reached; False where the work before it failed, as with cupy."""
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Stream) -> None:
        """Where the stream is then."""
        if not isinstance(stream, Stream):
            raise TypeError("the double has no default stream to record on")
        runtime.eventRecord(self.ptr, stream.ptr)

    def synchronize(self) -> None:
        """Waits for it."""
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Between two events, ms."""
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class Graph:
    """What a stream captured; it lives as long as the object."""

    def __init__(self, work: Again, address: int) -> None:
        self._work, self._address = work, address

    def upload(self, stream: Stream) -> None:
        """Puts it on the stream's device, so that the first launch need not."""
        runtime.graphUpload(self._address, stream.ptr)

    def launch(self, stream: Stream) -> None:
        """Does all of it on the stream."""
        here = computer()
        here.launch(self._work, here.stream(stream.ptr))

    def __del__(self) -> None:
        lib.sim_graph_destroy(ffi.cast("void *", self._address))
