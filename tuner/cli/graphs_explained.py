"""An explanation of a graph as text of 80 columns."""

import shlex
import textwrap
from collections.abc import Iterator
from itertools import groupby

import click

from tuner.answers.graphs import Explained
from tuner.base.words import plural
from tuner.cli.output import print_table
from tuner.graphs.explain.records import Explanation, SearchTried
from tuner.graphs.explain.runs import PATHS, of_found

WIDTH = 80
LINK_KINDS = frozenset({"adapter", "pcie", "nvlink", "c2c", "sockets"})


def print_explained(title: str, explained: Explained) -> None:
    """What was found, why not more, what limits it, what would lift that, and the searches."""
    explanation = explained.explanation
    several = explanation.several_nodes
    found = explanation.found
    _say(f"{explanation.graph} of {title}", "")
    if found.channels:
        ways = f"GPUs {PATHS[found.type_intra]} ({found.type_intra})"
        ways += f", adapters {PATHS[found.type_inter]} ({found.type_inter})" if several else ""
        _say(f"{of_found(found, several)}: {ways}.", "")
    else:
        _say("No channels were found.", "")
    _say(*_communicator(explained))
    _list("Why not more", [reason.says for reason in (explanation.one_more, explanation.faster) if reason is not None])
    _list("What else made it so", [reason.says for reason in explanation.reasons])
    _list("What limits it: searched again without that, NCCL finds more", list(_limits(explanation, several)))
    _lifts(explanation, several)
    _searches(explanation)


def _say(*paragraphs: str) -> None:
    for paragraph in paragraphs:
        click.echo(textwrap.fill(paragraph, WIDTH))


def _list(title: str, items: list[str]) -> None:
    if not items:
        return
    click.echo(f"{title}\n")
    for item in items:
        _item(item)
    click.echo("")


def _item(text: str) -> None:
    click.echo(textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    "))


def _communicator(explained: Explained) -> Iterator[str]:
    made = explained.communicator
    if made is None:
        return
    text = f"Collectives then use {plural(made.channels, 'channel')}."
    if made.channels != made.without_variables:
        names = " and ".join(f"{name}={value}" for name, value in made.variables.items())
        text += f" That is so by {names}; without, they use {made.without_variables}."
    yield text
    yield ""


def _limits(explanation: Explanation, several: bool) -> Iterator[str]:
    for limit in explanation.limits:
        links = LINK_KINDS & set(limit.kinds)
        freed = "twice the bandwidth on all links of its kind" if links else "that"
        if len(limit.kinds) > 1:
            freed = "twice the bandwidth on all of these" if links == set(limit.kinds) else "all of this together"
        without = f"With {freed}" if links else "Without that"
        says = f"{limit.says} {without}: {of_found(limit.then, several)}."
        yield says + (" Less than all of these changes nothing." if len(limit.kinds) > 1 else "")


def _lifts(explanation: Explanation, several: bool) -> None:
    """Each with the changes that make it, on lines of their own, which are not broken."""
    if not explanation.lifts:
        return
    click.echo("What would lift it: searched again with the change, NCCL finds\n")
    for lift in explanation.lifts:
        finds = of_found(lift.found, several) if lift.more else "no more"
        _item(f"{lift.change}: {finds}")
        click.echo("    " + " ".join(f"--change {shlex.quote(change)}" for change in lift.changes))
    click.echo("")


def _searches(explanation: Explanation) -> None:
    """Those that repeat one before are left out of the table."""
    new = [search for search in explanation.searches if not search.repeats]
    if not new:
        return
    click.echo(
        f"Searches, in NCCL's order\n\n"
        f"a channel has at most {explanation.max_gbs:g} GB/s, the best path from a GPU\n"
        f"all channels have at most {explanation.total_gbs:g} GB/s, the links of a GPU\n"
        "tried: GPUs as the next of a channel; found: channels so far"
    )
    rows = [row for _, alike in groupby(new, _kind) for row in [_row(list(alike))]]
    print_table("", ("GB/s", "types", "channels", "searches", "tried", "better", "found"), rows)
    left_out = len(explanation.searches) - len(new)
    if left_out:
        click.echo(f"{left_out} more repeat one of these, with path types that no path has")


def _kind(search: SearchTried) -> tuple[str, str, str]:
    """Searches that follow each other, ask for as much and find nothing better are one line."""
    better = "all" if search.outcome == "all channels" else "yes" if search.outcome.startswith("better") else "no"
    asked = f"{search.min_channels}-{search.max_channels}"
    return _speed(search), asked, better


def _row(searches: list[SearchTried]) -> tuple[object, ...]:
    speed, asked, better = _kind(searches[0])
    types = list(dict.fromkeys(f"{search.type_intra} {search.type_inter}" for search in searches))
    between = types[0] if len(types) == 1 else f"{types[0]} to {types[-1]}"
    tried = sum(search.tried for search in searches)
    return speed, between, asked, len(searches), tried, better, searches[-1].channels


def _speed(search: SearchTried) -> str:
    if search.bw_intra_gbs == search.bw_inter_gbs:
        return f"{search.bw_intra_gbs:g}"
    return f"{search.bw_intra_gbs:g} {search.bw_inter_gbs:g}"
