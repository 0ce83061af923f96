"""How a job's parallelism numbers its ranks, and which ranks have a communicator together.

As Megatron-LM does it (RankGenerator, megatron/core/parallel_state.py), and torchtitan's device mesh with the same
order: degrees from the innermost on, whose ranks are next to each other; experts have an order of their own degrees,
in which context parallelism does not count.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of

ORDER = ("tp", "cp", "ep", "dp", "pp")  # Megatron-LM's, innermost first; torchtitan's, without ep, is the same
DEGREES = ("tp", "cp", "ep", "dp", "pp", "etp", "replicate")
EXPERTS = "expert"  # kinds of groups that go by the experts' degrees

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
class Layout:
    """Degrees of parallelism, and the order in which they number the ranks, the innermost first.

    ``dp`` is the number of data-parallel ranks, of which ``replicate`` copies have a shard each; ``ep`` and ``etp``
    split experts, whose data-parallel ranks are what is left.
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
        """Of the whole job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def in_words(self) -> str:
        """As ``--job`` takes it."""
        given = {name: getattr(self, name) for name in ("tp", "cp", "dp", "pp", "ep", "replicate")}
        said = [f"{name}={degree}" for name, degree in given.items() if degree > 1]
        if self.ep > 1 and self.etp != self.tp:
            said.append(f"etp={self.etp}")
        return ",".join(said if self.order == ORDER else [*said, f"order={'-'.join(self.order)}"]) or "dp=1"

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group of a kind of :data:`KINDS`."""
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
        """The ranks of that group of a kind that has the rank."""
        return next(group for group in self.groups(kind) if rank in group)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those with more than one rank, of several with the same groups the first."""
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


def layout_of(text: str, ranks: int) -> Layout:
    """The layout of a job of so many ranks, of ``tp=4,pp=2``; ``order=tp-cp-ep-dp-pp``.

    BadInput for what does not fit together, and for unknown words.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in (*DEGREES, "order") or name in given:
            raise BadInput(f"`job` {text!r}: {part!r}; valid: {', '.join(f'{each}=N' for each in DEGREES)}, order=...")
        given[name] = value
    order = tuple(given.pop("order", "-".join(ORDER)).split("-"))
    if sorted(order) != sorted(ORDER):
        raise BadInput(f"`job` order={'-'.join(order)}; valid: each once of {', '.join(ORDER)}, the innermost first")
    degrees = {name: _degree(text, name, value) for name, value in given.items()}
    tp, cp, pp = (degrees.get(name, 1) for name in ("tp", "cp", "pp"))
    if "dp" not in degrees and ranks % (tp * cp * pp):
        raise BadInput(f"`job` {text}: tp x cp x pp is {tp * cp * pp}; valid: a divisor of {ranks} ranks")
    dp = degrees.get("dp", ranks // (tp * cp * pp))
    if tp * cp * pp * dp != ranks:
        raise BadInput(f"`job` {text}: tp x cp x pp x dp is {tp * cp * pp * dp}; valid: {ranks} ranks, as described")
    ep, replicate = degrees.get("ep", 1), degrees.get("replicate", 1)
    layout = Layout(tp, cp, dp, pp, ep, degrees.get("etp", tp), replicate, order)
    if dp % replicate:
        raise BadInput(f"`job` {text}: {replicate} replicas of {dp} data-parallel ranks; valid: a divisor")
    own = layout.etp * ep * pp * replicate
    if ranks % own:
        raise BadInput(f"`job` {text}: etp x ep x pp x replicate is {own}; valid: a divisor of {ranks} ranks")
    return layout


def kind_of_name(name: str) -> str | None:
    """The kind of group that a framework calls so, also as ``12 (TENSOR_MODEL_PARALLEL_GROUP)``; None for any other."""
    inside = name.partition("(")[2].rstrip(")") or name
    word = inside.strip().lower().replace("_group", "").replace("_parallel", "").removeprefix("mesh_")
    known = {kind.replace("-", "_"): kind for kind in KINDS} | dict(_NAMES)
    return known.get(word.replace("-", "_"))


def _degree(text: str, name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise BadInput(f"`job` {text!r}: {name}={value}; {one_of(('a whole number from 1',))}")
    return int(value)
