"""The catalogue of machines: ``tables/machines/<name>`` has the topology of one node, and the source of each fact.

``topology.xml`` and ``machine.toml`` are written by hand. ``graphs.json`` has the graphs of the most common requests,
which saves time: ``python -m tests.scripts.search_graphs NAME`` writes it, and no answer depends on it.
``refused.toml`` says why some machines are not in the catalogue, and which machines are most similar to them.
``aliases.toml`` has other names, such as clouds' instance types, for machines that NCCL cannot tell from one of the
catalogue.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from tuner import release
from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import NcclFails, Remedy, UnknownMachine, nearest_of, one_of
from tuner.base.expressions import expression
from tuner.machine import described as in_words
from tuner.machine import gpus
from tuner.machine.gpus import PeerToPeer
from tuner.machine.graphs import GraphTable, from_table
from tuner.machine.topology import Topology, read

MOST = 8  # the most names that a message suggests
LEAST_LETTERS = 3  # the fewest letters of a word that is also found inside another word, such as h100 in DGXH100
CHIP_WEIGHT = 3  # a GPU in a name counts as much as three other words
BEFORE_SIZES = expression(r"^(?:standard-|ml\.)")  # what Azure and SageMaker put before a plain name
Row = TypeVar("Row")
WEAK = expression(r"v?[0-9]+[a-z]?")  # v5, 8g: words that mean nothing if two names share no other words
MISSPELT = 0.9  # similarity of a name with one letter too few or too many: then nothing else is suggested


def nearest(name: str, words: Mapping[str, Collection[str]], chips: Collection[str]) -> tuple[str, ...]:
    """The keys of ``words`` that share the most words with ``name``, at most :data:`MOST` of them. If none shares a
    word, the key with the most similar spelling.

    ``words`` has, by machine, the words that describe it; ``chips`` has all words that name a GPU (h100). Both are in
    lower case. If the name contains a word of ``chips``, machines with other GPUs are left out. A shared version (v5)
    or number only counts if another word is shared, too.
    """
    asked = _words(name)
    said = {chip for chip in chips if _says(asked, chip)}
    # Finds gh200, and then not h200 in it
    named = {chip for chip in said if not any(chip in other and chip != other for other in said)}
    able = {key: known for key, known in words.items() if named <= set(known)} if named else words
    scores = {
        key: _score([word for word in set(known) if _says(asked, word)], named, asked) for key, known in able.items()
    }
    best = max(scores.values(), default=0)
    if best:
        equal = [key for key, score in scores.items() if score == best]
        ranked = sorted(equal, key=lambda key: (-_likeness(name, key), key))[:MOST]
        return tuple(key for key in ranked if _likeness(name, key) >= MISSPELT) or tuple(ranked)
    return tuple(get_close_matches(name.lower(), able, n=1))


def having_all_words(name: str, words: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The machines in ``words`` that have every word of the name.

    A machine also has a word if one of its words begins or ends with it, as rtx4090 ends with 4090.
    """
    asked = _words(name)
    return tuple(key for key, known in words.items() if asked and all(_is_in(known, word) for word in asked))


def _score(shared: Collection[str], named: Collection[str], asked: Collection[str]) -> int:
    if len(asked) > 1 and all(WEAK.fullmatch(word) for word in shared):
        return 0
    return sum(CHIP_WEIGHT if word in named else 1 for word in shared)


def _is_in(known: Collection[str], word: str) -> bool:
    return any(word == each or _begins_or_ends(each, word) for each in known)


def _likeness(name: str, key: str) -> float:
    return SequenceMatcher(None, name.lower(), key).ratio()


def words_of(*texts: str) -> frozenset[str]:
    """The words in texts that describe a machine, in lower case: {dgx, h100, sxm5} for "dgx-h100", "H100 SXM5"."""
    return frozenset(word for text in texts for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _says(asked: Collection[str], word: str) -> bool:
    """Whether one of the asked words equals ``word``, with or without the number at the end (sxm for sxm5), or is its
    beginning or end."""
    return any(each in (word, word.rstrip("0123456789")) or _begins_or_ends(each, word) for each in asked)


def _begins_or_ends(text: str, word: str) -> bool:
    """Whether a text begins or ends with a word without cutting a number: dgx and h100 do in dgxh100, but h10 does not
    in h100."""
    if len(word) < LEAST_LETTERS:
        return False
    after, before = text.removeprefix(word)[:1], text.removesuffix(word)[-1:]
    begins = text.startswith(word) and not (word[-1].isdigit() and after.isdigit())
    return begins or (text.endswith(word) and not (word[0].isdigit() and before.isdigit()))


GRAPHS_FILE = "graphs.json"
ADAPTER_NAME = expression(r'(<net [^>]*?\bname=")[^"]*')
CHIP = expression("[a-z]{1,2}[0-9]{2,3}")  # names of GPUs among the words of a name: gb200, l20


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A document, the place in the document, and what was taken from it."""

    document: str
    section: str
    facts: str


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name for a machine: why NCCL cannot tell the two apart, and the document that lists the parts.

    ``assumed``: what is assumed to be equal, because no document says so. ``alike`` are other machines with the same
    parts, but in other places of the topology. ``adapters`` are the names of the alias's network devices, in the
    machine's order, if they differ. ``one_node``: why the alias is only known to be the same on a single node, where
    GPUs use NVLink; None if it is the same on several nodes, too.
    """

    name: str
    machine: str
    same: str
    source: str
    assumed: str | None = None
    alike: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    one_node: str | None = None

    def check_beyond_nvlink(self) -> None:
        """Raises UnknownMachine if the alias only stands for a single node of the machine."""
        if self.one_node is not None:
            said = f"{self.name} beyond the NVLinks of a node: {self.one_node}; valid: one node, or {self.machine}"
            raise UnknownMachine(said).cured(Remedy("machine", self.machine))

    @property
    def note(self) -> str:
        """A note of one line for users who use this name."""
        assumed = "" if self.assumed is None else f"; assumed, as no document says so: {self.assumed}"
        return f"{self.name} takes the parts of {self.machine}: {self.same}{assumed}"


@dataclass(frozen=True, slots=True)
class Missing:
    """A known machine that is not in the catalogue: why, and which machines are most similar."""

    name: str
    why: str
    instead: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A machine of the catalogue, which is one kind of node: a host, or an NVLink domain of ``trays`` trays; its
    topology is that of one tray.

    ``gpu_counts`` are the numbers of GPUs per node for which tests compare the emulator with libnccl. Numbers for which
    libnccl's search takes minutes are left out. ``environment`` are the variables of NCCL's search that the machine's
    /etc/nccl.conf sets. ``crashes`` has, by release in which libnccl itself crashes on the machine, the place of the
    crash in its code.
    """

    name: str
    title: str
    vendor: str
    gpu: str
    gpus_per_node: int
    topology_xml: str
    topology: Topology
    notes: tuple[str, ...]
    sources: tuple[DocumentSource, ...]
    gpu_counts: tuple[int, ...]
    peer_to_peer: PeerToPeer
    environment: Mapping[str, str]
    crashes: Mapping[str, str]
    since: str | None  # the first release that treats all trays as one node, or that knows the GPUs
    trays: int | None  # number of hosts of the NVLink domain; None: the machine is one host
    tray_counts: tuple[int, ...]  # the numbers of trays whose graphs are kept
    like: "Machine | None" = None  # a machine that differs only in names, which graphs do not contain

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that run on the machine, oldest first; for an NVLink domain, the releases that treat it as one
        node.
        """
        names = release.names()
        first = 0 if self.since is None else names.index(self.since)
        return tuple(name for name in names[first:] if name not in self.crashes)

    def split(self, trays: int) -> tuple[int, int]:
        """The smallest number of equal NVLink domains that ``trays`` trays can be divided into, and the number of trays
        in each."""
        least = -(-trays // (self.trays or 1))
        number = next(number for number in range(least, trays + 1) if trays % number == 0)
        return number, trays // number

    def check_runs(self, nccl: str) -> None:
        """Raises NcclFails if libnccl of this release crashes on the machine."""
        if nccl in self.crashes:
            names = release.names()
            later = (each for each in self.releases if names.index(each) > names.index(nccl))
            others = [Remedy("nccl", each) for each in later][:1]
            said = f"{self.name}: NCCL {nccl} crashes there: {self.crashes[nccl]}; valid: other releases"
            raise NcclFails(said).cured(*others)

    @property
    def graph_table(self) -> GraphTable:
        """The graphs that were searched before, on this topology and with the machine's own variables alone."""
        if self.like is not None:
            return self.like.graph_table
        return _graph_table(self.name).of(self.topology_sha256)

    @property
    def topology_sha256(self) -> str:
        """SHA-256 of the topology's text, in hexadecimal."""
        return _sha256(self.topology_xml)


@lru_cache(64)
def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def newest_release(machines: Iterable[str]) -> str:
    """The newest release that runs on all of these machines.

    If no release runs on all of them, or no machine is given, it is the newest release of all.
    """
    running = [load(name).releases for name in machines]
    common = [name for name in release.names() if all(name in each for each in running)]
    return (common or release.names())[-1]


def names() -> tuple[str, ...]:
    """The names of all machines in ``tables/machines``."""
    return _names_in(folder())


@cache
def _names_in(place: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in place.iterdir() if entry.joinpath("machine.toml").is_file()))


@cache
def aliases() -> dict[str, Alias]:
    """Other names for machines, such as clouds' instance types, by name."""
    table = tables.toml(folder() / "aliases.toml")
    return {
        name: Alias(
            name,
            row["machine"],
            row["same"],
            row["source"],
            row.get("assumed"),
            tuple(row.get("alike", ())),
            tuple(row.get("adapters", ())),
            row.get("one_node"),
        )
        for name, row in table.items()
    }


@cache
def missing() -> dict[str, Missing]:
    """The machines that are known but not in the catalogue, by name."""
    table = tables.toml(folder() / "refused.toml")
    return {name: Missing(name, row["why"], tuple(row["instead"])) for name, row in table.items()}


def alias(name: str) -> Alias | None:
    """The alias of this name, in any spelling; None for a machine's own name, or an unknown name."""
    plain = _plain(name)
    if plain in map(_plain, names()):
        return None
    return _by_plain_name(aliases(), name)


def _absent(name: str) -> Missing | None:
    """The row of refused.toml with this name, in any spelling."""
    return _by_plain_name(missing(), name)


def _by_plain_name(rows: Mapping[str, Row], name: str) -> Row | None:
    """The row with a name in any spelling, with or without what clouds put before every size."""
    plain = _plain(name)
    exactly = {_plain(each): row for each, row in rows.items()}
    without = {BEFORE_SIZES.sub("", each): row for each, row in exactly.items()}
    return exactly.get(plain) or without.get(BEFORE_SIZES.sub("", plain))


@lru_cache(1024)
def _plain(name: str) -> str:
    """The form in which names are compared; DGX-H100, dgx_h100 and "dgx h100" have the same form."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def is_known(name: str) -> bool:
    """Whether :func:`load` knows a machine of this name; unlike :func:`load`, it looks for no suggestions."""
    return alias(name) is not None or _plain(name) in map(_plain, names()) or in_words.read(name) is not None


@cache
def load(name: str) -> Machine:
    """The machine with this name or alias. UnknownMachine suggests other names, or says why the machine is missing."""
    if (other := alias(name)) is not None:
        return _with_adapters(load(other.machine), other)
    known = {_plain(each): each for each in names()}.get(_plain(name))
    if known is None:
        if (described := in_words.read(name)) is not None:
            return _described(described)
        raise _unknown(name)
    name = known
    home = folder() / name
    facts = tables.toml(home / "machine.toml")
    xml = _text(home / "topology.xml")
    return Machine(
        name=name,
        title=facts["title"],
        vendor=facts["vendor"],
        gpu=facts["gpu"],
        gpus_per_node=facts["gpus_per_node"],
        topology_xml=xml,
        topology=read(xml),
        notes=tuple(facts["notes"]),
        sources=tuple(DocumentSource(**source) for source in facts["source"]),
        gpu_counts=tuple(facts.get("gpu_counts", range(1, facts["gpus_per_node"] + 1))),
        peer_to_peer=PeerToPeer(facts.get("peer_to_peer", PeerToPeer.all)),
        crashes=facts.get("crashes", {}),
        since=facts.get("since"),
        trays=facts.get("trays"),
        tray_counts=tuple(facts.get("tray_counts", ())),
        environment=facts.get("environment", {}),
    )


def _with_adapters(machine: Machine, named: Alias) -> Machine:
    """The machine with the alias's name and the alias's names of network devices, if it has any; else the machine
    itself."""
    if not named.adapters:
        return machine if named.one_node is None else replace(machine, name=named.name, like=machine)
    left = iter(named.adapters)
    xml = ADAPTER_NAME.sub(lambda found: f"{found[1]}{next(left)}", machine.topology_xml)
    return replace(machine, name=named.name, topology_xml=xml, topology=read(xml), like=machine)


def _described(machine: in_words.DescribedMachine) -> Machine:
    model = machine.model
    return Machine(
        name=machine.name,
        title=machine.title,
        vendor="in words",
        gpu=model.name,
        gpus_per_node=machine.gpus,
        topology_xml=machine.topology,
        topology=read(machine.topology),
        notes=machine.notes,
        sources=(DocumentSource("the machine's name", "", machine.title),),
        gpu_counts=tuple(range(1, machine.gpus + 1)),
        peer_to_peer=model.peer_to_peer,
        environment={},
        crashes={},
        since=None,
        trays=None,
        tray_counts=(),
    )


@lru_cache(8)  # a fleet asks about one machine after the other
def _graph_table(name: str) -> GraphTable:
    file = folder() / name / GRAPHS_FILE
    return from_table(json.loads(_text(file))) if file.is_file() else GraphTable("")


def _unknown(name: str) -> UnknownMachine:
    """The error for an unknown machine, with the most similar names if there are any."""
    if absent := _absent(name):
        error = UnknownMachine(f"{absent.name}: {absent.why}; {one_of(absent.instead)}")
        return error.cured(Remedy("machine", absent.instead[0]))
    models, known, chips = _known_words()
    elsewhere = {word for each in missing() for word in words_of(each) if CHIP.fullmatch(word)}
    not_here = having_all_words(name, {each: words_of(each) for each in missing()})
    if not_here and not having_all_words(name, known):
        rows = [missing()[each] for each in not_here]
        error = UnknownMachine(f"no machine {name!r}; {_are_missing(rows)}")
        return error.cured(Remedy("machine", rows[0].instead[0]))
    here = {gpus.chip(model) for model in models.values()}
    if (words := in_words.of_chip(_words(name), here)) is not None:
        return UnknownMachine(f"no machine {name!r}; describe it in words: {words}, with your GPUs and CPUs")
    meant = nearest(name, known, chips | elsewhere)
    hint = f"; did you mean {', '.join(meant)}?" if meant else f"; {nearest_of(name, models)}"
    error = UnknownMachine(f"no machine {name!r}{hint} (all: nccl-tuner machines)")
    return error.cured(Remedy("machine", meant[0])) if meant else error


@cache
def _known_words() -> tuple[dict[str, str], dict[str, frozenset[str]], frozenset[str]]:
    """The GPU models of each machine, the words that describe each machine, and all words that name a GPU."""
    facts = {each: tables.toml(folder() / each / "machine.toml") for each in names()}
    others = {each: [row.name for row in aliases().values() if row.machine == each] for each in facts}
    known = {each: words_of(each, row["vendor"], row["gpu"], *others[each]) for each, row in facts.items()}
    models = {each: str(row["gpu"]) for each, row in facts.items()}
    return models, known, words_of(*map(gpus.chip, (*gpus.names(), *models.values())))


def _are_missing(rows: list[Missing]) -> str:
    """The message about machines without a public topology that somebody may have meant."""
    if len(rows) == 1:
        return f"{rows[0].name} is missing: {rows[0].why}; {one_of(rows[0].instead)}"
    instead = dict.fromkeys(name for row in rows for name in row.instead)
    return f"{', '.join(row.name for row in rows)} are missing: each says why; {one_of(instead)}"


def folder() -> Path:
    """The folder of the machines."""
    return tables.folder() / "machines"


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
