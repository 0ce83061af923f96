"""``nccl-tuner order``: in which order each element's numbers are added, and whether the bits stay the same."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import click

from tuner.answers import order
from tuner.answers.order import CallOrder, OrderAnswer
from tuner.answers.same_bits import SameBits, SameBitsQuery, ask
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType
from tuner.base.sizes import LARGEST_BYTES
from tuner.cli import options
from tuner.cli.command import Parsed
from tuner.cli.options import ROOTED
from tuner.cli.output import human_bytes, print_table, say, shown_as_json, verdict
from tuner.emulator.ranges import goes_on
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.emulator.steps.orders import LAST_READ, Term, short, text
from tuner.scenario import Scenario

GOOD = {"yes": True, "no": False}
MOST_CLASSES = 16  # of a call that a table shows
MOST_RANGES = 3  # of a class that a table shows


def _range(text: str) -> tuple[int, int]:
    """Reads two sizes, ``8..1G``."""
    low, dots, high = text.partition("..")
    if not dots:
        raise BadInput(f"--range {text!r}: valid: FROM..TO, as in 8..1G")
    return options.size_bytes(low), options.size_bytes(high)


MOST_RANKS = 65_536  # whose order is followed rank by rank


@click.command(name="order", cls=options.Command)
@options.under("Which calls", "--group", "--root", "--rows")
@options.under("Output", "--settings")
@options.collective_argument
@options.sizes_option("Sizes as NCCL's nBytes, as in pick. [default: 1M]")
@options.option(
    "--row-bytes",
    "Size of a row whose result must have the same bits wherever the row is in the call, such as the row of a "
    "token: hidden size x type size.",
    type=options.size_bytes,
    metavar="SIZE",
)
@options.option(
    "--rows", "Compare calls with these numbers of rows, such as batch sizes.", type=options.NUMBERS, metavar="N,..."
)
@options.option(
    "--range",
    "ends",
    "Show ranges of sizes with the same order instead.",
    type=Parsed("range", _range),
    metavar="FROM..TO",
)
@options.flag("--group", "together", "The calls form one group, in the order of --bytes.")
@options.change_option
@options.option("--root", "The root rank of Reduce.", type=int, default=0, metavar="RANK")
@options.option(
    "--settings/--no-settings",
    "If the bits differ, look for NCCL variables with which they would be the same.",
    default=True,
)
@options.communicator_options()
@options.call_options(windows=False)
@options.json_option
def command(
    collective: Collective,
    sizes: list[int] | None,
    row_bytes: int | None,
    rows: list[int] | None,
    ends: tuple[int, int] | None,
    together: bool,
    assignments: Sequence[str],
    root: int,
    settings: bool,
    call: Request,
    communicator: options.CommunicatorOptions,
) -> None:
    """Says in which order of ranks COLLECTIVE adds the numbers of each element, and whether calls give bit-identical
    results.

    With --range: the ranges of sizes in which every element is added in the same order at every size. Several sizes are
    compared element by element at equal offsets; with --row-bytes, rows are compared wherever they are in a call.
    --change compares with another release, setting or machine, as in diff. With --group the sizes are calls between
    ncclGroupStart and ncclGroupEnd.

    \b
    nccl-tuner order allreduce --machine dgx-h100 --nccl 2.28.9 --bytes 64K --env NCCL_ALGO=Ring
    nccl-tuner order allreduce --machine dgx-h100 --dtype bfloat16 --row-bytes 16K --rows 1,7,64
    nccl-tuner order allreduce --machine dgx-h100 --range 8..1G --env NCCL_ALGO=allreduce:tree
    nccl-tuner order reducescatter --machine dgx-b200 --nccl 2.32.3 --buffers window --range 32..1G --dtype bfloat16
    nccl-tuner order allreduce --machine dgx-h100 --nodes 8 --bytes 25M --change nccl=2.30.7
    nccl-tuner order allreduce --machine dgx-h100 --bytes 25M,25M,4M --group
    nccl-tuner order reducescatter --machine dgx-h100 --nodes 8 --bytes 25M --change nodes=6
    """
    if root and collective not in ROOTED:
        raise BadInput(f"--root: {collective.name} has no root; only reduce has one here")
    described, request, dtype = communicator.scenario(), replace(call, collective=collective), call.dtype
    if described.ranks > MOST_RANKS:
        raise BadInput(
            f"the order of additions is computed for up to {MOST_RANKS:,} ranks, not for {described.ranks:,}"
        )
    if ends is not None:
        if sizes or row_bytes or rows or assignments or together:
            raise BadInput(
                "--range shows single calls on one communicator: remove --bytes, --row-bytes, --rows, --group "
                "and --change"
            )
        _ranges(described, request, ends, root)
        return
    if row_bytes is not None and row_bytes % dtype.size_bytes:
        raise BadInput(f"--row-bytes {row_bytes}: expected a multiple of {dtype.size_bytes}, the size of {dtype.name}")
    asked = _sizes(sizes, row_bytes, rows)
    compared = [described, options.after(described, assignments)] if assignments else [described]
    if any(size % dtype.size_bytes for size in asked):
        raise BadInput(f"--bytes: expected multiples of {dtype.size_bytes}, the size of {dtype.name}")
    question = SameBitsQuery(request, tuple(asked), row_bytes, root, together)
    calls = tuple(call for one in compared for call in question.of_calls(one))
    same = ask(question, compared, settings) if row_bytes or len(calls) > 1 else None
    answer = OrderAnswer(calls, same)
    if shown_as_json(answer):
        return
    title = f"{request.title} on {described.title}"
    print_order(title if not assignments else f"{title}, and with {', '.join(assignments)}", answer, dtype)


def _ranges(described: Scenario, request: Request, ends: tuple[int, int], root: int) -> None:
    from tuner.answers.order import order_ranges

    found = order_ranges(described, request, ends, root)
    if shown_as_json(found, "ranges"):
        return
    rows = [
        (
            human_bytes(each.from_bytes),
            human_bytes(each.to_bytes),
            ", ".join(each.picks),
            each.order,
            each.why or _one_or_each(each.terms) + (f" (kept in {each.sums_in.name})" if each.sums_in else ""),
        )
        for each in found
    ]
    print_table(f"{request.title} on {described.title}", ("from", "to", "picks", "order", "added"), rows)
    if goes_on(Selection(described.communicator()), request, found[-1].to_bytes, ends[1]):
        say(
            f"from {human_bytes(found[-1].to_bytes + 1)} on the number of channels changes too often to list its "
            "ranges",
            err=True,
        )
    _say_what_was_read([] if order.device_code_read(described.nccl) else [described.nccl])


def _say_what_was_read(others: Iterable[str]) -> None:
    for nccl in dict.fromkeys(others):
        say(
            f"The order of additions is known from NCCL's device code up to {LAST_READ}; NCCL {nccl} is assumed to "
            "add in the same order"
        )


def _one_or_each(terms: Sequence[Term]) -> str:
    if not terms:
        return "-"
    return short(text(terms[0])) + (f", and so on to {short(text(terms[-1]))}" if len(terms) > 1 else "")


def _sizes(sizes: list[int] | None, row_bytes: int | None, rows: list[int] | None) -> list[int]:
    if rows is None:
        return [1 << 20] if sizes is None else sizes
    if row_bytes is None or sizes is not None:
        raise BadInput("--rows counts rows of --row-bytes: give both, and remove --bytes")
    most = LARGEST_BYTES // row_bytes
    if wrong := [count for count in rows if not 1 <= count <= most]:
        raise BadInput(f"--rows {wrong[0]}: expected 1 to {most}, so that a call has at most 2**62 bytes")
    return [row_bytes * count for count in rows]


SPARE = ("channels", "elements", "NCCL")  # where little room is


def print_order(title: str, answer: OrderAnswer, dtype: DataType) -> None:
    """Prints whether the bits are the same, then one row per class of elements."""
    if answer.same_bits is not None:
        print_same(answer.same_bits)
        say()
    columns = ("size", "NCCL", "pick", "channels", "elements", "added", "where")
    print_table(title, columns, [row for call in answer.calls for row in _rows(call, dtype)], SPARE)
    _say_what_was_read(call.nccl for call in answer.calls if not call.device_code_read)


def print_same(same: SameBits) -> None:
    """Prints the answer in one line, and what would make the answer yes."""
    say(f"{verdict(f'Same bits: {same.answer}', GOOD.get(same.answer))}: {same.because}")
    for setting in same.settings:
        words = " ".join(f"{name}={value}" for name, value in setting.variables.items())
        without = "" if setting.time_us_without is None else f", {setting.time_us_without:.2f} us without"
        time = "NCCL's model has no time for it"
        if "NCCL_MAX_NCHANNELS" in setting.variables:
            time = "NCCL's model does not see what fewer channels cost"
        elif setting.time_us is not None:
            time = f"{setting.time_us:.2f} us by NCCL's model{without}"
        fails = f"; NCCL then fails for {', '.join(setting.others_fail)}" if setting.others_fail else ""
        say(f"  yes with {words}: {', '.join(setting.picks)}, {time}{fails}")


def _rows(call: CallOrder, dtype: DataType) -> Iterator[tuple[object, ...]]:
    head = human_bytes(call.bytes), call.nccl, call.pick, call.channels
    if call.not_claimed is not None:
        yield *head, call.elements, "not claimed", call.any_order or call.not_claimed
        return
    for each in call.classes[:MOST_CLASSES]:
        ranges = [f"{first}..{end - 1}" for first, end in each.ranges[:MOST_RANGES]]
        more = len(each.ranges) - len(ranges)
        where = " ".join(ranges) + (f" and {more} more" if more else "")
        kept = f" (kept in {call.sums_in.name})" if call.sums_in not in (None, dtype) else ""
        yield *head, each.elements, short(each.order) + kept, where
    if left := call.classes[MOST_CLASSES:]:
        yield *head, sum(each.elements for each in left), f"in {len(left)} more orders", "(--json has them)"
