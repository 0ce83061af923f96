"""Computes a job's budget in which each communicator is priced on its own ranks, which the file or a layout says."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, prod

import numpy as np

from tuner.answers.calibrated import together
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.frames import Column, Framed
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import TimeInterval
from tuner.base.records import json_form
from tuner.base.sizes import as_ranges
from tuner.base.spelling import option
from tuner.jobs.traces.calls import CallList, TracedCall, WantedCalls
from tuner.jobs.workload.budget import budget
from tuner.jobs.workload.count import LeftOut, count
from tuner.jobs.workload.job import BudgetComparison
from tuner.jobs.workload.priced import AllToAllBudget, Budget
from tuner.scenario import Members, Scenario
from tuner.times.costmodels import step
from tuner.times.costmodels.operations import CostOperation
from tuner.times.costmodels.step import Model, Parallelism, Traffic

ORDER = ("tp", "cp", "ep", "dp", "pp")  # Megatron-LM's, innermost first; torchtitan's, without ep, is the same
DEGREES = ("tp", "cp", "ep", "dp", "pp", "etp", "replicate")
EXPERTS = "expert"  # kinds of groups that depend on the experts' degrees

# Which degrees the ranks of a group differ in, by its kind: replicas are copies (DDP's, or HSDP's replicated dimension)
# of shards.
KINDS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("shard", "replicate"),
    "pp": ("pp",),
    "dp-cp": ("cp", "shard", "replicate"),
    "dp-shard": ("shard",),
    "dp-shard-cp": ("cp", "shard"),
    "dp-replicate": ("replicate",),
    "tp-cp": ("tp", "cp"),
    "tp-dp": ("tp", "shard", "replicate"),
    "tp-dp-cp": ("tp", "cp", "shard", "replicate"),
    "tp-pp": ("tp", "pp"),
    "ep": (EXPERTS, "ep"),
    "etp": (EXPERTS, "tp"),
    "etp-ep": (EXPERTS, "tp", "ep"),
    "edp": (EXPERTS, "shard", "replicate"),
    "all": ("tp", "cp", "shard", "replicate", "pp"),
}
# What Megatron-LM, torchtitan and PyTorch call these groups, in lower case without "_group", "_parallel" and "mesh_".
_NAMES: Mapping[str, str] = {
    "default_pg": "all",
    "world": "all",
    "tensor_model": "tp",
    "context": "cp",
    "data": "dp",
    "data_with_cp": "dp-cp",
    "dp_cp": "dp-cp",
    "loss": "dp-cp",
    "pipeline_model": "pp",
    "model": "tp-pp",
    "tensor_and_context": "tp-cp",
    "tensor_and_data": "tp-dp",
    "tensor_and_data_with_cp": "tp-dp-cp",
    "expert_model": "ep",
    "expert_tensor": "etp",
    "expert_tensor_and_model": "etp-ep",
    "expert_data": "edp",
    "dp_shard_in_ep": "edp",
    "fsdp": "dp-shard-cp",
}


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Degrees of parallelism of a job, and the order in which they number the ranks, innermost first.

    ``dp`` is the number of data-parallel ranks, which consist of ``replicate`` copies of the same shards. ``ep`` and
    ``etp`` split experts; the remaining ranks are data-parallel for the experts.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int
    replicate: int
    order: tuple[str, ...] = ORDER

    @property
    def ranks(self) -> int:
        """Number of ranks of the whole job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def in_words(self) -> str:
        """The layout as a text in the form in which users give it, such as ``tp=2,dp=4``."""
        given = {name: getattr(self, name) for name in ("tp", "cp", "dp", "pp", "ep", "replicate")}
        said = [f"{name}={degree}" for name, degree in given.items() if degree > 1]
        if self.ep > 1 and self.etp != self.tp:
            said.append(f"etp={self.etp}")
        return ",".join(said if self.order == ORDER else [*said, f"order={'-'.join(self.order)}"]) or "dp=1"

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """The groups of ``kind`` (a key of :data:`KINDS`), each as the ranks in it."""
        across = KINDS[kind]
        experts = across[0] == EXPERTS
        sizes = self._expert_sizes if experts else self._sizes
        names = [name for each in self.order for name in (("shard", "replicate") if each == "dp" else (each,))]
        names = [name for name in names if name in sizes]
        numbers = np.arange(self.ranks).reshape([sizes[name] for name in reversed(names)])
        inside = [len(names) - 1 - names.index(name) for name in across if name != EXPERTS]
        last = sorted(inside)
        moved = np.moveaxis(numbers, last, range(-len(last), 0))
        together = moved.reshape(-1, prod(moved.shape[-len(last) :]))
        return tuple(tuple(sorted(int(rank) for rank in group)) for group in together)

    def group_of(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group of ``kind`` that ``rank`` is in."""
        return next(group for group in self.groups(kind) if rank in group)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of groups with more than one rank; if several kinds have the same groups, only the first of them."""
        found: dict[tuple[tuple[int, ...], ...], str] = {}
        for kind in KINDS:
            if KINDS[kind][0] == EXPERTS and self.ep == 1:
                continue
            groups = self.groups(kind)
            if len(groups[0]) > 1:
                found.setdefault(groups, kind)
        return tuple(found.values())

    @property
    def _sizes(self) -> dict[str, int]:
        shard = self.dp // self.replicate
        return {"tp": self.tp, "cp": self.cp, "shard": shard, "replicate": self.replicate, "pp": self.pp}

    @property
    def _expert_sizes(self) -> dict[str, int]:
        shard = self.ranks // (self.etp * self.ep * self.pp * self.replicate)
        return {"tp": self.etp, "ep": self.ep, "shard": shard, "replicate": self.replicate, "pp": self.pp}


def layout_of(text: str, ranks: int) -> JobLayout:
    """Reads the layout of a job of ``ranks`` ranks from a text like ``tp=4,pp=2`` or
    ``tp=4,pp=2,order=tp-cp-ep-dp-pp``.

    BadInput for degrees that are impossible together, and for unknown names.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in (*DEGREES, "order") or name in given:
            raise BadInput(
                f"{option('job')} {text!r}: {part!r} is not known: give {', '.join(f'{each}=N' for each in DEGREES)}, "
                "order=..."
            )
        given[name] = value
    order = tuple(given.pop("order", "-".join(ORDER)).split("-"))
    if sorted(order) != sorted(ORDER):
        raise BadInput(
            f"{option('job')} order={'-'.join(order)}: name each of {', '.join(ORDER)} once, the innermost first"
        )
    degrees = {name: _degree(text, name, value) for name, value in given.items()}
    tp, cp, pp = (degrees.get(name, 1) for name in ("tp", "cp", "pp"))
    if "dp" not in degrees and ranks % (tp * cp * pp):
        raise BadInput(
            f"{option('job')} {text}: tp x cp x pp is {tp * cp * pp}, which does not divide the {ranks} ranks"
        )
    dp = degrees.get("dp", ranks // (tp * cp * pp))
    if tp * cp * pp * dp != ranks:
        raise BadInput(
            f"{option('job')} {text}: tp x cp x pp x dp is {tp * cp * pp * dp}, but {ranks} ranks are described"
        )
    ep, replicate = degrees.get("ep", 1), degrees.get("replicate", 1)
    layout = JobLayout(tp, cp, dp, pp, ep, degrees.get("etp", tp), replicate, order)
    if dp % replicate:
        raise BadInput(f"{option('job')} {text}: {replicate} replicas do not divide the {dp} data-parallel ranks")
    own = layout.etp * ep * pp * replicate
    if ranks % own:
        raise BadInput(
            f"{option('job')} {text}: etp x ep x pp x replicate is {own}, which does not divide the {ranks} ranks"
        )
    return layout


def kind_of_name(name: str) -> str | None:
    """The kind of group that a framework calls ``name``, also in the form ``12 (TENSOR_MODEL_PARALLEL_GROUP)``; None if
    unknown.
    """
    inside = name.partition("(")[2].rstrip(")") or name
    word = inside.strip().lower().replace("_group", "").replace("_parallel", "").removeprefix("mesh_")
    known = {kind.replace("-", "_"): kind for kind in KINDS} | dict(_NAMES)
    return known.get(word.replace("-", "_"))


def _degree(text: str, name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise BadInput(f"{option('job')} {text!r}: {name}={value}; {one_of(('a whole number from 1',))}")
    return int(value)


GIVEN_BY_RANKS = "times the ranks"  # what a file says of its sizes where they are of one rank


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The communicators of a job: the groups of ``layout`` or, without a layout, those that the files name.

    With a layout, ``rank`` is the rank that wrote the files. If ``shares`` is true, the groups share the resources of
    the communicator of all ranks.
    """

    layout: JobLayout | None = None
    rank: int = 0
    shares: bool = False


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A training step of the model ``name``, with sequences of ``sequence`` tokens (None: the model's own length).

    ``imbalance`` is the number of tokens of the busiest expert rank divided by the mean over these ranks; 1 if experts
    are used equally.
    """

    name: str
    sequence: int | None = None
    micro_batches: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    dtype: DataType = DataType.bfloat16
    imbalance: float = 1.0

    def calls(self, layout: JobLayout) -> CallList:
        """The calls of rank 0, which is in the first pipeline stage, each with its group of the layout.

        BadInput for an unknown model, and for degrees that are impossible with it.
        """
        if beside := [name for name in ("cp", "replicate") if getattr(layout, name) > 1]:
            raise BadInput(
                f"{option('job')} {', '.join(beside)}: the calls of a model split like this are not known: only tp, "
                "pp, ep and dp are"
            )
        if layout.etp != layout.tp:
            raise BadInput(
                f"{option('job')} etp={layout.etp}: a model's experts are split like the rest of the model: use "
                f"{layout.tp}"
            )
        if not 1 <= self.imbalance <= layout.ep:
            raise BadInput(
                f"{option('imbalance')} {self.imbalance:g} with {layout.ep} expert ranks: valid are 1 to {layout.ep}"
            )
        bytes_each = self.dtype.size_bytes
        fields = step.model_fields(self.name, {"sequence": self.sequence})
        plan = Parallelism(
            tp=layout.tp,
            dp=layout.dp,
            pp=layout.pp,
            ep=layout.ep,
            sequence_parallel=self.sequence_parallel,
            zero=self.zero,
            micro_batches=self.micro_batches,
        )
        model = Model(**fields, element_bytes=bytes_each, gradient_element_bytes=bytes_each)
        made = tuple(call for one in step.traffic(model, plan) for call in self._of(one))
        return CallList(step.known_name(self.name), "training step", "of all ranks together, NCCL's nBytes", made)

    def assumed(self, layout: JobLayout) -> str:
        """A line with the assumptions, and, if nothing splits the model, how much memory each GPU needs for it."""
        fields = step.model_fields(self.name, {"sequence": self.sequence})
        tokens = fields["sequence"]
        parts = [
            f"sequences of {tokens} tokens",
            f"{self.micro_batches} micro-batch{'es' * (self.micro_batches > 1)} of 1 sequence",
            self.dtype.name,
            f"ZeRO-{self.zero}" if self.zero else "no ZeRO",
            f"{'' if self.sequence_parallel else 'no '}sequence parallelism",
        ]
        if layout.tp * layout.pp * layout.ep == 1 and self.zero < 3:
            whole_gb = float(fields["parameters"]) * self.dtype.size_bytes / 1e9
            parts.append(
                f"only data parallelism is used, so that each GPU holds all {whole_gb:.0f} GB of weights "
                f"({option('job')} splits them)"
            )
        if self.imbalance > 1:
            parts.append(f"AllToAll is priced for the expert rank that receives {self.imbalance:g} times the mean")
        return ", ".join(parts)

    def _of(self, one: Traffic) -> Iterable[TracedCall]:
        collective = Collective.__members__.get(one.operation.name)
        size = float(one.bytes)
        if one.operation is CostOperation.AllToAll:
            size *= self.imbalance
        # Whole elements, the same number of every rank where each has a part: frameworks pad to it.
        in_parts = one.operation not in (CostOperation.AllReduce, CostOperation.SendRecv)
        unit = self.dtype.size_bytes * (one.ranks if in_parts else 1)
        whole = ceil(size / unit) * unit
        group = _GROUP_OF_TRAFFIC.get(one.parallelism, "edp" if one.parallelism.endswith("of experts") else "dp")
        # The first stage sends activations on and receives their gradients.
        sends = one.operation is CostOperation.SendRecv
        for name in ("send", "recv") if sends else (one.operation.name.lower(),):
            yield TracedCall(
                name=name,
                collective=collective,
                bytes=whole,
                dtype=self.dtype,
                op=Op.sum,
                ranks=one.ranks,
                communicator=group,
                calls=one.calls / 2 if sends else one.calls,
            )


_GROUP_OF_TRAFFIC: Mapping[str, str] = {"TP": "tp", "SP": "tp", "EP": "ep", "PP": "pp"}  # all other is replicas'


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """The budget of one group. ``groups``: how many groups of this kind the layout has; None without a layout."""

    group: str
    ranks: str
    groups: int | None
    nodes: int  # that NCCL takes its hosts for
    communicator: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """The total of all groups in one variant (a release with a setting or table): their times in us by NCCL's own
    model, added up.

    ``calibrated`` is None unless all groups with a price have calibrated times. ``all_to_all`` is in neither
    ``total_us`` nor ``calibrated``.
    """

    variant: str
    total_us: float
    priced_calls: float
    calibrated: TimeInterval | None = field(default=None, metadata=json_form(optional=True))
    all_to_all: AllToAllBudget | None = field(default=None, metadata=json_form(optional=True))


@dataclass(frozen=True, slots=True, repr=False)
class JobBudget(Framed):
    """The budgets of a job's groups, the one with the most time first, and their sum.

    As a frame it has a row for each group and release, setting or table.
    """

    job: str | None
    rank: int | None = field(metadata=json_form(optional=True))
    totals: tuple[GroupTotal, ...]
    groups: tuple[GroupBudget, ...]
    left_out: tuple[LeftOut, ...]
    assumed: str | None = field(default=None, metadata=json_form(optional=True))

    def columns(self) -> dict[str, Column]:
        """Columns group, ranks, nodes, variant, calls, total_us, and the calibrated time with its bounds (None if there
        is none); one row per group and variant."""
        rows = [(of, variant, variant.calibrated) for of in self.groups for variant in of.budget.variants]
        bounds = ("time_us", "low_us", "high_us")
        return {
            "group": [of.group for of, _, _ in rows],
            "ranks": [of.ranks for of, _, _ in rows],
            "nodes": [of.nodes for of, _, _ in rows],
            "variant": [variant.name for _, variant, _ in rows],
            "calls": [of.budget.calls for of, _, _ in rows],
            "total_us": [variant.total_us for _, variant, _ in rows],
            **{name: [found and getattr(found.total, name) for _, _, found in rows] for name in bounds},
        }


def of_model(asked: ModelStep, compared: BudgetComparison, wanted: WantedCalls, job: JobGroups) -> JobBudget:
    """The budget of a model's training step on rank 0 of a job with a layout. BadInput for what cannot be counted or
    priced, and for a step without communication; BadCalibration.
    """
    assert job.layout is not None
    return replace(of_lists([asked.calls(job.layout)], compared, wanted, job), assumed=asked.assumed(job.layout))


def of_lists(lists: Sequence[CallList], compared: BudgetComparison, wanted: WantedCalls, job: JobGroups) -> JobBudget:
    """The budget of every group whose calls are in the files. ``wanted`` filters calls, but not by their number of
    ranks.

    BadInput for what cannot be priced, and if no call belongs to a group; BadCalibration.
    """
    described = compared.scenarios[0]
    if job.layout is not None and not 0 <= job.rank < job.layout.ranks:
        raise BadInput(f"{option('rank')} {job.rank} is no rank of the job: valid are 0 to {job.layout.ranks - 1}")
    place, left_out = _Places(job, described.ranks, wanted.communicators), list[LeftOut]()
    calls_of: dict[tuple[str, tuple[int, ...]], list[list[TracedCall]]] = defaultdict(lambda: [[] for _ in lists])
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
        priced = budget(own, asked, counted, variants.variants(), None, compared.times)
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
    """Finds the group that a call belongs to."""

    def __init__(self, job: JobGroups, ranks: int, names: Sequence[str]) -> None:
        self.layout, self.rank, self.ranks, self.names = job.layout, job.rank, ranks, names
        kinds = () if self.layout is None else self.layout.kinds
        self.members = {kind: self.layout.group_of(kind, self.rank) for kind in kinds} if self.layout else {}

    def of(self, call: TracedCall, by_ranks: bool) -> tuple[str, tuple[int, ...]] | str:
        """The name of the group that made a call and the group's ranks; or a text that says why the group is not known.

        If ``by_ranks`` is true, the call's size was computed from a number of ranks.
        """
        if self.names and call.communicator not in self.names:
            return f"of communicator {call.communicator or 'without a name'}"
        if call.members is not None:
            return self._said(call, call.members)
        kind = None if call.communicator is None else kind_of_name(call.communicator)
        if self.layout is None:
            if kind in (None, "all") and call.ranks in (None, self.ranks):
                return "all", tuple(range(self.ranks))
            name = call.communicator or f"communicators of {call.ranks} ranks"
            return f"of {name}, whose ranks the file does not say ({option('job')} can)"
        if kind is not None:
            return self._of_kind(call, kind, by_ranks)
        if call.ranks is None or call.ranks == self.ranks:
            return "all", tuple(range(self.ranks))
        same_size = [each for each, members in self.members.items() if len(members) == call.ranks]
        if len(same_size) == 1:
            return same_size[0], self.members[same_size[0]]
        if not same_size:
            return f"of communicators of {call.ranks} ranks, but no group of the job has this size"
        return (
            f"of communicators of {call.ranks} ranks, but several groups of the job have this size: "
            f"{', '.join(same_size)}"
        )

    def groups_like(self, group: str) -> int | None:
        """How many groups of the kind ``group`` the layout has; None without a layout, or if ``group`` is no kind of
        group."""
        return len(self.layout.groups(group)) if self.layout is not None and group in KINDS else None

    def _said(self, call: TracedCall, members: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | str:
        if members[-1] >= self.ranks:
            return f"of ranks {as_ranges(members)}; valid: 0 to {self.ranks - 1}, as described"
        if len(members) == 1:
            return "of a communicator of one rank, which copies"
        own = next((kind for kind, ranks in self.members.items() if ranks == members), None)
        name = own or (kind_of_name(call.communicator) if call.communicator else None) or call.communicator
        return name or f"ranks {as_ranges(members)}", members

    def _of_kind(self, call: TracedCall, kind: str, by_ranks: bool) -> tuple[str, tuple[int, ...]] | str:
        assert self.layout is not None
        members = self.layout.group_of(kind, self.rank)
        if len(members) == 1:
            return f"of group {kind}, of one rank in this job"
        if call.ranks not in (None, len(members)):
            return f"of {call.communicator}: {call.ranks} ranks, but group {kind} of the job has {len(members)}"
        if call.ranks is None and by_ranks and call.bytes is not None:
            return (
                f"of group {kind}: the size is that of one rank, and the file does not say how many ranks there are "
                "(a column ranks can)"
            )
        same = next((own for own, ranks in self.members.items() if ranks == members), kind)
        return same, members


def _of_ranks(scenario: Scenario, ranks: tuple[int, ...], shares: bool) -> Scenario:
    everyone = len(ranks) == scenario.ranks
    return scenario if everyone else replace(scenario, members=Members(ranks, shares))


def _totals(budgets: Sequence[GroupBudget]) -> Iterable[GroupTotal]:
    for at, variant in enumerate(budgets[0].budget.variants):
        own = [one.budget.variants[at] for one in budgets]
        times = [one.calibrated.total if one.calibrated else None for one in own if one.priced_calls]
        known = [each for each in times if each]
        exchanged = [one.all_to_all for one in own if one.all_to_all]
        yield GroupTotal(
            variant.name,
            sum(one.total_us for one in own),
            sum(one.priced_calls for one in own),
            together(known) if known and len(known) == len(times) else None,
            AllToAllBudget(
                sum(one.calls for one in exchanged),
                together([one.time for one in exchanged]),
                all(one.measured for one in exchanged),
            )
            if exchanged
            else None,
        )


def _merged(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """Merges calls that were left out with the same name and reason."""
    sums: dict[tuple[str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for each in left_out:
        calls, kernels_us = sums[each.name, each.reason]
        sums[each.name, each.reason] = calls + each.calls, kernels_us + each.kernels_us
    return [LeftOut(*key, *both) for key, both in sums.items()]
