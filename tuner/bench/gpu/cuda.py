"""A rank's GPU, used through cupy: memory, a stream, events, graphs, and kernels that fill and check data."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.bench.gpu import kernels
from tuner.bench.gpu.kernels import Check, Values
from tuner.times.measured.header import Noted

_BLOCKS, _THREADS = 1024, 256
_NOT_READY = 600  # cudaErrorNotReady
_NVRTC = "valid: pip install 'cupy-cuda12x[ctk]' (or 13x, as the driver), which brings NVRTC"
_SMI = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,mig.mode.current"


class Cuda:
    """The GPUs of this process. BadInput if cupy or GPUs are missing."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise BadInput(
                f"cupy is missing ({error}): pip install 'nccl-tuner[gpu]', or cupy for your CUDA; without GPUs use "
                "the backend 'simulated' with the name of a machine"
            ) from None
        self.cupy: Any = cupy
        try:
            self.count = int(cupy.cuda.runtime.getDeviceCount())
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise BadInput(
                f"no GPU was found ({error}): a computer with NVIDIA GPUs and their driver is needed"
            ) from None
        if self.count == 0:
            raise BadInput("CUDA_VISIBLE_DEVICES leaves no GPU: name one or more in it")

    def lane(self, device: int) -> "Lane":
        """A stream on a GPU."""
        return Lane(self.cupy, device)

    def name(self, device: int) -> str:
        """The GPU's name according to CUDA."""
        return str(self.cupy.cuda.runtime.getDeviceProperties(device)["name"].decode())

    def multiprocessors(self, device: int) -> int:
        """The number of multiprocessors of a GPU.

        A GPU can run at least this many blocks of NCCL's kernels at once, one on each multiprocessor.
        """
        return int(self.cupy.cuda.runtime.getDeviceProperties(device)["multiProcessorCount"])

    def capability(self, device: int) -> int:
        """The compute capability, 90 for 9.0."""
        properties = self.cupy.cuda.runtime.getDeviceProperties(device)
        return 10 * int(properties["major"]) + int(properties["minor"])

    def error(self, number: int) -> str:
        """CUDA's name and description of an error; the driver's errors have the same numbers as the runtime's."""
        return str(self.cupy.cuda.runtime.CUDARuntimeError(number))

    def free_bytes(self, device: int) -> int:
        """The free memory of a GPU in bytes."""
        with self.cupy.cuda.Device(device):
            return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def stood_in(self) -> dict[str, Any]:
        """Keys for the header if a test double replaces the GPUs (tests/support/double); empty for real GPUs."""
        stood_in: Callable[[], dict[str, Any]] = getattr(self.cupy, "nccl_tuner_header", dict)
        return stood_in()

    def noted(self) -> Noted:
        """The driver, CUDA and clocks, as far as they are available."""
        runtime = self.cupy.cuda.runtime
        return Noted(
            cuda_driver=runtime.driverGetVersion(), cuda_runtime=runtime.runtimeGetVersion(), nvidia_smi=_nvidia_smi()
        )


def _nvidia_smi() -> tuple[dict[str, str], ...] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={_SMI}", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    names = _SMI.split(",")
    lines = (map(str.strip, line.split(",")) for line in asked.stdout.splitlines())
    return tuple(dict(zip(names, line, strict=False)) for line in lines)


class Lane:
    """The stream, buffers and kernels of one rank. Of the methods that launch work, only ``wrong`` waits for the
    GPU."""

    def __init__(self, cupy: Any, device: int) -> None:
        self.device = device
        self._cupy = cupy
        self._memory: dict[str, Any] = {}
        self._modules: dict[tuple[tuple[str, str], ...], Any] = {}
        with self.current():
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._wrong = cupy.cuda.Memory(8)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the lane's GPU the thread's current device inside the block.

        MeasuringFailed for an error of CUDA inside the block, BadInput if NVRTC is missing.
        """
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self.device):
                yield
        except (
            cuda.runtime.CUDARuntimeError,
            cuda.driver.CUDADriverError,
            cuda.memory.OutOfMemoryError,
            cuda.compiler.CompileException,
        ) as error:
            raise MeasuringFailed(f"GPU {self.device}: {' '.join(str(error).split())}") from None
        except Exception as error:
            if type(error).__name__ != "DynamicLibNotFoundError":  # cuda.pathfinder's error; cupy asks it for NVRTC
                raise
            raise BadInput(f"a library of CUDA is missing: {' '.join(str(error).split())}; {_NVRTC}") from None

    @property
    def stream(self) -> int:
        """The address of the CUDA stream."""
        return int(self._stream.ptr)

    def buffer(self, name: str, size_bytes: int) -> int:
        """The address of the buffer with this name; it grows to ``size_bytes`` if needed, and never shrinks."""
        if name not in self._memory or self._memory[name].size < size_bytes:
            self._memory.pop(name, None)
            self._memory[name] = self._cupy.cuda.Memory(size_bytes)
        return int(self._memory[name].ptr)

    def fill(self, address: int, count: int, rank: int, values: Values) -> None:
        """Fills ``count`` elements at an address with the data that ``rank`` sends."""
        arguments = self._numbers(address, count, rank, values.seed)
        self._kernel("fill", values)((_BLOCKS,), (_THREADS,), arguments, stream=self._stream)

    def wrong(self, address: int, check: Check, values: Values) -> int:
        """The number of elements that differ from the expected ones. Waits for all earlier work."""
        cupy = self._cupy
        cupy.cuda.runtime.memsetAsync(self._wrong.ptr, 0, 8, self._stream.ptr)
        arguments = self._numbers(
            address, check.elements, check.first, values.ranks, check.per_rank, values.seed, self._wrong.ptr
        )
        self._kernel("check", values)((_BLOCKS,), (_THREADS,), arguments, stream=self._stream)
        self._stream.synchronize()
        return int(cupy.ndarray((1,), cupy.uint64, cupy.cuda.MemoryPointer(self._wrong, 0)).get()[0])

    def _numbers(self, *values: int) -> tuple[Any, ...]:
        return tuple(map(self._cupy.uint64, values))

    def _kernel(self, name: str, values: Values) -> Any:
        defined = kernels.definitions(values.dtype, values.op, values.ranks)
        key = tuple(defined.items())
        if key not in self._modules:
            options = tuple(f"-D{word}={value}" for word, value in defined.items())
            self._modules[key] = self._cupy.RawModule(code=kernels.SOURCE, options=options)
        return self._modules[key].get_function(name)

    def mark(self) -> Any:
        """Creates a mark, a CUDA event; after :meth:`record`, it gets its time when the work before it is done."""
        return self._cupy.cuda.Event()

    def record(self, mark: Any) -> None:
        """Records a mark after the work so far. Like everything that runs between two marks, this does not look up the
        current device.
        """
        mark.record(self._stream)

    def wait(self, mark: Any) -> None:
        """Lets all later work wait for a mark, which may be another stream's; the host goes on."""
        self._stream.wait_event(mark)

    def done(self, mark: Any) -> bool:
        """Whether a mark has been reached. CUDARuntimeError if the work before the mark failed."""
        runtime = self._cupy.cuda.runtime
        status = int(runtime.eventQuery(mark.ptr))
        if status not in (0, _NOT_READY):
            raise runtime.CUDARuntimeError(status)
        return status == 0

    def between_us(self, start: Any, end: Any) -> float:
        """Time between two marks, us."""
        return float(self._cupy.cuda.get_elapsed_time(start, end)) * 1e3

    def begin_capture(self) -> None:
        """Starts recording launches into a graph."""
        self._stream.begin_capture()

    def end_capture(self) -> Any:
        """The graph of what was launched since :meth:`begin_capture`."""
        return self._stream.end_capture()

    def upload(self, graph: Any) -> None:
        """Puts a graph on the GPU, and waits until it is there.

        Without this call, the first launch of the graph would upload it. At that time, kernels of other ranks on the
        same GPU may already be waiting for this rank.
        """
        graph.upload(self._stream)
        self._stream.synchronize()

    def launch(self, graph: Any) -> None:
        """Launches a graph on the stream; does not look up the current device."""
        graph.launch(self._stream)
