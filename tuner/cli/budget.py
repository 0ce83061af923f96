"""``nccl-tuner budget``: how long a job's collectives take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tuner.answers.calibrated import TimesWanted
from tuner.cli import budget_groups, budgeted, options
from tuner.cli.arm_options import arm_option, runs_there
from tuner.cli.exports import Exports, export_options
from tuner.cli.metrics import of_budget
from tuner.cli.output import print_json, say
from tuner.cli.trace_files import communicators_options, count_or_part, read_files
from tuner.jobs.workload import grouped, job, regret
from tuner.scenario import Scenario
from tuner.times.readers import measured_table


@click.command(name="budget", cls=options.Command)
@options.under("Which calls, and on which ranks", "--ranks", "--communicator", "--job", "--rank", "--by-group")
@options.under("Compared with", "--setting", "--table", "--measured", "--arm")
@options.under("Output", "--overlap", "--exact", "--parquet", "--prometheus")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@options.communicator_options(tuner=True)
@options.call_options(windows=False)
@communicators_options("Count")
@budget_groups.group_options
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE[,...]",
    help="A further column with these NCCL variables, in every release; repeatable.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A further column with the choices of a decision table, in every release; repeatable.",
)
@click.option(
    "--measured",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Times of this communicator ('nccl-tuner measure', nccl-tests): adds the regret of the picks; repeatable, for "
    "runs that say by NCCL_ALGO and NCCL_PROTO what they forced.",
)
@arm_option
@options.time_options("both")
@click.option(
    "--overlap", is_flag=True, help="The SMs that calls take from compute beside them: the channels of their picks."
)
@click.option(
    "--exact", is_flag=True, help=f"A row for every size, even where there are more than {budgeted.MOST_ROWS}."
)
@export_options
@options.json_option
def command(
    files: tuple[Path, ...],
    call: options.CallOptions,
    ranks: int | tuple[int, ...] | None,
    communicators: tuple[str, ...],
    settings: tuple[str, ...],
    tables: tuple[Path, ...],
    measured: tuple[Path, ...],
    labelled: tuple[tuple[str, Path], ...],
    times: TimesWanted | None,
    overlap: bool,
    exact: bool,
    as_csv: bool,
    parquet: Path | None,
    as_prometheus: bool,
    as_json: bool,
    communicator: options.CommunicatorOptions,
    **grouping: Any,
) -> None:
    """Predicted communication time of the collectives in FILEs, and where it goes.

    A FILE is a CSV or JSON list (collective, bytes or count and dtype, calls), a NCCL log
    (NCCL_DEBUG_SUBSYS=INIT,COLL), a trace of PyTorch's profiler, a Flight Recorder dump, an export of Nsight Systems to
    SQLite, what NCCL Inspector or NCCL's example profiler plugin wrote, or DeepSpeed's communication log; its content
    decides which. Each may be gzipped. Calls of several FILEs are added up, so give that of one rank. A column "bytes"
    is NCCL's nBytes; counts are elements as in NCCL's calls, and are multiplied by the ranks for AllGather and
    ReduceScatter.

    The time is a sum of NCCL's own predictions, and of calibrated times where a calibration fits the machine, one call
    after the other: calls that overlap with each other or with computing cost a job less, ranks that wait for each
    other and SMs that computing shares cost it more. Releases in --nccl are separated by
    commas; the first is the one that others are compared with. --dtype and --op are of calls that do not say theirs;
    --buffers and --in-place are of all, as no file says them. With --buffers window calls on symmetric kernels have
    NCCL's time by its model of these, and those that copy engines do have none.

    \b
    nccl-tuner budget steps.csv --machine dgx-h100 --nodes 2 --nccl 2.22.3,2.28.9
    nccl-tuner budget steps.csv --machine dgx-b200 --nccl 2.28.9,2.32.3 --buffers window
    nccl-tuner budget trace.json.gz --machine dgx-h100 --nodes 2 --setting NCCL_ALGO=Ring --measured run.jsonl --json
    """
    exports = Exports(as_csv, parquet, as_prometheus, as_json)
    count, part = count_or_part(ranks)
    shared = communicator["shared"] and part is None
    communicator = communicator.but(ranks=part, shared=communicator["shared"] and part is not None)
    nccl = communicator["nccl"]
    names = [name.strip() for name in nccl.split(",")] if nccl else [None]
    scenarios = [communicator.scenario(nccl=name) for name in names]
    wanted = replace(
        job.wanted_of(scenarios[0], count),
        communicators=communicators,
        dtype=call.dtype,
        op=call.op,
        buffers=call.buffers,
        in_place=call.in_place,
    )
    lists = read_files(files, scenarios[0].ranks)
    for line in job.of_other_releases(lists, [each.nccl for each in scenarios]):
        say(f"note: {line}", err=True)
    times_of = _measured(measured, {**communicator.given, "labelled": labelled}, scenarios[0])
    shown = budgeted.Shown(
        exact=exact, nccl=times is None or times.beside_nccl, calibrated=times is not None, overlap=overlap
    )
    if (groups := budget_groups.job_of(grouping, scenarios[0].ranks, shared)) is not None:
        beside = {"ranks": ranks, "measured": measured, "arm": labelled, "parquet": parquet}
        budget_groups.check_beside(groups, **beside, csv=as_csv, prometheus=as_prometheus)
        priced = grouped.of_lists(lists, job.Compared(scenarios, settings, tables, times), wanted, groups)
        budget_groups.show(scenarios[0].title, priced, shown, as_json)
        return
    budget = job.of_lists(lists, job.Compared(scenarios, settings, tables, times), wanted, times_of)
    if exports.deliver(budget.by_size, of_budget(budget)):
        return
    if as_json:
        print_json(budget)
    else:
        budgeted.show(
            scenarios[0].title,
            budget,
            replace(shown, exact=exact or len(budget.entries) <= budgeted.MOST_ROWS),
        )


def _measured(files: tuple[Path, ...], given: dict[str, Any], described: Scenario) -> regret.Measured | None:
    """The measured times: of one file as it is, of several and of nccl-tests as arms of the communicator."""
    if not files and not given["labelled"]:
        return None
    if not given["labelled"] and len(files) == 1 and not measured_table.forces(files[0]):
        return regret.read(files[0], described)
    names = [*files, *(path for _, path in given["labelled"])]
    said = any(measured_table.release_of(path) for path in names)
    from tuner.times.regret.measurements import of_communicator  # slow to load

    placed, _ = runs_there(files, {**given, "nccl": None if said else described.nccl})
    notes = (f"{len(names)} files of times are of NCCL {placed.site.nccl}, and taken as runs of {described.title}",)
    return regret.Measured(of_communicator(placed, described), Path(" ".join(map(str, names))), notes)
