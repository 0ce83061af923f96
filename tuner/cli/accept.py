"""``nccl-tuner accept``: is a cluster as fast as its machines should be?"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import click

from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.output import human_bytes, json_wanted, plural, print_json, print_table, say, show
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.times.acceptance import accept, judge
from tuner.times.acceptance import accept as acceptance
from tuner.times.acceptance.accept import REST, Acceptance, AcceptOptions, JudgedSize
from tuner.times.acceptance.expected import OTHER_LINKS, Expectation, Whose
from tuner.times.acceptance.judge import WIDEST, Verdict
from tuner.times.measured.formats import Given, MeasurementFile

COLUMNS = ("size", "pick", "us", "expected us", "from", "to", "busbw GB/s", "floor GB/s", "verdict")
SPARE = ("floor GB/s", "busbw GB/s")  # where little room is
FLOOR_COLUMNS = ("collective", "size", "pick", "expected us", "busbw GB/s", "floor GB/s")
NOT_MEASURED = "*"


@click.command(name="accept", cls=options.Command)
@options.under("Floors", "--bytes", "--dtype", "--floors")
@click.argument("files", nargs=-1, type=FILE, metavar="[RESULTS]...")
@of_all_ranks
@options.communicator_options()
@options.option(
    "--collective",
    "program",
    "What was run, where RESULTS do not say it.",
    default="",
    show_default=False,
    metavar="NAME",
)
@options.option(
    "--calibration",
    "Expected times by this calibration. [default: that of the machine, else of another with GPUs of its "
    "generation, else NCCL's own times with their known error]",
    metavar="NAME|FILE",
)
@options.file_option(
    "--like", "FILE", "Judge by this run of the same cluster on a healthy day instead, whatever the model says."
)
@options.flag("--floors", "Print the bandwidths that pass, for a gate; without RESULTS.")
@options.option(
    "--bytes", "sizes", "Sizes of --floors, NCCL's nBytes.", type=options.SIZES, default="1M,4M,16M,64M,256M,1G,4G"
)
@options.option(
    "--dtype", "Data type of --floors, NCCL's name.", type=options.Named(DataType, "type"), default="float32"
)
@options.file_option("--junit", "junit_file", "FILE.xml", "Write JUnit XML for CI.")
@options.json_option
def command(
    files: tuple[Path, ...],
    program: str,
    calibration: str | None,
    like: Path | None,
    floors: bool,
    sizes: list[int],
    dtype: DataType,
    junit_file: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Passes or fails RESULTS, by collective and size, or says that they cannot be judged, and what a loss points to.

    RESULTS are what nccl-tests prints or writes as JSON, runs of 'measure', columns, or names of shipped tables. Too
    slow are three sizes in a row, or the two largest, above the band in which 95 % of healthy machines lie; too fast is
    what the links cannot do. Where the band is wider than 1.3 times, a size cannot be judged: four rows of a healthy
    day ('nccl-tuner fit calibration --update'), or a reference run (--like), make it so. Exit code 1 where anything
    fails, 3 where nothing does and sizes from 1 MiB on cannot be judged.

    \b
    nccl-tuner accept all_reduce.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --junit accept.xml
    nccl-tuner accept --floors --machine dgx-h100 --nccl 2.28.9
    """
    if files and files[0].is_file() and not communicator.says_where and not floors:
        _ask_for_machine(files[0])
    described = communicator.scenario()
    if floors:
        if files or junit_file is not None:
            raise BadInput("--floors judges nothing; valid with it: no RESULTS, no --junit")
        _print_floors(Expectation(described, calibration), Request(Collective.AllReduce, dtype, Op.sum), sizes)
        return
    if not files:
        raise BadInput("no RESULTS; valid: files of nccl-tests or of 'nccl-tuner measure', or --floors")
    given = Given(
        nccl=described.nccl if communicator["nccl"] else "",
        nodes=communicator["nodes"] if options.is_given("nodes") else communicator["trays"],
        gpus_per_node=communicator["gpus_per_node"],
        collective=program,
    )
    result = acceptance.accept(files, AcceptOptions(described, given, calibration, like))
    if junit_file is not None:
        accept.write_junit(junit_file, result)
    show(result, _print)
    if not result.passes:
        click.get_current_context().exit(1 if result.judged else 3)


def _ask_for_machine(file: Path) -> NoReturn:
    """Raises BadInput with the machines that have such GPUs as the results name; of those that cannot be read why."""
    from tuner.jobs.diagnosis.results import machines_with_such_gpus

    gpus, names = machines_with_such_gpus(MeasurementFile(file))
    such = (
        f"; with {gpus}: {', '.join(names)}" if names else f"; no machine of the catalogue has {gpus}" if gpus else ""
    )
    raise BadInput(
        f"name the machine of {file}: --machine NAME (all: nccl-tuner machines), or --topology FILE.xml{such}"
    )


def _verdict(result: Acceptance) -> Iterator[str]:
    """The verdict in a line, and what it lacks."""
    failing = sum(each.verdict.fails for each in result.sizes)
    sizes_failed = f"{failing} of {len(result.sizes)} sizes fail"
    if result.judged and not failing and not result.passes:
        yield f"refused, for what is said of the files below; of the rest {sizes_failed}"
        return
    if result.judged:
        yield f"{'pass' if result.passes else 'FAIL'}: {sizes_failed}"
        return
    if result.missing[0].startswith(REST):
        yield f"cannot be judged: {sizes_failed}, but {'; '.join(result.missing)}, is missing"
        return
    open_sizes = sum(each.verdict is Verdict.not_judged for each in result.sizes)
    why = next(
        (each for each in result.expected_by if each.startswith(OTHER_LINKS)),
        f"the band of {open_sizes} of {len(result.sizes)} sizes is wider than {WIDEST:g} times",
    )
    slow = [each.in_words for each in result.adapter_shares if each.looks_slow]
    if slow:
        yield f"cannot be judged, but looks slow: {slow[0]}"
        yield f"not judged, as {why}"
    else:
        yield f"cannot be judged: {why}"
    yield (
        "what would let it be judged: four rows of a healthy day, spread over sizes ('nccl-tuner fit calibration "
        "--update'), or a run of this cluster on a healthy day (--like FILE)"
    )


def _print(result: Acceptance) -> None:
    for line in (*_verdict(result), *_causes(result)):
        say(line)
    click.echo()
    for title, sizes in groupby(result.sizes, accept.suite):
        own = list(sizes)
        several = len({each.file for each in result.sizes}) > 1
        print_table(f"{own[0].file}: {title}" if several else title, COLUMNS, _rows(own), SPARE)
    for line in _notes(result):
        say(line)


def _causes(result: Acceptance) -> Iterator[str]:
    """Causes of a loss, the likeliest first, and of a refusal."""
    for each in result.problems:
        yield f"{'refused: ' if each.refused else ''}{each.file}: {each.kind}: {each.text}"
    if result.wrong_results:
        yield f"refused: {plural(result.wrong_results, 'call')} had wrong results"
    for number, one in enumerate(result.diagnosis):
        before = "points to" if number == 0 else "or as well to"
        yield f"{before} {one.resource}: {one.what}"
    if any(each.verdict is Verdict.slow for each in result.sizes) and not result.diagnosis:
        yield "no single fault that is known here explains the loss"
    if result.passes_as:
        yield f"all sizes would pass as NCCL {', '.join(result.passes_as)}: is the release right?"


def _rows(sizes: list[JudgedSize]) -> Iterator[tuple[object, ...]]:
    for each in sizes:
        extrapolated = each.time is Whose.calibrated and not each.measured
        yield (
            human_bytes(each.bytes),
            f"{each.pick}{NOT_MEASURED if extrapolated else ''}",
            f"{each.time_us:.2f}",
            f"{each.expected_us:.2f}",
            f"{each.low_us:.2f}",
            f"{each.high_us:.2f}",
            f"{each.busbw_gbs:.2f}",
            f"{each.floor_gbs:.2f}",
            each.verdict,
        )


def _notes(result: Acceptance) -> Iterator[str]:
    for reason in result.expected_by:
        yield f"expected times: {reason}"
    if any(each.time is Whose.calibrated and not each.measured for each in result.sizes):
        yield f"{NOT_MEASURED} never measured for this collective: extrapolated, with a wide band"
    for start in result.start_extra:
        if start.extra_us:
            on = f"{start.nodes} x {start.gpus_per_node} GPUs"
            why = "the way of launching, or the host (CPU, NUMA)"
            yield f"{on}: calls start {start.extra_us:.1f} us later than expected: {why}"
    if result.judged and (count := sum(each.verdict is Verdict.not_judged for each in result.sizes)):
        yield f"cannot be judged: {count} sizes, whose band is wider than {WIDEST:g} times; they count for nothing"
    for call in () if result.passes else result.adapter_shares:
        yield call.in_words + (", so this looks slow" if call.looks_slow else "")
    for reason, count in result.skipped.items():
        yield f"not judged: {plural(count, 'row')} {reason}"
    otherwise = [each for each in result.sizes if each.executed not in (None, each.pick)]
    if otherwise:
        first = otherwise[0]
        on = f"{first.collective} of {human_bytes(first.bytes)} ran {first.executed} where NCCL would pick {first.pick}"
        of = f"{len(otherwise)} of {len(result.sizes)} sizes"
        yield f"NCCL's log says that something else ran than a healthy machine picks, at {of}: {on}"


def _print_floors(expectation: Expectation, like: Request, sizes: list[int]) -> None:
    selection = Selection(expectation.scenario.communicator())
    requests = options.runnable({"here": selection}, [], like)
    floors = list(judge.floors(expectation, requests, sizes))
    if json_wanted():
        print_json({"machine": expectation.scenario.title, "expected_by": list(expectation.reasons), "floors": floors})
        return
    rows = (
        (
            each.collective,
            human_bytes(each.bytes),
            f"{each.pick}{NOT_MEASURED if each.time is Whose.calibrated and not each.measured else ''}",
            f"{each.expected_us:.2f}",
            f"{each.expected_busbw_gbs:.2f}",
            f"{each.floor_gbs:.2f}",
        )
        for each in floors
    )
    print_table(f"{expectation.scenario.title}, {like.dtype.name}", FLOOR_COLUMNS, rows)
    for reason in expectation.reasons:
        say(f"expected times: {reason}")
    if any(each.time is Whose.calibrated and not each.measured for each in floors):
        say(f"{NOT_MEASURED} never measured for this collective: extrapolated, with a wide band")
