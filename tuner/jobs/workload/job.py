"""Makes a budget from a job's files: reads, counts and prices their calls."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.answers.calibrated import TimesWanted
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.spelling import option
from tuner.jobs.traces.calls import CallList, WantedCalls
from tuner.jobs.traces.read import read
from tuner.jobs.workload.budget import MeasuredRuns, budget, read_runs
from tuner.jobs.workload.count import count
from tuner.jobs.workload.price import BudgetVariant
from tuner.jobs.workload.priced import Budget
from tuner.plugin.asked import other_releases
from tuner.release import names
from tuner.scenario import Scenario


@dataclass(frozen=True, slots=True)
class BudgetComparison:
    """The variants that a budget compares: each scenario as it is, then with each setting, then with each decision
    table.

    ``settings`` are texts ``NAME=VALUE[,NAME=VALUE...]`` with NCCL's variables. ``times`` says which calibrated times
    are shown beside NCCL's; None if none are.
    """

    scenarios: Sequence[Scenario]
    settings: Sequence[str] = ()
    tables: Sequence[Path] = ()
    times: TimesWanted | None = None

    def variants(self) -> list[BudgetVariant]:
        """The distinct variants; the first one is the first scenario as it is. BadInput for an invalid setting."""
        variants = {
            each.name: each
            for one in self.scenarios
            for each in (
                BudgetVariant(f"NCCL {one.nccl}", one),
                *(BudgetVariant(f"NCCL {one.nccl} with {text}", _with(one, text)) for text in self.settings),
                *(BudgetVariant(f"NCCL {one.nccl} with {_said(path, one)}", one, path) for path in self.tables),
            )
        }
        return list(variants.values())


def _said(table: Path, scenario: Scenario) -> str:
    """The name of a table, with a remark if the plugin ignores it because it is for other releases."""
    others = other_releases(table, scenario.nccl)
    return f"{table}" if others is None else f"{table} (IGNORED by the plugin, as it is for NCCL {others})"


def wanted_of(scenario: Scenario, ranks: int | None = None) -> WantedCalls:
    """The filter for the calls that a budget counts: those on communicators of the scenario's size.

    With ``ranks``, it is the calls on communicators of that many ranks, on any number of nodes; they are still priced
    on the scenario.
    """
    if scenario.members is not None:
        nodes: int | None = sum(count for _, count in scenario.resolve().nodes)
    else:
        nodes = None if ranks else sum(kind.nodes for kind in scenario.kinds)
    return WantedCalls(ranks or scenario.ranks, scenario.ranks, nodes)


def of_files(
    files: Iterable[Path], compared: BudgetComparison, wanted: WantedCalls, measured: Path | None = None
) -> Budget:
    """The budget of the calls in ``files``, priced by NCCL's model; with ``measured`` times, also how much time the
    picks lose.

    Raises BadInput for what cannot be read, counted or priced; BadMeasurement and BadTable.
    """
    return of_lists([read(path, compared.scenarios[0].ranks) for path in files], compared, wanted, measured)


def of_lists(
    lists: Sequence[CallList],
    compared: BudgetComparison,
    wanted: WantedCalls,
    measured: Path | MeasuredRuns | None = None,
) -> Budget:
    """Computes the budget of lists of calls, also with measured times that were already read.

    Raises BadInput for what cannot be counted or priced; BadMeasurement and BadTable.
    """
    variants, described = compared.variants(), compared.scenarios[0]
    times = read_runs(measured, described) if isinstance(measured, Path) else measured
    return budget(lists, wanted, count(list(lists), wanted), variants, times, compared.times)


def release_of(lists: Iterable[CallList]) -> str | None:
    """The release of NCCL that the files name; None if they name several, or none, or a release that has no table."""
    said = {release for each in lists for release in each.releases}
    return next(iter(said)) if len(said) == 1 and said <= set(names()) else None


def of_other_releases(lists: Iterable[CallList], taken: Iterable[str], done: str = "priced") -> list[str]:
    """A warning per file whose NCCL release is not among ``taken``; ``done``: the verb for what was done with it."""
    others, known = list(taken), set(names())

    def what_ran(said: str) -> str:
        return (
            f"add {option('nccl')} {said} to have what ran {done}"
            if said in known
            else "nccl-tuner has no table of that release"
        )

    return [
        f"{each.file} is from NCCL {said}, but is {done} with {', '.join(others)}; {what_ran(said)}"
        for each in lists
        for said in each.releases
        if said not in others
    ]


def _with(scenario: Scenario, text: str) -> Scenario:
    """The scenario with a setting ``NAME=VALUE[,NAME=VALUE...]``. BadInput for any other text."""
    pairs = [part.partition("=") for part in re.split(r",(?=NCCL_\w+=)", text)]
    if not all(name.startswith("NCCL_") and equals for name, equals, _ in pairs):
        raise BadInput(
            f"{option('setting')} {text!r} is not of the form NCCL_NAME=VALUE[,NCCL_NAME=VALUE...], such as "
            "NCCL_ALGO=Ring"
        )
    values = {name: value for name, _, value in pairs}
    return replace(scenario, environment={**(scenario.environment or {}), **values})
