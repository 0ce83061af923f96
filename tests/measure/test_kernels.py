"""The data of GPU runs and what is expected of it: the CUDA source compiled for the CPU, against NumPy's own sums."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.compiled_kernels import FFI, NUMPY, compiled
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.bench.gpu.kernels import OPS, checked, definitions

REDUCE = {Op.sum: np.add, Op.prod: np.multiply, Op.max: np.maximum, Op.min: np.minimum}
COUNT, SEED = 1000, 7


def filled(library: Any, dtype: DataType, ranks: int, seed: int = SEED) -> list[NDArray[Any]]:
    data = [np.zeros(COUNT, NUMPY[dtype]) for _ in range(ranks)]
    for rank, each in enumerate(data):
        library.fill(FFI.cast("void *", each.ctypes.data), COUNT, rank, seed)
    return data


def wrong(library: Any, data: NDArray[Any], collective: Collective, rank: int, ranks: int, count: int) -> int:
    found = checked(collective, rank, ranks, count)
    assert found is not None
    n, first, per_rank = found
    assert n == len(data)
    counter = FFI.new("uint64_t *")
    library.check(FFI.cast("void *", np.ascontiguousarray(data).ctypes.data), n, first, ranks, per_rank, SEED, counter)
    return int(counter[0])


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", NUMPY, ids=lambda dtype: dtype.name)
@pytest.mark.filterwarnings("ignore:overflow")
def test_what_is_expected_is_what_numpy_computes(tmp_path: Path, dtype: DataType, op: Op) -> None:
    ranks = 5
    library = compiled(tmp_path, dtype, op, ranks)
    data = filled(library, dtype, ranks)
    assert all(len(np.unique(each)) >= 2 for each in data)
    assert not np.array_equal(data[0], data[1])
    for order in (data, data[::-1]):  # exact, so in any order
        total = order[0]
        for each in order[1:]:
            total = REDUCE[op](total, each)
        assert wrong(library, total, Collective.AllReduce, 3, ranks, COUNT) == 0
    for rank in range(ranks):
        part = total[rank * 200 : (rank + 1) * 200]
        assert wrong(library, part, Collective.ReduceScatter, rank, ranks, 200) == 0
    assert wrong(library, np.concatenate(data), Collective.AllGather, 1, ranks, COUNT) == 0
    assert wrong(library, data[0], Collective.Broadcast, 1, ranks, COUNT) == 0
    assert wrong(library, total, Collective.Reduce, 0, ranks, COUNT) == 0
    assert checked(Collective.Reduce, 1, ranks, COUNT) is None


@pytest.mark.parametrize("op", [Op.sum, Op.prod])
def test_every_wrong_element_is_counted(tmp_path: Path, op: Op) -> None:
    library = compiled(tmp_path, DataType.float32, op, 2)
    data = filled(library, DataType.float32, 2)
    total = REDUCE[op](*data)
    total[[3, 500, 999]] += 1
    assert wrong(library, total, Collective.AllReduce, 0, 2, COUNT) == 3
    assert wrong(library, data[0], Collective.AllReduce, 0, 2, COUNT) > COUNT // 4, "a rank that was left out"
    other = filled(library, DataType.float32, 2, SEED + 1)
    assert wrong(library, REDUCE[op](*other), Collective.AllReduce, 0, 2, COUNT) > COUNT // 4, "an old result"


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    half = compiled(tmp_path, DataType.bfloat16, Op.sum, 4)
    bits = np.zeros(COUNT, np.uint16)
    half.fill(FFI.cast("void *", bits.ctypes.data), COUNT, 1, SEED)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(values, np.rint(values))
    assert (abs(values).max(), len(np.unique(values))) == (64, 129)


@pytest.mark.parametrize(("dtype", "op"), [(DataType.float8e4m3, Op.sum), (DataType.float32, Op.avg)])
def test_what_cannot_be_checked_is_not_measured(dtype: DataType, op: Op) -> None:
    with pytest.raises(BadInput, match="is not measured on GPUs; valid: "):
        definitions(dtype, op, 2)
