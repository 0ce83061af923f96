"""What the shipped measured tables say of NCCL's picks, for docs/calibrated-times.md: `make docs` writes it."""

from collections.abc import Iterator
from functools import cache
from itertools import groupby

from tests.support import kinks
from tuner.base.errors import TunerError
from tuner.base.sizes import human_bytes
from tuner.times import measured
from tuner.times.picks import PickVerdict
from tuner.times.regret import workflow
from tuner.times.regret.judged import RunsPick, SplitGain
from tuner.times.regret.workflow import MeasuredRegret, RunsQuery

B200 = "b200-8x-64n__2.29.7__together"
GAIN = 0.1  # of splits that are shown
EVERYWHERE = 2 / 3  # of the curves that have both sizes


@cache
def of_table(name: str) -> MeasuredRegret | str:
    """What a table says, or why it says nothing."""
    head = measured.load(name).header
    if all(row.point.is_point_to_point for row in measured.load(name).blocks):
        return "sends and receives alone"
    if not head.machine:
        return "the machine is not in the catalogue"
    if not head.nccl:
        return "no release is stated"
    try:
        return workflow.of_arms(workflow.read(RunsQuery(tables=(name,))))
    except TunerError as error:
        return str(error).partition(": ")[2]


def answered() -> Iterator[tuple[str, MeasuredRegret]]:
    """The tables that the emulator can be asked about."""
    for name in measured.names():
        if isinstance(found := of_table(name), MeasuredRegret):
            yield name, found


def by_table() -> str:
    """A line a table: how many picks were the best, tied, lost, and of how many nothing is known."""
    lines = [
        "| file | machine | NCCL | best | tie | loses | unknown | mean regret | largest | NCCL ran the emulated pick |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    left_out = nothing_forced = 0
    for name in measured.names():
        found = of_table(name)
        if isinstance(found, str):
            left_out += 1
        elif any(one.regret is not None for one in found.sizes):
            lines.append(_table_line(name, found))
        else:
            nothing_forced += 1
    return "\n".join(lines) + (
        f"\n\nIn {nothing_forced} other tables nothing was forced; {left_out} were not asked, as they do not say "
        "machine or release, or\nhave sends alone.\n"
    )


def _table_line(name: str, found: MeasuredRegret) -> str:
    counts = [
        found.count(verdict) for verdict in (PickVerdict.best, PickVerdict.tie, PickVerdict.loses, PickVerdict.unknown)
    ]
    regrets = [one.regret for one in found.sizes if one.regret is not None]
    mean = f"{100 * sum(regrets) / len(regrets):.1f} %" if regrets else "unknown"
    largest = f"{100 * max(regrets):.1f} %" if regrets else "unknown"
    ran = found.agreement
    agreed = [
        *([f"{ran.clear_agreeing} of {ran.clear}"] if ran.clear else []),
        *([f"{ran.nearest_agreeing} of {ran.nearest} by the nearest time alone"] if ran.nearest else []),
    ]
    cells = [f"`{name}`", f"`{found.machine}`", found.nccl, *map(str, counts), mean, largest, ", ".join(agreed) or "-"]
    return f"| {' | '.join(cells)} |"


def b200() -> str:
    """The points of the B200 cluster at which the pick was not clearly the best."""
    found = of_table(B200)
    assert isinstance(found, MeasuredRegret)
    lines = [
        "| nodes | size | emulated pick | NCCL ran, by its time | Ring us | Tree us | NVLSTree us | default us "
        "| regret | 95 % interval | |",
        "|--:|--:|---|---|--:|--:|--:|--:|--:|---|---|",
        *(
            _point(one)
            for one in found.sizes
            if one.evidence.identified is not None and one.verdict is not PickVerdict.best
        ),
    ]
    return "\n".join(lines) + "\n"


def _point(one: RunsPick) -> str:
    ran = one.evidence.identified
    assert ran is not None
    assert one.low is not None
    assert one.high is not None
    times = {arm.label: f"{arm.time_us:,.0f}" for arm in one.evidence.columns}
    nearest = f"{ran.combination.algorithm.name}{'' if ran.is_clear else ' (within the noise)'}"
    cells = [
        *(str(one.call.nodes), human_bytes(one.call.bytes), str(one.emulated_pick), nearest),
        *(times.get(label, "-") for label in ("Ring", "Tree", "NVLSTree", "default")),
        *(f"{100 * (one.regret or 0):.1f} %", f"{100 * one.low:.0f} to {100 * one.high:.0f} %", one.verdict.value),
    ]
    return f"| {' | '.join(cells)} |"


def sentence() -> str:
    """What the cluster says, for the README."""
    found = of_table(B200)
    assert isinstance(found, MeasuredRegret)
    ran = found.agreement
    lost = [100 * (one.regret or 0) for one in found.sizes if one.verdict is PickVerdict.loses]
    points = ran.clear + ran.nearest
    return (
        f"Public measurements on 2 to 64 nodes of B200 show at {points} points what NCCL ran by itself: at "
        f"{ran.clear_agreeing + ran.nearest_agreeing} of them the\nemulated pick. At {len(lost)} of them the pick took "
        f"{min(lost):.0f} to {max(lost):.0f} % longer than a run that was forced, beyond the noise.\n"
    )


def b200_rows() -> str:
    """The rows of a decision table that the cluster's times support."""
    found = of_table(B200)
    assert isinstance(found, MeasuredRegret)
    return "\n".join(["```", *(row.row for row in found.rows), "```", ""])


def kinks_by_change() -> str:
    """In how many curves of default runs the largest kink is where the pick changes."""
    said = []
    for nodes, several in (("one node", False), ("several", True)):
        calls = ([one for one in each.measured.calls if (one.call.nodes > 1) is several] for _, each in answered())
        every = kinks.together(each for those in calls for each in kinks.kinks(those))
        (found,) = (each for each in every if each.before == "any")
        said.append(f"on {nodes} in {found.largest_there} of {found.curves} curves ({found.by_chance:.1f} by chance)")
    return f"So it is {', '.join(said)}.\n"


def splits() -> str:
    """Where smaller calls would beat one in most curves that show both sizes."""
    lines = [f"* `{name}`: {'; '.join(those)}" for name, found in answered() if (those := list(_splits(found)))]
    return "\n".join(lines) + "\n"


def _splits(found: MeasuredRegret) -> Iterator[str]:
    def by(one: SplitGain) -> tuple[int, int, int, int, int]:
        return int(one.call.collective), one.call.nodes, one.call.gpus_per_node, one.call.bytes, one.part_bytes

    for _, several in groupby(sorted(found.splits, key=by), key=by):
        same = list(several)
        first, gains = same[0], sorted(one.gain for one in same)
        curves = sum(
            (int(one.call.collective), one.call.nodes, one.call.gpus_per_node, one.call.bytes) == by(first)[:4]
            and one.default is not None
            for one in found.measured.calls
        )
        if curves < 2 or len(same) < EVERYWHERE * curves or gains[len(gains) // 2] < GAIN:
            continue
        call = first.call
        yield (
            f"{call.collective.name} of {human_bytes(call.bytes)} on {call.nodes} x {call.gpus_per_node} "
            f"({first.part_pick} to {first.pick}, {100 * gains[0]:.0f} to {100 * gains[-1]:.0f} %)"
        )
