"""Which calls on symmetric windows leave the classic path, and with which kernel: rules by name.

One process per GPU, one call in its group, both buffers in windows. Source: src/symmetric.cc at v2.27.7-1,
src/sym_kernels.cc, src/scheduler/symmetric_sched.cc and src/enqueue.cc from v2.28.3-1; src/tuning from v2.31.2-1.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.base.numerics import f32
from tuner.base.registry import Registry
from tuner.emulator.communicator import Communicator
from tuner.emulator.non_classic import COPY_ENGINES, NonClassicPath
from tuner.emulator.request import FP8, Request
from tuner.emulator.rules import candidate, cta_policy
from tuner.release.environment import forced

ClassicProtocol = Callable[[int], Protocol]  # what the classic path would take for a size
LeaveRule = Callable[[Communicator, Request, int, ClassicProtocol], NonClassicPath | None]
RULES: Registry[LeaveRule] = Registry()
BLOCK_RULES: Registry[Callable[[int, int], Iterator[int]]] = Registry()
Timed = tuple[Callable[[int], float], float]  # us by blocks, and what a block counts for against the kernel
TimeRule = Callable[[Communicator, Request, str, dict[str, Any], int, int], Timed]
TIME_RULES: Registry[TimeRule] = Registry()

REDUCIBLE = (DataType.float32, DataType.float16, DataType.bfloat16, *FP8)
GBS = 2**30 / 1e6  # bytes per us; NCCL's GBps


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel on its blocks, and what NCCL compares it by."""

    kernel: str
    blocks: int
    score: np.float32
    low_latency: bool


@RULES
def nothing_leaves(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    return None


@RULES
def whole_blocks_leave(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """Every call that a symmetric kernel can do, on all blocks the kernel's model asks for."""
    if communicator.nodes > 1 or not _implemented(communicator, request):
        return None
    own_bytes = _own_bytes(communicator, request, nbytes)
    choice = _best(communicator, request, own_bytes, own_bytes)
    return None if choice is None else _departure(communicator, choice, choice.blocks)


@RULES
def cells_leave(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The same in cells of a KiB, which may be fewer than the blocks; copy engines where no block is to be used."""
    found = _in_cells(communicator, request, nbytes)
    return found if found is None or isinstance(found, NonClassicPath) else _dealt(communicator, request, nbytes, found)


@RULES
def cells_leave_unless_algorithms_are_asked_for(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The same, but where NCCL_ALGO is set and anything is asked of the collective, symmetric kernels are not."""
    found = cells_leave(communicator, request, nbytes, classic)
    algorithms, protocols = (communicator.environment.text(name) or "" for name in ("NCCL_ALGO", "NCCL_PROTO"))
    asked = forced(algorithms, "NCCL_ALGO", Algorithm) | forced(protocols, "NCCL_PROTO", Protocol)
    stays = bool(algorithms) and request.collective in asked
    return None if stays and found is not COPY_ENGINES else found


@RULES
def cells_leave_unless_the_classic_path_is_not_low_latency(
    communicator: Communicator, request: Request, nbytes: int, classic: ClassicProtocol
) -> NonClassicPath | None:
    """The same, but a low-latency kernel stands back where the classic path would take another protocol than LL."""
    found = _in_cells(communicator, request, nbytes)
    if found is None or isinstance(found, NonClassicPath):
        return found
    if found.low_latency and classic(nbytes) is not Protocol.LL:
        return None
    return _dealt(communicator, request, nbytes, found)


def _in_cells(communicator: Communicator, request: Request, nbytes: int) -> KernelChoice | NonClassicPath | None:
    if communicator.nodes > 1:
        raise BadInput("symmetric windows on several nodes are not emulated; valid: one node")
    if _copied(communicator, request, nbytes):
        return COPY_ENGINES
    if not _implemented(communicator, request):
        return None
    own_bytes = _own_bytes(communicator, request, nbytes)
    algo_proto = communicator.release.table["symmetric"]["cell_bytes"]
    return _best(communicator, request, own_bytes, -(-own_bytes // algo_proto) * algo_proto)


def _copied(communicator: Communicator, request: Request, nbytes: int) -> bool:
    if request.collective is not Collective.AllGather:
        return False
    _check_links(communicator)
    if cta_policy.of(communicator) is cta_policy.Policy.zero:
        return True
    table = communicator.release.table["symmetric"]
    count = _own_bytes(communicator, request, nbytes) // request.dtype.size_bytes
    if communicator.min_comp_cap < 100 or "copied_over_elements" not in table:
        return False
    times = 1 if _multicast(communicator) else table["copied_over_times_without_multicast"]
    return bool(count > table["copied_over_elements"] * times)


def _dealt(communicator: Communicator, request: Request, nbytes: int, choice: KernelChoice) -> NonClassicPath:
    cells = -(-_own_bytes(communicator, request, nbytes) // communicator.release.table["symmetric"]["cell_bytes"])
    return _departure(communicator, choice, -(-cells // -(-cells // choice.blocks)))


def _departure(communicator: Communicator, choice: KernelChoice, blocks: int) -> NonClassicPath:
    return NonClassicPath(choice.kernel, blocks, communicator.release.table["symmetric"]["threads"])


def _own_bytes(communicator: Communicator, request: Request, nbytes: int) -> int:
    return nbytes // request.parts(communicator.ranks)


def _implemented(communicator: Communicator, request: Request) -> bool:
    """Whether symmetric kernels exist for the call."""
    if request.collective not in (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter):
        return False
    _check_links(communicator)
    if request.collective is Collective.AllGather:
        return True
    table, release = communicator.release.table["symmetric"], communicator.release.name
    implemented = request.op.name in table["ops"] and request.dtype in REDUCIBLE
    if implemented and request.op.name in table["ops_without_kernels"].get(request.collective.name, ()):
        raise NoAlgorithm(
            f"NCCL {release} picks a symmetric kernel for {request.collective.name} {request.op.name} and has none: "
            "it launches nothing; valid: plain or registered buffers"
        )
    return implemented


def _check_links(communicator: Communicator) -> None:
    """BadInput where a GPU does not reach every other over NVLink: whether windows are symmetric then is not known."""
    direct = communicator.has_nvswitch or communicator.ranks == 2
    if communicator.graphs[Algorithm.Ring].type_intra != "NVL" or not direct:
        raise BadInput("symmetric windows without NVLink between all GPUs are not emulated; valid: machines with it")
    if communicator.min_comp_cap != communicator.max_comp_cap:
        raise BadInput("symmetric windows on GPUs of several compute capabilities are not emulated; valid: equal GPUs")


def _best(communicator: Communicator, request: Request, own_bytes: int, modelled_bytes: int) -> KernelChoice | None:
    """The kernel with the least time, each block counting against it; None where the call is too large for any."""
    table = communicator.release.table["symmetric"]
    bus_bytes = own_bytes * (1 if request.collective is Collective.AllReduce else communicator.ranks)
    best: KernelChoice | None = None
    for name, kernel in table["kernels"][request.collective.name].items():
        if not _usable(communicator, request, kernel, bus_bytes):
            continue
        choice = _on_blocks(communicator, name, kernel, request, own_bytes, modelled_bytes)
        if choice is None:
            continue
        beaten = best is None or choice.score < best.score or (table["last_of_equals"] and choice.score == best.score)
        best = choice if beaten else best
    return best


def _usable(communicator: Communicator, request: Request, kernel: dict[str, Any], bus_bytes: int) -> bool:
    table = communicator.release.table["symmetric"]
    multicast = _multicast(communicator)
    if "bulk_unit_bytes" in kernel and communicator.min_comp_cap < 100:
        return False
    if kernel.get("low_latency") and bus_bytes >= table["low_latency_below_bytes"]:
        return False
    if kernel.get("reads_multicast") and not (multicast and _switch_reduces(communicator, request)):
        return False
    return bus_bytes < table["below_bytes"] and (multicast or not kernel.get("multicast"))


def _multicast(communicator: Communicator) -> bool:
    return communicator.nvls and communicator.ranks >= communicator.release.table["symmetric"]["multicast_from_ranks"]


def _switch_reduces(communicator: Communicator, request: Request) -> bool:
    if request.dtype in FP8:
        return communicator.min_comp_cap >= 100
    return request.dtype in (*candidate.NVLS_ANY_ORDER, *candidate.NVLS_SUM_ONLY)


def _on_blocks(
    communicator: Communicator, name: str, kernel: dict[str, Any], request: Request, own_bytes: int, nbytes: int
) -> KernelChoice | None:
    """The kernel on the fewest blocks that cost it no more than 2.5 % of its time on all it may have."""
    table, ranks = communicator.release.table["symmetric"], communicator.ranks
    least, most = communicator.ctas
    shared = _row(communicator)["multicast_blocks"] if kernel.get("few") else table["max_blocks"] * ranks
    (blocks_rule,) = communicator.release.rules("symmetric_blocks")
    counts = list(BLOCK_RULES[blocks_rule](least, min(most, table["max_blocks"], -(-shared // ranks))))
    counts = [count for count in counts if _enough(kernel, own_bytes, ranks, count)]
    if not counts:
        return None
    (time_rule,) = communicator.release.rules("symmetric_time")
    time_us, charge = TIME_RULES[time_rule](communicator, request, name, kernel, own_bytes, nbytes)
    all_us = f32(time_us(counts[-1]))
    blocks, chosen_us = next(
        ((count, f32(us)) for count in counts[:-1] if (us := time_us(count)) <= 1.025 * float(all_us)),
        (counts[-1], all_us),
    )
    score = chosen_us * (f32(1) + f32(charge) * f32(blocks))
    return KernelChoice(f"{request.collective.name}_{name}", blocks, score, bool(kernel.get("low_latency")))


def _enough(kernel: dict[str, Any], own_bytes: int, ranks: int, blocks: int) -> bool:
    """Whether a kernel that copies in bulk (TMA) has enough for that many blocks."""
    unit = kernel.get("bulk_unit_bytes", 0)
    unit *= ranks if kernel.get("bulk_per_rank") else 1
    return bool(own_bytes >= unit * (blocks if kernel.get("bulk_per_block") else 1))


def _row(communicator: Communicator) -> dict[str, Any]:
    row: dict[str, Any] = communicator.release.table["symmetric"][
        "blackwell" if communicator.min_comp_cap >= 100 else "hopper"
    ]
    return row


@TIME_RULES
def by_bus(
    communicator: Communicator, request: Request, name: str, kernel: dict[str, Any], own_bytes: int, nbytes: int
) -> Timed:
    """Bytes over the bus at the bandwidth of the blocks, which saturates smoothly."""
    row, ranks, collective = _row(communicator), communicator.ranks, request.collective.name
    base_us = float(row["base_us"]["low_latency" if kernel.get("low_latency") else "bulk"][collective])
    base_us += float(kernel.get("base_more_us", 0.0))
    block_gbs = row["block_gbs"][collective] * GBS
    peak_gbs = row["peak_reduce_gbs"] if kernel.get("reduces_in_switch") else row["peak_gbs"][collective]
    saturated = kernel.get("peak_gbs", peak_gbs) * GBS * kernel.get("peak_factor", 1.0)
    bus_bytes = BUS_BYTES[kernel["bus"]](nbytes, ranks)
    multiplier = MULTIPLIERS[kernel.get("multiplier", "one")](ranks)

    def time_us(blocks: int) -> float:
        gbs = _softmin(blocks * block_gbs * multiplier, saturated, block_gbs)
        return base_us + _softplus(bus_bytes / gbs - 1)

    return time_us, 0.025


@TIME_RULES
def by_bus_or_all_to_all(
    communicator: Communicator, request: Request, name: str, kernel: dict[str, Any], own_bytes: int, nbytes: int
) -> Timed:
    """AllGather on Blackwell by its blocks' and its links' shares; all else as :func:`by_bus`."""
    if request.collective is not Collective.AllGather or communicator.min_comp_cap not in (100, 103):
        return by_bus(communicator, request, name, kernel, own_bytes, nbytes)
    row, ranks = communicator.release.table["symmetric"]["all_to_all"][name], communicator.ranks
    rounds_us = (ranks - 1) * row["rank_us"]
    copies = {"all": ranks, "one": 1, "others": ranks}[row["copies"]]
    cells = -(-own_bytes // communicator.release.table["symmetric"]["cell_bytes"])

    def time_us(blocks: int) -> float:
        active = -(-cells // -(-cells // blocks))
        effective = active * SCALES[row.get("scale", "none")](active, ranks)
        compute = own_bytes / (effective * row["compute_gbs"] * 1000) if row["compute_gbs"] else 0.0
        block_us = compute + copies * own_bytes / (effective * row["block_gbs"] * 1000)
        share = (ranks - 1) / ranks if row.get("efficient_peak") else 1.0
        wire_us = (ranks - 1) * own_bytes / (row["peak_gbs"] * share * 1000)
        work_us = max(block_us, wire_us)
        if "overlap_blocks" not in row:
            return float(row["base_us"] + rounds_us + work_us)
        apart = 1 - min(1.0, row["overlap_blocks"] / active)
        return float(row["base_us"] + max(rounds_us, work_us) + apart * min(rounds_us, work_us))

    return time_us, 0.02


def _dip(active: int, ranks: int) -> float:
    """Low-latency stores slow each other down at 32 blocks."""
    if ranks <= 4 or not 4 < active < 64:
        return 1.0
    points = ((2.0, 1.0), (3.0, 0.99), (5.0, 0.69), (6.0, 1.0))
    at = math.log2(active)
    (low, before), (high, after) = next(pair for pair in pairwise(points) if at <= pair[1][0])
    return before + (after - before) * (at - low) / (high - low)


SCALES: dict[str, Callable[[int, int], float]] = {
    "none": lambda active, ranks: 1.0,
    "alone": lambda active, ranks: 1.1445 if active == 1 else 1.0,
    "dip": _dip,
}


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
    "nearly_as_much": lambda ranks: 0.99 * (0.55 * ranks),
}


def _softmin(value: float, ceiling: float, softness: float) -> float:
    return ceiling - softness * math.log1p((math.exp(ceiling / softness) - 1) * math.exp(-value / softness))


def _softplus(value: float) -> float:
    return value if value >= 100.0 else math.log1p(math.exp(value))
