"""The CUDA source of the kernels that fill and check data, compiled for the CPU."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest

from tuner.base.names import DataType, Op
from tuner.bench.gpu.kernels import SOURCE, definitions

SHIM = """
#define __device__
#define __global__
struct { unsigned x; } gridDim = {1}, blockDim = {1}, blockIdx, threadIdx;
static void atomicAdd(unsigned long long *at, unsigned long long value) { *at += value; }
"""
FFI: Any = cffi.FFI()
FFI.cdef("""
void fill(void *data, uint64_t count, uint64_t rank, uint64_t seed);
void check(const void *data, uint64_t count, uint64_t first, uint64_t ranks, uint64_t per_rank, uint64_t seed,
           uint64_t *wrong);
""")
NUMPY: dict[DataType, Any] = {
    DataType.int8: np.int8,
    DataType.uint8: np.uint8,
    DataType.int32: np.int32,
    DataType.uint64: np.uint64,
    DataType.float16: np.float16,
    DataType.float32: np.float32,
    DataType.float64: np.float64,
}


def compiled(folder: Path, dtype: DataType, op: Op, ranks: int) -> Any:
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    (folder / "kernels.cpp").write_text(SHIM + SOURCE)
    defined = [f"-D{name}={value}" for name, value in definitions(dtype, op, ranks).items()]
    target = folder / "kernels.so"
    flags = ["-w", "-O1", "-fwrapv", "-fPIC", "-shared", *defined]
    subprocess.run([compiler, *flags, folder / "kernels.cpp", "-o", target], check=True)
    return FFI.dlopen(str(target))
