"""What kinds of ranks have differently, named and counted."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner import release
from tuner.base.errors import UnknownRelease
from tuner.base.records import json_form
from tuner.jobs.preflight.facts import Facts
from tuner.jobs.preflight.reach import COMPARED_OTHERWISE, Reach
from tuner.release import Release

RELEASE, PROCESSOR, GPUS, ADAPTERS, TOPOLOGY, TABLE = (
    "NCCL release",
    "processor",
    "GPUs",
    "adapters",
    "topology",
    "decision table",
)
TUNER_PLUGIN, NETWORK_PLUGIN, RANKS_OF_HOST = "tuner plugin", "network plugin", "ranks of the host"
# What the emulator is asked about, besides variables.
ASKED = (RELEASE, PROCESSOR, GPUS, ADAPTERS, TOPOLOGY, TABLE, TUNER_PLUGIN, NETWORK_PLUGIN, RANKS_OF_HOST)
NOT_SET = "not set"


@dataclass(frozen=True, slots=True)
class Value:
    """One of the values of what differs, how many ranks have it, and which kinds of ranks those are."""

    value: str
    ranks: int
    kinds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that not all ranks have alike; ``values`` with the most frequent first."""

    what: str
    values: tuple[Value, ...]
    reach: Reach = Reach.unknown
    why: str | None = field(default=None, metadata=json_form(optional=True))


def known_release(facts: Facts) -> Release | None:
    """The release's tables; None for one that has none."""
    try:
        return None if facts.release is None else release.load(facts.release)
    except UnknownRelease:
        return None


def described(facts: Facts) -> dict[str, str]:
    """What is compared, in words, by name: variables by theirs."""
    variables = facts.settled(known_release(facts))
    files = {
        TOPOLOGY: facts.topology,
        TUNER_PLUGIN: facts.tuner_plugin,
        NETWORK_PLUGIN: facts.network_plugin,
        TABLE: facts.table,
    }
    return {
        RELEASE: facts.release or "not found",
        "CUDA of libnccl": facts.build or "not known",
        PROCESSOR: facts.processor.in_words,
        GPUS: facts.gpu_words,
        ADAPTERS: facts.port_words(variables),
        RANKS_OF_HOST: "as many as GPUs" if facts.ranks_of_host is None else str(facts.ranks_of_host),
        "driver": facts.driver or "not known",
        "container": facts.container or "none",
        **{name: NOT_SET if file is None else file.in_words for name, file in files.items()},
        **{name: value for name, value in variables.items() if name not in COMPARED_OTHERWISE},
    }


def differences(kinds: Sequence[Facts], ranks_of_kind: Mapping[int, int]) -> list[Difference]:
    """What differs between kinds, hardware and files first, then variables by name."""
    every = [described(facts) for facts in kinds]
    names = dict.fromkeys(name for each in every for name in each)
    found = []
    for name in names:
        counts, of_kinds = Counter[str](), defaultdict[str, list[int]](list)
        for kind, each in enumerate(every):
            value = each.get(name, NOT_SET)
            counts[value] += ranks_of_kind[kind]
            of_kinds[value].append(kind)
        if len(counts) > 1:
            values = tuple(Value(value, count, tuple(of_kinds[value])) for value, count in counts.most_common())
            found.append(Difference(name, values))
    return found
