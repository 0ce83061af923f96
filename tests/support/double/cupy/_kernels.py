"""RawModule: the kernels of tuner.bench.gpu.kernels, emulated, and one that only works. Others are refused."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.double import contents
from tests.support.double.computer import Computer, Computing, Own, computer
from tuner.bench.gpu.kernels import SOURCE

from .cuda import compiler, driver
from .cuda.stream import Stream

_ADDRESSES, _NUMBERS = (np.uint64, np.int64, np.uintp), (np.uint64,)
_BUSY = "busy"  # of benchmarks/gpu_job.py
_BUSY_US = 240.0
_PARAMETERS = {"fill": 4, "check": 7, _BUSY: 3}


class RawModule:
    """CUDA source. It is compiled when the first function is asked for, as by cupy."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        if not isinstance(code, str) or not isinstance(options, tuple):
            raise TypeError("code has to be a str, and options a tuple of str")
        self._code, self._options = code, options

    def get_function(self, name: str) -> "RawKernel":
        """CompileException where the source does not have it, NotImplementedError for another source."""
        if not re.search(rf'extern "C" __global__ void {re.escape(name)}\(', self._code):
            raise driver.CUDADriverError(500)  # CUDA_ERROR_NOT_FOUND
        if name == _BUSY:
            return RawKernel(name, None)
        if self._code != SOURCE or name not in _PARAMETERS:
            raise NotImplementedError(f"the double knows the kernels fill and check of tuner.bench.gpu, not {name}")
        try:
            return RawKernel(name, contents.Compiled.of(self._options))
        except (KeyError, ValueError, AttributeError) as error:
            raise compiler.CompileException(f"{name}: {error!r} in {self._options}") from None


class RawKernel:
    """One function, to be launched."""

    def __init__(self, name: str, compiled: contents.Compiled | None) -> None:
        self._name, self._compiled = name, compiled

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], *, stream: Stream) -> None:
        if not all(isinstance(each, tuple) and 1 <= len(each) <= 3 for each in (grid, block)):
            raise ValueError("grid and block have to be tuples of one to three numbers")
        if len(args) != _PARAMETERS[self._name] or not all(isinstance(each, np.uint64) for each in args):
            raise TypeError(f"{self._name} takes {_PARAMETERS[self._name]} arguments of 64 bits without a sign: {args}")
        here = computer()
        if here.gpu != stream.device_id:
            raise driver.CUDADriverError(400)  # CUDA_ERROR_INVALID_HANDLE
        numbers, compiled = [int(each) for each in args], self._compiled
        if self._name == _BUSY:
            here.put(here.stream(stream.ptr), Computing(_BUSY_US))
        run = {"fill": _fill, "check": _check}.get(self._name)
        if run is not None and compiled is not None:
            here.put(here.stream(stream.ptr), Own(lambda: run(here, compiled, numbers)))


def _fill(here: Computer, compiled: contents.Compiled, numbers: Sequence[int]) -> None:
    data, count, rank, seed = numbers
    here.contents.write(data, count, compiled.element_bytes, contents.Sent(compiled, rank, seed))


def _check(here: Computer, compiled: contents.Compiled, numbers: Sequence[int]) -> None:
    data, count, first, ranks, per_rank, seed, counter = numbers
    found = here.contents.read(data, count, compiled.element_bytes)
    here.add(counter, contents.wrong(compiled, contents.Expected(count, first, ranks, per_rank, seed), found))
