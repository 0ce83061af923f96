"""Records of measured times: a row, the head of a file, a table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.names import Collective, P2pOperation
from tuner.times.measured.samples import SampleBlock

# nccl-tests' programs without what NCCL has no function for by itself; the second half are made of sends and receives.
OPERATIONS: Mapping[str, Collective | P2pOperation] = {
    **{each.name.lower(): each for each in Collective},
    **{each.name.lower(): each for each in P2pOperation},
}
COLLECTIVES = tuple(OPERATIONS)

# Collectives whose nBytes is the data of all ranks together: each rank's part is an equal number of elements.
# nccl-tests, src/{all_gather,reduce_scatter,alltoall,gather,scatter}.cu: count / nranks.
SPLIT_OVER_RANKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")


def operation(word: str) -> Collective | P2pOperation:
    """Operation of ``all_reduce``, ``AllReduce`` or ``all_reduce_perf``. BadInput for another word."""
    plain = _plain(word).removesuffix("perf")
    if plain == "all2all":
        return P2pOperation.AllToAll
    if plain not in COLLECTIVES:
        raise BadInput(f"unknown collective {word!r}{did_you_mean(plain, COLLECTIVES)}; {one_of(COLLECTIVES)}")
    return OPERATIONS[plain]


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")


class MeasuredLaunch(StrEnum):
    """Way in which the ranks were started, which the time of a small call depends on."""

    process_per_gpu = "a process a GPU"
    thread_per_gpu = "one process a node with a thread a GPU"
    one_thread = "one thread for all GPUs of a node"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """Publication of the numbers: repository or document, the state of it, the path in it, and its licence."""

    repository: str = ""
    commit: str = ""
    path: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a file: what it was, and what it did unlike the others of the file.

    ``environment`` are variables beside those of the header; one whose value is empty was not set in this run.
    ``devices`` are the GPUs of the node, by number, where they are not the first ones. ``launch`` is None and
    ``network`` empty where they are the header's.
    """

    what: str
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    launch: MeasuredLaunch | None = None
    network: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredHeader:
    """Head of a file, for all its rows. A text that is empty is not known.

    ``machine`` is a name of the catalogue, or empty; ``machine_note`` says why there is none, or how sure it is.
    ``nccl`` is a release, or empty; ``nccl_note`` says the same of it. ``environment`` are the variables that were set
    and that matter to NCCL or its network. ``network`` is what NCCL sent over between nodes: ``InfiniBand``,
    ``sockets`` or the name of a plugin; ``site`` the cluster, where it has a
    name. ``noise_percent`` is by how much the source says that two runs of the same
    differ, by the number of nodes from which that holds. ``left_out`` counts rows of the source that are not here, by
    reason.
    """

    title: str = ""
    machine: str = ""
    machine_note: str = ""
    gpu: str = ""
    nccl: str = ""
    nccl_note: str = ""
    source: MeasuredSource = MeasuredSource()
    how_measured: str = ""
    launch: MeasuredLaunch = MeasuredLaunch.unknown
    network: str = ""
    site: str = ""
    cuda_graph: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    traps: tuple[str, ...] = ()
    noise_percent: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, MeasuredRun] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Measured times with their head. ``name`` is that of the file, without its ending."""

    name: str
    header: MeasuredHeader
    rows: tuple[SampleBlock, ...]

    def environment_of(self, row: SampleBlock) -> dict[str, str]:
        """The variables that were set in the row's run."""
        run = self.header.runs.get(row.run)
        both = {**self.header.environment, **(run.environment if run else {})}
        return {name: value for name, value in both.items() if value}

    def network_of(self, row: SampleBlock) -> str:
        """Network that the row's run sent over between nodes; empty where that is not known, or there is one node."""
        run = self.header.runs.get(row.run)
        return (run.network if run else "") or self.header.network

    def devices_of(self, row: SampleBlock) -> tuple[int, ...]:
        """The GPUs of each node that took part, by number; the first ones where the file says nothing else."""
        run = self.header.runs.get(row.run)
        return (run.devices if run else ()) or tuple(range(row.gpus_per_node))


_ROWS_OWN = re.compile(r"\b(?:avg )?busbw [\d.]+|#wrong=\S+")  # numbers of single rows
_CODE = re.compile(r"\bnccl[ /]?(?:version )?(2\d{4})\b|/(2\d{4})\b", re.I)
_DOTTED = re.compile(r"\bnccl[ -]?v?(2\.\d+\.\d+)", re.I)
_GPU = re.compile(r"\b(?:NVIDIA )?((?:[ABHVL]\d{2,3}S?|GB\d{3}|GH200|RTX PRO \d+|RTX A\d+|T4)\b[^;,]*)")
_VARIABLE = re.compile(r"\b((?:NCCL|FI)_[A-Z0-9_]+)=([^\s;,]*)")


@dataclass(frozen=True, slots=True)
class NotedRuns:
    """Runs that notes tell of: each row's run, the runs by name, and release and GPU where all rows agree on one."""

    of_rows: Sequence[str]
    runs: Mapping[str, MeasuredRun]
    nccl: str
    gpu: str


def runs_of_notes(noted: Iterable[tuple[str, str]]) -> NotedRuns:
    """Runs that the sources and notes of rows tell of. Rows of one source with unlike notes are of unlike runs."""
    names: dict[tuple[str, str], str] = {}
    of_rows = []
    for source, note in noted:
        own = _ROWS_OWN.sub("", note).strip(" ;")
        if (source, own) not in names:
            others = sum(1 for known, _ in names if known == source)
            names[source, own] = f"{source}#{others + 1}" if others else source or "notes"
        of_rows.append(names[source, own])
    named = {name: MeasuredRun(what=note, environment=variables_of_note(note)) for (_, note), name in names.items()}
    texts = [" ; ".join(key) for key in names]
    return NotedRuns(of_rows, named, _agreed(map(release_of_note, texts)), _agreed(map(gpu_of_note, texts)))


def release_of_note(text: str) -> str:
    """The release of NCCL that a text names, empty where it names none: ``22903`` and ``2.29.3`` are the same."""
    if match := _DOTTED.search(text):
        return match[1]
    match = _CODE.search(text)
    return release.of_code(int(match[1] or match[2])) if match else ""


def gpu_of_note(text: str) -> str:
    """The model of the GPU that a text names, empty where it names none."""
    match = _GPU.search(text)
    return match[1].strip() if match else ""


def variables_of_note(text: str) -> dict[str, str]:
    """Variables of NCCL and its network that a text sets."""
    return {match[1]: match[2] for match in _VARIABLE.finditer(text)}


def _agreed(values: Iterable[str]) -> str:
    (one, *others) = set(values) or {""}
    return "" if others else one
