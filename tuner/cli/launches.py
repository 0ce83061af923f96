"""Prints all of a launch: kernels, one row for channels with equal shares, and the ranks that channels visit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from tuner.answers.launches import LaunchAnswer
from tuner.base.names import Protocol
from tuner.base.view import plain
from tuner.cli.graphs import alike, numbers_in_words, print_across
from tuner.cli.output import human_bytes, print_table, say
from tuner.emulator.launches import ChannelShare, LaunchedKernel, Sharing, SymmetricLaunch, SymmetricWork, Work

REGISTERED_FOR = {"peers": "GPUs of the node", "switch": "the NVSwitch", "network": "adapters"}
COLUMNS = (
    *("call", "channels", "elements each", "from", "chunk", "chunk bytes"),
    *("proxy steps", "per chunk", "per slice", "slice bytes", "last chunk"),
)


def print_launch(title: str, answer: LaunchAnswer) -> None:
    """Prints everything about one call's launch."""
    launch = answer.launch
    say(f"Launch of {title}")
    sizes = ", ".join(
        f"{protocol.name} {human_bytes(each)}" for protocol, each in zip(Protocol, launch.buffer_bytes, strict=True)
    )
    if any(kernel.works for kernel in launch.kernels):
        say(f"Buffer sizes of a connection: {sizes}; each buffer has {launch.steps} steps\n")
    for kernel in launch.kernels:
        if kernel.symmetric is None:
            _print_kernel(kernel)
        else:
            _print_symmetric(kernel, kernel.symmetric)
    if answer.across is None:
        say("The graphs come from a file, which does not say the ranks of other nodes\n")
    else:
        print_across("the channels in use", answer.across, only_present=True)
    rings = {ring.channel: (" ".join(map(str, ring.nodes)),) for ring in answer.node_rings}
    if any(len(ring.nodes) > 1 for ring in answer.node_rings):
        print_table("Rings of nodes", ("channels", "nodes in their order"), alike(rings))
    trees = {tree.channel: (" ".join(str(plain(node)) for node in tree.parents),) for tree in answer.node_trees}
    if any(len(tree.parents) > 1 for tree in answer.node_trees):
        print_table("Trees of nodes", ("channels", "parent of each node"), alike(trees))


def _print_kernel(kernel: LaunchedKernel) -> None:
    say(f"{kernel.name}: {len(kernel.channels)} blocks of {kernel.threads} threads")
    for work in kernel.works:
        number = "" if work.function is None else f", number {work.function}"
        takes = "a range each" if work.sharing is Sharing.ranges else "chunks in turns"
        say(
            f"call {work.place}: {work.function_name}{number}; {work.count} elements of {work.dtype.name}, "
            f"{work.warps} warps of a block, {takes}{_registered(work)}"
        )
    rows = [row for work in kernel.works for row in _rows(work)]
    last = any(row[-1] is not None for row in rows)  # up to 2.21
    print_table("", COLUMNS if last else COLUMNS[:-1], [row if last else row[:-1] for row in rows])


def _print_symmetric(kernel: LaunchedKernel, launched: SymmetricLaunch) -> None:
    say(f"{kernel.name}: {len(kernel.channels)} blocks of {kernel.threads} threads")
    for work in launched.works:
        say(f"call {work.place}: {work.count} elements of {work.dtype.name}{_together(work)}")
    rows = [
        (number, launched.works[part.work].place, part.offset, part.count)
        for number, block in enumerate(launched.blocks)
        for part in block.parts
    ]
    if rows:
        print_table("", ("block", "call", "from", "elements"), rows)
    else:
        say("This release does not tell each block its part of the data\n")


def _together(work: SymmetricWork) -> str:
    if work.first_block is None or work.blocks is None:
        return ""
    together = numbers_in_words(range(work.first_block, work.first_block + work.blocks))
    return f", blocks {together} together" if work.blocks > 1 else f", block {together} by itself"


def _registered(work: Work) -> str:
    takers = ", ".join(REGISTERED_FOR[taker] for taker in work.registered_for)
    return f"; {takers} read and write the user's buffers directly" if takers else ""


def _rows(work: Work) -> Iterator[Sequence[object]]:
    """Rows of a table; consecutive channels with equal shares are one row."""
    for _, group in groupby(work.shares, key=lambda share: _without_place(work, share)):
        alike = list(group)
        first, proxy = alike[0], alike[0].proxy
        yield (
            work.place,
            numbers_in_words(share.channel for share in alike),
            first.count,
            _from(work, alike),
            first.chunk,
            human_bytes(first.chunk * work.dtype.size_bytes),
            proxy.steps,
            proxy.chunk_steps,
            proxy.slice_steps,
            human_bytes(proxy.step_bytes),
            first.last_chunk,
        )


def _from(work: Work, alike: Sequence[ChannelShare]) -> str:
    if work.sharing is Sharing.turns:
        return "in turns"
    return str(alike[0].offset) if len(alike) == 1 else f"{alike[0].offset}, {alike[1].offset} .."


def _without_place(work: Work, share: ChannelShare) -> ChannelShare:
    proxy = replace(share.proxy, loop_offset_bytes=None)
    return replace(share, channel=0, turn=0, offset=0, proxy=proxy)
