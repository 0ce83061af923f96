"""``budget`` where each communicator of a job is priced as its own."""

from dataclasses import replace
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.cli import budgeted
from tuner.cli.command import F, stacked
from tuner.cli.output import print_json, print_table, say
from tuner.jobs.traces.calls import number
from tuner.jobs.workload.grouped import GroupBudget, JobBudget, JobGroups
from tuner.jobs.workload.layout import layout_of


def group_options(function: F) -> F:
    """Parameters ``job``, ``rank`` and ``by_group``."""
    return stacked(
        function,
        click.option(
            "--job",
            metavar="DEGREES",
            help="How the job splits its ranks, such as tp=4,pp=2: tp, cp, pp, ep, etp, replicate (of dp, which is "
            "what is left), order=tp-cp-ep-dp-pp. Each group's calls are priced on its own communicator.",
        ),
        click.option("--rank", type=int, help="Whose FILEs they are, with --job. [default: 0]"),
        click.option(
            "--by-group",
            is_flag=True,
            help="Price each communicator of FILEs on its own ranks, where FILEs say them; as --job does.",
        ),
    )


def job_of(given: dict[str, Any], ranks: int, shares: bool) -> JobGroups | None:
    """The job that the options describe; None where calls are of one communicator. BadInput for what does not fit."""
    job, rank, by_group = (given.pop(name) for name in ("job", "rank", "by_group"))
    if job is None and rank is not None:
        raise BadInput("--rank: of a job's groups; valid with --job")
    if job is None and not by_group:
        if shares:
            raise BadInput("--shared needs --ranks, --job or --by-group: some ranks share the resources of all")
        return None
    return JobGroups(None if job is None else layout_of(job, ranks), rank or 0, shares)


def check_beside(job: JobGroups, **given: object) -> None:
    """BadInput for options that are of one communicator."""
    if beside := [name for name, value in given.items() if value]:
        options = ", ".join("--" + name.replace("_", "-") for name in beside)
        whose = "--by-group" if job.layout is None else "--job"
        raise BadInput(f"{options}: of one communicator; valid without {whose}")


def show(title: str, priced: JobBudget, shown: budgeted.Shown, as_json: bool) -> None:
    """A table of the groups, then each with its calls."""
    if as_json:
        print_json(priced)
        return
    of_job = f", job {priced.job}, rank {priced.rank}" if priced.job else ""
    one_variant = len(priced.totals) == 1
    sums = (f"{'' if one_variant else f'{one.variant} '}{one.total_us / 1000:.3f} ms" for one in priced.totals)
    say(f"{title}{of_job}: {', '.join(sums)} by NCCL's own prediction, one after the other\n")
    whole_us = priced.totals[0].total_us
    columns = ("group", "ranks", "groups", "nodes", "calls", "NCCL ms", "share", "sends and receives")
    print_table("by group", columns, [_row(one, whole_us) for one in priced.groups])
    for left in priced.left_out:
        say(f"left out: {left}")
    for one in priced.groups:
        say(f"\n== group {one.group} ==\n")
        few = len(one.budget.entries) <= budgeted.MOST_ROWS
        budgeted.show(one.communicator, one.budget, replace(shown, exact=shown.exact or few))


def _row(one: GroupBudget, whole_us: float) -> tuple[object, ...]:
    first = one.budget.variants[0]
    return (
        one.group,
        one.ranks,
        "-" if one.groups is None else one.groups,
        one.nodes,
        number(first.priced_calls),
        f"{first.total_us / 1000:.3f}",
        f"{first.total_us / whole_us:.1%}".replace("%", " %") if whole_us else "-",
        number(sum(each.calls for each in first.exchanges)),
    )
