"""Launches in full with the plugin and a table of random rows, beside those of libnccl that loads both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.support.plugin_tables import table_of
from tests.support.random_launches import AT_ONCE, Drawn, in_batches, issued
from tuner import plugin
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator import full_launch
from tuner.emulator.group import Operation, Tuned
from tuner.emulator.launches import Launch
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import launched_values
from tuner.plugin.asked import AskedPlugin, opened
from tuner.scenario.p2p import heads_of

RINGS = [f"{Algorithm.Ring.name.lower()}/{protocol.name.lower()}" for protocol in Protocol]
OTHERS = [f"{Algorithm.Tree.name.lower()}/{protocol.name.lower()}" for protocol in Protocol]
OTHERS += [f"{algorithm.name.lower()}/simple" for algorithm in (Algorithm.NVLS, Algorithm.NVLSTree)]


@dataclass(frozen=True, slots=True)
class Compared:
    """Calls of one group, and every value, here and in libnccl; ``named``: whether a row named channels of any."""

    operations: tuple[Operation, ...]
    values: dict[str, launched_values.Both]
    named: bool


def rows_of(random: Random) -> list[str]:
    """Rows of a table; most name channels, some hold for a range of sizes."""
    made = []
    for collective in random.choices([each.name.lower() for each in Collective], k=random.randint(5, 12)):
        low, high = sorted(int(2 ** random.uniform(3, 33)) for _ in range(2))
        sizes = random.choice(("", "", f"bytes={low}..{high}", f"bytes=..{high}", f"bytes={low}.."))
        channels = random.choice(("", *(f"channels={count}" for count in (1, 2, 3, 5, 8, 12, 16, 24))))
        choices = random.choice(RINGS if random.random() < 0.5 else OTHERS)
        second = "" if choices == "ring/simple" else "| ring/simple"
        made.append(" ".join(f"{collective} {sizes} -> {choices} {channels} {second}".split()))
    return made


def unforced(communicator: Drawn) -> Drawn:
    """The same without NCCL_ALGO and NCCL_PROTO, which leave a tuner little to choose."""
    settings = communicator.scenario.environment or {}
    kept = {name: text for name, text in settings.items() if name not in ("NCCL_ALGO", "NCCL_PROTO")}
    scenario = replace(communicator.scenario, environment=kept)
    return replace(communicator, scenario=scenario, selection=Selection(scenario.resolve().view_of(communicator.rank)))


def compared(communicator: Drawn, rows: Sequence[str], folder: Path) -> Iterator[Compared | None]:
    """Each call and each group of a communicator with a table; None for a launch that is refused."""
    configuration = communicator.scenario.oracle_configuration()
    table = table_of(folder, *rows)
    loaded = replace(configuration, env={**configuration.env, "NCCL_TUNER_TABLE": str(table)}, plugin=plugin.path())
    calls = [*((each,) for each in communicator.alone), *communicator.groups]
    with Oracle(loaded, timeout_s=600) as oracle, opened(table, communicator.selection) as asked:
        for groups in in_batches(calls, AT_ONCE):
            tuners = {group: _Tuner(asked) for group in groups}
            planned = {group: _launch(communicator, group, tuner) for group, tuner in tuners.items()}
            returning = {group: ours for group, ours in planned.items() if ours is not None}
            yield from [None] * (len(planned) - len(returning))
            real = oracle.launch_groups_in_full(
                [[issued(communicator.selection, operation) for operation in group] for group in returning],
                communicator.rank,
            )
            for (operations, ours), theirs in zip(returning.items(), real, strict=True):
                yield Compared(operations, launched_values.compare(ours, theirs), tuners[operations].named)


class _Tuner:
    """The plugin as a communicator of its own is asked, whatever the interface says of who asks."""

    def __init__(self, asked: AskedPlugin) -> None:
        self.asked, self.named = asked, False

    def __call__(self, request: Request, size: int) -> Tuned:
        selection = self.asked.selection
        tuned = self.asked.answer(self.asked.call(request, size), selection.cost_table(request, size)[0])
        if tuned is None:
            picks = selection.classic_pick(request, size)
            return Tuned(picks.algo_protos()[0], picks.time_us[0])
        self.named |= tuned.channels > 0
        return tuned


def _launch(communicator: Drawn, group: tuple[Operation, ...], tuner: _Tuner) -> Launch | None:
    resolved, rank = communicator.scenario.resolve(), communicator.rank
    try:
        return full_launch.launch(communicator.selection, group, lambda: heads_of(resolved, rank), tuner)
    except BadInput as error:
        if "never returns" in str(error):
            return None
        raise
