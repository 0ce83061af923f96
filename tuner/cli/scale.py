"""``nccl-tuner scale``: what NCCL picks as the number of nodes grows."""

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from tuner.answers.scale import TO_NODES, GpuRange, NodeCounts, NodeRange, Scale, over_gpus, scale, with_times
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective
from tuner.cli import options
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.output import human_bytes, number, print_json, print_table, say, span
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import MOST_NODES, Scenario


@click.command(name="scale", cls=options.Command)
@options.under("What grows", "--per-rank", "--over", "--every", "--nodes")
@options.collectives_argument
@click.option(
    "--bytes",
    "sizes",
    type=options.Sizes(),
    default="1K,64K,1M,16M,256M,1G",
    show_default=True,
    help="NCCL's nBytes, as in pick: of AllGather and ReduceScatter those of all ranks together.",
)
@click.option("--per-rank", is_flag=True, help="--bytes are each rank's part instead.")
@click.option(
    "--from-nodes",
    "low",
    type=click.IntRange(1, MOST_NODES),
    default=1,
    show_default=True,
    help="The fewest nodes; 2 where a node has one GPU.",
)
@click.option(
    "--to-nodes",
    "high",
    type=click.IntRange(1, MOST_NODES),
    default=TO_NODES,
    show_default=True,
    help="The most nodes.",
)
@click.option(
    "--over",
    type=click.Choice(("nodes", "gpus-per-node")),
    default="nodes",
    show_default=True,
    help="What grows. Over the GPUs per node, on --nodes: every number, each with graphs of its own, and NCCL's times.",
)
@click.option("--every", is_flag=True, help="Look at every number of nodes, which takes about 3 ms for each.")
@of_all_ranks
@options.question(times="both")
def command(
    collectives: tuple[Collective, ...],
    sizes: list[int],
    per_rank: bool,
    low: int,
    high: int,
    over: str,
    every: bool,
    asked: options.CommunicatorQuestion,
) -> None:
    """The numbers of nodes on which NCCL's choice for COLLECTIVE (all five by default) stays the same.

    Without --every, 16 numbers in each power of two are computed, and as many more as it takes to locate each change:
    a choice that changes and returns between two of them is missed.

    \b
    nccl-tuner scale allreduce --bytes 64K,16M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner scale allreduce --over gpus-per-node --nodes 2 --bytes 1M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner scale allgather --bytes 1M --per-rank --machine dgx-h100 --to-nodes 1024 --every --json
    nccl-tuner scale reducescatter --buffers window --machine dgx-h100 --nccl 2.30.7 --env NCCL_GIN_TYPE=3
    """
    described, call, times = asked.scenario(), asked.call, asked.times
    like = call.request()
    if over == "gpus-per-node":
        if call.buffers is Buffers.window:
            raise BadInput("--over gpus-per-node: not on windows; valid: --buffers plain|registered|graph")
        _over_gpus(described, collectives, sizes, like, asked.as_json)
        return
    low, high = max(low, described.node_counts[0]), min(high, described.node_counts[1])
    if described.nodes != 1 and described.from_log is None:
        raise BadInput(f"--nodes {described.nodes}: what changes is their number; valid: --from-nodes, --to-nodes")
    ends = [nodes for nodes in (low, high) if nodes * described.local_ranks() > 1]
    selections = {f"on {nodes} nodes": Selection(described.with_nodes(nodes).communicator()) for nodes in ends}
    for one in selections.values():
        one.check_buffers(call.buffers, call.windows)
    requests = options.runnable(selections, collectives, like, everywhere=False)
    hidden = not every or not sys.stderr.isatty()  # without --every it takes seconds
    bar: Any = click.progressbar(length=high - low + 1, label="numbers of nodes", file=sys.stderr, hidden=hidden)
    with bar:
        counts = NodeCounts(low, high, every, progress=lambda: bar.update(1))
        scaled = scale(described, requests, sizes, counts, per_rank=per_rank)
    if times is not None:
        scaled = with_times(scaled, described, requests, times, per_rank=per_rank)
    if asked.as_json:
        print_json(scaled)
        return
    measured = any(each.calibrated_from for each in scaled.ranges)
    by_nccl = not measured or asked.by_nccl
    columns = [*COLUMNS, *(BY_NCCL if by_nccl else ()), *(CALIBRATED if measured else ())]
    say(_verdict(((one.collective, one.bytes, one.name) for one in scaled.ranges), "nodes"))
    for collective, ranges in groupby(scaled.ranges, key=lambda one: one.collective):
        gpus = f"{described.gpus()} GPUs each{described.resolve().own.sharing}{described.resolve().each_in_words}"
        tuner = f", tuner {described.tuner.title}" if described.tuner else ""
        title = f"{collective} on nodes of {described.name}, {gpus}, NCCL {described.nccl}{tuner}"
        together = groupby(ranges, key=lambda one: (one.bytes, one.name))
        rows = []
        for _, same in together:
            alike = list(same)
            by_calibration = _calibrated(alike[0], alike[-1]) if measured else ()
            rows.append([*_row(alike), *(_by_nccl(alike[0], alike[-1]) if by_nccl else ()), *by_calibration])
        print_table(title, columns, rows, SPARE)
    say(_looked_at(scaled, low, high, every))
    if any(each.bypass_kernel for each in scaled.ranges):
        say(SYMMETRIC_TIMES)
    if scaled.calibrations:
        from tuner.cli import times as calibrated_times

        say(calibrated_times.whose_of_all(scaled.calibrations))


def _over_gpus(
    scenario: Scenario, collectives: Sequence[Collective], sizes: Sequence[int], like: Request, as_json: bool
) -> None:
    most = Selection(scenario.communicator())
    requests = options.runnable({f"with {scenario.gpus()} GPUs": most}, collectives, like, everywhere=False)
    ranges = over_gpus(scenario, requests, sizes)
    if as_json:
        print_json({"ranges": ranges})
        return
    say(_verdict(((one.collective, one.bytes, _pick(one)) for one in ranges), "GPUs per node"))
    for collective, alike in groupby(ranges, key=lambda one: one.collective):
        rows = [
            (
                human_bytes(one.bytes),
                one.from_gpus_per_node,
                one.to_gpus_per_node,
                _pick(one) or "-",
                one.channels,
                one.threads,
                number(one.time_us_from, 2),
                number(one.time_us_to, 2),
            )
            for one in alike
        ]
        title = f"{collective} on {scenario.nodes} x {scenario.name}, NCCL {scenario.nccl}"
        print_table(title, ("size", "GPUs per node", "to", "pick", "channels", "threads", "NCCL us", "to"), rows)


def _pick(one: GpuRange) -> str | None:
    return None if one.algorithm is None else f"{one.algorithm}/{one.protocol}"


SYMMETRIC_TIMES = (
    "Times of symmetric kernels are by NCCL's own model of them, which is another than that of algorithms.\n"
)
COLUMNS = ("size", "nodes", "to", "ranks", "to", "pick", "channels", "threads")
SPARE = ("busbw GB/s", "to", "threads", "channels")  # where little room is; the "to" of busbw
BY_NCCL = ("NCCL us", "to", "busbw GB/s", "to")
CALIBRATED = ("calibrated us", "90 % interval us", "to us", "90 % interval us")


def _verdict(picks: Iterable[tuple[str, int, str | None]], over: str) -> str:
    """The answer in a line: of which collectives and at how many sizes the pick changes; of each range its pick."""
    names: dict[str, dict[int, set[str | None]]] = {}
    for collective, size, name in picks:
        names.setdefault(collective, {}).setdefault(size, set()).add(name)
    changing = {name: sum(len(picks) > 1 for picks in by_size.values()) for name, by_size in names.items()}
    said = ", ".join(f"{name} at {count} of {len(names[name])} sizes" for name, count in changing.items() if count)
    return f"the pick changes with the number of {over}: {said}\n" if said else f"one pick for every number of {over}\n"


def _looked_at(scaled: Scale, low: int, high: int, every: bool) -> str:
    if every:
        return f"every number of nodes from {low} to {high}\n"
    return (
        f"{scaled.counts} numbers of nodes from {low} to {high} were looked at; a choice that changes and returns "
        "between two of them is missed (--every looks at all)\n"
    )


def _row(ranges: Sequence[NodeRange]) -> tuple[object, ...]:
    first, last = ranges[0], ranges[-1]
    return (
        human_bytes(first.bytes),
        first.from_nodes,
        last.to_nodes,
        first.from_ranks,
        last.to_ranks,
        first.name or "-",
        span([one.channels for one in ranges]),
        span([one.threads for one in ranges]),
    )


def _by_nccl(first: NodeRange, last: NodeRange) -> tuple[str, ...]:
    return (
        number(first.time_us_from, 2),
        number(last.time_us_to, 2),
        number(first.busbw_gbs_from, 3),
        number(last.busbw_gbs_to, 3),
    )


def _calibrated(first: NodeRange, last: NodeRange) -> tuple[object, ...]:
    from tuner.cli import times

    ends = first.calibrated_from, last.calibrated_to
    return tuple(text for end in ends for text in (times.central(end), times.interval(end)))
