"""The door for Python: a communicator described in words, and arrays of what NCCL picks for it."""

from collections.abc import Mapping
from pathlib import Path

from numpy.typing import ArrayLike

from tuner import release
from tuner.base.errors import BadInput
from tuner.base.names import Buffers, Collective, DataType, Op, by_name
from tuner.base.numerics import FloatArray
from tuner.base.sizes import whole
from tuner.emulator import fitted_constants
from tuner.emulator.model import Tables
from tuner.emulator.ranges import FOLLOWED_BYTES, Ranges, launches
from tuner.emulator.request import Request
from tuner.emulator.selection import Picks, Selection
from tuner.machine import catalogue
from tuner.scenario import MOST_NODES, Scenario


class Communicator:
    """One communicator, made by :func:`communicator`; what it says is what libnccl says, bit for bit.

    Collectives, types and operations are NCCL's names in any case ("allreduce", "float32", "sum") or members of
    :mod:`tuner.base.names`. Sizes are NCCL's nBytes, an integer or an array of them: count x size of the type,
    times the ranks for AllGather and ReduceScatter.

    >>> two_nodes = communicator("dgx-h100", nodes=2, nccl="2.28.9")
    >>> two_nodes.pick("allreduce", [8, 1 << 20]).time_us
    array([25.200483, 62.50566 ], dtype=float32)
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.selection = Selection(scenario.communicator())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.scenario.heading}>"

    @property
    def ranks(self) -> int:
        """Of the whole communicator."""
        return self.selection.communicator.ranks

    @property
    def tables(self) -> Tables:
        """Latencies (us), bandwidths (GB/s), threads and thread thresholds (bytes), [collective][algorithm][protocol].

        Source: ncclTopoTuneModel, src/graph/tuning.cc.
        """
        return self.selection.tables

    def pick(
        self,
        collective: Collective | str,
        sizes: ArrayLike,
        dtype: DataType | str = "float32",
        op: Op | str = "sum",
        buffers: Buffers | str = "plain",
    ) -> Picks:
        """What NCCL picks: algorithm, protocol, time in us, channels and threads, an element a size.

        Errors: NoAlgorithm where NCCL finds nothing to run; BadInput for an unknown name or a size out of range.
        Source: topoGetAlgoInfo, src/enqueue.cc.
        """
        return self.selection.pick(request(collective, dtype, op, buffers), sizes)

    def cost_table(
        self,
        collective: Collective | str,
        sizes: ArrayLike,
        dtype: DataType | str = "float32",
        op: Op | str = "sum",
        buffers: Buffers | str = "plain",
    ) -> FloatArray:
        """Predicted times in us, float32 [size][algorithm][protocol]; negative where NCCL ignores the combination.

        Errors: BadInput for an unknown name or a size out of range.
        Source: updateCollCostTable, src/enqueue.cc; what a tuner plugin is handed.
        """
        return self.selection.cost_table(request(collective, dtype, op, buffers), sizes)

    def edges(
        self,
        collective: Collective | str,
        dtype: DataType | str = "float32",
        op: Op | str = "sum",
        buffers: Buffers | str = "plain",
        *,
        low: int | None = None,
        high: int = FOLLOWED_BYTES,
    ) -> Ranges:
        """The ranges of nBytes in which algorithm, protocol, channels and threads stay the same, an element each.

        They touch, from ``low`` (one element by default) to ``high`` bytes or the largest size NCCL takes.
        Errors: NoAlgorithm; BadInput for an unknown name, a low above high, windows, and where channels change at too
        many sizes to follow.
        """
        return launches(self.selection, request(collective, dtype, op, buffers), low, high)


def communicator(
    machine: str | None = None,
    *,
    nccl: str | None = None,
    nodes: int = 1,
    gpus_per_node: int | None = None,
    topology: Path | str | None = None,
    env: Mapping[str, str | int] | None = None,
    constants: Path | str | None = None,
) -> Communicator:
    """The communicator over ``nodes`` alike nodes: a ``machine`` by name, or a ``topology`` in NCCL's XML.

    ``nccl`` is by default the newest release that the machine is captured for, or that of the ``constants``, a file of
    fitted constants that replace NCCL's own; ``env`` are NCCL's variables, each a text or a whole number.
    Errors: UnknownMachine, UnknownRelease, BadTopology, and BadInput for what is not emulated; each says what is valid.
    """
    fitted = fitted_constants.read(Path(constants)) if constants else None
    if nccl is None:
        nccl = fitted.nccl if fitted else catalogue.newest_release([machine] if machine else [])
    nodes = whole(nodes, "nodes")
    if not 1 <= nodes <= MOST_NODES:
        raise BadInput(f"nodes {nodes}: valid: 1 to {MOST_NODES}")
    return Communicator(
        Scenario(
            nccl=release.load(nccl).name,
            nodes=nodes,
            machine=machine,
            topology=Path(topology) if topology else None,
            gpus_per_node=None if gpus_per_node is None else whole(gpus_per_node, "gpus_per_node"),
            environment=_environment({} if env is None else env),
            fitted_constants=fitted,
        )
    )


def _environment(env: object) -> dict[str, str]:
    """As a process has it: texts."""
    if not isinstance(env, Mapping):
        raise BadInput(f"env {env!r}: expected a dictionary of NCCL's variables, such as {{'NCCL_ALGO': 'Ring'}}")
    return {str(name): value if isinstance(value, str) else str(whole(value, str(name))) for name, value in env.items()}


def request(
    collective: Collective | str,
    dtype: DataType | str = "float32",
    op: Op | str = "sum",
    buffers: Buffers | str = "plain",
) -> Request:
    """A call by NCCL's names. Errors: BadInput for an unknown one."""
    return Request(
        by_name(Collective, collective, "collective"),
        by_name(DataType, dtype, "type"),
        by_name(Op, op, "operation"),
        buffers=by_name(Buffers, buffers, "kind of buffers"),
    )
