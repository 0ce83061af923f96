"""``nccl-tuner memory``: the device memory and the SMs that a communicator takes."""

from collections.abc import Sequence
from itertools import pairwise

import click

from tuner.cli import options
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.group import AnyCalls, GivenCall, of_libnccl
from tuner.cli.output import human_bytes, print_table, progress, say, shown_as_json, span
from tuner.emulator.request import Request
from tuner.oracle import bill
from tuner.oracle.bill import MemoryStage

WHOSE = """\
Memory that the real libnccl requests on simulated devices, for each rank: without
CUDA's contexts and kernels, and without user buffers."""
FIRST_CALLS = AnyCalls().convert("allreduce:8,allreduce:1M,allreduce:1G", None, None)


@click.command(name="memory", cls=options.Command)
@click.argument("calls", type=AnyCalls(), required=False)
@of_all_ranks
@options.communicator_options(without=["constants"], build=True)
@options.call_options(buffers=False, in_place=False, windows=False)
@options.timeout_option
@options.json_option
def command(
    calls: list[GivenCall] | None,
    call: Request,
    timeout_s: float,
    communicator: options.CommunicatorOptions,
) -> None:
    """Shows the device memory that a communicator takes and the SMs that its kernels occupy, as the real libnccl
    requests them.

    All ranks initialise and then make CALLS one after the other: COLLECTIVE:BYTES[:TYPE[:OP]], separated by commas.
    [default: allreduce:8,allreduce:1M,allreduce:1G] From 2.22 on, NCCL allocates the memory of an algorithm when a call
    first uses it, unless NCCL_RUNTIME_CONNECT=0. Each block (CTA) of a kernel occupies an SM while it runs.

    \b
    nccl-tuner memory --machine dgx-h100 --nccl 2.28.9
    nccl-tuner memory allreduce:1G,allgather:1G --machine dgx-h100 --env NCCL_NVLS_ENABLE=0 --json
    """
    described = communicator.scenario()
    if calls is None:
        calls = FIRST_CALLS if described.resolve().ranks > 1 else []
    asked = [(one.request, one.bytes) for one in of_libnccl(calls, call)]
    progress(f"asking the libnccl of {described.title}")
    stages = bill.bill(described.oracle_configuration(), asked, timeout_s)
    if shown_as_json(stages, "stages"):
        return
    peak = max(bytes_ for stage in stages for bytes_ in stage.peak_device_bytes) / 2**20
    sms = max((blocks for stage in stages if stage.collective for blocks in stage.blocks), default=0)
    say(f"each rank takes up to {peak:.1f} MiB of device memory{f', and its calls up to {sms} SMs' if sms else ''}")
    say(f"{described.heading}\n\n{WHOSE}")
    print_stages(stages)


def print_stages(stages: Sequence[MemoryStage]) -> None:
    """Prints the memory of ranks after each stage, and what the stage added on the rank with the most memory."""
    most = [max(stage.device_bytes) for stage in stages]
    added = [most[0], *(now - old for old, now in pairwise(most))]
    rows = [
        (
            stage.after if stage.collective is None else f"{stage.collective.name} of {human_bytes(stage.bytes or 0)}",
            _mib(stage.device_bytes),
            f"{more / 2**20:.1f}",
            f"{max(stage.peak_device_bytes) / 2**20:.1f}",
            _mib(stage.host_bytes),
            span(stage.blocks) if stage.collective else "-",
        )
        for stage, more in zip(stages, added, strict=True)
    ]
    print_table("", ("after", "device MiB", "added", "peak", "pinned host MiB", "SMs"), rows)


def _mib(of_ranks: Sequence[int]) -> str:
    """Text for the sizes of all ranks in MiB: the smallest and the largest."""
    low, high = min(of_ranks) / 2**20, max(of_ranks) / 2**20
    return f"{low:.1f}" if low == high else f"{low:.1f}-{high:.1f}"
