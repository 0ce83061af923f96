"""``nccl-tuner whatif``: what a change of hardware, counts or variables does."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import click

from tuner.answers.changes import KEYS, AtSize, at_sizes, each_of
from tuner.answers.diff import PickChange, Side, diff
from tuner.base.errors import BadInput
from tuner.base.names import Collective, PeerCall
from tuner.base.records import json_form
from tuner.cli import exchanges, options
from tuner.cli.diff import (
    BY_NCCL,
    SAME_COMBINATION,
    gains,
    pick_changes,
    pick_name,
    print_changes,
    print_whose,
    shown_times,
    times_row,
)
from tuner.cli.output import human_bytes, number, print_json, print_table, say
from tuner.emulator.ranges import FOLLOWED_BYTES
from tuner.emulator.request import Request

if TYPE_CHECKING:
    from tuner.answers.beyond import OtherChange
    from tuner.answers.calibrated import TimesWanted


@click.command(name="whatif", cls=options.Command)
@options.under("Changes as in diff, and asking libnccl", "--change", "--ask-libnccl", "--timeout")
@click.argument(
    "words", nargs=-1, type=options.CallOrChange(Collective, "collective"), metavar="[COLLECTIVE]... CHANGE..."
)
@options.change_option
@click.option(
    "--ask-libnccl",
    is_flag=True,
    help="What only libnccl knows, too: buffers, chunks, point-to-point channels, SMs, and of up to 16 ranks device "
    "memory.",
)
@options.bytes_option
@options.communicator_options(tuner=True)
@options.call_options()
@options.time_options("both")
@options.timeout_option
@options.json_option
def command(
    words: tuple[Collective | PeerCall | str, ...],
    assignments: tuple[str, ...],
    ask_libnccl: bool,
    sizes: list[int],
    call: options.CallOptions,
    times: "TimesWanted | None",
    timeout_s: float,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """What NCCL picks for COLLECTIVE (all five by default) before and after each CHANGE, and where the pick changes.

    A CHANGE is KEY=VALUE. Of every node: nic-gbps (speed of adapters, 1e9 bits per second), nic-latency-us, nics (how
    many of the adapters), add-nic, move-nic, remove-nic, gpudirect, nvlinks (links per GPU), pcie (generation of links,
    and lanes, as in 5 or 4x8), move-gpu, remove-gpu, sockets, p2p, and what 'machines diagnose' repairs with: add-cpu,
    add-switch, move-switch, order, nvswitch (links of a GPU to NVSwitches), link-gpus, ids, new-guid, keep, sm; @ names
    single devices, as in nic-gbps=100@mlx5_0.
    The graphs are then searched anew. Otherwise: nccl, machine, nodes, gpus-per-node, trays, gpus-per-tray,
    hosts-per-domain, ranks-per-gpu, constants, unset, or a NCCL variable. Several values of one key (nodes=4 nodes=8)
    are compared one by one, with --json as a list; changes of devices by name add up.

    \b
    nccl-tuner whatif allreduce nic-gbps=200 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner whatif allreduce remove-nic=mlx5_0 nvlinks=17@gpu:3 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner whatif allreduce NCCL_CTA_POLICY=2 --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner whatif allreduce NCCL_ALGO=Ring --log nccl.log --gpu a100-sxm4-80gb
    nccl-tuner whatif allgather nodes=8 NCCL_PROTO=Simple --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    """
    described = communicator.scenario()
    collectives = [word for word in words if isinstance(word, Collective)]
    exchanged = exchanges.alone(word for word in words if isinstance(word, Collective | PeerCall))
    if exchanged and ask_libnccl:
        raise BadInput(f"--ask-libnccl: of collectives; valid for {exchanged[0].name}: without")
    like = call.request()
    if exchanged:
        exchanges.check_plain(exchanged, like)
    compared, ways = [], []
    for changes in each_of([*(word for word in words if not isinstance(word, Collective | PeerCall)), *assignments]):
        after = options.after(described, changes)
        if after == described:
            raise BadInput(f"nothing differs; valid: KEY=VALUE, with the keys {', '.join(KEYS)}, or a NCCL variable")
        if exchanged:
            ways.append(exchanges.compared(described, after, exchanged, sizes, (1, FOLLOWED_BYTES)))
            continue
        old, new = Side(described), Side(after)
        requests = options.runnable({"before": old.selection, "after": new.selection}, collectives, like)
        one = _compared(old, new, dict.fromkeys(requests, sizes), times)
        if ask_libnccl:
            from tuner.answers import beyond

            asked = beyond.library_differences(described, after, requests, timeout_s)
            one = dataclasses.replace(one, libnccl=asked)
        compared.append(one)
    if exchanged:
        exchanges.show_changes(ways, as_json)
        return
    if as_json:
        print_json(compared[0] if len(compared) == 1 else compared)
        return
    for one in compared:
        _print(one, by_nccl=times is None or times.beside_nccl)


@dataclass(frozen=True, slots=True)
class WhatIfComparison:
    """Both sides in words, what the sizes get, and where the pick changes, of one collective after the other.

    ``libnccl`` is what only libnccl knows and has differently, where it was asked.
    """

    before: str
    after: str
    sizes: list[AtSize]
    changes: list[PickChange]
    libnccl: "list[OtherChange] | None" = field(default=None, metadata=json_form(optional=True))


def _compared(
    old: Side, new: Side, sizes_of: Mapping[Request, Sequence[int]], times: "TimesWanted | None"
) -> WhatIfComparison:
    sizes = {request: at_sizes(old, new, request, sizes) for request, sizes in sizes_of.items()}
    changes = {request: diff(old, new, request) for request in sizes_of}
    if times is not None:
        from tuner.answers.diff import CalibratedSides

        buffers = next(iter(sizes_of)).buffers
        calibrated = CalibratedSides(times, old, new, buffers)
        sizes = {request: calibrated.sizes(request, ones) for request, ones in sizes.items()}
        changes = {request: calibrated.changes(request, ones) for request, ones in changes.items()}
    return WhatIfComparison(
        old.scenario.heading, new.scenario.heading, list(chain(*sizes.values())), list(chain(*changes.values()))
    )


def _print(compared: WhatIfComparison, by_nccl: bool) -> None:
    ranges = pick_changes(compared.changes) or "no pick changes"
    say(f"{ranges}; at the sizes below {gains(compared.sizes)}")
    say(f"before: {compared.before}\nafter:  {compared.after}\n")
    for collective in dict.fromkeys(one.collective for one in compared.sizes):
        changes = [change for change in compared.changes if change.collective == collective]
        _print_sizes(collective, [one for one in compared.sizes if one.collective == collective], by_nccl)
        print_changes(f"{collective}: where the pick changes", changes, by_nccl=by_nccl)
        if not changes:
            say(f"{collective}: {SAME_COMBINATION} at every size\n")
    print_whose([*(one.calibrated for one in compared.sizes), *(change.calibrated for change in compared.changes)])
    if compared.libnccl is not None:
        from tuner.cli.diff import print_differences

        print_differences("The real libnccl", compared.libnccl)


def _print_sizes(title: str, ones: Sequence[AtSize], by_nccl: bool) -> None:
    shown = shown_times(by_nccl, [one.calibrated for one in ones])
    measured = BY_NCCL not in shown
    busbws = () if measured else ("before busbw GB/s", "after busbw GB/s")
    rows = []
    for one in ones:
        picks = pick_name(one.before), pick_name(one.after)
        nccl_us = (number(one.before.time_us, 2), number(one.after.time_us, 2))
        times_us = _measured_us(one) if measured else nccl_us
        cells = [human_bytes(one.bytes), *picks, *times_us, *times_row(one.ratio, one.calibrated, shown)]
        rows.append([*cells, *([] if measured else [number(one.busbw_gbs_before, 3), number(one.busbw_gbs_after, 3)])])
    print_table(title, ["size", "before", "after", "before us", "after us", *shown, *busbws], rows, busbws)


def _measured_us(one: AtSize) -> tuple[str, str]:
    from tuner.cli import times

    calibrated = one.calibrated
    return (times.central(calibrated.before), times.central(calibrated.after)) if calibrated else ("-", "-")
