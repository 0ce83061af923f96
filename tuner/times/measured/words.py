"""Names of collectives in files of measured times: NCCL's, PyTorch's and nccl-tests' spellings."""

from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.names import Collective

# nccl-tests' programs without what NCCL has no function for by itself; the second half are made of sends and receives.
POINT_TO_POINT = ("alltoall", "sendrecv", "gather", "scatter", "hypercube")
COLLECTIVES = (*(collective.name.lower() for collective in Collective), *POINT_TO_POINT)

# Collectives whose nBytes is the data of all ranks together: each rank's part is an equal number of elements.
# nccl-tests, src/{all_gather,reduce_scatter,alltoall,gather,scatter}.cu: count / nranks.
SPLIT_OVER_RANKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")


def collective(word: str) -> str:
    """NCCL's name in lower case: ``allreduce`` of ``all_reduce``, ``AllReduce`` or ``all_reduce_perf``.

    BadInput for another word.
    """
    plain = _plain(word).removesuffix("perf")
    if plain == "all2all":
        return "alltoall"
    if plain not in COLLECTIVES:
        raise BadInput(f"unknown collective {word!r}{did_you_mean(plain, COLLECTIVES)}; {one_of(COLLECTIVES)}")
    return plain


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")
