"""Finds out which layer of measuring on GPUs fails here, within seconds and before anything is measured.

    python -m tuner.bench.gpu.selftest [--library FILE] [--ranks-per-gpu 2] [--limit-s 20]

Prints each layer when it begins and when it is done. The exit code is 0 if all succeed and 1 if one fails. If a layer
hangs, the process ends at the limit with exit code 124: the last line names the layer, and stderr shows where the code
was.
"""

import argparse
import faulthandler
import importlib.metadata
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tuner.base.errors import BadInput, MeasuringFailed, TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.bench.backend import Options
from tuner.bench.gpu import opening
from tuner.bench.gpu.backend import GpuBackend
from tuner.bench.gpu.cuda import Cuda
from tuner.bench.gpu.kernels import Check, Values, runs_on
from tuner.plugin.forcing import Forcing
from tuner.times.measured.samples import Combination, Point

NEEDED = ("numpy", "scipy", "cffi", "click", "rich", "platformdirs", "elftools", "cupy")
_NAMED = ("nccl-tuner", "numpy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-ml-py")
PACKAGES, DRIVER, NVRTC, LIBNCCL, RANKS = "packages", "driver", "NVRTC", "libnccl", "ranks"
PLAIN_CALL, CALL_IN_GRAPH, FORCED_CALLS = "a plain call", "a call in a graph", "forced calls"
_BEGUN = " ..."
TOOK_TOO_LONG = 124  # the exit code of a program that ends itself at its limit, the same as that of timeout(1)
_HANGS_S = 3.0  # time after the limit, in case Python itself cannot end the process
_SIZE_BYTES = 1 << 20
_ELEMENTS = 1 << 20


class SelfTest:
    """The layers that measuring consists of; each needs those before it. ``layers`` maps their names to functions that
    try the layer and describe the result.

    Without ``graphs`` there is no call in a CUDA graph.
    """

    def __init__(self, options: Options, *, graphs: bool = True) -> None:
        self._options = options
        self._cuda: Cuda | None = None
        self._gpu: GpuBackend | None = None
        self.layers: tuple[tuple[str, Callable[[], str]], ...] = (
            (PACKAGES, self._packages),
            (DRIVER, self._driver),
            (NVRTC, self._nvrtc),
            (LIBNCCL, self._libnccl),
            (RANKS, self._ranks),
            (PLAIN_CALL, lambda: self._call(graph=False)),
            *([(CALL_IN_GRAPH, lambda: self._call(graph=True))] if graphs else []),
            (FORCED_CALLS, self._forced),
        )

    def close(self) -> None:
        """Ends the communicator."""
        if self._gpu is not None:
            self._gpu.close()

    def _packages(self) -> str:
        missing = []
        for name in NEEDED:
            try:
                import_module(name)
            except ImportError as error:
                missing.append(f"{name} ({error})")
        if missing:
            raise BadInput(f"missing: {', '.join(missing)}")
        Forcing()
        found = [f"Python {platform.python_version()}"]
        for name in _NAMED:
            try:
                found.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                continue
        return ", ".join(found)

    def _driver(self) -> str:
        self._cuda = cuda = Cuda()
        noted = cuda.noted()
        gpus = ", ".join(
            f"{cuda.name(device)} ({cuda.multiprocessors(device)} multiprocessors, "
            f"{cuda.free_bytes(device) >> 20} MiB free)"
            for device in range(cuda.count)
        )
        return f"{gpus}; CUDA of the driver {noted.cuda_driver}, of cupy {noted.cuda_runtime}"

    def _nvrtc(self) -> str:
        """Tries the kernels that make and check data, on the data of one rank."""
        assert self._cuda is not None
        lane, values = self._cuda.lane(0), Values(DataType.float32, Op.sum, 2, 1)
        with lane.current():
            address = lane.buffer("send", 4 * _ELEMENTS)
            lane.fill(address, _ELEMENTS, 0, values)
            wrong = lane.wrong(address, Check(_ELEMENTS, 0, _ELEMENTS), values)
        if wrong:
            raise MeasuringFailed(f"{wrong} of {_ELEMENTS} elements are not what the kernel was to write")
        return f"{_ELEMENTS} elements written and checked"

    def _libnccl(self) -> str:
        path = opening.library_of(self._options)
        if self._options.ranks_per_gpu > 1 and not opening.allows_several(path):
            raise BadInput(f"{path} refuses several ranks on one GPU: use NCCL 2.30.3 or later")
        assert self._cuda is not None
        for device in range(self._cuda.count):
            if not runs_on(path, capability := self._cuda.capability(device)):
                raise BadInput(
                    f"{path} has no code for {self._cuda.name(device)}, sm_{capability}: use the libnccl of a wheel, "
                    "or a bundle for such a GPU"
                )
        return str(path)

    def _ranks(self) -> str:
        gpu = opening.open_gpus(self._options)
        assert gpu is not None  # there is no launcher
        self._gpu = gpu
        variables = ", ".join(f"{name}={value}" for name, value in (gpu.describe().variables or {}).items())
        return f"{gpu.ranks} ranks, NCCL {gpu.release}; {variables}"

    def _call(self, graph: bool) -> str:
        return self._run(Point(Collective.AllReduce, _SIZE_BYTES, graph=graph), None)

    def _forced(self) -> str:
        assert self._gpu is not None
        point = Point(Collective.AllReduce, _SIZE_BYTES)
        said = []
        for requested in self._gpu.combinations(point):
            said.append(f"{requested}: {self._run(point, requested)}")
        if not said:
            raise MeasuringFailed("NCCL offers nothing that could be forced")
        return "; ".join(said)

    def _run(self, point: Point, requested: Combination | None) -> str:
        assert self._gpu is not None
        run = self._gpu.run(point, requested, 5)
        if run.wrong:
            raise MeasuringFailed(f"{requested or 'the call'}: {run.wrong} elements of the results are wrong")
        replaced = requested and run.executed and requested.algo_proto != run.executed.algo_proto
        if replaced:
            raise MeasuringFailed(f"{requested} was forced, and {run.executed} ran")
        return f"{sorted(run.times_us)[len(run.times_us) // 2]:.2f} us, {run.executed or 'NCCL does not say what'} ran"


def named_in(said: str) -> str:
    """The layer that a line of the self-test names, without the line's message."""
    return said.removesuffix(_BEGUN).partition(": ")[0]


def passes(options: Options, say: Callable[[str], None], *, graphs: bool = True) -> bool:
    """Runs the layers until one fails; returns whether all succeeded."""
    tested = SelfTest(options, graphs=graphs)
    try:
        for name, do in tested.layers:
            say(f"{name}{_BEGUN}")
            start_s = time.monotonic()
            try:
                said = do()
            except (TunerError, OSError, ImportError) as error:
                say(f"{name}: FAILED: {' '.join(str(error).split())}")
                return False
            say(f"{name}: ok, {time.monotonic() - start_s:.1f} s: {said}")
    finally:
        tested.close()
    say("all layers: ok")
    return True


class _Watched:
    """Prints lines, and ends the process after ``limit_s``, because nothing else could end a call that hangs.

    The last line names the layer that was begun last.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._last = limit_s, ""
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True
        self._timer.start()
        faulthandler.dump_traceback_later(limit_s + _HANGS_S, exit=True)

    def say(self, line: str) -> None:
        """Prints a line."""
        self._last = line
        print(line, flush=True)

    def cancel(self) -> None:
        """Stops watching, because everything ended in time."""
        self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _end(self) -> None:
        print(f"{named_in(self._last)}: HANGS: not done {self._limit_s:g} s after the start", flush=True)
        faulthandler.dump_traceback()
        os._exit(TOOK_TOO_LONG)


def main() -> int:
    """Entry point of ``python -m``; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="a libnccl.so.2 [default: that of the installed wheel]")
    parser.add_argument("--ranks-per-gpu", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=20.0, help="for all layers [default: 20]")
    parser.add_argument("--log", type=Path, help="keep NCCL's log there")
    parser.add_argument("--no-graphs", action="store_true", help="without the call in a CUDA graph")
    given = parser.parse_args()
    watched = _Watched(given.limit_s)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            given.ranks_per_gpu,
            given.library,
            topology=Path(folder) / "topology.xml",
            limit_s=given.limit_s,
            log=given.log,
            graphs_below_bytes=0,
        )
        with opening.connections(options):
            works = passes(options, watched.say, graphs=not given.no_graphs)
    watched.cancel()
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
