"""Which calls on symmetric windows leave the classic path, and with which kernel: rules by name.

One process per GPU, one call in its group, both buffers in windows. Source: src/symmetric.cc at v2.27.7-1,
src/sym_kernels.cc, src/scheduler/symmetric_sched.cc and src/enqueue.cc from v2.28.3-1; src/tuning from v2.31.2-1.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.cfloat import f32
from tuner.communicator import Communicator
from tuner.departure import COPY_ENGINES, Departure
from tuner.environment import forced
from tuner.errors import BadInput
from tuner.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.registry import Registry
from tuner.rules import candidate, policy
from tuner.rules.request import FP8, Request

ClassicProtocol = Callable[[int], Protocol]  # what the classic path would take for a size
LeaveRule = Callable[[Communicator, Request, int, ClassicProtocol], Departure | None]
RULES: Registry[LeaveRule] = Registry()
BLOCK_RULES: Registry[Callable[[int, int], Iterator[int]]] = Registry()

REDUCIBLE = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)
GBS = 2**30 / 1e6  # bytes per us; NCCL's GBps


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel on its blocks, and what NCCL compares it by."""

    kernel: str
    blocks: int
    score: np.float32
    low_latency: bool


@RULES
def nothing_leaves(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> Departure | None:
    return None


@RULES
def whole_blocks_leave(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> Departure | None:
    """Every call that a symmetric kernel can do, on all blocks the kernel's model asks for."""
    if communicator.nodes > 1 or not _implemented(communicator, request):
        return None
    own_bytes = _own_bytes(communicator, request, nbytes)
    choice = _best(communicator, request, own_bytes, own_bytes)
    return None if choice is None else _departure(communicator, choice, choice.blocks)


@RULES
def cells_leave(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> Departure | None:
    """The same in cells of a KiB, which may be fewer than the blocks; copy engines where no block is to be used."""
    found = _in_cells(communicator, request, nbytes)
    return found if found is None or isinstance(found, Departure) else _dealt(communicator, request, nbytes, found)


@RULES
def cells_leave_unless_algorithms_are_asked_for(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> Departure | None:
    """The same, but where NCCL_ALGO says anything about the collective, symmetric kernels are not among it."""
    found = cells_leave(communicator, request, nbytes, classic)
    asked = forced(communicator.environment.text("NCCL_ALGO") or "", "NCCL_ALGO", Algorithm)
    return found if found is COPY_ENGINES or request.collective not in asked else None


@RULES
def cells_leave_unless_the_classic_path_is_not_low_latency(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> Departure | None:
    """The same, but a low-latency kernel stands back where the classic path would take another protocol than LL."""
    found = _in_cells(communicator, request, nbytes)
    if found is None or isinstance(found, Departure):
        return found
    if found.low_latency and classic(nbytes) is not Protocol.LL:
        return None
    return _dealt(communicator, request, nbytes, found)


def _in_cells(communicator: Communicator, request: Request, nbytes: int) -> Choice | Departure | None:
    if communicator.nodes > 1:
        raise BadInput("symmetric windows on several nodes are not emulated; valid: one node")
    if _copied(communicator, request, nbytes):
        return COPY_ENGINES
    if not _implemented(communicator, request):
        return None
    own_bytes = _own_bytes(communicator, request, nbytes)
    cell = communicator.release.table["symmetric"]["cell_bytes"]
    return _best(communicator, request, own_bytes, -(-own_bytes // cell) * cell)


def _copied(communicator: Communicator, request: Request, nbytes: int) -> bool:
    if request.collective is not Collective.AllGather:
        return False
    if policy.of(communicator) is policy.Policy.zero:
        return True
    table = communicator.release.table["symmetric"]
    count = _own_bytes(communicator, request, nbytes) // request.dtype.size_bytes
    blackwell = communicator.min_comp_cap >= 100
    return blackwell and "copied_over_elements" in table and count > table["copied_over_elements"]


def _dealt(communicator: Communicator, request: Request, nbytes: int, choice: Choice) -> Departure:
    cells = -(-_own_bytes(communicator, request, nbytes) // communicator.release.table["symmetric"]["cell_bytes"])
    return _departure(communicator, choice, -(-cells // -(-cells // choice.blocks)))


def _departure(communicator: Communicator, choice: Choice, blocks: int) -> Departure:
    return Departure(choice.kernel, blocks, communicator.release.table["symmetric"]["threads"])


def _own_bytes(communicator: Communicator, request: Request, nbytes: int) -> int:
    return nbytes // (communicator.ranks if request.spreads else 1)


def _implemented(communicator: Communicator, request: Request) -> bool:
    """Whether symmetric kernels exist for the call; the GPUs have to reach each other over NVLink."""
    if request.collective not in (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter):
        return False
    if communicator.graphs[Algorithm.Ring].type_intra != "NVL":
        raise BadInput("symmetric windows without NVLink between all GPUs are not emulated; valid: machines with it")
    if request.collective is Collective.AllGather:
        return True
    ops = [Op[name] for name in communicator.release.table["symmetric"]["ops"]]
    return request.op in ops and request.dtype in REDUCIBLE


def _best(communicator: Communicator, request: Request, own_bytes: int, modelled_bytes: int) -> Choice | None:
    """The kernel with the least time, each block counting against it; None where the call is too large for any."""
    table = communicator.release.table["symmetric"]
    if "refused_from_comp_cap" in table and communicator.min_comp_cap >= table["refused_from_comp_cap"]:
        raise BadInput(
            f"NCCL {communicator.release.name}'s model of symmetric kernels on Blackwell GPUs is not emulated; "
            "valid: Hopper and older, or a release before it"
        )
    bus_bytes = own_bytes * (1 if request.collective is Collective.AllReduce else communicator.ranks)
    best: Choice | None = None
    for name, kernel in table["kernels"][request.collective.name].items():
        if not _usable(communicator, request, kernel, bus_bytes):
            continue
        choice = _on_blocks(communicator, f"{request.collective.name}_{name}", kernel, request, modelled_bytes)
        beaten = best is None or choice.score < best.score or (table["last_of_equals"] and choice.score == best.score)
        best = choice if beaten else best
    return best


def _usable(communicator: Communicator, request: Request, kernel: dict[str, Any], bus_bytes: int) -> bool:
    table = communicator.release.table["symmetric"]
    multicast = communicator.nvls and communicator.ranks >= table["multicast_from_ranks"]
    if kernel.get("low_latency") and bus_bytes >= table["low_latency_below_bytes"]:
        return False
    if kernel.get("reads_multicast") and not (multicast and _switch_reduces(communicator, request)):
        return False
    return bus_bytes < table["below_bytes"] and (multicast or not kernel.get("multicast"))


def _switch_reduces(communicator: Communicator, request: Request) -> bool:
    if request.dtype in FP8:
        return communicator.min_comp_cap >= 100
    return request.dtype in (*candidate.NVLS_ANY_ORDER, *candidate.NVLS_SUM_ONLY)


def _on_blocks(
    communicator: Communicator, name: str, kernel: dict[str, Any], request: Request, nbytes: int
) -> Choice:
    """The kernel on the fewest blocks that cost it no more than 2.5 % of its time on all it may have."""
    table, ranks = communicator.release.table["symmetric"], communicator.ranks
    row = table["blackwell" if communicator.min_comp_cap >= 100 else "hopper"]
    low_latency = bool(kernel.get("low_latency"))
    least, most = communicator.ctas
    most = min(most, table["max_blocks"], -(-row["multicast_blocks"] // ranks) if kernel.get("few") else most)
    base_us = row["base_us"]["low_latency" if low_latency else "bulk"][request.collective.name]
    block_gbs = row["block_gbs"][request.collective.name] * GBS
    peak_gbs = row["peak_reduce_gbs" if kernel.get("reduces_in_switch") else "peak_gbs"] * GBS
    bus_bytes = BUS_BYTES[kernel["bus"]](nbytes, ranks)
    multiplier = MULTIPLIERS[kernel.get("multiplier", "one")](ranks)

    def time_us(blocks: int) -> float:
        gbs = _softmin(blocks * block_gbs * multiplier, peak_gbs, block_gbs)
        return float(base_us) + _softplus(bus_bytes / gbs - 1)

    (rule,) = communicator.release.rules("symmetric_blocks")
    counts = list(BLOCK_RULES[rule](least, most))
    all_us = f32(time_us(counts[-1]))
    blocks, chosen_us = next(
        ((count, f32(us)) for count in counts[:-1] if (us := time_us(count)) <= 1.025 * float(all_us)),
        (counts[-1], all_us),
    )
    return Choice(name, blocks, chosen_us * (f32(1) + f32(0.025) * f32(blocks)), low_latency)


@BLOCK_RULES
def each(least: int, most: int) -> Iterator[int]:
    """A least number above the most is passed over (sic)."""
    yield from (*range(least, most), most)


@BLOCK_RULES
def one_or_even(least: int, most: int) -> Iterator[int]:
    least = min(least, most)
    if least != most:
        least, most = least + (least != 1 and least % 2), most - (most != 1 and most % 2)
    yield from (*(count for count in range(least, most) if count == least or count % 2 == 0), most)


BUS_BYTES: dict[str, Callable[[int, int], int]] = {
    "low_latency": lambda nbytes, ranks: int(float(ranks * nbytes) * 9.0),
    "scatter_and_gather": lambda nbytes, ranks: 2 * nbytes * (ranks - 1) // ranks,
    "switch": lambda nbytes, ranks: nbytes // ranks + nbytes,
    "others": lambda nbytes, ranks: (ranks - 1) * nbytes,
}
MULTIPLIERS: dict[str, Callable[[int], float]] = {
    "one": lambda ranks: 1.0,
    "a_tenth_more": lambda ranks: 1.1,
    "ranks": float,
    "more_than_half_the_ranks": lambda ranks: 0.55 * ranks,
}


def _softmin(value: float, ceiling: float, softness: float) -> float:
    return ceiling - softness * math.log1p((math.exp(ceiling / softness) - 1) * math.exp(-value / softness))


def _softplus(value: float) -> float:
    return value if value >= 100.0 else math.log1p(math.exp(value))
