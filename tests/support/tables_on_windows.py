"""Calls with a decision table, where symmetric kernels may take them: the dry run beside libnccl with the plugin."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.plugin_tables import table_of
from tuner import plugin
from tuner.emulator.request import NonClassicPath, Request
from tuner.emulator.selection import Selection
from tuner.oracle.answers import OracleLaunch
from tuner.oracle.api import Oracle
from tuner.plugin import trial
from tuner.scenario import Scenario

Taken = tuple[str, int]  # what takes a call, and its channels or blocks


def differing(
    scenario: Scenario, request: Request, sizes: Sequence[int], folder: Path, rows: Sequence[str]
) -> tuple[Counter[str], list[tuple[int, Taken, Taken]]]:
    """How many calls were compared by what the tuner says of them; and those that differ: size, emulated, libnccl's.

    Errors: those of the dry run; OracleFailed.
    """
    table = table_of(folder, *rows)
    trials = trial.run(table, Selection(scenario.communicator()), request, sizes).sizes
    configuration = scenario.oracle_configuration()
    env = {**configuration.env, "NCCL_TUNER_TABLE": str(table)}
    with Oracle(replace(configuration, env=env, plugin=plugin.path())) as oracle:
        # Twice, as the first symmetric kernel of plain buffers is one without multicast (docs/limits.md).
        real = oracle.launch_on_any_path(request, [*sizes, *sizes])[len(sizes) :]
    says, found = Counter[str](), []
    for each, launched in zip(trials, real, strict=True):
        says[each.tuner.value if each.tuner else "on the classic path alone"] += 1
        says["changed"] += (each.own, each.own_bypass) != (each.picked, each.bypass)
        if emulated(each) != observed(launched):
            found.append((each.bytes, emulated(each), observed(launched)))
    return says, found


def emulated(one: trial.TableTrial) -> Taken:
    """With the table."""
    if one.bypass is not None:
        return one.bypass.name, one.bypass.channels
    assert one.picked is not None
    return f"{one.picked.algorithm.name}/{one.picked.protocol.name}", one.picked.channels


def observed(launched: OracleLaunch | NonClassicPath) -> Taken:
    """As launched."""
    if isinstance(launched, NonClassicPath):
        return launched.name, launched.blocks
    return f"{launched.algorithm.name}/{launched.protocol.name}", launched.channels
