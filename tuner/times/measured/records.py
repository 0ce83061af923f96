"""Records of measured times: a row, the head of a file, a table."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, DataType, Protocol, by_name
from tuner.times.measured.words import POINT_TO_POINT


class Launch(StrEnum):
    """How the ranks were started, which the time of a small call depends on."""

    process_per_gpu = "a process a GPU"
    thread_per_gpu = "one process a node with a thread a GPU"
    one_thread = "one thread for all GPUs of a node"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured time. ``line`` is its line in the file, ``bytes`` NCCL's nBytes, ``collective`` NCCL's name in
    lower case.

    ``algorithm``, ``protocol`` and ``channels`` are there where they were forced or logged, None where NCCL chose and
    nobody said what. ``in_place`` is None where the source does not say. ``run`` is a key of the header's ``runs``, or
    empty.
    """

    line: int
    collective: str
    dtype: DataType
    nodes: int
    gpus_per_node: int
    bytes: int
    time_us: float
    in_place: bool | None = False
    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    channels: int | None = None
    run: str = ""

    @property
    def is_point_to_point(self) -> bool:
        """Whether NCCL makes it of sends and receives, and picks no algorithm for it."""
        return self.collective in POINT_TO_POINT

    @property
    def tuned_collective(self) -> Collective | None:
        """The collective that NCCL picks an algorithm for; None for sends and receives."""
        return None if self.is_point_to_point else by_name(Collective, self.collective, "collective")

    @property
    def ranks(self) -> int:
        """All GPUs of the run."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """Where the numbers were published: repository or document, the state of it, the path in it, and its licence."""

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
    launch: Launch | None = None
    network: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredHeader:
    """What a file says of all its rows. A text that is empty is not known.

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
    launch: Launch = Launch.unknown
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
    rows: tuple[MeasuredRow, ...]

    def environment_of(self, row: MeasuredRow) -> dict[str, str]:
        """The variables that were set in the row's run."""
        run = self.header.runs.get(row.run)
        both = {**self.header.environment, **(run.environment if run else {})}
        return {name: value for name, value in both.items() if value}

    def launch_of(self, row: MeasuredRow) -> Launch:
        """How the row's run was started."""
        run = self.header.runs.get(row.run)
        return (run.launch if run else None) or self.header.launch

    def network_of(self, row: MeasuredRow) -> str:
        """What the row's run sent over between nodes; empty where that is not known, or there is one node."""
        run = self.header.runs.get(row.run)
        return (run.network if run else "") or self.header.network

    def devices_of(self, row: MeasuredRow) -> tuple[int, ...]:
        """The GPUs of each node that took part, by number; the first ones where the file says nothing else."""
        run = self.header.runs.get(row.run)
        return (run.devices if run else ()) or tuple(range(row.gpus_per_node))
