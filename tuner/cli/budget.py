"""``nccl-tuner budget``: how long a job's collectives take, and where the time goes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from tuner.answers.calibrated import TimesWanted
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Op
from tuner.base.nouns import Call, TimeInterval
from tuner.base.view import in_percent, plain
from tuner.cli import options, times
from tuner.cli.command import FILE, F, completing, packing, stacked
from tuner.cli.communicator_options import say_notes
from tuner.cli.engine import SERVED, EngineOptions, engine_options, serve_options, show_served_step
from tuner.cli.exchanges import in_words
from tuner.cli.exports import Exports, export_options, of_budget
from tuner.cli.measured_options import arm_option, runs_there
from tuner.cli.output import human_bytes, plural, print_table, say, shown_as_json, span
from tuner.cli.trace_files import as_they_ran, communicators_options, count_or_part, read_files
from tuner.emulator.request import Request
from tuner.jobs.traces.calls import number
from tuner.jobs.workload import grouped, job
from tuner.jobs.workload.budget import MeasuredRuns, read_runs
from tuner.jobs.workload.count import ExchangesOf
from tuner.jobs.workload.grouped import GroupBudget, GroupTotal, JobBudget, JobGroups, ModelStep, layout_of
from tuner.jobs.workload.price import Unpriced
from tuner.jobs.workload.priced import (
    AllKernels,
    AllToAllBudget,
    Bucket,
    Budget,
    BudgetPart,
    BudgetRegret,
    EntryPrices,
    MeasuredPrice,
    NoPrice,
    PriceOf,
    VariantBudget,
    buckets,
)
from tuner.scenario import Scenario
from tuner.times.measured.formats import MeasurementFile

MOST_ROWS = 32  # of sizes one by one
TOP = 10  # rows of what makes up a difference or a regret
LEAST_US = 0.5  # of a difference where the pick is the same: the last figure that is shown


@dataclass(frozen=True, slots=True)
class Shown:
    """What tables show. ``exact``: a row for every size, else one per power of two. ``nccl``, ``calibrated``: whether
    these times are shown.

    ``overlap``: whether the SMs that calls occupy are shown.
    """

    exact: bool
    nccl: bool
    calibrated: bool
    overlap: bool

    def of(self, own: Sequence[object], by_nccl: Sequence[object], by_calibration: Sequence[object]) -> list[object]:
        """The cells of a row: first ``own``, then those with the times that are shown."""
        return [*own, *(by_nccl if self.nccl else ()), *(by_calibration if self.calibrated else ())]


def show(title: str, budget: Budget, asked: Shown) -> None:
    """Prints the budget; if no calibration answers, with only NCCL's times, and the reason."""
    base, *others = budget.variants
    shown = asked if base.calibrated else replace(asked, nccl=True, calibrated=False)
    if not budget.entries:
        say(f"{title}: only sends and receives")
        _print_files(budget)
        _print_left_out(budget)
        for variant in budget.variants:
            if variant.all_to_all:
                _print_all_to_all(variant.name, variant.all_to_all)
        return
    say(f"{title}: {_calls(base.priced_calls)}, {_totals(base, shown)}, one after the other")
    _print_files(budget)
    say()
    _print_sizes(budget.entries, shown)
    parts = [_part(part, shown) for parts in (base.by_collective, base.by_combination) for part in parts]
    columns = shown.of(("by", "calls"), ("NCCL ms", "share"), CALIBRATED_MS)
    print_table("where it goes", [str(name) for name in columns], parts)
    if others:
        columns = shown.of(
            ("release and setting",),
            ("NCCL ms", "difference ms", "difference"),
            (*CALIBRATED_MS, "difference by measurements"),
        )
        rows = [_column(variant, shown) for variant in budget.variants]
        print_table("by release and setting", [str(name) for name in columns], rows)
    for other in others if shown.nccl else ():
        _print_changes(base.name, other)
        _print_apart(base.name, other)
    if base.kernels:
        _print_kernels(budget.entries, base.kernels)
    for at, variant in enumerate(budget.variants):
        prices = [(entry, entry.prices[at]) for entry in budget.entries]
        if variant.regret:
            _print_regret(variant.name, variant.regret, prices)
        _print_unpriced(variant.name, prices)
    _print_left_out(budget)
    _print_whose(budget, shown)


def _print_files(budget: Budget) -> None:
    for file in budget.files:
        say(f"{file.file}: {file.kind}, {_calls(file.calls)}; size: {file.sizes}")


def _calls(count: float) -> str:
    return f"{number(count)} call{'s' * (count != 1)}"


def _print_left_out(budget: Budget) -> None:
    for left in budget.left_out:
        kernels = f", kernels of {_ms(left.kernels_us)} ms" if left.kernels_us else ""
        say(f"left out: {left}{kernels}")
    for note in budget.notes:
        say(f"note: {note}")
    for variant in budget.variants[:1]:
        _print_exchanges(variant.name, variant.exchanges)


def _print_exchanges(variant: str, exchanges: Sequence[ExchangesOf]) -> None:
    """Prints the first variant's sends, receives and AllToAlls, for which there are no times."""
    if not exchanges:
        return
    rows = [
        (
            each.call.name,
            human_bytes(each.bytes),
            number(each.calls),
            human_bytes(int(each.total_bytes)),
            each.kernels,
            each.channels,
            *(in_words(way for way in each.ways if way.network == network) for network in (False, True)),
        )
        for each in exchanges
    ]
    columns = ("call", "size", "calls", "bytes of all", "kernels", "SMs", "same node", "other nodes")
    print_table(
        f"sends and receives with {variant}: NCCL has no time model for them, so no total includes them", columns, rows
    )


def _totals(base: VariantBudget, shown: Shown) -> str:
    by = "NCCL's model with fitted constants" if base.constants.fitted else "NCCL's own prediction"
    parts = [f"{_ms(base.total_us)} ms by {by}"] if shown.nccl else []
    if shown.nccl and base.symmetric_us is not None:
        parts.append(f"of which {_ms(base.symmetric_us)} ms by NCCL's model of symmetric kernels")
    if shown.calibrated and base.calibrated:
        total = base.calibrated.total
        parts.append(f"{times.central(total, 1e3, 3)} ms by measurements (90 %: {times.interval(total, 1e3, 3)})")
    return ", ".join(parts)


def _print_whose(budget: Budget, shown: Shown) -> None:
    used = [variant.calibration for variant in budget.variants if variant.calibration]
    for variant in budget.variants:
        if variant.all_to_all:
            _print_all_to_all(variant.name, variant.all_to_all)
    if used:
        say(times.whose_of_all(used))
    if any(variant.symmetric_us is not None for variant in budget.variants):
        say(
            "times of calls on symmetric kernels come from NCCL's own model of these kernels; no measured times of "
            "them are known"
        )
    say(f"{times.ALONE}{'' if shown.overlap else '; --overlap shows how many SMs they occupy'}")
    for variant in budget.variants if shown.overlap else ():
        if sms := variant.channels:
            least = f"{sms.least} to " if sms.least < sms.most else ""
            say(
                f"{variant.name}: a call takes {least}{sms.most} SMs of each GPU away from computation, one per "
                f"channel, {sms.mean:.1f} on average over the predicted time; {times.COST_UNKNOWN}"
            )


def _print_all_to_all(variant: str, exchanges: AllToAllBudget) -> None:
    extrapolated = "" if exchanges.measured else ", never measured between nodes, so extrapolated"
    time_ms, interval_ms = times.central(exchanges.time, 1e3, 3), times.interval(exchanges.time, 1e3, 3)
    say(
        f"{variant}: {number(exchanges.calls)} AllToAll take {time_ms} ms by measurements (90 %: "
        f"{interval_ms}){extrapolated}; no total includes them"
    )


CALIBRATED_US = ("calibrated us", f"{times.INTERVAL} us", "calibrated ms")
CALIBRATED_MS = ("calibrated ms", f"{times.INTERVAL} ms")


def _part(part: BudgetPart, shown: Shown) -> list[object]:
    by_nccl = _ms(part.total_us), in_percent(part.share)
    return shown.of((part.name, number(part.calls)), by_nccl, _calibrated_ms(part.calibrated))


def _calibrated_ms(time: TimeInterval | None) -> tuple[object, ...]:
    return times.central(time, 1e3, 3), times.interval(time, 1e3, 3)


def _print_sizes(entries: Sequence[EntryPrices], shown: Shown) -> None:
    own = ("collective", "type", "size", "calls", "pick", *(["SMs"] if shown.overlap else []))
    columns = [str(name) for name in shown.of(own, ("NCCL us", "NCCL ms", "share"), CALIBRATED_US)]
    if shown.exact:
        print_table("by size", columns, [_size(entry, shown) for entry in entries], SPARE)
    else:
        print_table("by sizes together", columns, [_bucket(row, shown) for row in buckets(entries)], SPARE)


def _size(entry: EntryPrices, shown: Shown) -> list[object]:
    price = entry.prices[0]
    kind = (*_kind(entry.call), number(entry.calls))
    if isinstance(price, NoPrice):
        return shown.of((*kind, *(2 if shown.overlap else 1) * ("-",)), 3 * ("-",), 3 * ("-",))
    calibrated = price.calibrated
    each, total = (calibrated.each, calibrated.total) if calibrated else (None, None)
    return shown.of(
        (*kind, price.name, *([price.channels] if shown.overlap else [])),
        (f"{price.time_us:.2f}", _ms(price.total_us), in_percent(price.share)),
        (times.central(each), times.interval(each), times.central(total, 1e3, 3)),
    )


def _bucket(row: Bucket, shown: Shown) -> list[object]:
    pick, *more = row.picks
    total = row.calibrated
    each = total.times(1 / row.calls) if total and row.calls else None
    picks = f"{pick} and {len(more)} more" if more else pick
    kind = row.collective.name, ", ".join(row.dtypes), f"from {human_bytes(row.from_bytes)}", number(row.calls)
    return shown.of(
        (*kind, picks, *([span(row.channels)] if shown.overlap else [])),
        (f"{row.time_us:.2f}", _ms(row.total_us), in_percent(row.share)),
        (times.central(each), times.interval(each), times.central(total, 1e3, 3)),
    )


def _column(variant: VariantBudget, shown: Shown) -> list[object]:
    by_nccl, by_calibration = ("-", "-"), "-"
    if variant.changes:
        by_nccl = f"{variant.difference_us / 1000:+.3f}", f"{100 * variant.difference:+.1f} %"
        if calibrated := variant.calibrated:
            by_calibration = times.change_between(
                calibrated.compared.difference_low, calibrated.compared.difference_high
            )
    total = variant.calibrated.total if variant.calibrated else None
    return shown.of((variant.name,), (_ms(variant.total_us), *by_nccl), (*_calibrated_ms(total), by_calibration))


SPARE = ("type", "calibrated ms", "NCCL ms", "share")  # where little room is
CHANGE_COLUMNS = ("collective", "type", "size", "calls", "from", "to", "us each", "now us", "difference ms")


def _print_changes(base: str, other: VariantBudget) -> None:
    changes = [each for each in other.changes if each.before != each.after or abs(each.difference_us) >= LEAST_US]
    if not changes and not other.not_compared_calls:
        say(f"{other.name}: the same picks as {base}, and times that differ by less than {LEAST_US} us\n")
    if not changes:
        return
    rows = [
        (
            *_kind(change.call),
            number(change.calls),
            change.before,
            change.after,
            f"{change.before_us:.2f}",
            f"{change.after_us:.2f}",
            f"{change.difference_us / 1000:+.3f}",
        )
        for change in changes[:TOP]
    ]
    print_table(
        f"which calls make up the difference between {other.name} and {base}, by NCCL's prediction",
        CHANGE_COLUMNS,
        rows,
    )
    if rest := changes[TOP:]:
        say(f"and {len(rest)} more: {sum(each.difference_us for each in rest) / 1000:+.3f} ms\n")


def _print_apart(base: str, other: VariantBudget) -> None:
    """Prints the calls whose two times come from different models of NCCL, so that no difference includes them."""
    if other.not_compared_calls:
        where = f"on a symmetric kernel in one of {other.name} and {base}"
        say(f"not compared: {_calls(other.not_compared_calls)} {where}, {OTHER_MODEL}\n")


OTHER_MODEL = "by an algorithm in the other: NCCL does not compare the two models"
KERNEL_COLUMNS = ("collective", "type", "size", "calls", "kernels", "least us", "median us", "predicted us", "ratio")


def _print_kernels(entries: Sequence[EntryPrices], total: AllKernels) -> None:
    rows = []
    for entry in entries:
        kernels, price = entry.kernels, entry.prices[0]
        if kernels and isinstance(price, PriceOf):
            rows.append(
                (
                    *_kind(entry.call),
                    number(entry.calls),
                    kernels.calls,
                    f"{kernels.least_us:.2f}",
                    f"{kernels.median_us:.2f}",
                    f"{price.time_us:.2f}",
                    f"{kernels.median_us / price.time_us:.2f}",
                )
            )
    print_table("measured kernels of the trace (their times include waiting for other ranks)", KERNEL_COLUMNS, rows)
    say(f"{plural(total.calls, 'kernel')} took {_ms(total.measured_us)} ms; predicted {_ms(total.predicted_us)} ms\n")


REGRET_COLUMNS = ("collective", "type", "size", "calls", "pick", "us", "best", "us", "lost ms", "sizes")


def _print_regret(variant: str, total: BudgetRegret, rows: Sequence[tuple[EntryPrices, PriceOf | NoPrice]]) -> None:
    priced = [(entry, price) for entry, price in rows if isinstance(price, PriceOf)]
    lost = [
        (entry, price, measured)
        for entry, price in priced
        if isinstance(measured := price.measured, MeasuredPrice) and measured.regret_us > 0
    ]
    lost.sort(key=lambda row: -row[2].regret_us)
    if lost:
        cells = [
            (
                *_kind(entry.call),
                number(entry.calls),
                price.name,
                f"{measured.pick_us:.2f}",
                measured.best,
                f"{measured.best_us:.2f}",
                _ms(measured.regret_us),
                "between" if measured.interpolated else total.times,
            )
            for entry, price, measured in lost[:TOP]
        ]
        more = f", {len(lost) - TOP} sizes more" if len(lost) > TOP else ""
        title = (
            f"what the picks of {variant} lose against the best choice, by the {total.times} times of "
            f"{total.file}{more}"
        )
        print_table(title, REGRET_COLUMNS, cells)
    reasons: dict[str, float] = defaultdict(float)
    for entry, price in priced:
        if isinstance(price.measured, Unpriced):
            reasons[f"{entry.call.collective.name}: {price.measured.reason}"] += entry.calls
    say(
        f"{variant}: {_calls(total.calls)} take {_ms(total.pick_us)} ms by {total.times} times, "
        f"{_ms(total.best_us)} ms by the best: regret {_ms(total.regret_us)} ms, {in_percent(total.regret)}; "
        f"{number(total.interpolated_calls)} of them between {total.times} sizes"
    )
    for reason, calls in reasons.items():
        say(f"not measured: {_calls(calls)}, {reason}")
    say()


def _print_unpriced(variant: str, rows: Sequence[tuple[EntryPrices, PriceOf | NoPrice]]) -> None:
    for entry, price in rows:
        if isinstance(price, NoPrice):
            kind = " ".join(_kind(entry.call))
            say(f"no price in {variant}: {number(entry.calls)} x {kind}: {price.reason}")


def _kind(call: Call) -> tuple[str, ...]:
    op = "" if call.op is Op.sum else f" {call.op.name}"
    return call.collective.name, call.dtype.name + op, human_bytes(call.bytes)


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.3f}"


def group_options(function: F) -> F:
    """Options for the parameters ``job``, ``rank`` and ``by_group``."""
    return stacked(
        function,
        options.option(
            "--job",
            "How the job splits its ranks, such as tp=4,pp=2. Keys: tp, cp, pp, ep, etp, replicate (part of dp, "
            "which gets the remaining ranks), order=tp-cp-ep-dp-pp. The calls of each group are priced on the "
            "group's own communicator.",
            metavar="DEGREES",
        ),
        options.option("--rank", "With --job: the rank that wrote the FILEs. [default: 0]", type=int),
        options.flag(
            "--by-group",
            "Price the calls of each communicator on its own ranks as --job does, if FILEs say which ranks these are.",
        ),
    )


def job_of(given: Mapping[str, Any], ranks: int, shares: bool) -> JobGroups | None:
    """The job that the options describe; None if all calls are on one communicator. BadInput for a contradiction."""
    job, rank, by_group = (given[name] for name in ("job", "rank", "by_group"))
    if job is None and rank is not None:
        raise BadInput("--rank only applies with --job")
    if job is None and not by_group:
        if shares:
            raise BadInput(
                "--shared needs --ranks, --job or --by-group: it means that some ranks share the resources of the "
                "communicator of all ranks"
            )
        return None
    return JobGroups(None if job is None else layout_of(job, ranks), rank or 0, shares)


def check_beside(job: JobGroups, **given: object) -> None:
    """Raises BadInput for options that describe a single communicator, if the job has several."""
    if beside := [name for name, value in given.items() if value]:
        options = ", ".join("--" + name.replace("_", "-") for name in beside)
        whose = "--by-group" if job.layout is None else "--job"
        raise BadInput(
            f"{options} only applies to a single communicator, and {whose} describes several: remove one of the two"
        )


STEP_OPTIONS = ("sequence", "micro_batches", "sp", "zero", "imbalance")


def _models(begun: str) -> list[CompletionItem]:
    from tuner.times.costmodels import step

    return completing(step.known_models(), begun)


def model_options(function: F) -> F:
    """Options for the parameter ``model``: a training step of a named model, or None."""

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        name, asked = given.pop("model"), {each: given.pop(each) for each in STEP_OPTIONS}
        said = {each: value for each, value in asked.items() if value is not None and value is not False}
        if name is None:
            if said:
                options_said = ", ".join("--" + each.replace("_", "-") for each in said)
                raise BadInput(f"{options_said} only applies to a training step of a model: add --model")
            return {"model": None}
        if options.is_given("dtype"):
            said["dtype"] = given["call"].dtype
        return {"model": ModelStep(name, sequence_parallel=said.pop("sp", False), **said)}

    return packing(
        function,
        packed,
        options.option(
            "--model",
            "Instead of FILEs: price a training step of a model, such as llama-3-70b, in bfloat16 unless --dtype "
            "says another type; --job says how the model is split.",
            metavar="NAME",
            shell_complete=lambda _ctx, _option, begun: _models(begun),
        ),
        options.option("--sequence", "Tokens per sequence. [default: the model's]", type=click.IntRange(1)),
        options.option(
            "--micro-batches", "Micro-batches in a step; each has one sequence. [default: 1]", type=click.IntRange(1)
        ),
        options.flag("--sp", "Use sequence parallelism with tensor parallelism."),
        options.option("--zero", "ZeRO's stage, 0 to 3. [default: 0]", type=click.IntRange(0, 3)),
        options.option(
            "--imbalance",
            "How many times the mean number of tokens the busiest expert rank gets; its AllToAll is priced. "
            "[default: 1]",
            type=float,
        ),
    )


def show_groups(title: str, priced: JobBudget, shown: Shown) -> None:
    """Prints a table of the groups, then each group with its calls."""
    if shown_as_json(priced):
        return
    of_job = f", job {priced.job}, rank {priced.rank}" if priced.job else ""
    sums = (_job_total(one, shown, len(priced.totals) > 1) for one in priced.totals)
    say(f"{title}{of_job}: {', '.join(sums)}, one after the other")
    for total in priced.totals if shown.calibrated else ():
        if total.all_to_all:
            _print_all_to_all(total.variant, total.all_to_all)
    if priced.assumed:
        say(f"assumed: {priced.assumed}")
    say()
    whole_us = priced.totals[0].total_us
    columns = ("group", "ranks", "groups", "nodes", "calls", "NCCL ms", "share", "sends and receives")
    print_table("by group", columns, [_row(one, whole_us) for one in priced.groups])
    for left in priced.left_out:
        say(f"left out: {left}")
    for one in priced.groups:
        say(f"\n== group {one.group} ==\n")
        few = len(one.budget.entries) <= MOST_ROWS
        show(one.communicator, one.budget, replace(shown, exact=shown.exact or few))


def _job_total(one: GroupTotal, shown: Shown, named: bool) -> str:
    by_nccl = f"{f'{one.variant} ' if named else ''}{one.total_us / 1000:.3f} ms by NCCL's own prediction"
    if not shown.calibrated or one.calibrated is None:
        return by_nccl
    central, interval = _calibrated_ms(one.calibrated)
    return f"{by_nccl}, {central} ms by measurements (90 %: {interval})"


def _row(one: GroupBudget, whole_us: float) -> tuple[object, ...]:
    first = one.budget.variants[0]
    return (
        one.group,
        one.ranks,
        plain(one.groups),
        one.nodes,
        number(first.priced_calls),
        f"{first.total_us / 1000:.3f}",
        f"{first.total_us / whole_us:.1%}".replace("%", " %") if whole_us else "-",
        number(sum(each.calls for each in first.exchanges)),
    )


@click.command(name="budget", cls=options.Command)
@options.under("Which calls, and on which ranks", "--ranks", "--communicator", "--job", "--rank", "--by-group")
@options.under("Compared with", "--setting", "--table", "--measured", "--arm")
@options.under("Output", "--overlap", "--exact", "--parquet", "--prometheus")
@options.under("Step of a model", "--sequence", "--micro-batches", "--sp", "--zero", "--imbalance")
@click.argument("files", nargs=-1, type=FILE, metavar="[FILE...]")
@options.communicator_options(tuner=True)
@options.call_options(windows=False)
@model_options
@engine_options()
@serve_options
@communicators_options("Count")
@group_options
@options.option(
    "--setting",
    "settings",
    "Add a column with these NCCL variables, for every release; repeatable.",
    multiple=True,
    metavar="NAME=VALUE[,...]",
)
@options.option(
    "--table",
    "tables",
    "Add a column with the choices of this decision table, for every release; repeatable.",
    multiple=True,
    type=FILE,
)
@options.file_option(
    "--measured",
    "FILE",
    "Measured times of this communicator, from 'nccl-tuner measure' or nccl-tests: adds how much the picks lose "
    "against the measured best (regret). Repeatable, for runs whose NCCL_ALGO and NCCL_PROTO say what they forced.",
    multiple=True,
)
@arm_option
@options.time_options("both")
@options.flag("--overlap", "Show how many SMs calls take away from computation: one for each channel of the pick.")
@options.flag("--exact", f"Show a row for every size, even if there are more than {MOST_ROWS}.")
@export_options
@options.json_option
def command(
    files: tuple[Path, ...],
    call: Request,
    model: ModelStep | None,
    engine: EngineOptions | None,
    serve: bool,
    ranks: int | tuple[int, ...] | None,
    communicators: tuple[str, ...],
    settings: tuple[str, ...],
    tables: tuple[Path, ...],
    measured: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    times: TimesWanted | None,
    overlap: bool,
    exact: bool,
    exports: Exports,
    communicator: options.CommunicatorOptions,
    **grouping: Any,
) -> None:
    """Predicts how long the collectives in FILEs take, and which of them take most of the time.

    A FILE is a CSV or JSON list (collective, bytes or count and dtype, calls), a NCCL log
    (NCCL_DEBUG_SUBSYS=INIT,COLL), a trace of PyTorch's profiler, a Flight Recorder dump, an export of Nsight Systems to
    SQLite, what NCCL Inspector or NCCL's example profiler plugin wrote, or DeepSpeed's communication log; its content
    decides which. Each may be gzipped. Calls of several FILEs are added up, so give the file of one rank only. A column
    "bytes" is NCCL's nBytes; counts are elements as in NCCL's calls, and are multiplied by the ranks for AllGather and
    ReduceScatter.

    The time is the sum of NCCL's own predictions, and of calibrated times if a calibration fits the machine, as if one
    call ran after the other: calls that overlap with each other or with computing cost a job less, ranks that wait for
    each other and SMs that computing shares cost it more. Releases in --nccl are separated by commas; all others are
    compared with the first. --dtype and --op apply to calls for which the file does not say them; --buffers and
    --in-place to all calls, as no file says them. With --buffers window, calls on symmetric kernels are timed by NCCL's
    model of these, and calls on copy engines have no time.

    \b
    nccl-tuner budget steps.csv --machine dgx-h100 --nodes 2 --nccl 2.22.3,2.28.9
    nccl-tuner budget --model llama-3-70b --machine dgx-h100 --nodes 64 --job tp=8,pp=4
    nccl-tuner budget --serve --engine vllm@0.33.0 --model llama-3-70b --job tp=8 --machine dgx-h100
    nccl-tuner budget steps.csv --machine dgx-b200 --nccl 2.28.9,2.32.3 --buffers window
    nccl-tuner budget trace.json.gz --machine dgx-h100 --nodes 2 --setting NCCL_ALGO=Ring --measured run.jsonl --json
    """
    served_as = {name: grouping.pop(name) for name in SERVED}
    if serve:
        dtype = call.dtype if options.is_given("dtype") else None
        show_served_step(engine, served_as, None if model is None else model.name, grouping["job"], communicator, dtype)
        return
    if engine is not None:
        raise BadInput("--engine only applies with --serve in this command: add --serve")
    if bool(files) == bool(model):
        raise BadInput("name either FILEs with the calls of the job, or --model NAME with --job, not both")
    if model and (of_files := [name for name in ("rank", "by_group") if grouping[name]]):
        raise BadInput(
            f"--{of_files[0].replace('_', '-')} only applies to FILEs: a step of --model is always priced on rank 0"
        )
    count, part = count_or_part(ranks)
    shared = communicator["shared"] and part is None
    communicator = communicator.but(ranks=part, shared=communicator["shared"] and part is not None)
    nccl = communicator["nccl"]
    names = [name.strip() for name in nccl.split(",")] if nccl else [None]
    scenarios = [communicator.scenario(nccl=name) for name in names]
    if count is not None and count < scenarios[0].ranks and not model:
        # calls of a few ranks are not priced on all: they are taken to be the first, as most programs place them
        communicator = communicator.but(ranks=tuple(range(count)))
        say(
            f"note: the calls are priced on ranks 0 to {count - 1} of {scenarios[0].ranks}; name other ranks with "
            "--ranks",
            err=True,
        )
        scenarios, count = [communicator.scenario(nccl=name) for name in names], None
    wanted = replace(
        job.wanted_of(scenarios[0], count),
        communicators=communicators,
        dtype=call.dtype,
        op=call.op,
        buffers=call.buffers,
        in_place=call.in_place,
    )
    if model:
        grouping["job"] = grouping["job"] or f"dp={scenarios[0].ranks}"
    lists = read_files(files, scenarios[0].ranks)
    if nccl is None:
        scenarios = [as_they_ran(lists, communicator, scenarios[0], "priced")]
    else:
        for line in job.of_other_releases(lists, [each.nccl for each in scenarios]):
            say(f"note: {line}", err=True)
    for each in job.BudgetComparison(scenarios, settings, tables, times).variants():
        say_notes(each.scenario)
    times_of = _measured(measured, {**communicator.given, "labelled": labelled}, scenarios[0])
    shown = Shown(exact=exact, nccl=times is None or times.beside_nccl, calibrated=times is not None, overlap=overlap)
    if (groups := job_of(grouping, scenarios[0].ranks, shared)) is not None:
        beside = {"ranks": ranks, "measured": measured, "arm": labelled, "parquet": exports.parquet}
        check_beside(groups, **beside, csv=exports.as_csv, prometheus=exports.as_prometheus)
        compared = job.BudgetComparison(scenarios, settings, tables, times)
        if model:
            priced = grouped.of_model(model, compared, wanted, groups)
        else:
            priced = grouped.of_lists(lists, compared, wanted, groups)
        show_groups(scenarios[0].title, priced, shown)
        return
    budget = job.of_lists(lists, job.BudgetComparison(scenarios, settings, tables, times), wanted, times_of)
    if exports.deliver(budget.by_size, of_budget(budget)):
        return
    if not shown_as_json(budget):
        show(
            scenarios[0].title,
            budget,
            replace(shown, exact=exact or len(budget.entries) <= MOST_ROWS),
        )


def _measured(files: tuple[Path, ...], given: Mapping[str, Any], described: Scenario) -> MeasuredRuns | None:
    """Reads measured times; None without files. One file of 'measure' is read as it is; several files, and output of
    nccl-tests, are arms of the communicator.
    """
    if not files and not given["labelled"]:
        return None
    if not given["labelled"] and len(files) == 1 and not MeasurementFile(files[0]).forces:
        return read_runs(files[0], described)
    names = [*files, *(path for _, path in given["labelled"])]
    said = any(MeasurementFile(path).release for path in names)
    from tuner.times.regret.arms import of_communicator  # slow to load

    placed, _ = runs_there(files, {**given, "nccl": None if said else described.nccl})
    notes = (
        f"{len(names)} files of measured times are from NCCL {placed.site.nccl}; they are used as if they were from "
        f"{described.title}",
    )
    return MeasuredRuns(of_communicator(placed, described), Path(" ".join(map(str, names))), notes)
