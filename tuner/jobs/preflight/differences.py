"""Finds differences between kinds of ranks, and counts the ranks with each value."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import UnknownRelease
from tuner.base.records import json_form
from tuner.base.sizes import as_ranges
from tuner.jobs.preflight.reading import NamedFile, RankFacts, RecordedRank, counted
from tuner.machine.adapters import SELECT
from tuner.release import Release
from tuner.release.variables import OF_THE_NETWORK, not_emulated


class Reach(StrEnum):
    """The effect of a difference; the values are the texts in the JSON."""

    parts = "ranks choose differently"  # at some sizes
    alike = "all ranks agree, but on another choice than without the difference"  # than without the difference
    speed = "speed only"  # the same choices at every size, with other times
    nothing = "nothing"
    messages = "message sizes"  # the choice is the same, and ranks cut it into messages of other sizes
    network = "network"  # ranks look for each other on different networks
    start = "the communicator fails at its start"
    exchange = "what ranks exchange at the start"  # in a form of each release's own, which none of these compares
    unknown = "not known"


# Each rank reads these for itself and cuts its data or sizes its buffers by them; peers use their own.
# Source: computeBuffSizes, src/init.cc; calcCollChunking, src/enqueue.cc; ncclTopoComputeP2pChannels,
# src/graph/paths.cc; ncclTransportP2pSetup, src/transport.cc, v2.28.9-1.
OF_MESSAGES = frozenset(
    {
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_CHUNK_SIZE",
        "NCCL_NVLS_CHUNKSIZE",
        "NCCL_NVLSTREE_MAX_CHUNKSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PCI_CHUNKSIZE",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_P2P_LL_THRESHOLD",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
        "NCCL_NCHANNELS_PER_NET_PEER",
    }
)
# What rank 0 refuses at the start; the adapters themselves are compared.
OF_THE_START = frozenset({"NCCL_IGNORE_NET_MISMATCH", "NCCL_IGNORE_COLLNET_MISMATCH"})
# What these name is compared by content, or was applied to the adapters on record.
COMPARED_OTHERWISE = frozenset(
    {
        "NCCL_TUNER_PLUGIN",
        "NCCL_TUNER_TABLE",
        "NCCL_TUNER_CONFIG_FILE",
        "NCCL_TUNER_TABLE_SHA256",
        "NCCL_TUNER_STRICT",
        "NCCL_TUNER_STATS",
        "NCCL_TUNER_LIVE",
        "NCCL_TUNER_SWITCH",
        "NCCL_TUNER_NEXT",
        "NCCL_TOPO_FILE",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_CONF_FILE",
        SELECT,
    }
)


def of_variable(name: str, nccl: Release) -> Reach | None:
    """The effect of a variable, if it is known without the emulator; else None."""
    if name in OF_MESSAGES:
        return Reach.messages
    if name in OF_THE_NETWORK:
        return Reach.network
    if name in OF_THE_START:
        return Reach.nothing
    if reaches_choice(name, nccl):
        return None
    return Reach.unknown if not_emulated(nccl, [name]) else Reach.nothing


def reaches_choice(name: str, nccl: Release) -> bool:
    """Whether the release's model, selection or search reads the variable."""
    return name in nccl.environment.known or name in nccl.environment.search


RELEASE, PROCESSOR, GPUS, ADAPTERS, TOPOLOGY, TABLE = (
    "NCCL release",
    "processor",
    "GPUs",
    "adapters",
    "topology",
    "decision table",
)
TUNER_PLUGIN, NETWORK_PLUGIN, RANKS_OF_HOST = "tuner plugin", "network plugin", "ranks of the host"
NETWORK, INTERFACES, SWITCH, NEXT_TUNER = "network", "interfaces", "switch", "next tuner plugin"
JOB_TIME = "NCCL_TUNER_JOB_TIME"
# What the emulator is asked about, besides variables.
ASKED = (
    RELEASE, PROCESSOR, GPUS, ADAPTERS, INTERFACES, TOPOLOGY, TABLE, TUNER_PLUGIN, NETWORK_PLUGIN, RANKS_OF_HOST
)  # fmt: skip
NOT_SET, NOT_KNOWN = "not set", "not known"


@dataclass(frozen=True, slots=True)
class Value:
    """One of the differing values, how many ranks have it, and which kinds of ranks.

    ``numbers`` are the numbers of these ranks, as far as records say them.
    """

    value: str
    ranks: int
    kinds: tuple[int, ...]
    numbers: tuple[int, ...] = field(default=(), metadata=json_form(optional=True, convert=as_ranges))


@dataclass(frozen=True, slots=True)
class RankDifference:
    """Something that differs between ranks; the most frequent of ``values`` comes first.

    ``why`` is the code of a finding that explains the difference further; None if ``reach`` says it all.
    """

    what: str
    values: tuple[Value, ...]
    reach: Reach = Reach.unknown
    why: str | None = field(default=None, metadata=json_form(optional=True))


def known_release(facts: RankFacts) -> Release | None:
    """The release of a kind of ranks; None if it is unknown or has no tables."""
    try:
        return None if facts.release is None else release.load(facts.release)
    except UnknownRelease:
        return None


def described(facts: RankFacts, has_adapters: bool = True) -> dict[str, str]:
    """Facts to compare as texts, keyed by name; variables are keyed by their own names.

    If ``has_adapters`` is false, because a record has no adapters, variables that select adapters are compared by
    value.
    """
    otherwise = COMPARED_OTHERWISE if has_adapters else COMPARED_OTHERWISE - {SELECT}
    nccl = known_release(facts)
    variables = facts.settled(nccl)
    files = {
        TOPOLOGY: facts.topology,
        TUNER_PLUGIN: facts.tuner_plugin,
        NETWORK_PLUGIN: facts.network_plugin,
        TABLE: facts.table,
    }
    return {
        RELEASE: facts.release or NOT_KNOWN,
        "CUDA of libnccl": facts.build or NOT_KNOWN,
        PROCESSOR: facts.processor.in_words,
        GPUS: facts.gpu_words,
        ADAPTERS: facts.port_words(variables),
        NETWORK: facts.network(variables) or NOT_KNOWN,
        INTERFACES: counted(each.in_words for each in facts.sockets(variables)),
        RANKS_OF_HOST: "one per GPU" if facts.ranks_of_host is None else str(facts.ranks_of_host),
        "driver": facts.driver or NOT_KNOWN,
        "container": facts.container or "none",
        **{name: NOT_SET if file is None else file.in_words for name, file in files.items()},
        SWITCH: _named_or(facts.switch, variables.get("NCCL_TUNER_SWITCH")),
        NEXT_TUNER: _named_or(facts.next_tuner, variables.get("NCCL_TUNER_NEXT")),
        **{
            name: value
            for name, value in variables.items()
            if name not in otherwise and (nccl is None or not facts.is_default(name, value, nccl))
        },
    }


def _named_or(file: NamedFile | None, value: str | None) -> str:
    """Text for a file: its content's hash, or the variable's value in records of earlier versions, which did not read
    the file."""
    if file is None:
        return NOT_SET if not value or value.lower() == "none" else value
    return f"{file.path} not there" if file.sha256 is None else file.in_words


def differences(kinds: Sequence[RankFacts], ranks: Sequence[RecordedRank]) -> list[RankDifference]:
    """Finds facts that differ between kinds: hardware and files first, then variables by name."""
    ranks_of_kind = Counter(rank.kind for rank in ranks)
    has_adapters = all(facts.ports for facts in kinds)
    every = [described(facts, has_adapters) for facts in kinds]
    names = dict.fromkeys(name for each in every for name in each)
    found = []
    for name in names:
        counts, of_kinds = Counter[str](), defaultdict[str, list[int]](list)
        for kind, each in enumerate(every):
            value = each.get(name, NOT_SET)
            counts[value] += ranks_of_kind[kind]
            of_kinds[value].append(kind)
        if len(counts) > 1:
            values = tuple(
                Value(value, count, tuple(of_kinds[value]), _numbers(ranks, of_kinds[value]))
                for value, count in counts.most_common()
            )
            found.append(RankDifference(name, values))
    return found


def _numbers(ranks: Sequence[RecordedRank], kinds: Sequence[int]) -> tuple[int, ...]:
    those = frozenset(kinds)
    return tuple(rank.rank for rank in ranks if rank.kind in those and rank.rank is not None)
