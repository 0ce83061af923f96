"""How well a release is learnt that nobody knows yet: each one with its own file, and those of all later ones, hidden.

    python -m tests.scripts.learn_releases                 every step; writes the table of docs/releases.md
    python -m tests.scripts.learn_releases 2.29.3 2.30.3   these, and only prints

Of each: how many values were read as data, what of it was found by trial, and what is then equal to libnccl without a
hand. Each takes half a minute to five.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import click

from tuner import release
from tuner.oracle import library
from tuner.oracle.conformance.learn import Learning, data_tables, learn
from tuner.release import learnt

PAGE = Path(__file__).parents[2] / "docs" / "releases.md"
BETWEEN = re.compile(r"(<!-- learnt: [^>]*-->\n).*?(<!-- end of learnt -->)", re.DOTALL)
KINDS = ("graphs", "cells", "picks and launches", "groups")
PICKS = ("picks", "channels", "threads", "launches")
MOST_RULES = 4  # that are named in the table
LIMIT_S = 90.0  # of trials


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(release.names()), metavar="[RELEASE]...")
def main(names: tuple[str, ...]) -> None:
    others, whole = [], []
    for name in names or release.names()[1:]:
        known = release.names()
        path = library.find(name).path
        learning = learn(path, known[known.index(name) :], lambda text: click.echo(text, err=True), LIMIT_S)
        learnt.file_of(learning.name).unlink(missing_ok=True)
        click.echo(f"{row(name, learning)} {said(len(data_tables(path)), learning)}")
        if set(shares(learning)) == {"100 %"}:
            whole.append(name)
        else:
            others.append([float(share.split()[0]) for share in shares(learning)])
    if not names:
        columns = zip(KINDS, zip(*others, strict=True), strict=True)
        ranges = ", ".join(f"{min(those):.0f} to {max(those):.0f} % of {kind}" for kind, those in columns)
        text = f"All answers are equal of {', '.join(whole)}.\nOf {len(others)} others: {ranges}.\n"
        PAGE.write_text(BETWEEN.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))


def row(name: str, learning: Learning) -> str:
    """A line of the table."""
    return f"| {' | '.join((name, learning.parent, *shares(learning)))} |"


def shares(learning: Learning) -> list[str]:
    """The parts that are equal: graphs, cells, picks with launches, groups."""
    return [share(learning, kinds) for kinds in (("graphs",), ("tables", "cells"), PICKS, ("groups",))]


def said(tables: int, learning: Learning) -> str:
    """Tables that were read and are new, what was found by trial, the rules that are named, and the seconds it took."""
    tried = list(learning.changes)[learning.tables :] if learning.tables else list(learning.changes)
    words = ", ".join(f"`{key}`" for key in tried) or "-"
    ends = str(tables), str(learning.tables), words, named(learning), f"{learning.seconds:.0f} s"
    return " | ".join(ends)


def named(learning: Learning) -> str:
    """What the report of a learnt release says that differs: rules of the model, graphs of the search, launches."""
    rules = dict.fromkeys(f"`{rule}`" for each in learning.differing for rule in each.rules)
    graphs = {each.where.split()[0] for each in learning.differing if each.part == "the search of graphs"}
    launched = any(each.part.startswith(("channels", "threads", "groups")) for each in learning.differing)
    tables = any(each.part == "the model's tables" for each in learning.differing)
    words = {"the search": bool(graphs), "tables": tables, "launches": launched}
    more = [f"{len(rules) - MOST_RULES} more rules"] if len(rules) > MOST_RULES else []
    return ", ".join([*list(rules)[:MOST_RULES], *more, *(word for word, there in words.items() if there)]) or "-"


def share(learning: Learning, kinds: tuple[str, ...]) -> str:
    """The part that is equal, in percent; never 100 where one differs."""
    compared, matched = (_sum(numbers, kinds) for numbers in (learning.compared, learning.matched))
    if compared == matched:
        return "100 %"
    return f"{int(matched / compared * 10_000) / 100:.2f} %"


def _sum(numbers: Mapping[str, int], kinds: tuple[str, ...]) -> int:
    return sum(numbers.get(kind, 0) for kind in kinds)


if __name__ == "__main__":
    main()
