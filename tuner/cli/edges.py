"""``nccl-tuner edges``: where NCCL's choice changes, over sizes, nodes, or GPUs of a node."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import click

from tuner.answers.scale import TO_NODES, AtCount, Axis, CountQuery, CountRange, Scale, scale, with_times
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.base.nouns import Choice
from tuner.base.printable import raw
from tuner.base.sizes import about
from tuner.base.view import FIRST, Column, columns_of, of_all, span
from tuner.cli import options
from tuner.cli.command import excludes, has
from tuner.cli.engine import EngineOptions, engine_options, show_borders
from tuner.cli.output import human_bytes, json_wanted, print_json, print_view, say, shown_as_json
from tuner.emulator.ranges import SizeRange, answers, goes_on
from tuner.emulator.selection import Selection
from tuner.scenario import MOST_NODES

OVER = "Over nodes, or GPUs of a node"
OF_SIZES = ("low", "high", "ranks", "shared")  # parameters that have a meaning over sizes alone
OF_COUNTS = ("sizes", "per_rank", "from_nodes", "to_nodes", "time", "calibration")


RULES = (
    excludes("--over bytes", *OF_COUNTS, when=lambda params: params["over"] == "bytes"),
    excludes("--over nodes", *OF_SIZES, when=lambda params: params["over"] == "nodes"),
    excludes("--over gpus-per-node", *OF_SIZES, when=lambda params: params["over"] == "gpus-per-node"),
    excludes("--engine", "every", "time", "calibration", "tuner", when=has("engine")),
)


@click.command(name="edges", cls=options.Command, rules=RULES)
@options.under(OVER, "--bytes", "--per-rank", "--from-nodes", "--to-nodes")
@options.collectives_argument
@options.option(
    "--over",
    "What grows: bytes, nodes (at fixed --bytes) or gpus-per-node (on fixed --nodes); for each number of nodes "
    "or GPUs, graphs are searched anew.",
    type=click.Choice(("bytes", "nodes", "gpus-per-node")),
    default="bytes",
    metavar="WHAT",
)
@options.flag(
    "--every",
    "List every range of sizes (otherwise ranges with the same algorithm and protocol are merged); with --over "
    "nodes, compute every number of nodes, which takes about 3 ms each.",
)
@options.sizes_option(
    "NCCL's nBytes, as in pick: for AllGather and ReduceScatter the bytes of all ranks together.",
    default="1K,64K,1M,16M,256M,1G",
)
@options.flag("--per-rank", "--bytes is the part of one rank, not the sum over all ranks.")
@options.option(
    "--from-nodes", "Lowest number of nodes (2 if a node has one GPU).", type=click.IntRange(1, MOST_NODES), default=1
)
@options.option("--to-nodes", "Highest number of nodes.", type=click.IntRange(1, MOST_NODES), default=TO_NODES)
@engine_options()
@options.question(ranges=True, times="nccl", times_said="nccl, over nodes both")
def command(
    collectives: tuple[Collective, ...],
    over: str,
    every: bool,
    sizes: list[int],
    per_rank: bool,
    from_nodes: int,
    to_nodes: int,
    engine: EngineOptions | None,
    asked: options.CommunicatorQuestion,
) -> None:
    """Shows the size ranges, exact to the byte, in which NCCL's choice for COLLECTIVE (all five by default) stays the
    same.

    With --over nodes: the ranges of node counts in which it stays the same. Without --every, 16 numbers in each power
    of two are computed, and more of them around each change to locate it; a choice that changes and returns between two
    computed numbers is missed.

    \b
    nccl-tuner edges allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner edges allreduce --over nodes --bytes 64K,16M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner edges allreduce --over gpus-per-node --nodes 2 --bytes 1M --machine dgx-h100 --nccl 2.28.9
    nccl-tuner edges --machine dgx-h100 --nodes 2 --nccl 2.28.9 --json
    nccl-tuner edges allreduce --machine dgx-h100 --engine vllm@0.33.0 --dtype bfloat16
    nccl-tuner edges allreduce --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner edges allgather --over nodes --bytes 1M --per-rank --machine dgx-h100 --to-nodes 1024 --every --json
    nccl-tuner edges reducescatter --over nodes --buffers window --machine dgx-h100 --env NCCL_GIN_TYPE=3
    """
    if engine is not None:
        if over != "bytes" or collectives != (Collective.AllReduce,):
            raise BadInput(
                "--engine only applies to AllReduce over sizes, which an engine may carry without NCCL: edges "
                "allreduce --engine ..."
            )
        group = engine.group(asked.communicator, engine.names[0])
        show_borders(group, asked.call, asked.low or 1, asked.high)
        return
    if over == "bytes":
        _over_sizes(collectives, every, asked)
    else:
        axis = Axis[over.replace("-", "_")]
        ends = (from_nodes, to_nodes) if axis is Axis.nodes else (1, asked.scenario().gpus())
        _over_counts(collectives, sizes, CountQuery(*ends, every or axis is Axis.gpus_per_node, axis), per_rank, asked)


def _over_sizes(collectives: Sequence[Collective], every: bool, asked: options.CommunicatorQuestion) -> None:
    described, low, high = asked.scenario(), asked.low, asked.high
    selection = Selection(described.communicator())
    requests = options.runnable({"here": selection}, collectives, asked.call)
    for request in requests:
        options.note_call(described, request)
    records = {request.collective: answers(selection, request, low, high).records(request) for request in requests}
    if json_wanted():
        print_json([record for of_one in records.values() for record in of_one], "ranges")
    in_turn = False
    for request in requests:
        of_one = records[request.collective]
        last = of_one[-1].to_bytes
        if not json_wanted():
            rows = [list(same) for _, same in groupby(of_one, key=lambda one: one.from_bytes if every else one.name)]
            rows = rows if every else _in_turn(rows)
            print_view(f"{request.collective.name} on {described.title}", BY_SIZE, rows)
            in_turn |= any(map(_takes_turns, rows))
        if goes_on(selection, request, last, high):
            after = human_bytes(last + 1)
            click.echo(
                f"{request.collective.name}: from {after} on the number of channels changes too often to list its "
                "ranges",
                err=True,
            )
    if in_turn:
        say("in turn: both take the same time there but for rounding (--every lists each range)")


def _in_turn(rows: Sequence[list[SizeRange]]) -> list[list[SizeRange]]:
    """The rows of ranges, in which several narrow ones that follow each other are one row. Where two times cross, each
    is the shorter one in turn for some hundred bytes, because NCCL rounds them.
    """
    joined: list[list[SizeRange]] = []
    for narrow, those in groupby(rows, key=lambda row: _width(row) < NARROW * row[0].from_bytes):
        several = list(those)
        joined += [[each for row in several for each in row]] if narrow and len(several) > 1 else several
    return joined


def _width(row: Sequence[SizeRange]) -> int:
    return row[-1].to_bytes - row[0].from_bytes + 1


def _takes_turns(row: Sequence[SizeRange]) -> bool:
    return len({each.name for each in row}) > 1


def _picks(row: Sequence[SizeRange]) -> str:
    names = " and ".join(dict.fromkeys(str(each.name) for each in row))
    return f"{names} in turn" if _takes_turns(row) else names


def _over_counts(
    collectives: Sequence[Collective],
    sizes: list[int],
    over: CountQuery,
    per_rank: bool,
    asked: options.CommunicatorQuestion,
) -> None:
    described, call, what = asked.scenario(), asked.call, over.of.value
    like, low, high = call, over.low, over.high
    if over.of is Axis.nodes:
        low, high = max(low, described.node_counts[0]), min(high, described.node_counts[1])
        if described.nodes != 1 and described.from_log is None:
            raise BadInput(
                f"--nodes {described.nodes}: --over nodes looks at many numbers of nodes; use --from-nodes and "
                "--to-nodes instead"
            )
    several = [on for on in (over.of.on(described, low), over.of.on(described, high)) if on.ranks > 1]
    selections = {f"on {one.nodes} nodes": Selection(one.communicator()) for one in several}
    for one in selections.values():
        one.check_buffers(call.buffers, call.windows)
    requests = options.runnable(selections, collectives, like, everywhere=False)
    for request in requests:
        options.note_call(several[0], request)
    hidden = not over.every or not sys.stderr.isatty()  # without --every it takes seconds
    bar: Any = click.progressbar(length=high - low + 1, label=f"numbers of {what}", file=raw(sys.stderr), hidden=hidden)
    with bar:
        over = replace(over, low=low, high=high, progress=lambda: bar.update(1))
        scaled = scale(described, requests, sizes, over, per_rank=per_rank)
    if (times := options.times_or_both(asked.times)) is not None:
        scaled = with_times(scaled, described, requests, times, per_rank=per_rank)
    if shown_as_json(scaled):
        return
    measured = any(each.first.calibrated for each in scaled.ranges)
    by_nccl = not measured or times is None or times.beside_nccl
    columns = [*_by_count(over.of), *(BY_NCCL if by_nccl else ()), *(_calibrated() if measured else ())]
    say(_verdict(scaled))
    for collective, ranges in groupby(scaled.ranges, key=lambda one: one.collective):
        gpus = f"{described.gpus()} GPUs each{described.resolve().own.sharing}{described.resolve().each_in_words}"
        tuner = f", tuner {described.tuner.title}" if described.tuner else ""
        where = (
            f"nodes of {described.name}, {gpus}" if over.of is Axis.nodes else f"{described.nodes} x {described.name}"
        )
        together = groupby(ranges, key=lambda one: (one.bytes, one.name))
        title = f"{collective} on {where}, NCCL {described.nccl}{tuner}"
        print_view(title, columns, [list(same) for _, same in together])
    say(_looked_at(scaled, over))
    if any(each.bypass for each in scaled.ranges):
        say(SYMMETRIC_TIMES)
    if scaled.calibrations:
        from tuner.cli import times as calibrated_times

        say(calibrated_times.whose_of_all(scaled.calibrations))


SYMMETRIC_TIMES = (
    "Times of symmetric kernels come from NCCL's model of these kernels, which is a different one than its "
    "model of algorithms.\n"
)
PICK = (
    *columns_of(Choice, "name", of=FIRST),
    Column("channels", of_all(span, "channels")),
    Column("threads", of_all(span, "threads")),
)
NARROW = 1e-4  # a row is narrow if its sizes are fewer than this share of the first of them
BY_SIZE = (
    Column("from", lambda ranges: ranges[0].from_bytes, human_bytes),
    Column("to", lambda ranges: ranges[-1].to_bytes, human_bytes),
    Column("about", lambda ranges: ranges[-1].to_bytes, about),
    replace(PICK[0], value=_picks),
    *PICK[1:],
    Column("ranges", len),
)


def _from(name: str, **changed: Any) -> Column:
    """A column with a value at the lowest node (or GPU) count of a row."""
    return replace(*columns_of(AtCount, name, of=lambda ranges: ranges[0].first), **changed)


def _to(name: str, **changed: Any) -> Column:
    """A column with a value at the highest node (or GPU) count of a row."""
    return replace(*columns_of(AtCount, name, of=lambda ranges: ranges[-1].last), **{"title": "to"} | changed)


BY_NCCL = _from("time_us"), _to("time_us"), _from("busbw_gbs", spare=1), _to("busbw_gbs", spare=2)


def _by_count(over: Axis) -> tuple[Column, ...]:
    counts = _from("count", title=over.value), _to("count"), _from("ranks"), _to("ranks")
    name, channels, threads = PICK
    pick = name, replace(channels, spare=4), replace(threads, spare=3)
    return (*columns_of(CountRange, "bytes", of=FIRST), *counts, *pick)


def _calibrated() -> tuple[Column, ...]:
    from tuner.cli.times import INTERVAL, central, interval

    us = f"{INTERVAL} us"
    from_us = _from("calibrated", title="calibrated us", text=central)
    to_us = _to("calibrated", title="to us", text=central)
    return from_us, replace(from_us, title=us, text=interval), to_us, replace(to_us, title=us, text=interval)


def _verdict(scaled: Scale) -> str:
    """The answer in one line: for which collectives and at how many sizes the pick changes."""
    names: dict[str, dict[int, set[str | None]]] = {}
    for one in scaled.ranges:
        names.setdefault(one.collective, {}).setdefault(one.bytes, set()).add(one.name)
    changing = {name: sum(len(picks) > 1 for picks in by_size.values()) for name, by_size in names.items()}
    said = ", ".join(f"{name} at {count} of {len(names[name])} sizes" for name, count in changing.items() if count)
    what = scaled.over.value
    return (
        f"the pick changes with the number of {what}: {said}\n"
        if said
        else f"the pick is the same for every number of {what}\n"
    )


def _looked_at(scaled: Scale, over: CountQuery) -> str:
    ends = f"of {over.of.value} from {over.low} to {over.high}"
    if over.every:
        return f"every number {ends}\n"
    return (
        f"{scaled.counts} numbers {ends} were computed; a choice that changes and returns between two of them is "
        "missed (--every computes all)\n"
    )
