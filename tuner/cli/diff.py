"""``nccl-tuner diff``: what changes with a release, a setting, hardware or a number of nodes."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING, Any

import click

from tuner import release
from tuner.answers.beyond import BY_LIBRARY, EMULATED, RECORDED, OtherChange, differences
from tuner.answers.changes import KEYS, AtSize, at_sizes, each_of
from tuner.answers.diff import PickChange, Side, diff, loss, share_changed
from tuner.answers.symmetric import AnyPick, NonClassicPick
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, PeerCall
from tuner.base.records import to_json
from tuner.base.view import plain
from tuner.cli import exchanges, options
from tuner.cli.command import Parsed, excludes, has
from tuner.cli.communicator_options import exact
from tuner.cli.engine import EngineOptions, engine_options, show_differences
from tuner.cli.output import (
    folded,
    human_bytes,
    json_wanted,
    number,
    plural,
    print_json,
    print_table,
    say,
    shown_as_json,
    verdict,
    width_to_fit,
)
from tuner.emulator.request import Request
from tuner.emulator.rules import registered
from tuner.machine import catalogue
from tuner.release import Release, learnt, packages
from tuner.release.regressions import Regression, between, regressions
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import CalibratedRatio
    from tuner.answers.diff import CalibratedChange


def _part(text: str) -> float:
    """Reads a percentage, ``5%`` or ``5``, as a fraction of 1."""
    try:
        part = float(text.removesuffix("%")) / 100
    except ValueError:
        part = math.nan
    if not 0 <= part < math.inf:
        raise click.BadParameter(f"{text!r}: expected a percentage of 0 or more, such as 5% or 2.5")
    return part


NOT_OF_ENGINES = (
    "assignments",
    "sizes",
    "all_releases",
    "whole",
    "beyond",
    "known",
    "fail_above",
    "fail_on_change",
    "libnccl",
    "tuner",
)

fail_above_option = options.option(
    "--fail-above",
    "Exit with 1 if any new pick takes more than PERCENT longer than the old one, by measured times if there are "
    "any, else by NCCL's model before the change.",
    type=Parsed("percent", _part),
    metavar="PERCENT",
)


fail_on_change_option = options.flag("--fail-on-change", "Exit with 1 if any pick changes, even if it is as fast.")


def fail_on_changes(changes: Sequence[PickChange]) -> None:
    """Prints on stderr the size ranges whose pick changes, including those that are only rounding; exits with 1 if
    there are any."""
    for each in changes:
        click.echo(
            f"{each.collective} from {human_bytes(each.from_bytes)} to {human_bytes(each.to_bytes)}: "
            f"{_on_channels(each.after)} instead of {_on_channels(each.before)}; --fail-on-change allows no change",
            err=True,
        )
    if changes:
        click.get_current_context().exit(1)


def _on_channels(pick: AnyPick) -> str:
    return f"{pick.name} on {pick.channels} channels of {pick.threads} threads"


def fail_on_losses(changes: Sequence[PickChange], limit: float | None) -> None:
    """Prints on stderr the size ranges that lose more than the share ``limit``; exits with 1 if there are any.

    Ranges that are only rounding (a few bytes) are left out, as in the table.
    """
    if limit is None:
        return
    left = [change for change in changes if not change.is_rounding]
    losses = [(change, loss(change)) for change in left]
    above = [(change, *lost) for change, lost in losses if lost is not None and lost[0] > limit]
    if unknown := sum(lost is None for _, lost in losses):
        click.echo(
            f"--fail-above: {unknown} changes cannot be judged, as no model of NCCL compares the old with the new "
            "choice",
            err=True,
        )
    for change, part, whose in above:
        click.echo(
            f"{change.collective} from {human_bytes(change.from_bytes)} to {human_bytes(change.to_bytes)}: "
            f"{change.after.name} takes {100 * part:.1f} % longer than {change.before.name} by {whose}; "
            f"--fail-above allows {100 * limit:g} %",
            err=True,
        )
    if above:
        click.get_current_context().exit(1)


def verdict_of(changes: Sequence[PickChange], identical: bool = False, limit: float | None = None) -> str:
    """The answer in one line: in how many ranges the pick changes, and whether any loses more than ``limit``."""
    left = [change for change in changes if not change.is_rounding]
    if not left:
        return verdict(IDENTICAL if identical else "no pick changes", True)
    said = pick_changes(left)
    if limit is None:
        return f"{said}, there {gains(left)}"
    above = sum(each is not None and each[0] > limit for each in map(loss, left))
    if above:
        return verdict(f"FAIL: {above} of {plural(len(left), 'range')} lose more than {100 * limit:g} %", False)
    return verdict(f"pass: no range loses more than {100 * limit:g} %; {said}", True)


def pick_changes(changes: Sequence[PickChange]) -> str:
    """A phrase on how many ranges change their pick, per collective; empty if there are none."""
    counts = Counter(change.collective for change in changes if not change.is_rounding)
    named = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"the pick changes in {plural(counts.total(), 'range')} of sizes ({named})" if counts else ""


SHOWN_CHANGE = 0.001  # of a time: the least that the table shows


def gains(changes: Sequence[PickChange | AtSize]) -> str:
    """A phrase on whether the side after the change is faster: by NCCL's own models, and by measurements if there are
    any."""
    ratios = [change.ratio for change in changes if change.ratio is not None]
    if not ratios:
        said = "NCCL has no model that compares the old with the new choice"
    else:
        ends = {"faster": 100 * (1 - min(ratios)), "slower": 100 * (max(ratios) - 1)}
        parts = [f"up to {part:.1f} % {word}" for word, part in ends.items() if part >= 0.05]
        said = f"{' and '.join(parts) or 'as fast'} by NCCL's own model"
    judged = [each.ratio for change in changes if (each := change.calibrated) is not None and each.ratio is not None]
    if not judged:
        return said
    words = Counter(map(_by_measurements, judged))
    if words["open"] == len(judged):
        return f"{said}; measurements cannot tell"
    counts = [f"{words[word]} {word}" for word in ("faster", "slower", "as fast") if words[word]]
    if words["open"]:
        counts.append(f"{words['open']} undecided")
    return f"{said}; by measurements {', '.join(counts)}"


def _by_measurements(measured: "CalibratedRatio") -> str:
    """What measurements say about a change: faster, slower, as fast, or open. A change that is printed as 0.0 % is "as
    fast"."""
    if measured.may_be_none:
        return "open"
    if abs(measured.ratio - 1) < SHOWN_CHANGE / 2:
        return "as fast"
    return "faster" if measured.ratio < 1 else "slower"


def releases_of(scenario: Scenario, buffers: Buffers) -> list[Scenario]:
    """The scenario for each release that has the call's buffers, oldest first; prints the releases without them on
    stderr.
    """
    if len(scenario.every_release) < 2 or scenario.others:
        raise BadInput("--all-releases searches graphs for each release: remove --topo-graphs, --constants and --node")
    lacking = [name for name in scenario.every_release if registered.missing(release.load(name), buffers)]
    if lacking:
        click.echo(
            f"left out: NCCL {', '.join(lacking)}, which cannot use such buffers (--buffers {buffers.name})", err=True
        )
    return [replace(scenario, nccl=name) for name in scenario.every_release if name not in lacking]


def print_pairs(scenario: Scenario, sides: Sequence[Side], requests: Sequence[Request]) -> None:
    """Prints the changes: as JSON for every pair of releases, as a table for each release against the one before it."""
    pairs = list(combinations(sides, 2)) if json_wanted() else list(pairwise(sides))
    compared = [(before, after, [diff(before, after, request) for request in requests]) for before, after in pairs]
    if json_wanted():
        print_json(
            [
                {
                    "before": before.scenario.nccl,
                    "after": after.scenario.nccl,
                    "changes": [change for changes in of_all for change in changes],
                }
                for before, after, of_all in compared
            ],
            "comparisons",
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
    say(
        f"{scenario.nodes} x {scenario.name}: for each pair of releases, the share of the sizes from 1 KiB to 1 GiB "
        "(powers of two) at which the pick changes; loses: by how much a new pick is slower at most, by the older "
        "release's model"
    )
    print_table("", ("before", "after", *names, "loses"), rows)


def _share(changes: list[PickChange]) -> str:
    return f"{100 * share_changed(changes, 1 << 10, 1 << 30):.0f} %" if changes else "-"


def _loss(changes: list[PickChange]) -> str:
    known = [change.ratio_by_before for change in changes if change.ratio_by_before is not None]
    return f"{100 * (max(known) - 1):.0f} %" if known else "-"


IDENTICAL = "NCCL selects the same on both sides: if one is slower, look at the kernel or the transport"
WHOSE = {EMULATED: "emulated", RECORDED: "libnccl", BY_LIBRARY: "libnccl"}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Everything that differs between two communicators.

    ``selection_identical``: whether picks, channels, thread counts, graphs and libnccl's own answers are all equal.
    ``known_regressions`` were seen on any machines, not only on this one.
    """

    changes: list[PickChange]
    beyond: list[OtherChange]
    selection_identical: bool
    known_regressions: list[Regression]


def upgrade(
    old: Side, new: Side, changes: Mapping[Request, list[PickChange]], library_timeout_s: float | None
) -> Upgrade:
    """Compares two communicators; if ``library_timeout_s`` (in s) is given, also libnccl's own answers."""
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
    """Whether channels and threads are equal at every size."""
    before, after = (Side(side.scenario, whole=True) for side in (old, new))
    return not any(diff(before, after, request) for request in requests)


def print_upgrade(upgrade: Upgrade, before: str, after: str) -> None:
    """Prints what differs between two releases, by topic, and how many variables only one of them reads."""
    one_sided = [one for one in upgrade.beyond if one.source == RECORDED and None in (one.before, one.after)]
    if both := [one for one in upgrade.beyond if one not in one_sided]:
        print_differences("Differences besides the picks", both)
    for side, own, other in (("before", before, after), ("after", after, before)):
        if count := sum(getattr(one, side) is not None for one in one_sided):
            variables = plural(count, "variable")
            say(f"NCCL {own} reads {variables} that {other} does not (--beyond --json names them)")
    if one_sided:
        say()


def print_differences(title: str, found: Sequence[OtherChange]) -> None:
    """Prints the differences as a table, or says that nothing differs."""
    if not found:
        say(f"{title}: no difference\n")
        return
    say(title)
    rows = [(one.topic, one.name, *map(plain, (one.before, one.after)), WHOSE[one.source]) for one in found]
    print_table("", ("what", "of", "before", "after", "by"), rows)


VERDICTS = {
    "explains": "explains it",
    "partly": "partly explains it",
    "cannot": "cannot explain it",
}


def _show_regressions(releases: Sequence[str]) -> None:
    """Prints upgrades after which users saw less performance; with two releases, only those to the later one."""
    if len(releases) not in (0, 2):
        raise BadInput(f"{len(releases)} releases given: name two releases, BEFORE AFTER, or none")
    known = between(*releases) if releases else list(regressions())
    if shown_as_json(known, "regressions"):
        return
    width = width_to_fit()
    say(_verdict_of(known, releases))
    for one in known:
        click.echo(folded(f"{one.first}{f' to before {one.fixed}' if one.fixed else ''}: {one.title}\n  {one.thread}"))
        for text in (f"thread: {one.says}", f"nccl-tuner {VERDICTS[one.verdict]}: {one.shows}"):
            click.echo(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    "))
        for run in one.runs:
            click.echo(f"  $ nccl-tuner {run.command}")
        click.echo()


def _verdict_of(known: Sequence[Regression], releases: Sequence[str]) -> str:
    """The answer in one line: how many regressions there are, and how many of them this tool explains."""
    which = f" that {releases[1]} has and {releases[0]} does not" if releases else ""
    if not known:
        return f"no regression is known{which}"
    counts = Counter[str](one.verdict for one in known)
    explained = ", ".join(f"{VERDICTS[word]}: {counts[word]}" for word in VERDICTS if counts[word])
    return f"{plural(len(known), 'regression')} known{which}; nccl-tuner {explained}\n"


class DiffWord(options.CallOrChange):
    """A click type: a collective, a change, or a release. One release is AFTER (``--nccl`` is before); two are BEFORE
    and AFTER."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        names_release = (packages.names_one(str(value)) or "=" not in str(value)) and release.is_spelled(str(value))
        if names_release:
            return exact(value)
        try:
            return super().convert(value, param, ctx)
        except BadInput:
            if str(value) in (*catalogue.names(), *catalogue.aliases()):
                raise BadInput(f"{value} is a machine; valid: --machine {value}") from None
            raise


@click.command(name="diff", cls=options.Command, rules=[excludes("--engine", *NOT_OF_ENGINES, when=has("engine"))])
@options.under(
    "What counts, and what else differs", "--whole", "--beyond", "--regressions", "--change", "--from", "--to"
)
@click.argument(
    "words", nargs=-1, type=DiffWord(Collective, "collective"), metavar="[COLLECTIVE]... [BEFORE] [AFTER] [CHANGE]..."
)
@options.change_option
@options.sizes_option("Also show picks and times at these sizes, before and after.")
@options.flag("--all-releases", "Compare every pair of releases that run on the machine instead.")
@options.flag("--whole", "Also show ranges in which only channels or threads change.")
@options.flag(
    "--beyond",
    "Also show what differs besides the picks: channels, graphs, LL128, symmetric kernels, defaults. "
    "[default: for two releases, without --json]",
)
@options.flag(
    "--regressions",
    "known",
    "Show instead the upgrades after which people reported lost performance: the thread, what this tool says about "
    "it, and commands to try; with BEFORE AFTER only the regressions that AFTER has and BEFORE does not.",
)
@fail_above_option
@fail_on_change_option
@engine_options(several=True)
@options.question(
    ranges=True,
    times="both",
    libnccl="Also ask libnccl for what only it knows: buffer sizes, chunks, point-to-point channels, SMs, and for up "
    "to 16 ranks device memory.",
)
def command(
    words: tuple[Collective | PeerCall | str, ...],
    assignments: tuple[str, ...],
    sizes: list[int] | None,
    all_releases: bool,
    whole: bool,
    beyond: bool,
    known: bool,
    fail_above: float | None,
    fail_on_change: bool,
    engine: EngineOptions | None,
    asked: options.CommunicatorQuestion,
) -> None:
    """Shows the size ranges in which NCCL's choice for COLLECTIVE (default: all five) changes, and what that gains or
    loses.

    The side before is what the options describe; the side after is the same with release AFTER or with each CHANGE,
    KEY=VALUE. These keys change every node: nic-gbps (speed of adapters, 1e9 bits per second), nic-latency-us, nics
    (how many of the adapters), add-nic, move-nic, remove-nic, gpudirect, nvlinks (links per GPU), pcie (generation of
    links, and lanes, as in 5 or 4x8), move-gpu, remove-gpu, sockets, p2p, and what 'diagnose' repairs with: add-cpu,
    add-switch, move-switch, order, nvswitch (links of a GPU to NVSwitches), link-gpus, ids, new-guid, keep, sm; @ names
    single devices, as in nic-gbps=100@mlx5_0. The graphs are then searched anew. Other keys: nccl, machine, nodes,
    gpus-per-node, trays, gpus-per-tray, hosts-per-domain, ranks-per-gpu, constants, unset, or a NCCL variable. Several
    values of one key (nodes=4 nodes=8) are compared one by one; changes of named devices are applied together. For two
    releases it also shows what differs besides the picks, and regressions that users reported.

    \b
    nccl-tuner diff --machine dgx-h100 --nodes 2 --nccl 2.22.3 2.25.1
    nccl-tuner diff allreduce nodes=4 NCCL_PROTO=Simple --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner diff allreduce nic-gbps=200 --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 64K,64M
    nccl-tuner diff allreduce remove-nic=mlx5_0 nvlinks=17@gpu:3 --machine dgx-h100 --nodes 2 --nccl 2.28.9
    nccl-tuner diff allreduce NCCL_CTA_POLICY=2 --machine dgx-h100 --nccl 2.30.7 --buffers window
    nccl-tuner diff allreduce NCCL_ALGO=Ring --log nccl.log --gpu a100-sxm4-80gb
    nccl-tuner diff allreduce --machine dgx-h100 --nodes 2 --all-releases
    nccl-tuner diff --machine dgx-h100 --nodes 2 --nccl 2.22.3 2.25.1 --fail-above 5%
    nccl-tuner diff --machine dgx-h100 --nodes 2 --nccl 2.28.9 2.30.7 --fail-on-change
    nccl-tuner diff allreduce --machine dgx-h100 --nccl 2.27.7 2.30.7 --buffers window
    nccl-tuner diff allreduce --machine dgx-h100 --engine vllm@0.30.0 --engine vllm@0.33.0 --dtype bfloat16
    nccl-tuner diff --regressions 2.22.3 2.27.7
    """
    if engine is not None:
        if words not in ((), (Collective.AllReduce,)) or len(engine.names) != 2:
            raise BadInput(
                "--engine compares which implementations carry an AllReduce: diff allreduce --engine ONE --engine OTHER"
            )
        group, another = [engine.group(asked.communicator, name) for name in engine.names]
        show_differences(group, another, asked.call, asked.low or 1, asked.high)
        return
    collectives = [word for word in words if isinstance(word, Collective)]
    others = [word for word in words if not isinstance(word, Collective | PeerCall)]
    releases = [word for word in others if "=" not in word]
    assignments = (*(word for word in others if "=" in word), *assignments)
    nccl, libnccl = asked.communicator["nccl"], asked.libnccl
    if known:
        if collectives or assignments:
            raise BadInput("--regressions takes two releases, BEFORE AFTER, or nothing else")
        _show_regressions([each for each in (nccl, *releases) if each])
        return
    exchanged = exchanges.alone(word for word in words if isinstance(word, Collective | PeerCall))
    if nccl is None and len(releases) == 2:
        nccl, *releases = releases
    described, like = asked.communicator.scenario(nccl=nccl), asked.call
    limited = fail_above is not None or fail_on_change
    if exchanged:
        exchanges.check_plain(exchanged, like)
    if exchanged and (all_releases or beyond or libnccl is not None or limited or asked.whose_times_said):
        raise BadInput(
            f"{exchanged[0].name} can only be compared with --nccl BEFORE AFTER and --change: remove --all-releases, "
            "--beyond, --libnccl, --fail-above, --fail-on-change and --time"
        )
    if all_releases:
        if releases or assignments or nccl:
            raise BadInput("--all-releases compares every release: remove --nccl and --change")
        if beyond or libnccl is not None or limited or sizes is not None:
            raise BadInput(
                "--all-releases only compares picks: remove --beyond, --libnccl, --fail-above, --fail-on-change and "
                "--bytes, or compare two releases with --nccl BEFORE AFTER"
            )
        if asked.whose_times_said:
            raise BadInput("--all-releases only shows NCCL's own times: remove --time and --calibration")
        sides = list[Side]()
        for under in releases_of(described, like.buffers):
            sides.append(Side(under, asked.low, asked.high, whole, near=sides[-1] if sides else None))
        selections = {f"on NCCL {side.scenario.nccl}": side.selection for side in sides}
        requests = options.runnable(selections, collectives, like)
        print_pairs(described, sides, requests)
        return
    if len(releases) > 1:
        raise BadInput(f"more than two releases: {', '.join(filter(None, (nccl, *releases)))}; name two, BEFORE AFTER")
    beyond = beyond or (bool(releases) and not json_wanted())
    ways, compared = [], []
    for changes in each_of([*(f"nccl={name}" for name in releases), *assignments]):
        after = options.after(described, changes)
        if after == described:
            raise BadInput(
                "nothing differs, as options describe both sides: say what changes, by --nccl BEFORE AFTER, "
                "--all-releases, a variable such as NCCL_ALGO=Ring, or KEY=VALUE with one of the keys "
                f"{', '.join(KEYS)}"
            )
        if exchanged:
            ways.append(exchanges.compared(described, after, exchanged, sizes or (), (asked.low or 1, asked.high)))
            continue
        old = Side(described, asked.low, asked.high, whole)
        new = Side(after, asked.low, asked.high, whole, near=old)
        requests = options.runnable({"before": old.selection, "after": new.selection}, collectives, like)
        compared.append(_compared(old, new, requests, asked, sizes, beyond))
    if exchanged:
        exchanges.show_changes(ways)
        return
    if not shown_as_json(compared, "comparisons"):
        for one in compared:
            _print(one, asked.by_nccl, fail_above)
    every_change = [change for one in compared for change in one.every_change]
    if fail_on_change:
        fail_on_changes(every_change)
    fail_on_losses(every_change, fail_above)


@dataclass(frozen=True, slots=True)
class ComparedSides:
    """The two sides of a comparison, with everything that was compared; ``sizes`` is None if no single sizes were
    asked for.
    """

    old: Side
    new: Side
    changes: Mapping[Request, list[PickChange]]
    sizes: Mapping[Request, list[AtSize]] | None
    upgrade: Upgrade | None

    @property
    def every_change(self) -> list[PickChange]:
        """The changes of all collectives in one list."""
        return list(chain(*self.changes.values()))

    @property
    def every_size(self) -> list[AtSize]:
        """The answers at single sizes of all collectives in one list."""
        return list(chain(*(self.sizes or {}).values()))

    def as_json(self) -> Mapping[str, object]:
        """The record for JSON: both sides, the answers at single sizes, the changes, and other differences."""
        sides = {"before": self.old.scenario.heading, "after": self.new.scenario.heading}
        sizes = {} if self.sizes is None else {"sizes": self.every_size}
        return {**sides, **sizes, **to_json(self.upgrade or {"changes": self.every_change})}


def _compared(
    old: Side,
    new: Side,
    requests: Sequence[Request],
    asked: options.CommunicatorQuestion,
    sizes: Sequence[int] | None,
    beyond: bool,
) -> ComparedSides:
    changes = {request: diff(old, new, request) for request in requests}
    at = None if sizes is None else {request: at_sizes(old, new, request, sizes) for request in requests}
    if asked.times is not None:
        from tuner.answers.diff import CalibratedSides

        calibrated = CalibratedSides(asked.times, old, new, requests[0].buffers)
        at = None if at is None else {request: calibrated.sizes(request, ones) for request, ones in at.items()}
        changes = {request: calibrated.changes(request, ones) for request, ones in changes.items()}
    found = upgrade(old, new, changes, asked.libnccl) if beyond or asked.libnccl is not None else None
    return ComparedSides(old, new, changes, at, found)


def _print(one: ComparedSides, by_nccl: bool, limit: float | None) -> None:
    old, new, found, sizes = one.old.scenario, one.new.scenario, one.upgrade, one.every_size
    if sizes and limit is None:
        say(f"{pick_changes(one.every_change) or 'no pick changes'}; at the sizes below {gains(sizes)}")
    else:
        say(verdict_of(one.every_change, found is not None and found.selection_identical, limit))
    if found is not None and found.known_regressions:
        known = plural(len(found.known_regressions), "regression")
        say(f"people reported {known} after such an upgrade: nccl-tuner diff --regressions {old.nccl} {new.nccl}")
        for each in found.known_regressions:
            say(f"  {each.title}")
    say(f"before: {old.heading}\nafter:  {new.heading}\n")
    for request, changes in one.changes.items():
        name = request.collective.name
        if one.sizes:
            _print_sizes(name, one.sizes[request], by_nccl)
        print_changes(f"{name}: where the pick changes" if sizes else name, changes, by_nccl=by_nccl)
    print_whose([*(each.calibrated for each in sizes), *(each.calibrated for each in one.every_change)])
    if found:
        print_upgrade(found, old.nccl, new.nccl)
    print_learnt(*(side.resolve().release for side in (old, new)))
    if alike := [request.collective.name for request, changes in one.changes.items() if not changes]:
        say(f"{SAME if one.old.whole else SAME_COMBINATION} at every size: {', '.join(alike)}")


SAME = "the same"
SAME_COMBINATION = "the same algorithm and protocol"  # channels and threads were not compared
BY_NCCL, BY_MEASUREMENTS = "time by NCCL", "by measurements"


def print_changes(title: str, changes: list[PickChange], *, by_nccl: bool = True) -> None:
    """Prints the ranges whose pick changes as a table, without those that are only rounding.

    If ``by_nccl``, calibrated times are shown in addition to NCCL's, else instead of them.
    """
    ties = [change for change in changes if change.is_rounding]
    if left := [change for change in changes if not change.is_rounding]:
        shown = shown_times(by_nccl, [change.calibrated for change in left])
        models = ("new pick by the model before", "by the model after")
        columns = ("from", "to", "before", "after", *shown, *models)
        print_table(title, columns, [_row(change, shown) for change in left], models[::-1])
    if ties:
        sizes = sum(change.to_bytes - change.from_bytes + 1 for change in ties)
        more = plural(len(ties), "more range")
        say(
            f"{title}: not listed: {more} around these, {plural(sizes, 'byte')} in all, in which both times only "
            "differ by rounding\n"
        )


def shown_times(by_nccl: bool, calibrated: "Sequence[CalibratedChange | None]") -> list[str]:
    """The columns that show how times change: by NCCL's models, by measurements, or both."""
    measured = any(each is not None and each.ratio is not None for each in calibrated)
    return [*([BY_NCCL] if by_nccl or not measured else []), *([BY_MEASUREMENTS] if measured else [])]


def times_row(ratio: float | None, calibrated: "CalibratedChange | None", shown: Sequence[str]) -> list[object]:
    """The cells of the columns that :func:`shown_times` names."""
    from tuner.cli import times

    by_measurements = times.change(calibrated.ratio if calibrated else None)
    return [percent(ratio) if name == BY_NCCL else by_measurements for name in shown]


def print_whose(calibrated: "Sequence[CalibratedChange | None]") -> None:
    """Prints which calibrations the times before and after come from, or why there are none."""
    known = [each for each in calibrated if each is not None]
    if not known:
        return
    from tuner.cli import times

    sides = [used for each in known for used in (each.calibration_before, each.calibration_after)]
    say(f"{times.whose_of_all(sides)}\n")


def _row(change: PickChange, shown: Sequence[str]) -> tuple[object, ...]:
    return (
        human_bytes(change.from_bytes),
        human_bytes(change.to_bytes),
        pick_name(change.before),
        pick_name(change.after),
        *times_row(change.ratio, change.calibrated, shown),
        *(percent(by, none=_why_none(change)) for by in (change.ratio_by_before, change.ratio_by_after)),
    )


def _why_none(change: PickChange) -> str:
    return NOT_COMPARED if change.ratio is None else "cannot run"


def pick_name(pick: AnyPick) -> str:
    """Algorithm, protocol and channels of a pick, or the name and blocks of what runs the call instead."""
    bare = isinstance(pick, NonClassicPick) and not pick.channels
    return pick.name if bare else f"{pick.name} x{pick.channels}"


NOT_COMPARED = "not compared"  # no model of NCCL's has a time of both


def percent(ratio: float | None, none: str = NOT_COMPARED) -> str:
    """Text for a ratio of times, as a change in percent."""
    return none if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def print_learnt(before: Release, after: Release) -> None:
    """Prints constants and rules that differ, if one of the releases was learnt from a library."""
    if before.name == after.name or not (learnt.origin_of(before) or learnt.origin_of(after)):
        return
    differing = release.differences(before, after)
    say(f"constants and rules: {len(differing)} differ")
    for each in differing:
        say(f"  {each.key}: {each.before} -> {each.after}")


def _print_sizes(title: str, ones: Sequence[AtSize], by_nccl: bool) -> None:
    shown = shown_times(by_nccl, [one.calibrated for one in ones])
    measured = BY_NCCL not in shown
    busbws = () if measured else ("before busbw GB/s", "after busbw GB/s")
    rows = []
    for one in ones:
        picks = pick_name(one.before), pick_name(one.after)
        nccl_us = (number(one.before.time_us, 2), number(one.after.time_us, 2))
        times_us = _measured_us(one) if measured else nccl_us
        cells = [human_bytes(one.bytes), *picks, *times_us, *times_row(one.ratio, one.calibrated, shown)]
        rows.append([*cells, *([] if measured else [number(one.busbw_gbs_before, 3), number(one.busbw_gbs_after, 3)])])
    print_table(title, ["size", "before", "after", "before us", "after us", *shown, *busbws], rows, busbws)


def _measured_us(one: AtSize) -> tuple[str, str]:
    from tuner.cli import times

    calibrated = one.calibrated
    return (times.central(calibrated.before), times.central(calibrated.after)) if calibrated else ("-", "-")
