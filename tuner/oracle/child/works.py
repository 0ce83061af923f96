"""Reads the works of the last group's kernels: NCCL's work structures, from the kernels' arguments and NCCL's
memory."""

from collections.abc import Iterator, Mapping

from tuner._native._sim import ffi, lib
from tuner.oracle.messages import SYMMETRIC, Batch, KernelWorks, Symbols, SymmetricWorks

RING_POINTERS = (
    3  # up to 2.21 a kernel has three parameters; the last one says where its work begins (src/enqueue.cc, v2.18.1-1)
)


def read(symbols: Symbols, base: int, kernels: int) -> tuple[KernelWorks, ...]:
    """The works of every kernel, in the order of launch. ``base`` is the address of the library."""
    arguments, works, start = lib.sim_arguments(), [], 0
    for kernel in range(kernels):
        size = lib.sim_kernels()[kernel].argument_bytes
        own = bytes(ffi.buffer(arguments + start, size)) if size else b""
        start += size
        address = int(ffi.cast("uintptr_t", lib.sim_kernels()[kernel].function)) - base
        if symbols.kernels.get(address, "").startswith(SYMMETRIC):
            works.append(KernelWorks({}, _symmetric(symbols, own)))
        else:
            works.append(_in_ring(symbols, own) if symbols.works_are_in_ring else _in_batches(symbols, own))
    return tuple(works)


def _symmetric(symbols: Symbols, arguments: bytes) -> SymmetricWorks:
    """Works of a symmetric kernel. After the head, its arguments hold the end of each block's part, then the works; in
    2.27 they hold one call.
    """
    layouts = symbols.works
    if "ncclSymDevArgs" in layouts:
        return SymmetricWorks((layouts["ncclSymDevArgs"].read(arguments),), ())
    head, end, work = (layouts[f"ncclSymk{name}"] for name in ("DevWorkArgs", "ChannelWorkRange", "DevWork"))
    blocks = head.read(arguments[: head.size_bytes])["nMaxChannels"]
    first = _aligned(head.size_bytes)
    ends = range(first, first + blocks * end.size_bytes, end.size_bytes)
    first += _aligned(blocks * end.size_bytes)
    works = range(first, len(arguments) - work.size_bytes + 1, work.size_bytes)
    return SymmetricWorks(
        tuple(work.read(arguments[at : at + work.size_bytes]) for at in works),
        tuple(end.read(arguments[at : at + end.size_bytes]) for at in ends),
    )


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def _in_batches(symbols: Symbols, arguments: bytes) -> KernelWorks:
    """Works in releases from 2.22 on. The arguments hold batches, first one per channel; their works follow the batches
    or are in memory."""
    layouts, types = symbols.works, symbols.enumerations["ncclDevWorkType"]
    head, batch = layouts["ncclDevKernelArgs"], layouts["ncclDevWorkBatch"]
    if len(arguments) < head.size_bytes:
        return KernelWorks({})
    args = head.read(arguments)
    storage = symbols.enumerations["ncclDevWorkStorageType"]
    inside = args["workStorageType"] == storage["ncclDevWorkStorageTypeArgs"]
    in_fifo = args["workStorageType"] == storage["ncclDevWorkStorageTypeFifo"]
    names = {number: name.removeprefix("ncclDevWorkType") for name, number in types.items()}
    channels = [bit for bit in range(64) if args["channelMask"] >> bit & 1]
    found, known = {}, dict[tuple[int, str], dict[str, int]]()  # channels share works
    for place, channel in enumerate(channels):
        batches, at = [], place
        while True:
            values = batch.read(arguments[head.size_bytes + at * batch.size_bytes :][: batch.size_bytes])
            name = names[values["workType"]]
            layout = layouts[f"ncclDevWork{name}"]
            works = []
            for bit in range(64):
                if not values["offsetBitset"] >> bit & 1:
                    continue
                offset = values["offsetBase"] + bit * layout.size_bytes
                if (offset, name) not in known:
                    if inside:
                        data = arguments[offset : offset + layout.size_bytes]
                    else:
                        mask = args["workMask"] if in_fifo else None
                        data = _memory(args["workBuf"], offset, layout.size_bytes, mask)
                    known[offset, name] = layout.read(data)
                works.append(known[offset, name])
            batches.append(Batch(name, values["funcId"], bool(values["nextExtends"]), tuple(works)))
            if not values["nextJump"]:
                break
            at += values["nextJump"]
        found[channel] = tuple(batches)
    return KernelWorks(found)


def _memory(start: int, offset: int, size: int, mask: int | None) -> bytes:
    """Bytes from a buffer, which wraps around unless ``mask`` is None."""
    if mask is None:
        return bytes(ffi.buffer(ffi.cast("char *", start + offset), size))
    unit = 16
    return b"".join(
        bytes(ffi.buffer(ffi.cast("char *", start + (offset + i & mask)), unit)) for i in range(0, size, unit)
    )


def _in_ring(symbols: Symbols, arguments: bytes) -> KernelWorks:
    """Works in releases up to 2.21: a list for each channel; the first works of all lists are adjacent."""
    if len(arguments) < RING_POINTERS * 8:
        return KernelWorks({})
    mask, start = (int.from_bytes(arguments[8 * i : 8 * i + 8], "little") for i in (1, 2))
    channels = [bit for bit in range(64) if mask >> bit & 1]
    size = symbols.works["ncclWork"].size_bytes
    found = {}
    for place, channel in enumerate(channels):
        batches, at = [], place
        while True:
            data = bytes(ffi.buffer(ffi.cast("char *", start + at * size), size))
            header = symbols.works["ncclWorkHeader"].read(data)
            batches.append(_work(symbols, header, data))
            if header["isLast"]:
                break
            at = header["workNext"]
        found[channel] = tuple(batches)
    return KernelWorks(found)


# The struct of an element of a work, the member that says whether it is in use, and the element's alignment, by type of
# work (src/include/device.h, up to 2.21)
_ELEMENTS = {
    "P2p": ("ncclWorkElemP2p", "p2pType", 4),
    "Coll": ("ncclWorkElem", "isUsed", 8),
    "RegColl": ("ncclWorkElemReg", "elem.isUsed", 8),
}


def _work(symbols: Symbols, header: Mapping[str, int], data: bytes) -> Batch:
    types = {number: name for name, number in symbols.enumerations["ncclWorkType"].items()}
    name = types[header["type"]].removeprefix("ncclWorkType")
    return Batch(name, header["funcIndex"], False, tuple(_elements(symbols, name, data)))


def _elements(symbols: Symbols, name: str, data: bytes) -> Iterator[dict[str, int]]:
    """The numbers of the elements in use, each with the element's place."""
    struct, used, alignment = _ELEMENTS[name]
    layout = symbols.works[struct]
    size, first = layout.size_bytes, -(-symbols.works["ncclWorkHeader"].size_bytes // alignment) * alignment
    for place in range((len(data) - first) // size):
        element = data[first + place * size :][:size]
        if layout.numbers[used].of(element):
            yield {"place": place, **layout.read(element)}
