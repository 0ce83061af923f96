"""The conditions under which an implementation carries an AllReduce: one rule for each kind of condition, which says
the sizes in bytes for which it holds.

A rule has the name by which a table refers to it. The rule gets the situation, the engine's release and the condition's
own table, and returns the sizes that it lets through, with the facts for its sentence in
``tables/findings/engines.toml``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy
from tuner.base.sizes import LARGEST_BYTES
from tuner.base.spelling import option
from tuner.engines.releases import EngineRelease, Implementation
from tuner.engines.situation import Situation
from tuner.engines.sizes import ALL, NONE, Sizes, at_most, multiples, outside


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in a situation: the rule's name, the sizes that it lets through, and the facts for its sentence."""

    rule: str
    sizes: Sizes
    facts: Mapping[str, Any]


Given = Mapping[str, Any]
Passed = tuple[Sizes, Mapping[str, Any]]
# Rules that are about the tensor, and not about whether an implementation is available.
OF_A_TENSOR = ("data-type", "multiple", "sglang-custom-limit")
RULES: dict[str, Callable[[Situation, EngineRelease, Given], Passed]] = {}
UNSURE: dict[str, Callable[[Situation, EngineRelease, Given], Sizes]] = {}


def rule(
    asked: Callable[[Situation, EngineRelease, Given], Passed],
) -> Callable[[Situation, EngineRelease, Given], Passed]:
    """Registers a rule under its function's name, with dashes."""
    RULES[asked.__name__.replace("_", "-")] = asked
    return asked


def unsure_of(
    of: Callable[[Situation, EngineRelease, Given], Passed],
) -> Callable[[Callable[[Situation, EngineRelease, Given], Sizes]], Callable[[Situation, EngineRelease, Given], Sizes]]:
    """Registers a function that belongs to a rule and returns the sizes about which the engine decides at its start, by
    measuring or allocating."""

    def registered(
        asked: Callable[[Situation, EngineRelease, Given], Sizes],
    ) -> Callable[[Situation, EngineRelease, Given], Sizes]:
        UNSURE[of.__name__.replace("_", "-")] = asked
        return asked

    return registered


def unsure_sizes(situation: Situation, release: EngineRelease, name: str) -> tuple[Sizes, ...]:
    """The sizes for which the engine decides at its start whether an implementation takes them; none if the
    implementation takes no size at all."""
    if not sizes_of(situation, release, name):
        return ()
    return tuple(
        UNSURE[given["rule"]](situation, release, given)
        for given in release.named(name).conditions
        if given["rule"] in UNSURE
    )


def condition(situation: Situation, release: EngineRelease, given: Given) -> Condition:
    """The condition that a table describes, in a situation. KeyError if there is no such rule."""
    sizes, facts = RULES[given["rule"]](situation, release, given)
    return Condition(given["rule"], sizes, facts)


def sizes_of(situation: Situation, release: EngineRelease, name: str) -> Sizes:
    """The sizes that an implementation would take if no other came before it. KeyError for an unknown name."""
    if name in situation.without:
        return NONE
    sizes = ALL
    for given in release.named(name).conditions:
        sizes &= condition(situation, release, given).sizes
        if not sizes:
            return NONE
    return sizes


def holds(situation: Situation, release: EngineRelease, given: Iterable[Given]) -> bool:
    """Whether all of the given conditions hold, none of which is about a size."""
    return all(condition(situation, release, each).sizes for each in given)


def for_experts(situation: Situation, release: EngineRelease, nbytes: int) -> Implementation:
    """The implementation that brings tokens, ``nbytes`` bytes in all, to experts and back. BadInput if it is not known
    how the release does that."""
    for each in release.experts:
        if _takes(situation, release, each, nbytes):
            return each
    raise BadInput(f"how {release.name} brings tokens of data-parallel attention to experts is not known").cured(
        Remedy("attention_dp", None)
    )


def for_gather(situation: Situation, release: EngineRelease, of: str, nbytes: int) -> Implementation | None:
    """The implementation that carries an AllGather of this size instead of NCCL; None if NCCL carries it."""
    for each in release.gathers:
        if each.gathers in ("", of) and _takes(situation, release, each, nbytes):
            return each
    return None


def _takes(situation: Situation, release: EngineRelease, implementation: Implementation, nbytes: int) -> bool:
    return all(nbytes in condition(situation, release, given).sizes for given in implementation.conditions)


def is_there(situation: Situation, release: EngineRelease, name: str) -> bool:
    """Whether all conditions of an implementation, except those on data type and alignment, hold for some size."""
    asked = (given for given in release.named(name).conditions if given["rule"] not in OF_A_TENSOR)
    return name not in situation.without and all(condition(situation, release, given).sizes for given in asked)


def _if(holds: bool) -> Sizes:
    return ALL if holds else NONE


def _limit(situation: Situation, release: EngineRelease, name: str) -> int | None:
    """The limit in bytes that a table gives for the compute capability and the number of ranks; None if it has no such
    entry."""
    limit: int | None = release.limits[name].get(situation.capability_text, {}).get(str(situation.ranks))
    return limit


@rule
def switch(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """A switch of the engine has the value ``is``."""
    name, value = given["name"], situation.switches[given["name"]]  # true or false in every table
    return _if(value == given["is"]), {"switch": name, "value": "on" if value else "off"}


@rule
def switch_is_set(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """A switch of the engine is set; it has no default."""
    return _if(situation.switches[given["name"]] is not None), {"switch": given["name"]}


@rule
def ranks(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The group has one of these numbers of ranks."""
    return _if(situation.ranks in given["of"]), {"ranks": situation.ranks, "of": given["of"]}


@rule
def most_ranks(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The group has at most this number of ranks."""
    return _if(situation.ranks <= given["most"]), {"ranks": situation.ranks, "most": given["most"]}


@rule
def data_type(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """Data has one of these types."""
    return _if(situation.dtype.name in given["of"]), {"dtype": situation.dtype.name, "of": given["of"]}


@rule
def multiple(_: Situation, __: EngineRelease, given: Given) -> Passed:
    """The size is a multiple of a number of bytes."""
    return multiples(given["bytes"]), {"of": given["bytes"]}


@rule
def one_node(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """All ranks are on one node."""
    return _if(situation.nodes == 1), {"nodes": situation.nodes}


@rule
def one_node_or_ends(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """All ranks are on one node. BadInput on several nodes, as the engine ends there if the switch has this value."""
    if situation.nodes > 1:
        name = given["switch"]
        ends = f"the engine ends with it on several nodes, and this is {situation.nodes}"
        raise BadInput(f"{name}={situation.switches[name]}: {ends}; valid: {given['valid']}")
    return ALL, {"nodes": situation.nodes}


@rule
def alone_or_ends(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """At most one of two switches is on. BadInput if both are on, as the engine then ends at its start."""
    if all(situation.switches[name] for name in given["of"]):
        one, other = given["of"]
        raise BadInput(f"the engine ends at its start with both {one} and {other}: give one of them")
    return ALL, {}


@rule
def one_node_or_one_nvlink_domain(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """All ranks are on one node, or their nodes are in one NVLink domain."""
    return _if(situation.nodes == 1 or situation.one_domain), {"nodes": situation.nodes}


@rule
def several_nodes_of_one_nvlink_domain(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """The group is on several nodes, all of one NVLink domain."""
    return _if(situation.nodes > 1 and situation.one_domain), {"nodes": situation.nodes}


@rule
def nvlink_everywhere(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """NVLink connects every two GPUs of the node; on several nodes, this always holds."""
    return _if(situation.nodes > 1 or situation.nvlink_everywhere), {}


@rule
def nvlink_beyond_two(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """The group has two ranks, or is on one node on which NVLink connects every two GPUs."""
    alone = situation.nodes == 1 and situation.nvlink_everywhere
    return _if(situation.ranks == 2 or alone), {"ranks": situation.ranks, "nodes": situation.nodes}


@rule
def peer_access(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """Every GPU of a node maps the others' memory; only checked if all ranks are on one node."""
    return _if(situation.nodes > 1 or situation.peer_access), {}


@rule
def peer_access_or_ends(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """Every GPU of a node can map the others' memory. BadInput if not, as the engine then ends if the switch is on."""
    if not situation.peer_access:
        name = given["switch"]
        raise BadInput(f"the engine ends with {name}=1 if GPUs cannot map each other's memory: set {name}=0")
    return ALL, {}


@rule
def multicast(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """Memory that all ranks share can be multicast."""
    return _if(situation.group_multicast), {"nodes": situation.nodes, "one_domain": situation.one_domain}


@rule
def multicast_across_nodes(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """All ranks are on one node, or GPUs of at least ``least_capability`` can multicast across the nodes."""
    holds = situation.nodes == 1 or (situation.capability >= given["least_capability"] and situation.group_multicast)
    return _if(holds), {"nodes": situation.nodes, "least_capability": given["least_capability"] / 10}


@rule
def not_there(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The implementation that the table names is not available, whatever the size is."""
    return _if(not is_there(situation, release, given["implementation"])), {"implementation": given["implementation"]}


@rule
def expandable_segments_across_nodes(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """All ranks are on one node, or PyTorch's allocator uses expandable segments."""
    return _if(situation.nodes == 1 or situation.switches[given["switch"]] is True), {"switch": given["switch"]}


@rule
def listed_by_major(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The table of limits has an entry for the number before the dot of the compute capability, and for the number of
    ranks."""
    return _if(_limit_by_major(situation, release, given["limits"]) is not None), _place(situation)


@rule
def below_listed_by_major(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The size is below the limit of a table by the number before the dot of the compute capability.

    Each entry of ``raised`` names switches: if all of them are on, the limit is at least a number of bytes.
    """
    limit = _limit_by_major(situation, release, given["limits"])
    for each in given.get("raised", ()):
        if limit is not None and all(situation.switches[name] for name in each["by"]):
            limit = max(limit, each["to_bytes"])
    return NONE if limit is None else at_most(limit - 1), _place(situation) | {"limit": limit}


def _limit_by_major(situation: Situation, release: EngineRelease, name: str) -> int | None:
    row: Mapping[str, int] = release.limits[name].get(str(situation.capability // 10), {})
    return row.get(str(situation.ranks))


@rule
def listed(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The table of limits has an entry for the GPU generation and the number of ranks."""
    return _if(_limit(situation, release, given["limits"]) is not None), _place(situation)


@rule
def at_most_listed(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The size is at most the limit in a table. No size passes if the table has no entry for the generation or the
    number of ranks."""
    limit = _limit(situation, release, given["limits"])
    sizes = NONE if limit is None else at_most(limit - (1 if given.get("exclusive") else 0))
    return sizes, _place(situation) | {"limit": limit}


def _place(situation: Situation) -> dict[str, Any]:
    return {"capability": situation.capability_text, "ranks": situation.ranks}


@rule
def at_most_bytes(situation: Situation, __: EngineRelease, given: Given) -> Passed:
    """The size is at most a number of bytes, or the number of MiB that a switch sets."""
    limit: int = given["bytes"]
    if "mebibytes" in given and situation.switches[given["mebibytes"]] is not None:
        limit = max(1, int(str(situation.switches[given["mebibytes"]]))) << 20
    return at_most(limit), {"limit": limit}


@rule
def below_vllm_custom_limit(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The size is below vLLM's limit for its own AllReduce kernel.

    The limit is ``bytes``. If the implementation ``while``, which uses symmetric memory, is available, the limit is the
    one in the table ``limits`` if that is smaller. If the switch that ``unless`` names is on, no size is too large,
    because the kernel cuts tensors into pieces.
    """
    if "unless" in given and situation.switches[given["unless"]]:
        return ALL, {"limit": None}
    limit: int = given["bytes"]
    if is_there(situation, release, given["while"]):
        limit = min(limit, _limit(situation, release, given["limits"]) or limit)
    return at_most(limit - 1), {"limit": limit}


@rule
def outside_listed_range(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The size is outside the range that a table gives for the number of ranks.

    If the table has no range for this number, every size passes if there are more than ``most_ranks`` ranks, and
    otherwise none.
    """
    within = release.limits[given["limits"]].get(str(situation.ranks))
    if within is None:
        return _if(situation.ranks > given["most_ranks"]), {"ranks": situation.ranks, "low": None, "high": None}
    low, high = within
    return outside(low, high), {"ranks": situation.ranks, "low": low, "high": high}


@rule
def not_carried_by(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The implementation that the table names does not take the size."""
    sizes = sizes_of(situation, release, given["implementation"])
    return Sizes(but_not=(sizes,) if sizes else ()), {"implementation": given["implementation"]}


@rule
def flashinfer_backend(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """FlashInfer can make its workspace with the requested backend, or for ``auto`` with one that works here.

    Backend mnnvl needs multicast memory of the whole group; trtllm needs one node with peer access. ``auto`` takes
    mnnvl or, if that does not work, trtllm. On several nodes, ``auto`` needs GPUs with a compute capability of at least
    ``least_capability_across_nodes``. BadInput for trtllm on several nodes, as the engine then ends.
    """
    backend = situation.switches[given["switch"]]
    facts = {"backend": backend, "nodes": situation.nodes, "capability": situation.capability_text}
    if backend == "trtllm" and situation.nodes > 1:
        raise BadInput(f"the engine ends with {given['switch']}=trtllm on several nodes: use auto or mnnvl")
    least = given.get("least_capability_across_nodes")
    if backend == "auto" and situation.nodes > 1 and least is not None and situation.capability < least:
        return NONE, facts
    one_node_alone = situation.nodes == 1 and situation.peer_access
    works = {
        "mnnvl": situation.group_multicast,
        "trtllm": one_node_alone,
        "auto": situation.group_multicast or one_node_alone,
    }
    return _if(works[str(backend)]), facts


@rule
def flashinfer_size(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """The size is at most FlashInfer's limit, in whole rows of the tensor if the number of columns is known.

    The backend mnnvl, which ``auto`` tries first, has its own limits by generation, ranks and nodes; in some releases,
    a size must be below that limit and not equal to it. Otherwise the limits of the fused kernel apply.
    """
    limit = _limit(situation, release, given["limits"])
    if limit is None:
        return NONE, _place(situation) | {"limit": None}
    if situation.switches[given["switch"]] != "trtllm":
        key = f"{situation.ranks} ranks on {situation.nodes} nodes"
        tuned = release.limits[given["tuned"]].get(situation.capability_text, {}).get(key)
        if tuned is not None:
            limit = tuned - (1 if given.get("tuned_exclusive") else 0)
    if situation.hidden_size is not None:
        row = situation.hidden_size * situation.dtype.size_bytes
        limit = limit // row * row
    return at_most(limit), _place(situation) | {"limit": limit}


@rule
def sglang_custom_is_tuned(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """SGLang's second custom AllReduce has thresholds for this GPU generation and number of ranks."""
    return _if(_sglang_row(situation, release, given) is not None), _place(situation)


def _sglang_row(situation: Situation, release: EngineRelease, given: Given) -> Mapping[str, Any] | None:
    """The thresholds of a generation and number of ranks. Generations without a table share the same thresholds for 2
    to 16 ranks."""
    table = release.limits[given["limits"]]
    key = "10.7" if 107 <= situation.capability < 110 else str(situation.capability // 10)
    if key in table:
        row: Mapping[str, Any] | None = table[key].get(str(situation.ranks))
        return row
    others: Mapping[str, Any] = table["other"]["any"]
    return others if situation.ranks <= given["most_ranks_of_others"] else None


@rule
def sglang_custom_limit(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """Whether some algorithm of SGLang's second custom AllReduce takes a call of this size.

    Its thresholds depend on the GPU generation, on the number of ranks, and on whether the call is in a graph or eager.
    Each threshold is cut to the size of the buffers. A buffer is as large as the largest threshold, but at most the cap
    that a variable sets, or exactly what another variable forces; it is a multiple of ``align`` bytes. Across nodes, or
    with the memory saver, the thresholds of eager calls also apply to calls in graphs.
    """
    row = _sglang_row(situation, release, given)
    if row is None:
        return NONE, _place(situation) | {"limit": None}
    ways = {"graph": _Thresholds.made(row["graph"]), "eager": _Thresholds.made(row["eager"])}
    count, cap = situation.ranks, _kib(situation, given["cap"])
    assert cap is not None
    push = min(max(each.push_bytes(count) for each in ways.values()), cap)
    pull = min(max(each.pull_bytes for each in ways.values()), cap)
    forced_pull, forced_push = _kib(situation, given["force_pull"]), _kib(situation, given["force_push"])
    pull = pull if forced_pull is None else forced_pull
    push = push if forced_push is None else forced_push
    registers = situation.graph and situation.nodes == 1 and not situation.switches[given["memory_saver"]]
    way = ways["graph" if registers else "eager"]
    if forced_pull is not None:
        way = way.with_two_shot_pull(pull)
    if forced_push is not None:
        way = way.with_one_shot_push(push)
    align = given["align"]
    push = _ceil(max(push, align), align)
    pull = _ceil(max(pull, align), align) if pull > 0 else 0
    multicasts = row.get("multicast_blocks", False) and situation.group_multicast and pull > 0
    sizes = way.cut(push, pull, count).sizes(multicasts)
    return sizes, _place(situation) | {"limit": sizes.ranges[-1][1] if sizes else 0}


def _kib(situation: Situation, name: str) -> int | None:
    value = situation.switches[name]
    return None if value is None else int(str(value)) * 1024


def _ceil(number: int, step: int) -> int:
    return -(-number // step) * step


@dataclass(frozen=True, slots=True)
class _Thresholds:
    """The largest sizes in bytes that each algorithm of SGLang's second custom AllReduce takes, and the range of its
    multicast."""

    one_shot_push: int
    one_shot_pull: int
    two_shot_pull: int
    multicast: tuple[int, int] = (0, 0)
    two_shot_push: int = 0

    @classmethod
    def made(cls, row: Mapping[str, Any]) -> "_Thresholds":
        low, high = row.get("multicast", (0, 0))
        return cls(
            row["one_shot_push"], row["one_shot_pull"], row["two_shot_pull"], (low, high), row.get("two_shot_push", 0)
        )

    def push_bytes(self, count: int) -> int:
        """Bytes of a slot of the push buffer, in 16-byte vectors; a two-shot push stores two halves of a rank's
        part."""
        return max(self.one_shot_push, 32 * -(-self.two_shot_push // (16 * count)))

    @property
    def pull_bytes(self) -> int:
        """Bytes of the pull buffer."""
        return max(self.one_shot_pull, self.two_shot_pull, self.multicast[1])

    def with_two_shot_pull(self, nbytes: int) -> "_Thresholds":
        return _Thresholds(self.one_shot_push, self.one_shot_pull, nbytes, self.multicast, self.two_shot_push)

    def with_one_shot_push(self, nbytes: int) -> "_Thresholds":
        return _Thresholds(nbytes, self.one_shot_pull, self.two_shot_pull, self.multicast, self.two_shot_push)

    def cut(self, push: int, pull: int, count: int) -> "_Thresholds":
        """The thresholds, reduced to what buffers of this number of bytes can hold."""
        return _Thresholds(
            min(self.one_shot_push, push),
            min(self.one_shot_pull, pull),
            min(self.two_shot_pull, pull),
            (min(self.multicast[0], pull), min(self.multicast[1], pull)),
            min(self.two_shot_push, count * 16 * (push // 32)),
        )

    def sizes(self, multicasts: bool) -> Sizes:
        """All sizes that one of the algorithms takes."""
        most = max(self.one_shot_push, self.one_shot_pull, self.two_shot_pull, self.two_shot_push)
        low, high = self.multicast
        if not multicasts or high <= most:
            return at_most(most)
        return at_most(high) if low <= most + 1 else Sizes(((1, most), (low, high)))


@rule
def sglang_flashinfer_backend(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """SGLang can make FlashInfer's workspace. BadInput for settings with which the engine ends at its start."""
    backend = _sglang_backend(situation, given)
    works = {
        "mnnvl": situation.group_multicast,
        "trtllm": situation.peer_access,
        "cutedsl": False,  # this backend fuses the normalisation as well, and has no plain AllReduce
    }
    return _if(works[backend]), {"backend": backend, "nodes": situation.nodes}


def _sglang_backend(situation: Situation, given: Given) -> str:
    """The backend that SGLang uses for the requested one: it chooses one backend for Hopper on one node, and another
    for Blackwell."""
    asked, several = str(situation.switches[given["switch"]]), situation.nodes > 1
    hopper, blackwell = situation.capability // 10 == 9, situation.capability // 10 == 10
    ends = f"{given['switch']}={asked}: the engine ends with it"
    if not (hopper or blackwell):
        raise BadInput(f"{ends} on GPUs of compute capability {situation.capability_text}; valid: 9.0, 10.x")
    if asked == "cutedsl" and hopper:
        raise BadInput(f"{ends} on GPUs of compute capability 9.0; valid: auto, trtllm, mnnvl")
    if several and (hopper or asked == "trtllm"):
        raise BadInput(f"{ends} on several nodes; valid: {'auto, mnnvl' if blackwell else 'leave it out'}")
    return asked if asked != "auto" else "mnnvl" if blackwell else "trtllm"


@rule
def sglang_flashinfer_rows(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The tensor has at most a given number of rows; with backend mnnvl, a row must be a multiple of ``row_bytes``
    bytes.

    BadInput if the number of columns is not known.
    """
    if situation.hidden_size is None:
        raise BadInput(f"FlashInfer takes tensors of at most {given['rows']} rows; add {option('hidden_size')}")
    row = situation.hidden_size * situation.dtype.size_bytes
    packed = "row_bytes" not in given or _sglang_backend(situation, given) != "mnnvl" or row % given["row_bytes"] == 0
    return at_most(given["rows"] * row) if packed else NONE, {"rows": given["rows"]}


@unsure_of(sglang_flashinfer_rows)
def _rows_beyond(situation: Situation, _: EngineRelease, given: Given) -> Sizes:
    """The sizes above the limit that backend mnnvl may still take, because its memory is allocated in larger pieces
    than requested."""
    if situation.hidden_size is None or _sglang_backend(situation, given) != "mnnvl":
        return NONE
    most = given["rows"] * situation.hidden_size * situation.dtype.size_bytes
    return Sizes(((most + 1, LARGEST_BYTES),))


@rule
def mscclpp_sizes(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """MSCCL++ has algorithms for this number of ranks and nodes, and one of them takes the size.

    BadInput if the table has ``ranks_or_end`` and the number of ranks is not in it: the engine then ends.
    """
    if situation.ranks not in given.get("ranks_or_end", (situation.ranks,)):
        valid = ", ".join(map(str, given["ranks_or_end"]))
        ends = f"the engine ends with it when {situation.ranks} ranks capture a CUDA graph"
        raise BadInput(f"{given['switch']}: {ends}; valid: {valid}")
    row = _mscclpp_row(situation, release, given)
    facts = {"ranks": situation.ranks, "nodes": situation.nodes}
    return (NONE if row is None else Sizes((tuple(row["bytes"]),))), facts


@unsure_of(mscclpp_sizes)
def _mscclpp_measures(situation: Situation, release: EngineRelease, given: Given) -> Sizes:
    """The sizes between powers of two, where the engine uses the algorithm that was fastest at its start; on several
    nodes of one NVLink domain, all sizes."""
    row = _mscclpp_row(situation, release, given)
    if row is None:
        return NONE
    low, high = row["bytes"]
    if situation.nodes > 1 and situation.one_domain:
        return Sizes(((low, high),))
    return Sizes(tuple((low, high) for low, high in row["measured"]))


def _mscclpp_row(situation: Situation, release: EngineRelease, given: Given) -> Mapping[str, Any] | None:
    row: Mapping[str, Any] = release.limits[given["limits"]].get(str(situation.nodes), {"ranks": ()})
    return row if situation.ranks in row["ranks"] else None


@rule
def in_graph(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """The call is captured in a CUDA graph."""
    return _if(situation.graph), {}


@rule
def eager(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """The call is not captured in a CUDA graph."""
    return _if(not situation.graph), {}


@rule
def without_drafts(situation: Situation, _: EngineRelease, __: Given) -> Passed:
    """Speculative decoding is off: the engine guesses no draft tokens."""
    return _if(not situation.drafts), {}


@rule
def switch_is_one_of(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """A switch of the engine has one of the listed values or, with ``unset``, is not set."""
    value = situation.switches[given["name"]]
    return _if(value in given["of"] or (value is None and given.get("unset", False))), {"switch": given["name"]}


@rule
def carried_by(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """Another implementation takes an AllReduce of the size."""
    return sizes_of(situation, release, given["implementation"]), {"implementation": given["implementation"]}


@rule
def at_most_rows(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The tensor has at most this number of rows; any size passes if the number of columns is not known.

    If ``requests`` names a switch that is set, its value is a number of sequences; the limit is then at least the rows
    of that many sequences with their draft tokens.
    """
    rows: int = given["rows"]
    if "requests" in given and situation.switches[given["requests"]] is not None:
        rows = max(rows, int(str(situation.switches[given["requests"]])) * (1 + situation.drafts))
    if situation.hidden_size is None:
        return ALL, {"rows": rows}
    return at_most(rows * situation.hidden_size * situation.dtype.size_bytes), {"rows": rows}


@rule
def at_least_rows(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The tensor has at least this number of rows; any size passes if the number of columns is not known."""
    if situation.hidden_size is None:
        return ALL, {"rows": given["rows"]}
    least = given["rows"] * situation.hidden_size * situation.dtype.size_bytes
    return Sizes(((least, LARGEST_BYTES),)), {"rows": given["rows"]}


@rule
def outside_listed_tokens(situation: Situation, release: EngineRelease, given: Given) -> Passed:
    """TensorRT-LLM's table does not leave a tensor of this many rows to NCCL.

    The table has the rows that are left to NCCL for each GPU generation, number of ranks and number of columns. Columns
    and rows are rounded to powers of two. BadInput if the table has no such number of ranks or columns, or if the
    number of columns is not known.
    """
    if situation.hidden_size is None:
        raise BadInput(f"TensorRT-LLM chooses by the number of rows: add {option('hidden_size')}")
    table = release.limits[given["limits"]]
    facts = _place(situation) | {"hidden_size": situation.hidden_size}
    if situation.ranks >= table["ranks_of_nccl"] or situation.hidden_size >= table["hidden_size_of_nccl"]:
        return NONE, facts
    row = table["100" if situation.capability >= 100 else "90"].get(str(situation.ranks), {})
    left_to_nccl = row.get(str(1 << situation.hidden_size.bit_length() - 1))
    if left_to_nccl is None:
        raise BadInput(
            f"TensorRT-LLM's table is not known for {situation.ranks} ranks and {situation.hidden_size} columns: it is "
            "known for 2, 4 and 8 ranks, from 2048 columns on"
        )
    row_bytes = situation.hidden_size * situation.dtype.size_bytes
    sizes = ALL
    for first, *last in left_to_nccl:
        below = (1, first * row_bytes - 1)
        above = [((last[0] + 1) * row_bytes, LARGEST_BYTES)] if last else []
        sizes &= Sizes((below, *above))
    return sizes, facts


@rule
def bytes_for_each_rank(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The size is at least this number of bytes for each rank."""
    least: int = given["bytes"] * situation.ranks
    return Sizes(((least, LARGEST_BYTES),)), {"limit": least}


@rule
def rows_at_most_switch(situation: Situation, _: EngineRelease, given: Given) -> Passed:
    """The tensor has at most the number of rows that a switch says, or the number of elements that the switch
    ``elements`` says.

    BadInput if the switch or the number of columns is not known; the message names everything that is missing.
    """
    elements = situation.switches[given["elements"]] if "elements" in given else None
    rows = situation.switches[given["rows"]]
    if not elements:
        missing = [f"{option('engine_arg')} {given['rows']}=N"] if rows is None else []
        missing += [option("hidden_size")] if situation.hidden_size is None else []
        if missing:
            takes = f"{given['of']} takes no tensor with more rows than the widest CUDA graph"
            raise BadInput(f"{takes}: add {' and '.join(missing)}")
        elements = int(str(rows)) * (situation.hidden_size or 0)
    limit = int(str(elements)) * situation.dtype.size_bytes
    return at_most(limit), {"limit": limit}
