"""Records of a decision table (docs/decision-table.md).

The plugin has its own reader in C (``csrc/plugin``). The reader in Python is written independently of it in the
simplest way, and tests compare the two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import chain

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span

HEADER = "nccl-tuner-table 1"
MAX_CHANNELS = 64
LARGEST = 2**64 - 1  # largest size
LARGEST_COUNT = 2**32 - 1  # largest number of ranks, nodes, operations or batches
CHUNK_BYTES = (1 << 12, 1 << 30)
MOST_PIPELINED_ENDS = 16

MOST_ARMS, MOST_EVERY, MOST_BLOCK = 16, 100_000, 1_000_000
CALLS_EXPLORED = 1_000_000  # used if a row does not say it

LINKS = ("nvlink", "pci", "net")
CAPS = (
    "ll-gbs",
    "ring-ll128-per-channel-gbs",
    "tree-ll128-per-channel-gbs",
    "tree-per-channel-gbs",
    "nvlstree-per-channel-gbs",
)
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
SCALES = ("1", "2", "more")  # numbers of nodes


ANY_BYTES = Span(0)
ANY_COUNT = Span(1)
ANY_PIPELINED = Span(0)


@dataclass(frozen=True, slots=True)
class TableChoice:
    """A choice that the table requests from NCCL. If ``channels`` or ``chunk_bytes`` is None, NCCL decides it."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int | None = None
    chunk_bytes: int | None = None

    @property
    def algo_proto(self) -> tuple[Algorithm, Protocol]:
        """Algorithm and protocol."""
        return self.algorithm, self.protocol


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a row; only one of ``bytes`` and ``bytes_per_rank`` may restrict the size.

    ``line`` is the line number that the row was read from.
    """

    collective: Collective
    bytes: Span = field(default=ANY_BYTES, kw_only=True)
    bytes_per_rank: Span = field(default=ANY_BYTES, kw_only=True)
    ranks: Span = field(default=ANY_COUNT, kw_only=True)
    nodes: Span = field(default=ANY_COUNT, kw_only=True)
    # None also matches nodes with unequal numbers of ranks; an interval never does.
    ranks_per_node: Span | None = field(default=None, kw_only=True)
    nvlink_domains: Span = field(default=ANY_COUNT, kw_only=True)
    line: int = field(default=0, kw_only=True, compare=False)

    def match(
        self, collective: Collective, size_bytes: int, *, ranks: int, nodes: int, nvlink_domains: int | None = None
    ) -> bool:
        """Whether the row applies to a call of ``size_bytes`` (nBytes) on such a communicator.

        Without ``nvlink_domains``, which NCCL reports from 2.28 on, any number of them matches.
        """
        even = self.ranks_per_node is None or (ranks % nodes == 0 and ranks // nodes in self.ranks_per_node)
        size = size_bytes in self.bytes and size_bytes // ranks in self.bytes_per_rank
        shape = ranks in self.ranks and nodes in self.nodes and even
        domains = nvlink_domains is None or nvlink_domains in self.nvlink_domains
        return self.collective is collective and size and shape and domains


@dataclass(frozen=True, slots=True)
class Arms:
    """The choices that the calls of a job try in turn; None stands for NCCL's own choice.

    The job's calls are divided into blocks of ``block`` calls each. One block in ``every`` uses one of ``choices``, and
    the others use NCCL's own choice; after the first ``calls`` calls no block uses any of them.
    """

    choices: tuple[TableChoice | None, ...]
    every: int
    block: int
    calls: int = CALLS_EXPLORED


@dataclass(frozen=True, slots=True)
class Decision(Conditions):
    """A row that decides calls. ``choices`` are in order of preference; if NCCL can run none of them, or the list is
    empty ("nccl"), NCCL chooses.

    A row that explores has ``arms`` instead of ``choices``.
    """

    choices: tuple[TableChoice, ...]
    arms: Arms | None = field(default=None, kw_only=True)
    registered: bool | None = field(default=None, kw_only=True)
    pipelined: Span = field(default=ANY_PIPELINED, kw_only=True)

    @property
    def named(self) -> tuple[TableChoice, ...]:
        """Every choice that the row names: its choices, or its arms."""
        return self.choices if self.arms is None else tuple(arm for arm in self.arms.choices if arm is not None)


@dataclass(frozen=True, slots=True)
class CostLine:
    """A time in us: ``latency_us * ceil(numPipeOps / batch) + nBytes / (1000 * bandwidth_gbs)``."""

    latency_us: float
    bandwidth_gbs: float
    batch: int = 1


@dataclass(frozen=True, slots=True)
class CostRow(Conditions):
    """A row that gives the time of one algorithm and protocol; None ("never") makes them slower than everything
    else."""

    algorithm: Algorithm
    protocol: Protocol
    time: CostLine | None


@dataclass(frozen=True, slots=True)
class ConstantRow:
    """A row that sets a constant of NCCL's model; ``words`` are its name in the file: ("link-latency-us", "net",
    "ring/ll128")."""

    words: tuple[str, ...]
    value: float
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A decision table: rows in the order of the file. The first row that matches a call decides it."""

    decisions: tuple[Decision, ...] = ()
    costs: tuple[CostRow, ...] = ()
    constants: tuple[ConstantRow, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)  # where the table comes from
    provenance_lines: Mapping[str, int] = field(default_factory=dict, compare=False)  # the line of each entry


def pipelined_ends(decisions: Iterable[Decision]) -> set[int]:
    """The values of numPipeOps at which the deciding row may change; a table has at most MOST_PIPELINED_ENDS of
    them."""
    intervals = {row.pipelined for row in decisions}
    ends = chain.from_iterable((one.low, 0 if one.high is None else one.high + 1) for one in intervals)
    return {end for end in ends if end != 0}
