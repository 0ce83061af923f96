"""What an upgrade changes beside the picks, as ``nccl-tuner diff`` prints it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tuner.answers.beyond import BY_LIBRARY, EMULATED, RECORDED, Difference, differences
from tuner.answers.diff import Change, Side, diff
from tuner.cli.output import print_table, say
from tuner.emulator.request import Request
from tuner.release.regressions import Regression, between

IDENTICAL = "selection identical: where one is slower, look at the kernel or the transport"
WHOSE = {EMULATED: "emulated", RECORDED: "libnccl", BY_LIBRARY: "libnccl"}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """All that two communicators have differently.

    ``selection_identical``: neither picks, with channels and threads, nor graphs nor anything asked of libnccl differs.
    ``known_regressions`` are of all machines.
    """

    changes: list[Change]
    beyond: list[Difference]
    selection_identical: bool
    known_regressions: list[Regression]


def upgrade(old: Side, new: Side, changes: Mapping[Request, list[Change]], library_timeout_s: float | None) -> Upgrade:
    """With libnccl's own answers where there is a limit to wait for them, in seconds."""
    found = differences(old.scenario, new.scenario)
    if library_timeout_s is not None:
        from tuner.answers import beyond

        found += beyond.library_differences(old.scenario, new.scenario, list(changes), library_timeout_s)
    releases = [side.selection.communicator.release.name for side in (old, new)]
    selects = [one for one in found if one.source != RECORDED and one.topic != "limits"]
    every_change = list(chain(*changes.values()))
    identical = not every_change and not selects and _launches_alike(old, new, changes)
    return Upgrade(every_change, found, identical, between(*releases))


def _launches_alike(old: Side, new: Side, requests: Iterable[Request]) -> bool:
    """Whether channels and threads are alike, too, at every size."""
    before, after = (Side(side.scenario, whole=True) for side in (old, new))
    return not any(diff(before, after, request) for request in requests)


def print_upgrade(upgrade: Upgrade) -> None:
    """What differs by topic, defaults that only one release has as a count, and known regressions."""
    one_sided = [one for one in upgrade.beyond if one.source == RECORDED and None in (one.before, one.after)]
    if both := [one for one in upgrade.beyond if one not in one_sided]:
        print_differences("Beside the picks", both)
    only = {side: sum(getattr(one, side) is not None for one in one_sided) for side in ("before", "after")}
    if any(only.values()):
        counts = ", ".join(f"{count} only {side}" for side, count in only.items() if count)
        say(f"variables that NCCL reads: {counts} (--beyond --json names them)\n")
    if upgrade.selection_identical:
        say(f"{IDENTICAL}\n")
    if upgrade.known_regressions:
        say("Seen after such an upgrade on other machines (more: nccl-tuner regressions)")
        for known in upgrade.known_regressions:
            say(f"  {known.title}\n    {known.thread}")
        say()


def print_differences(title: str, found: Sequence[Difference]) -> None:
    """As a table, or that there are none."""
    if not found:
        say(f"{title}: no difference\n")
        return
    say(title)
    rows = [(one.topic, one.name, *map(_word, (one.before, one.after)), WHOSE[one.source]) for one in found]
    print_table("", ("what", "of", "before", "after", "by"), rows)


def _word(value: str | None) -> str:
    return "-" if value is None else value
