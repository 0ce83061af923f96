"""Orders of additions of symmetric kernels, as far as each element's follows from the kernel alone.

Source: src/device/symmetric/all_reduce.cuh and reduce_scatter.cuh, v2.28.9-1, recvReduce of
src/include/nccl_device/impl/ll_a2a__funcs.h; the same in v2.27.3-1, v2.29.2-1, v2.30.7-1 and v2.31.2-1.
"""

import numpy as np

from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import FP8, Request
from tuner.emulator.steps.addition_order import Term, add_all
from tuner.emulator.steps.orders import BY_SWITCH, Orders

IN_RANK_ORDER = ("AllReduce_AGxLL_R", "AllReduce_AGxLLMC_R", "ReduceScatter_LL")  # all ranks add alike
FROM_OWN_RANK = ("ReduceScatter_LD", "ReduceScatter_TmaLD")  # each rank adds its result, from its own number on
BY_WARPS = "an element begins at the rank whose warp adds it, which is not derived here"
NOT_DERIVED = "its order is not derived here"
NOT_CLAIMED = {
    "AllReduce_RSxLD_AGxST": BY_WARPS,
    "AllReduce_RSxLDMC_AGxSTMC": BY_SWITCH,
    "ReduceScatter_LDMC": BY_SWITCH,
}
KEPT_IN_FLOAT32 = (DataType.float16, DataType.bfloat16, *FP8)  # ncclSymkAccumType


def not_claimed(kernel: str | None, request: Request) -> str | None:
    """Why no order of a call on a symmetric kernel is claimed; None where one is."""
    if kernel not in (*IN_RANK_ORDER, *FROM_OWN_RANK):
        return NOT_CLAIMED.get(kernel or "", NOT_DERIVED)
    return None if request.op is Op.sum else f"sums are derived, not {request.op.name}"


def orders(kernel: str, request: Request, ranks: int, elements: int) -> Orders:
    """The orders of a call on one of the kernels that :func:`not_claimed` leaves; ``elements`` of the whole buffer."""
    rank_order = tuple(range(ranks))
    parts = ranks if request.collective is Collective.ReduceScatter else 1
    terms: list[Term] = [add_all(rank_order)] * parts
    if kernel in FROM_OWN_RANK:
        terms = [add_all((*rank_order[own:], *rank_order[:own])) for own in rank_order]
    starts, which, numbers = [0], [0], {terms[0]: 0}
    for part, term in enumerate(terms[1:], 1):
        if term != terms[part - 1]:
            starts.append(part * elements // parts)
            which.append(numbers.setdefault(term, len(numbers)))
    sums_in = DataType.float32 if request.dtype in KEPT_IN_FLOAT32 else request.dtype
    return Orders(elements, np.array(starts, np.int64), np.array(which, np.int64), tuple(numbers), sums_in)
