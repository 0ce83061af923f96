"""``nccl-tuner accept``: is a cluster as fast as its machines should be?"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from tuner.answers.charts import ready_to_save
from tuner.base import findings
from tuner.base.errors import BadInput, CannotBeJudged, TunerError, UnknownRelease
from tuner.base.findings import Finding, Severity
from tuner.base.names import Collective, DataType, Op
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.output import human_bytes, note_after, print_table, say, show, shown_as_json
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.times.acceptance import accept, judge
from tuner.times.acceptance import accept as acceptance
from tuner.times.acceptance.accept import Acceptance, AcceptOptions, JudgedSize
from tuner.times.acceptance.expected import Expectation, Whose
from tuner.times.measured.checks import nearest_release
from tuner.times.measured.formats import Given, MeasurementFile
from tuner.times.measured.reader import file_of

COLUMNS = ("size", "pick", "us", "expected us", "from", "to", "busbw GB/s", "floor GB/s", "verdict")
SPARE = ("floor GB/s", "busbw GB/s")  # where little room is
FLOOR_COLUMNS = ("collective", "size", "pick", "expected us", "busbw GB/s", "floor GB/s")
NOT_MEASURED = "*"
RULE_COLUMNS = ("size", "expected by", "of it", "limit", "alone", "verdict")
RULE = (
    "rule: a measured time divided by the expected one (column 'of it') must stay below a limit, which was learnt "
    "from healthy public runs, with each site left out in turn; for how calls are launched, 60 us are allowed on top "
    "below 1 MiB and 25 us up to 16 MiB",
    "slow sizes only fail together: the two largest, three of four in a row (between nodes and below 1 GiB with "
    "wider limits), or more than half of those below 64 KiB; a single size fails if it is above the limit in column "
    "'alone'",
)
# Findings that are said below the table: how the answer came about, and what it leaves open.
_AFTER = frozenset(
    f"accept.{name}"
    for name in ("expected_by", "starts_late", "open_sizes", "skipped", "ran_otherwise", "beside_model")
)
_CAUSE = "accept.may_be_"  # followed by what the cause is


@click.command(name="accept", cls=options.Command)
@options.under("Floors", "--bytes", "--dtype", "--floors")
@options.under("Picture", "--plot")
@click.argument("files", nargs=-1, type=FILE, metavar="[RESULTS]...")
@of_all_ranks
@options.communicator_options()
@options.program_option("The collective that was run, if RESULTS do not name it.")
@options.calibration_option(
    "Take the expected times from this calibration.", ", else NCCL's own times with their known error"
)
@options.file_option(
    "--like", "FILE", "Compare with this healthy run of the same cluster instead of the expected times."
)
@options.flag("--floors", "Print the minimum bandwidths that pass, for use as thresholds; takes no RESULTS.")
@options.sizes_option(
    "Sizes for which --floors prints bandwidths, as NCCL's nBytes.", default="1M,4M,16M,64M,256M,1G,4G"
)
@options.option(
    "--dtype", "Data type for --floors, by NCCL's name.", type=options.Named(DataType, "type"), default="float32"
)
@options.flag("--explain", "Explain the verdict: the rule, its limits, and the runs that RESULTS were compared with.")
@options.file_option("--junit", "junit_file", "FILE.xml", "Write JUnit XML for CI.")
@options.file_option(
    "--plot",
    "picture",
    "FILE.png",
    "Draw the run, comparable healthy runs, and the range that passes (.png, .svg, .pdf).",
)
@options.json_option
def command(
    files: tuple[Path, ...],
    program: str,
    calibration: str | None,
    like: Path | None,
    floors: bool,
    sizes: list[int],
    dtype: DataType,
    explain: bool,
    junit_file: Path | None,
    picture: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Passes or fails RESULTS, by collective and size, or says that they cannot be judged; names likely causes of a
    loss.

    RESULTS are what nccl-tests prints or writes as JSON, runs of 'measure', columns, or names of shipped tables. A run
    fails as too slow if three of four sizes in a row, or the two largest, take longer than healthy public runs with the
    same kind of GPUs, links and nodes, or if one size takes much longer. It fails as too fast if its links cannot be
    that fast. --explain says how a verdict came about. If no known run is similar enough, sizes cannot be judged,
    unless you give a run of your own from a healthy day (--like FILE, or 'nccl-tuner measured FILE --keep NAME'). Exit
    code 1 if anything fails, 3 if nothing fails but the large sizes cannot be judged.

    \b
    nccl-tuner accept all_reduce.log --machine dgx-h100 --nodes 2 --nccl 2.28.9 --junit accept.xml
    nccl-tuner accept --floors --machine dgx-h100 --nccl 2.28.9
    """
    if picture is not None:
        ready_to_save(picture)
    for each in () if floors else files:
        file_of(each)  # a name that is none is said before a machine is asked for
    if floors:
        if files or junit_file is not None or picture is not None:
            raise BadInput("--floors only prints bandwidths and judges no run: remove RESULTS, --junit and --plot")
        described = _with_known_release(communicator)[0].scenario()
        _print_floors(Expectation(described, calibration), Request(Collective.AllReduce, dtype, Op.sum), sizes)
        return
    try:
        result = _judged(files, communicator, program, calibration, like)
    except TunerError as error:  # wrong results are said whatever else can be judged
        given = Given(nodes=communicator["nodes"], collective=program)
        wrong = acceptance.wrong_alone(files, given, error)
        if wrong is None:
            raise
        result = wrong
    if picture is not None and (result.sizes or not result.wrong_results):
        save_judged(result, picture)
    if junit_file is not None:
        accept.write_junit(junit_file, result)
    show(result, lambda found: _print(found, explain))
    if not result.passes:
        click.get_current_context().exit(1 if result.judged else 3)


def _with_known_release(communicator: options.CommunicatorOptions) -> tuple[options.CommunicatorOptions, str]:
    """The options, with the nearest release that is known; and a note that it stands in for the one that was named."""
    nccl, stand_in = communicator["nccl"], ""
    with contextlib.suppress(UnknownRelease):  # said where the scenario is made
        nearest, stand_in = nearest_release(nccl) if nccl else (nccl, "")
        communicator = communicator.but(nccl=nearest) if stand_in else communicator
    return communicator, stand_in


def _judged(
    files: tuple[Path, ...],
    communicator: options.CommunicatorOptions,
    program: str,
    calibration: str | None,
    like: Path | None,
) -> Acceptance:
    """The verdict on files, with the errors of :func:`accept.accept`; BadInput if their machine is not known."""
    if files and not communicator.says_where:
        communicator = communicator.but(machine=_only_machine(files[0]))
    nccl = communicator["nccl"]
    communicator, stand_in = _with_known_release(communicator)
    described = communicator.scenario()
    if not files:
        raise BadInput("no RESULTS: name files of nccl-tests or of 'nccl-tuner measure', or add --floors")
    given = Given(
        nccl="" if not nccl else nccl if stand_in else described.nccl,
        nodes=_hosts(communicator, in_domains=described.resolve().own.trays is not None),
        gpus_per_node=communicator["gpus_per_node"],
        collective=program,
    )
    return acceptance.accept(files, AcceptOptions(described, given, calibration, like))


def save_judged(result: Acceptance, file: Path) -> None:
    """Draws what was judged. BadInput if nothing was judged, or if the picture cannot be written."""
    from tuner.answers.charts import judged, save

    if not result.sizes:
        raise BadInput(f"--plot {file}: no size was judged")
    save(judged.of_acceptance(result), file)


def _hosts(communicator: options.CommunicatorOptions, *, in_domains: bool) -> int | None:
    """The number of hosts that the user asked about: nodes, or the trays of all NVLink domains; None if no option says
    it."""
    nodes: int | None = communicator["nodes"] if options.is_given("nodes") else None
    trays: int | None = communicator["trays"]
    if trays:
        return trays * (nodes or 1)
    return None if in_domains else nodes


def _only_machine(file: Path) -> str:
    """The machine that the file itself names, or the only one of the catalogue that has the results' GPUs; a note names
    the latter.

    BadInput if there are several (it lists them) or none, and if the results cannot be read.
    """
    from tuner.jobs.diagnosis.results import machines_with_such_gpus

    results = MeasurementFile(file_of(file))
    if (named := results.table(Given()).header.machine) in catalogue.names():
        return named
    gpus, names = machines_with_such_gpus(results)
    if of_amd := acceptance.not_of_nccl(gpus or ""):
        raise CannotBeJudged(f"{file}: {of_amd}")
    if gpus and len(names) == 1:
        taken = Finding("accept.assumed_machine", Severity.NOTE, {"machine": names[0], "gpus": gpus})
        note_after(findings.words(taken))
        return names[0]
    such = (
        f"; these machines have {gpus}: {', '.join(names)}"
        if names
        else f"; no machine of the catalogue has {gpus}"
        if gpus
        else ""
    )
    raise BadInput(
        f"name the machine that {file} was measured on: --machine NAME ('nccl-tuner machines' lists them), or "
        f"--topology FILE.xml{such}"
    )


def _print(result: Acceptance, explain: bool) -> None:
    notes = [each for each in result.findings if each.code in _AFTER]
    for each in result.findings:
        if each not in notes:
            _say(each)
    if result.sizes:
        click.echo()
    for title, sizes in groupby(result.sizes, accept.suite):
        own = list(sizes)
        if own[0].in_place and not explain and _says_no_more(own, result.sizes):
            continue
        several = len({each.file for each in result.sizes}) > 1
        print_table(f"{own[0].file}: {title}" if several else title, COLUMNS, _rows(own), SPARE)
        if explain:
            print_table("how the verdict came about", RULE_COLUMNS, _rules(own))
    for each in notes:
        _say(each)
    _say_extrapolated(result.sizes)
    if explain:
        _explain(result)


def _say(finding: Finding) -> None:
    explained = findings.explained(finding)
    says = explained.says.rstrip(";")
    if finding.code.startswith(_CAUSE):
        say(f"- {says}; to see it: {explained.do}")
        return
    problem = finding.code == "accept.rows" and finding.severity is Severity.FAULT
    say(f"refused: {says}" if problem else says)
    if explained.do and finding.severity is not Severity.NOTE:
        label = "to have it judged, you need" if finding.severity is Severity.UNKNOWN else "do"
        say(f"{label}: {explained.do}")


def _says_no_more(in_place: list[JudgedSize], every: Sequence[JudgedSize]) -> bool:
    """Whether the same calls were also measured out of place, and each size that fails in place fails there, too."""
    kind = _kind(in_place[0])
    there = {each.bytes: each.verdict for each in every if not each.in_place and _kind(each) == kind}
    return bool(there) and not any(
        each.verdict.fails and not there.get(each.bytes, each.verdict).fails for each in in_place
    )


def _kind(size: JudgedSize) -> tuple[object, ...]:
    settings = tuple(sorted(size.settings.items()))
    return size.file, size.nccl, size.collective, size.dtype, size.nodes, size.gpus_per_node, settings


def _rules(sizes: list[JudgedSize]) -> Iterator[tuple[object, ...]]:
    for each in sizes:
        compared = f"{each.runs} {each.time}" if each.runs else str(each.time)
        known = not math.isnan(each.expected_us)
        yield (
            human_bytes(each.bytes),
            compared if known else "nothing",
            f"{each.time_us / each.expected_us:.2f}" if known else "-",
            f"{each.limit:.2f}" if known else "-",
            f"{each.limit_alone:.2f}" if known and not math.isinf(each.limit_alone) else "-",
            each.verdict,
        )


def _explain(result: Acceptance) -> None:
    """Prints the rule and the runs that were compared."""
    for text in RULE:
        say(text)
    for each in result.comparisons:
        say(f"{each.collective} of {human_bytes(each.bytes)} was compared with {', '.join(each.names)}")


def _extrapolated(each: JudgedSize | judge.Floor) -> bool:
    return each.time is Whose.calibrated and not each.measured


def _pick(each: JudgedSize | judge.Floor) -> str:
    return f"{each.pick}{NOT_MEASURED if _extrapolated(each) else ''}"


def _say_extrapolated(sizes: Sequence[JudgedSize | judge.Floor]) -> None:
    if any(map(_extrapolated, sizes)):
        say(f"{NOT_MEASURED} was never measured for this collective: its time is extrapolated, with a wide interval")


def _or_dash(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _rows(sizes: list[JudgedSize]) -> Iterator[tuple[object, ...]]:
    for each in sizes:
        yield (
            human_bytes(each.bytes),
            _pick(each),
            f"{each.time_us:.2f}",
            *(_or_dash(value) for value in (each.expected_us, each.low_us, each.high_us)),
            f"{each.busbw_gbs:.2f}",
            _or_dash(each.floor_gbs),
            each.verdict,
        )


def _print_floors(expectation: Expectation, like: Request, sizes: list[int]) -> None:
    selection = Selection(expectation.scenario.communicator())
    requests = options.runnable({"here": selection}, [], like)
    floors = list(judge.floors(expectation, requests, sizes))
    if shown_as_json(
        {"machine": expectation.scenario.title, "expected_by": list(expectation.reasons), "floors": floors}
    ):
        return
    rows = (
        (
            each.collective,
            human_bytes(each.bytes),
            _pick(each),
            f"{each.expected_us:.2f}",
            f"{each.expected_busbw_gbs:.2f}",
            f"{each.floor_gbs:.2f}",
        )
        for each in floors
    )
    print_table(f"{expectation.scenario.title}, {like.dtype.name}", FLOOR_COLUMNS, rows)
    for reason in expectation.reasons:
        say(f"expected times: {reason}")
    _say_extrapolated(floors)
