"""NCCL's variables that reach only calls on symmetric windows: how many blocks, copy engines, copies in bulk (TMA).

Source: NCCL_PARAM in src/sym_kernels.cc and src/enqueue.cc, v2.30.7-1.
"""

from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.emulator.communicator import Communicator
from tuner.release.schema import Release, given

CTAS, COPIED_OVER, BULK = "NCCL_SYM_CTAS", "NCCL_SYM_CE_THRESHOLD", "NCCL_SYM_TMA_ENABLE"
GIN, RAILS, RAIL_CHUNK = "NCCL_GIN_TYPE", "NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_SYM_RS_GIN_CHUNK_SIZE"
NO_GIN, GDAKI = 0, 3  # of GIN
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 128, 1 << 30
_UNSIGNED = 2**64


def emulated(release: Release) -> set[str]:
    """Those that are followed: of copies in bulk only where the release's table has such kernels."""
    between_nodes = {GIN, RAILS, RAIL_CHUNK}  # without effect where a release has no kernels of several nodes
    return {CTAS, COPIED_OVER, *between_nodes} | ({BULK} if _has_bulk_kernels(release) else set())


def requested_blocks(communicator: Communicator) -> int | None:
    """The blocks that every kernel gets, whatever the CTAs of the communicator; None where NCCL chooses."""
    blocks = min(communicator.environment.c_int(CTAS, 0), communicator.release.symmetric.max_blocks)
    return blocks if blocks > 0 else None


def gin_is_offered(communicator: Communicator) -> bool:
    """Whether the network offers transfers that GPUs start (GIN), of whatever type, which no topology says.

    BadInput where the variable does not say it.
    """
    kind = communicator.environment.number(GIN, -1)
    if kind not in (NO_GIN, GDAKI):
        raise BadInput(
            "symmetric windows on several nodes: whether the network lets GPUs start transfers (GIN) is not known; "
            f"valid: {GIN}={GDAKI} where it does, whatever the type, {GIN}={NO_GIN} where it does not"
        )
    return kind == GDAKI


def rails_enabled(communicator: Communicator) -> bool:
    """Whether symmetric kernels may use the network."""
    return communicator.environment.number(RAILS, 1) != 0


def rail_chunk_bytes(communicator: Communicator, default: int) -> int:
    """The chunk of ReduceScatter between nodes, a power of two."""
    rail = communicator.release.symmetric.rail
    requested = communicator.environment.number(RAIL_CHUNK, -1) if rail and rail.chunk_is_variable else -1
    chunk = max(LEAST_CHUNK_BYTES, min(requested if requested > 0 else default, MOST_CHUNK_BYTES))
    return 1 << (chunk.bit_length() - 1)


def copies_in_bulk(communicator: Communicator) -> bool:
    """Whether kernels that copy in bulk may run."""
    return communicator.min_comp_cap >= 100 and communicator.environment.number(BULK, 1) != 0


def copied_over_elements(communicator: Communicator, multicast: bool) -> int | None:
    """AllGather on Blackwell is left to copy engines beyond so many elements of each rank; None: never.

    A negative threshold is as good as none, as NCCL compares without a sign.
    """
    table = communicator.release.symmetric
    if table.copied_over_elements is None:
        return None
    if communicator.environment.text(COPIED_OVER):
        return communicator.environment.number(COPIED_OVER, table.copied_over_elements) % _UNSIGNED
    name = "symmetric.copied_over_times_without_multicast"
    more = not multicast and copies_in_bulk(communicator)
    return table.copied_over_elements * (given(table.copied_over_times_without_multicast, name) if more else 1)


def _has_bulk_kernels(release: Release) -> bool:
    kernels = release.symmetric.kernels.get(Collective.AllGather, {}).values()
    return any(kernel.bulk_unit_bytes is not None for kernel in kernels)
