"""A stand-in for cupy in the processes of a double, with what tuner.bench.gpu uses; what it checks is cupy 14's.

Types and devices are checked as cupy and CUDA check them. What else cupy has is an AttributeError here.
"""

from typing import Any

import numpy as np
from numpy import uint64

from tests.support.double.computer import computer
from tuner.times.measured.header import DOUBLE

from . import cuda
from ._kernels import RawModule

__all__ = ["RawModule", "cuda", "nccl_tuner_header", "ndarray", "uint64"]
__version__ = "14.2.0"


def nccl_tuner_header() -> dict[str, Any]:
    """What files of measurements say in their headers."""
    return {"backend": DOUBLE, "others": {DOUBLE: computer().settings.of_times().record()}}


class ndarray:
    """An array in device memory, which can be read."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: "cuda.MemoryPointer") -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), memptr

    def get(self) -> Any:
        """The content, once everything on the legacy default stream is done: streams that do not block go on."""
        return cuda.runtime.read(self.data.ptr, int(np.prod(self.shape)) * self.dtype.itemsize, self.dtype)
