"""Names of collectives and types in files of measured times: NCCL's, PyTorch's and nccl-tests' spellings."""

from tuner.base.errors import BadInput, one_of
from tuner.base.names import Collective, DataType, by_name

# nccl-tests' programs without what NCCL has no function for by itself; the second half are made of sends and receives.
POINT_TO_POINT = ("alltoall", "sendrecv", "gather", "scatter", "hypercube")
COLLECTIVES = (*(collective.name.lower() for collective in Collective), *POINT_TO_POINT)

# Collectives whose nBytes is the data of all ranks together: each rank's part is an equal number of elements.
# nccl-tests, src/{all_gather,reduce_scatter,alltoall,gather,scatter}.cu: count / nranks.
SPLIT_OVER_RANKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")

_TYPES = {
    "char": DataType.int8,
    "int": DataType.int32,
    "half": DataType.float16,
    "float": DataType.float32,
    "double": DataType.float64,
    "bf16": DataType.bfloat16,
    "fp16": DataType.float16,
    "fp32": DataType.float32,
    "fp64": DataType.float64,
    "f8e4m3": DataType.float8e4m3,
    "fp8e4m3": DataType.float8e4m3,
    "f8e5m2": DataType.float8e5m2,
    "fp8e5m2": DataType.float8e5m2,
}


def collective(word: str) -> str:
    """NCCL's name in lower case: ``allreduce`` of ``all_reduce``, ``AllReduce`` or ``all_reduce_perf``.

    BadInput for another word.
    """
    plain = _plain(word).removesuffix("perf")
    if plain == "all2all":
        return "alltoall"
    if plain not in COLLECTIVES:
        raise BadInput(f"unknown collective {word!r}; {one_of(COLLECTIVES)}")
    return plain


def dtype(word: str) -> DataType:
    """The type by NCCL's name or nccl-tests' (``half``). BadInput for another word."""
    known = _TYPES.get(_plain(word))
    return by_name(DataType, word, "type") if known is None else known


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")
