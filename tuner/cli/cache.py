"""``nccl-tuner cache``: what the cache holds, and removing it."""

import time
from itertools import chain

import click

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.files import cache_folder
from tuner.cli import options
from tuner.cli.output import print_table, say, shown_as_json, verdict
from tuner.oracle import kept_files
from tuner.oracle.kept_files import KeptFiles


@dataclass(frozen=True, slots=True)
class Cache:
    """The files that were found in ``folder``; if ``pruned``, they were removed, except for those in ``left``."""

    folder: str
    kept: tuple[KeptFiles, ...]
    pruned: bool
    left: tuple[str, ...]


@click.command(name="cache", cls=options.Command)
@click.argument("names", nargs=-1, metavar="[NAMES]...")
@options.option(
    "--unused-days",
    "unused_days",
    "Only files that were neither read nor written for this many days.",
    type=click.FloatRange(0, 36_500),
    default=0.0,
)
@options.flag("--prune", "prune", "Remove the listed files; needs NAMES or --unused-days.")
@options.json_option
def command(names: tuple[str, ...], unused_days: float, prune: bool) -> None:
    """Lists the files in the cache (NCCL_TUNER_CACHE); with --prune, removes them.

    Only files that nccl-tuner wrote there as this user are listed and removed; links are not followed. All of them are
    made again when they are needed, except for what 'oracle learn' found.

    \b
    nccl-tuner cache
    nccl-tuner cache graphs 2.18.1 --prune
    nccl-tuner cache --unused-days 90 --prune
    """
    if prune and not (names or unused_days):
        raise BadInput(
            "--prune needs NAMES or --unused-days, which say what to remove; 'nccl-tuner cache' lists the names"
        )
    kept = kept_files.chosen(kept_files.kept_files(time.time()), names, unused_days)
    left = kept_files.remove(chain.from_iterable(kept.values())) if prune else []
    shown = Cache(str(cache_folder()), tuple(kept), prune, tuple(f"{path}: {why}" for path, why in left))
    if not shown_as_json(shown):
        _print(shown)
    click.get_current_context().exit(1 if left else 0)


def _print(cache: Cache) -> None:
    count, size = sum(each.files for each in cache.kept), f"{sum(each.bytes for each in cache.kept) / 1e6:,.1f} MB"
    if cache.left:
        say(verdict(f"not removed: {len(cache.left)} of {count} files in {cache.folder}", False))
    elif cache.pruned:
        say(f"removed {count} files, {size}, from {cache.folder}")
    else:
        say(f"{cache.folder} holds {count} files, {size}")
    rows = [
        (each.name, each.files, f"{each.bytes / 1e6:.1f}", f"{each.days_unused:.0f}", each.what) for each in cache.kept
    ]
    if rows:
        print_table("", ("name", "files", "MB", "days unused", "what"), rows)
    for line in cache.left:
        say(f"  {line}")
