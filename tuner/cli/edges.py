"""``nccl-tuner edges``: where NCCL's choice changes, over sizes, nodes, or GPUs of a node."""

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from tuner.answers.scale import TO_NODES, GpuRange, NodeCounts, NodeRange, Scale, over_gpus, scale, with_times
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective
from tuner.base.sizes import about
from tuner.cli import options
from tuner.cli.output import human_bytes, json_wanted, number, print_json, print_table, say, shown_as_json, span
from tuner.emulator.ranges import SizeRange, answers, goes_on
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import MOST_NODES, Scenario

OVER = "Over nodes, or GPUs of a node"
OF_SIZES = ("low", "high", "ranks", "shared")  # parameters that have a meaning over sizes alone
OF_COUNTS = ("sizes", "per_rank", "from_nodes", "to_nodes", "time", "calibration")


@click.command(name="edges", cls=options.Command)
@options.under(OVER, "--bytes", "--per-rank", "--from-nodes", "--to-nodes")
@options.collectives_argument
@options.option(
    "--over",
    "What grows: bytes; nodes, at --bytes; or gpus-per-node, of --nodes, each number with graphs of its own.",
    type=click.Choice(("bytes", "nodes", "gpus-per-node")),
    default="bytes",
    metavar="WHAT",
)
@options.flag(
    "--every",
    "Every range of sizes, where else those of an algorithm and protocol are one; every number of nodes, which "
    "takes about 3 ms for each.",
)
@options.option(
    "--bytes",
    "sizes",
    "NCCL's nBytes, as in pick: of AllGather and ReduceScatter those of all ranks together.",
    type=options.SIZES,
    default="1K,64K,1M,16M,256M,1G",
)
@options.flag("--per-rank", "--bytes are each rank's part instead.")
@options.option(
    "--from-nodes", "The fewest nodes; 2 where a node has one GPU.", type=click.IntRange(1, MOST_NODES), default=1
)
@options.option("--to-nodes", "The most nodes.", type=click.IntRange(1, MOST_NODES), default=TO_NODES)
@options.question(ranges=True, times="nccl", times_said="nccl, over nodes both")
def command(
    collectives: tuple[Collective, ...],
    over: str,
    every: bool,
    sizes: list[int],
    per_rank: bool,
    from_nodes: int,
    to_nodes: int,
    asked: options.CommunicatorQuestion,
) -> None:
    """The size ranges in which NCCL's choice for COLLECTIVE (all five by default) stays the same, to the byte.

    With --over nodes the numbers of nodes on which it does. Without --every, 16 numbers in each power of two are
    computed, and as many more as it takes to locate each change: a choice that changes and returns between two of them
    is missed.

    \b
    nccl-tuner edges allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner edges allreduce --over nodes --bytes 64K,16M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner edges allreduce --over gpus-per-node --nodes 2 --bytes 1M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner edges --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    nccl-tuner edges allreduce --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner edges allgather --over nodes --bytes 1M --per-rank --machine dgx-h100 --to-nodes 1024 --every --json
    nccl-tuner edges reducescatter --over nodes --buffers window --machine dgx-h100 --env NCCL_GIN_TYPE=3
    """
    options.refuse_with(f"--over {over}", OF_COUNTS if over == "bytes" else OF_SIZES)
    if over == "bytes":
        _over_sizes(collectives, every, asked)
    elif over == "nodes":
        _over_nodes(collectives, sizes, (from_nodes, to_nodes), every, per_rank, asked)
    elif asked.call.buffers is Buffers.window:
        raise BadInput("--over gpus-per-node: not on windows; valid: --buffers plain|registered|graph")
    else:
        _over_gpus(asked.scenario(), collectives, sizes, asked.call.request())


def _over_sizes(collectives: Sequence[Collective], every: bool, asked: options.CommunicatorQuestion) -> None:
    described, low, high = asked.scenario(), asked.low, asked.high
    selection = Selection(described.communicator())
    requests = options.runnable({"here": selection}, collectives, asked.call.request())
    records = {request.collective: answers(selection, request, low, high).records(request) for request in requests}
    if json_wanted():
        print_json([record for of_one in records.values() for record in of_one])
    for request in requests:
        of_one = records[request.collective]
        if not json_wanted():
            rows = [_size_row([record]) for record in of_one] if every else _by_combination(of_one)
            print_table(f"{request.collective.name} on {described.title}", BY_SIZE, rows)
        if goes_on(selection, request, of_one[-1].to_bytes, high):
            after = human_bytes(of_one[-1].to_bytes + 1)
            click.echo(f"{request.collective.name}: from {after} on channels change too often to be listed", err=True)


def _over_nodes(
    collectives: Sequence[Collective],
    sizes: list[int],
    ends: tuple[int, int],
    every: bool,
    per_rank: bool,
    asked: options.CommunicatorQuestion,
) -> None:
    described, call = asked.scenario(), asked.call
    like = call.request()
    low, high = max(ends[0], described.node_counts[0]), min(ends[1], described.node_counts[1])
    if described.nodes != 1 and described.from_log is None:
        raise BadInput(f"--nodes {described.nodes}: what changes is their number; valid: --from-nodes, --to-nodes")
    several = [nodes for nodes in (low, high) if nodes * described.local_ranks() > 1]
    selections = {f"on {nodes} nodes": Selection(described.with_nodes(nodes).communicator()) for nodes in several}
    for one in selections.values():
        one.check_buffers(call.buffers, call.windows)
    requests = options.runnable(selections, collectives, like, everywhere=False)
    hidden = not every or not sys.stderr.isatty()  # without --every it takes seconds
    bar: Any = click.progressbar(length=high - low + 1, label="numbers of nodes", file=sys.stderr, hidden=hidden)
    with bar:
        counts = NodeCounts(low, high, every, progress=lambda: bar.update(1))
        scaled = scale(described, requests, sizes, counts, per_rank=per_rank)
    if (times := options.times_or_both(asked.times)) is not None:
        scaled = with_times(scaled, described, requests, times, per_rank=per_rank)
    if shown_as_json(scaled):
        return
    measured = any(each.calibrated_from for each in scaled.ranges)
    by_nccl = not measured or times is None or times.beside_nccl
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


def _over_gpus(scenario: Scenario, collectives: Sequence[Collective], sizes: Sequence[int], like: Request) -> None:
    most = Selection(scenario.communicator())
    requests = options.runnable({f"with {scenario.gpus()} GPUs": most}, collectives, like, everywhere=False)
    ranges = over_gpus(scenario, requests, sizes)
    if json_wanted():
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


BY_SIZE = ("from", "to", "about", "pick", "channels", "threads", "ranges")


def _by_combination(records: Sequence[SizeRange]) -> list[tuple[object, ...]]:
    together = groupby(records, key=lambda record: record.name)
    return [_size_row(list(same)) for _, same in together]


def _size_row(records: Sequence[SizeRange]) -> tuple[object, ...]:
    first, last = records[0], records[-1]
    return (
        human_bytes(first.from_bytes),
        human_bytes(last.to_bytes),
        about(last.to_bytes),
        first.name,
        span([record.channels for record in records]),
        span([record.threads for record in records]),
        len(records),
    )
