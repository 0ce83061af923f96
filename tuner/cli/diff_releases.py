"""``nccl-tuner diff --all-releases``: every pair of a machine's releases."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import click

from tuner import release
from tuner.answers.diff import Change, Side, diff, share_changed
from tuner.base.errors import BadInput
from tuner.base.names import Buffers
from tuner.cli.output import print_json, print_table
from tuner.emulator.request import Request
from tuner.emulator.rules import registered
from tuner.scenario import Scenario


def releases_of(scenario: Scenario, buffers: Buffers) -> list[Scenario]:
    """The scenario with each release that it can be asked of, the oldest first; says which lack such buffers."""
    if len(scenario.every_release) < 2 or scenario.others:
        raise BadInput("--all-releases: graphs are searched anew; valid: without --topo-graphs, --constants and --node")
    lacking = [name for name in scenario.every_release if registered.missing(release.load(name), buffers)]
    if lacking:
        click.echo(f"without {', '.join(lacking)}: they have no such buffers (--buffers {buffers.name})", err=True)
    return [replace(scenario, nccl=name) for name in scenario.every_release if name not in lacking]


def print_pairs(scenario: Scenario, sides: Sequence[Side], requests: Sequence[Request], as_json: bool) -> None:
    """As JSON every pair with its changes; as a table each release against the one before it."""
    pairs = list(combinations(sides, 2)) if as_json else list(pairwise(sides))
    compared = [(before, after, [diff(before, after, request) for request in requests]) for before, after in pairs]
    if as_json:
        print_json(
            [
                {
                    "before": before.scenario.nccl,
                    "after": after.scenario.nccl,
                    "changes": [change for changes in of_all for change in changes],
                }
                for before, after, of_all in compared
            ]
        )
        return
    names = [request.collective.name for request in requests]
    rows = [
        (
            before.scenario.nccl,
            after.scenario.nccl,
            *map(_share, of_all),
            _loss([change for some in of_all for change in some]),
        )
        for before, after, of_all in compared
    ]
    click.echo(
        f"{scenario.nodes} x {scenario.name}: the part of the sizes from 1 KiB to 1 GiB, in octaves, whose pick "
        "changes, and the most that a new pick loses by the model of the release before"
    )
    print_table("", ("before", "after", *names, "loses"), rows)


def _share(changes: list[Change]) -> str:
    return f"{100 * share_changed(changes, 1 << 10, 1 << 30):.0f} %" if changes else "-"


def _loss(changes: list[Change]) -> str:
    known = [change.ratio_by_before for change in changes if change.ratio_by_before is not None]
    return f"{100 * (max(known) - 1):.0f} %" if known else "-"
