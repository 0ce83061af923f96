"""A job's budget with each communicator priced as its own: of the ranks that the file says, or of a layout's groups."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.ranges import as_ranges
from tuner.base.records import json_form
from tuner.jobs.traces.calls import Call, CallList
from tuner.jobs.traces.wanted import Wanted
from tuner.jobs.workload.budget import CountedFiles, budget
from tuner.jobs.workload.count import LeftOut, count
from tuner.jobs.workload.job import Compared
from tuner.jobs.workload.layout import KINDS, Layout, kind_of_name
from tuner.jobs.workload.priced import Budget
from tuner.scenario import Members, Scenario

GIVEN_BY_RANKS = "times the ranks"  # what a file says of its sizes where they are of one rank


@dataclass(frozen=True, slots=True)
class JobGroups:
    """Which ranks have a communicator together: by the ``layout``, of which the files are ``rank``'s, or as they say.

    ``shares``: groups share the resources of the communicator of all ranks.
    """

    layout: Layout | None = None
    rank: int = 0
    shares: bool = False


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """The calls of one group. ``groups``: how many the layout has of that kind, None without a layout."""

    group: str
    ranks: str
    groups: int | None
    nodes: int  # that NCCL takes its hosts for
    communicator: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """All groups in one release with one setting or table, us by NCCL's own prediction, one after the other."""

    variant: str
    total_us: float
    priced_calls: float


@dataclass(frozen=True, slots=True)
class JobBudget:
    """The budgets of a job's groups, the one with the most time first, and their sum."""

    job: str | None
    rank: int | None = field(metadata=json_form(optional=True))
    totals: tuple[GroupTotal, ...]
    groups: tuple[GroupBudget, ...]
    left_out: tuple[LeftOut, ...]


def of_lists(lists: Sequence[CallList], compared: Compared, wanted: Wanted, job: JobGroups) -> JobBudget:
    """The budget of every group whose calls are in the files. ``wanted`` says what is taken of calls, but their ranks.

    Errors: those of :func:`tuner.jobs.workload.budget.budget`; BadInput where no call is of a group.
    """
    described = compared.scenarios[0]
    if job.layout is not None and not 0 <= job.rank < job.layout.ranks:
        raise BadInput(f"`rank` {job.rank}; valid: 0 to {job.layout.ranks - 1}")
    place, left_out = _Places(job, described.ranks, wanted.communicators), list[LeftOut]()
    calls_of: dict[tuple[str, tuple[int, ...]], list[list[Call]]] = defaultdict(lambda: [[] for _ in lists])
    for number, each in enumerate(lists):
        for call in each.calls:
            found = place.of(call, GIVEN_BY_RANKS in each.sizes)
            if isinstance(found, str):
                left_out.append(LeftOut(call.name, found, call.calls, sum(call.kernels_us)))
            else:
                calls_of[found][number].append(replace(call, nodes=None, ranks=len(found[1])))
    budgets = list[GroupBudget]()
    for (group, ranks), calls in calls_of.items():
        own = [replace(each, calls=tuple(taken)) for each, taken in zip(lists, calls, strict=True) if taken]
        variants = replace(compared, scenarios=[_of_ranks(one, ranks, job.shares) for one in compared.scenarios])
        asked = replace(wanted, ranks=len(ranks), priced_ranks=len(ranks), nodes=None, communicators=())
        try:
            counted = count(own, asked, exchanges_alone=True)
        except BadInput as error:
            left_out.append(LeftOut(f"group {group}", str(error), sum(c.calls for one in own for c in one.calls), 0.0))
            continue
        priced = budget(CountedFiles(own, asked, counted), variants.variants(), None, compared.times)
        own_ranks, nodes = variants.scenarios[0], variants.scenarios[0].communicator().nodes
        budgets.append(GroupBudget(group, as_ranges(ranks), place.groups_like(group), nodes, own_ranks.title, priced))
    if not budgets:
        raise BadInput(f"no calls to price; {'; '.join(map(str, _merged(left_out))) or 'the files have none'}")
    budgets.sort(key=lambda one: -one.budget.variants[0].total_us)
    return JobBudget(
        job=None if job.layout is None else job.layout.in_words,
        rank=None if job.layout is None else job.rank,
        totals=tuple(_totals(budgets)),
        groups=tuple(budgets),
        left_out=tuple(_merged(left_out)),
    )


class _Places:
    """Of which group a call is."""

    def __init__(self, job: JobGroups, ranks: int, names: Sequence[str]) -> None:
        self.layout, self.rank, self.ranks, self.names = job.layout, job.rank, ranks, names
        kinds = () if self.layout is None else self.layout.kinds
        self.members = {kind: self.layout.group_of(kind, self.rank) for kind in kinds} if self.layout else {}

    def of(self, call: Call, by_ranks: bool) -> tuple[str, tuple[int, ...]] | str:
        """The group's name and its ranks, or why none is known. ``by_ranks``: sizes were made with numbers of ranks."""
        if self.names and call.communicator not in self.names:
            return f"of communicator {call.communicator or 'without a name'}"
        if call.members is not None:
            return self._said(call, call.members)
        kind = None if call.communicator is None else kind_of_name(call.communicator)
        if self.layout is None:
            if kind in (None, "all") and call.ranks in (None, self.ranks):
                return "all", tuple(range(self.ranks))
            name = call.communicator or f"communicators of {call.ranks} ranks"
            return f"of {name}, whose ranks the file does not say; `job` does"
        if kind is not None:
            return self._of_kind(call, kind, by_ranks)
        if call.ranks is None or call.ranks == self.ranks:
            return "all", tuple(range(self.ranks))
        same_size = [each for each, members in self.members.items() if len(members) == call.ranks]
        if len(same_size) == 1:
            return same_size[0], self.members[same_size[0]]
        if not same_size:
            return f"of communicators of {call.ranks} ranks, which no group of the job has"
        return f"of communicators of {call.ranks} ranks, which several groups have: {', '.join(same_size)}"

    def groups_like(self, group: str) -> int | None:
        """How many the layout has of the kind."""
        return len(self.layout.groups(group)) if self.layout is not None and group in KINDS else None

    def _said(self, call: Call, members: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | str:
        if members[-1] >= self.ranks:
            return f"of ranks {as_ranges(members)}; valid: 0 to {self.ranks - 1}, as described"
        if len(members) == 1:
            return "of a communicator of one rank, which copies"
        own = next((kind for kind, ranks in self.members.items() if ranks == members), None)
        name = own or (kind_of_name(call.communicator) if call.communicator else None) or call.communicator
        return name or f"ranks {as_ranges(members)}", members

    def _of_kind(self, call: Call, kind: str, by_ranks: bool) -> tuple[str, tuple[int, ...]] | str:
        assert self.layout is not None
        members = self.layout.group_of(kind, self.rank)
        if len(members) == 1:
            return f"of group {kind}, of one rank in this job"
        if call.ranks not in (None, len(members)):
            return f"of {call.communicator}: {call.ranks} ranks, where group {kind} of the job has {len(members)}"
        if call.ranks is None and by_ranks and call.bytes is not None:
            return f"of group {kind}: the size is of one rank, and the file does not say of how many; column ranks does"
        same = next((own for own, ranks in self.members.items() if ranks == members), kind)
        return same, members


def _of_ranks(scenario: Scenario, ranks: tuple[int, ...], shares: bool) -> Scenario:
    everyone = len(ranks) == scenario.ranks
    return scenario if everyone else replace(scenario, members=Members(ranks, shares))


def _totals(budgets: Sequence[GroupBudget]) -> Iterable[GroupTotal]:
    for at, variant in enumerate(budgets[0].budget.variants):
        own = [one.budget.variants[at] for one in budgets]
        yield GroupTotal(variant.name, sum(one.total_us for one in own), sum(one.priced_calls for one in own))


def _merged(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Each name and reason once."""
    sums: dict[tuple[str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for each in left_out:
        calls, kernels_us = sums[each.name, each.reason]
        sums[each.name, each.reason] = calls + each.calls, kernels_us + each.kernels_us
    return [LeftOut(*key, *both) for key, both in sums.items()]
