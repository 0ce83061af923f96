"""``nccl-tuner diff``: what changes between two communicators."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tuner import release
from tuner.answers.diff import Change, Side, diff
from tuner.answers.symmetric import AnyPick, NonClassicPick
from tuner.base.errors import BadInput
from tuner.base.names import Collective, PeerCall
from tuner.cli import exchange_changes, options
from tuner.cli.beyond import print_upgrade, upgrade
from tuner.cli.diff_limit import fail_above_option, fail_on_losses
from tuner.cli.diff_releases import print_pairs, releases_of
from tuner.cli.output import human_bytes, print_json, print_table, say
from tuner.cli.release_names import exact

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted
    from tuner.answers.diff import CalibratedChange


class CollectiveOrRelease(options.AnyCall):
    """What may follow ``--nccl BEFORE``: the release after it, among the collectives."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return exact(value) if release.SPELLED.fullmatch(str(value)) else super().convert(value, param, ctx)


@click.command(name="diff", cls=options.Command)
@options.under(
    "What counts, and what else differs", "--whole", "--beyond", "--ask-libnccl", "--from", "--to", "--timeout"
)
@click.argument(
    "words", nargs=-1, type=CollectiveOrRelease(Collective, "collective"), metavar="[COLLECTIVE]... [RELEASE]"
)
@options.change_option
@click.option("--all-releases", is_flag=True, help="Every pair of the machine's releases instead.")
@click.option("--whole", is_flag=True, help="Ranges whose channels or threads change count as well.")
@click.option(
    "--beyond",
    is_flag=True,
    help="What differs beside the picks, too: channels, graphs, LL128, symmetric kernels, defaults; with --json an "
    "object. [default: for two releases, without --json]",
)
@click.option(
    "--ask-libnccl",
    is_flag=True,
    help="With what only libnccl knows: buffers, chunks, point-to-point channels, SMs, and of up to 16 ranks device "
    "memory; implies --beyond.",
)
@fail_above_option
@options.range_options
@options.communicator_options(tuner=True)
@options.call_options()
@options.time_options("both")
@options.timeout_option
@options.json_option
def command(
    words: tuple[Collective | PeerCall | str, ...],
    assignments: tuple[str, ...],
    all_releases: bool,
    whole: bool,
    beyond: bool,
    ask_libnccl: bool,
    fail_above: float | None,
    low: int | None,
    high: int,
    call: options.CallOptions,
    times: "TimesWanted | None",
    timeout_s: float,
    as_json: bool,
    communicator: options.CommunicatorOptions,
) -> None:
    """The size ranges in which NCCL's choice for COLLECTIVE (default: all five) changes, and what that gains or loses.

    Before is what the options describe, after is the same with RELEASE or the changes. Of two releases also what
    differs beside the picks, and regressions that others saw.

    \b
    nccl-tuner diff --machine dgx-h100 --nodes 2 --nccl 2.22.3 2.25.1
    nccl-tuner diff allreduce --machine dgx-h100 --nodes 2 --nccl 2.28.9 --change nodes=4 --change NCCL_PROTO=Simple
    nccl-tuner diff allreduce --machine dgx-h100 --nodes 2 --all-releases
    nccl-tuner diff --machine dgx-h100 --nodes 2 --nccl 2.22.3 2.25.1 --fail-above 5%
    nccl-tuner diff allreduce --machine dgx-h100 --nccl 2.27.7 2.30.7 --buffers window
    """
    collectives = [word for word in words if isinstance(word, Collective)]
    releases = [word for word in words if not isinstance(word, Collective | PeerCall)]
    exchanged = exchange_changes.alone(word for word in words if isinstance(word, Collective | PeerCall))
    described = communicator.scenario()
    like = call.request()
    if exchanged:
        exchange_changes.check_plain(exchanged, like)
    if exchanged and (all_releases or beyond or ask_libnccl or fail_above is not None or times_given(times)):
        raise BadInput(
            f"{exchanged[0].name}: valid with --nccl BEFORE AFTER and --change, without --all-releases, --beyond, "
            "--ask-libnccl, --fail-above, --time"
        )
    if all_releases:
        if releases or assignments or communicator["nccl"]:
            raise BadInput("--all-releases compares every release; valid with it: neither --nccl nor --change")
        if beyond or ask_libnccl or fail_above is not None:
            raise BadInput("--all-releases compares picks; valid with --beyond, --fail-above: --nccl BEFORE AFTER")
        if times is not None and (times.calibration or not times.beside_nccl):
            raise BadInput("--all-releases has NCCL's own times only; valid with it: neither --time nor --calibration")
        sides = [Side(one, low, high, whole) for one in releases_of(described, call.buffers)]
        selections = {f"on NCCL {side.scenario.nccl}": side.selection for side in sides}
        requests = options.runnable(selections, collectives, like)
        print_pairs(described, sides, requests, as_json)
        return
    if len(releases) > 1:
        raise BadInput(f"releases {', '.join(releases)}: one comes after; valid: --nccl BEFORE AFTER")
    after = options.after(described, [*(f"nccl={name}" for name in releases), *assignments])
    if after == described:
        raise BadInput("nothing differs; valid: --nccl BEFORE AFTER, --change KEY=VALUE, --all-releases")
    if exchanged:
        found_changes = exchange_changes.compared(described, after, exchanged, (), (low or 1, high))
        exchange_changes.show([found_changes], as_json)
        return
    old, new = Side(described, low, high, whole), Side(after, low, high, whole)
    requests = options.runnable({"before": old.selection, "after": new.selection}, collectives, like)
    changes_of = {request.collective: diff(old, new, request) for request in requests}
    if times is not None:
        from tuner.answers.diff import CalibratedSides

        calibrated = CalibratedSides(times, old, new, call.buffers)
        changes_of = {
            request.collective: calibrated.changes(request, changes_of[request.collective]) for request in requests
        }
    every_change = [change for changes in changes_of.values() for change in changes]
    found = None
    if beyond or ask_libnccl or (releases and not as_json):
        by_request = {request: changes_of[request.collective] for request in requests}
        found = upgrade(old, new, by_request, timeout_s if ask_libnccl else None)
    if as_json:
        print_json(found or every_change)
        fail_on_losses(every_change, fail_above)
        return
    say(f"before: {described.heading}\nafter:  {after.heading}\n")
    print_whose([change.calibrated for changes in changes_of.values() for change in changes])
    for collective, changes in changes_of.items():
        print_changes(collective.name, changes, by_nccl=times is None or times.beside_nccl)
    if found:
        print_upgrade(found)
    if alike := [collective.name for collective in changes_of if not changes_of[collective]]:
        say(f"{SAME if whole else SAME_COMBINATION} at every size: {', '.join(alike)}")
    fail_on_losses(every_change, fail_above)


def times_given(times: "TimesWanted | None") -> bool:
    """Whether calibrated times were asked for by themselves, or by a calibration."""
    return times is not None and (times.calibration is not None or not times.beside_nccl)


SAME = "the same"
SAME_COMBINATION = "the same algorithm and protocol"  # channels and threads were not compared
BY_NCCL, BY_MEASUREMENTS = "time by NCCL", "by measurements"


def print_changes(title: str, changes: list[Change], *, by_nccl: bool = True) -> None:
    """The ranges whose pick changes as a table, without those that are only rounding.

    With calibrated times these stand beside NCCL's, or without them where not ``by_nccl``.
    """
    ties = [change for change in changes if change.is_rounding]
    if left := [change for change in changes if not change.is_rounding]:
        shown = shown_times(by_nccl, [change.calibrated for change in left])
        columns = ("from", "to", "before", "after", *shown, "new pick by the model before", "by the model after")
        print_table(title, columns, [_row(change, shown) for change in left])
    if ties:
        sizes = sum(change.to_bytes - change.from_bytes + 1 for change in ties)
        say(f"{title}: {len(ties)} more around these, {sizes} bytes in all, where float32 cannot part the times\n")


def shown_times(by_nccl: bool, calibrated: "Sequence[CalibratedChange | None]") -> list[str]:
    """The columns of changes of time: NCCL's, those by measurements, or both."""
    measured = any(each is not None and each.ratio is not None for each in calibrated)
    return [*([BY_NCCL] if by_nccl or not measured else []), *([BY_MEASUREMENTS] if measured else [])]


def times_row(ratio: float | None, calibrated: "CalibratedChange | None", shown: Sequence[str]) -> list[str]:
    """The cells of :func:`shown_times`."""
    from tuner.cli import times

    by_measurements = times.change(calibrated.ratio if calibrated else None)
    return [percent(ratio) if name == BY_NCCL else by_measurements for name in shown]


def print_whose(calibrated: "Sequence[CalibratedChange | None]") -> None:
    """Which calibrations the times before and after are by, or why there are none."""
    known = [each for each in calibrated if each is not None]
    if not known:
        return
    from tuner.cli import times

    sides = [used for each in known for used in (each.calibration_before, each.calibration_after)]
    say(f"{times.whose_of_all(sides)}\n")


def _row(change: Change, shown: Sequence[str]) -> tuple[object, ...]:
    return (
        human_bytes(change.from_bytes),
        human_bytes(change.to_bytes),
        pick_name(change.before),
        pick_name(change.after),
        *times_row(change.ratio, change.calibrated, shown),
        *(percent(by, none=_why_none(change)) for by in (change.ratio_by_before, change.ratio_by_after)),
    )


def _why_none(change: Change) -> str:
    return NOT_COMPARED if change.ratio is None else "cannot run"


def pick_name(pick: AnyPick) -> str:
    """Algorithm, protocol and channels; of what bypasses them its name and blocks."""
    bare = isinstance(pick, NonClassicPick) and not pick.channels
    return pick.name if bare else f"{pick.name} x{pick.channels}"


NOT_COMPARED = "not compared"  # no model of NCCL's has a time of both


def percent(ratio: float | None, none: str = NOT_COMPARED) -> str:
    """A ratio of times as the change it is."""
    return none if ratio is None else f"{100 * (ratio - 1):+.1f} %"
