"""Reads the records of the simulated GPUs with numpy, and makes answers from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import OracleFailed
from tuner.base.expressions import expression
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.emulator.request import COPY_ENGINES, NonClassicPath
from tuner.oracle import messages
from tuner.oracle.messages import StructLayout, Symbols
from tuner.scenario.logs import choice

# 2.27 and later, for a kernel on symmetric windows
_SYMMETRIC = expression(rb"\[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels \d+ nthreads \d+(?: nWorks (\d+))?")

# The algorithm of each ncclPattern_t, as NCCL 2.18 to 2.32 use it.
PATTERNS = {
    "Ring": Algorithm.Ring,
    "RingTwice": Algorithm.Ring,
    "PipelineFrom": Algorithm.Ring,
    "PipelineTo": Algorithm.Ring,
    "TreeUp": Algorithm.Tree,
    "TreeDown": Algorithm.Tree,
    "TreeUpDown": Algorithm.Tree,
    "CollnetChain": Algorithm.CollNetChain,
    "CollnetDirect": Algorithm.CollNetDirect,
    "Nvls": Algorithm.NVLS,
    "NvlsTree": Algorithm.NVLSTree,
    "PatUp": Algorithm.PAT,
    "PatDown": Algorithm.PAT,
}


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """NCCL's choice for a call, as a line of the log shows it."""

    bytes: int  # as logged: count times type size, so per rank for AllGather and ReduceScatter
    algorithm: Algorithm
    protocol: Protocol
    channel_lo: int | None
    channel_hi: int | None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class LoggedSymmetricKernel:
    """A symmetric kernel, as a line of the log shows it: its name, the total bytes of its calls, and the number of
    calls."""

    name: str
    bytes: int
    calls: int


def choices(log: bytes) -> list[TunedChoice]:
    """Every choice in a piece of NCCL's log, in order. If the log has choices in both of NCCL's forms, only the lines
    of the longer form are read, which has the channels."""
    lines = [made for line in log.decode(errors="replace").splitlines() if (made := choice.printed(line))]
    planned = [line for line in lines if line.planned]
    return [
        TunedChoice(
            line.bytes,
            algorithm(line.algorithm),
            protocol(line.protocol),
            line.channel_lo,
            line.channel_hi,
            None if line.collective is None else choice.collective(line.collective),
        )
        for line in planned or lines
    ]


def symmetric_kernels(log: bytes) -> list[LoggedSymmetricKernel]:
    """The symmetric kernels that a piece of NCCL's log names, in their order."""
    return [
        LoggedSymmetricKernel(match[2].decode(), int(match[1]), int(match[3] or 1))
        for match in _SYMMETRIC.finditer(log)
    ]


def algorithm(text: str) -> Algorithm:
    """The algorithm with this number, or with this name in NCCL's logs or kernel names. OracleFailed for any other
    text.

    Such names are ``COLLNET_DIRECT``, ``NVLS_TREE``, ``NVLSTree``.
    """
    known = choice.algorithm(text)
    if known is None:
        raise OracleFailed(f"NCCL named an algorithm this project does not know: {text}")
    return known


def protocol(text: str) -> Protocol:
    """The protocol with this number or NCCL's name, in upper or lower case. OracleFailed for any other text."""
    known = choice.protocol(text)
    if known is None:
        raise OracleFailed(f"NCCL named a protocol this project does not know: {text}")
    return known


_NUMPY = {"pointer": "uint64"}  # types of a layout for which NumPy has other names


@dataclass(frozen=True, slots=True)
class TunerCosts:
    """The cost tables that a tuner plugin received, one for each size, in us, and NCCL's pick from each."""

    before_us: NDArray[np.float32]  # [S, A, 3] the cost table that NCCL computed; -1.0 in ignored cells
    after_us: NDArray[np.float32]  # [S, A, 3] the table after the wrapped plugin changed it; the same without a plugin
    channels: NDArray[np.int32]  # [S] the number that the wrapped plugin asks for; 0 for none
    pipe_ops: NDArray[np.int32]  # [S] numPipeOps
    winner_us: NDArray[np.float32]  # [S] the time of the pick from ncclGroupSimulateEnd


@dataclass(frozen=True, slots=True)
class OracleLaunch:
    """One collective call as NCCL launched it on rank 0."""

    bytes: int  # NCCL's nBytes
    algorithm: Algorithm
    protocol: Protocol
    channels: int  # number of blocks of the launched grid
    threads: int  # threads of a launched block
    kernel: str  # the kernel's name in the library's symbol table
    channel_lo: int
    channel_hi: int
    chunk_bytes: int  # what the first channel moves at once
    time_us: float | None  # the pick's cell of the final cost table; None without the recorder


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed call: its nBytes, its ``struct sim_record``, and NCCL's log of this call."""

    nbytes: int
    record: Any
    log: bytes


class Contradiction(Exception):
    """Raised if observations contradict each other."""


def numbers(layout: StructLayout) -> np.dtype[Any]:
    """The numpy type of one of libnccl's structs, with its plain numbers by name, without nested structs and arrays."""
    plain = {name: each for name, each in layout.members.items() if not each.dims and "." not in name}
    return np.dtype(
        {
            "names": list(plain),
            "formats": [_NUMPY.get(each.type, each.type) for each in plain.values()],
            "offsets": [each.offset for each in plain.values()],
            "itemsize": layout.bytes,
        }
    )


class Reader:
    """Reads what one child process recorded, with the kernel and pattern names of its libnccl."""

    def __init__(self, started: messages.Started, symbols: Symbols) -> None:
        self._base = started.base
        self._kernels, self._patterns = symbols.kernels, symbols.patterns
        self.answer: np.dtype[Any] = np.dtype(started.answer)
        self.kernel: np.dtype[Any] = np.dtype(started.kernel)
        self.operation: np.dtype[Any] = np.dtype(started.operation)
        self.question: np.dtype[Any] = np.dtype(started.question)
        self.proxy_operation = numbers(symbols.operation)

    def kernel_name(self, kernel: Any) -> str:
        """The name of the kernel in a ``struct sim_kernel``, or its address if the library has no name for it."""
        address = int(kernel["function"]) - self._base
        return self._kernels.get(address, f"0x{address:x}")

    @property
    def patterns(self) -> dict[int, str]:
        """NCCL's names of patterns by number."""
        return {int(number): name for number, name in self._patterns.items()}

    def pattern(self, operation: Any) -> str:
        """NCCL's name of the pattern of a ``struct sim_operation``, or its number if the name is not known."""
        number = str(operation["pattern"])
        return self._patterns.get(number, number)

    def launched(self, observed: Observation) -> OracleLaunch:
        """The pick, read from NCCL's log and the launch."""
        choice, record = self.choice(observed), observed.record
        channels = int(record["kernel"]["grid_x"])
        return OracleLaunch(
            bytes=observed.nbytes,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=channels,
            threads=int(record["kernel"]["block_x"]),
            kernel=self.kernel_name(record["kernel"]),
            channel_lo=0 if choice.channel_lo is None else choice.channel_lo,
            channel_hi=channels - 1 if choice.channel_hi is None else choice.channel_hi,
            chunk_bytes=int(record["operation"]["chunk_bytes"]),
            time_us=_time_us(record, choice),
        )

    def non_classic_path(self, observed: Observation) -> NonClassicPath | None:
        """What carried the call instead of a kernel of the classic path: a symmetric kernel or copy engines; None for a
        classic kernel. A call on copy engines launches no kernel, and NCCL logs nothing about it."""
        kernels, record = symmetric_kernels(observed.log), observed.record
        if not kernels:
            return None if record["kernels"] else COPY_ENGINES
        kernel = kernels[0].name
        launched = self.kernel_name(record["kernel"])
        if record["kernels"] != 1 or f"_{kernel}" not in launched:
            raise Contradiction(f"NCCL says {kernel} and launches {record['kernels']} kernels, first {launched}")
        return NonClassicPath(kernel, int(record["kernel"]["grid_x"]), int(record["kernel"]["block_x"]))

    def choice(self, observed: Observation) -> TunedChoice:
        """NCCL's choice, read from its log and from the operation that it prepared. Contradiction if the two differ."""
        size, record = observed.nbytes, observed.record
        logged = choices(observed.log)
        if len(logged) > 1 or record["kernels"] != 1:
            raise Contradiction(
                f"one collective of {size} bytes gave {len(logged)} choices and {record['kernels']} kernels"
            )
        prepared = self._prepared(size, record)
        if prepared is None and not logged:
            raise Contradiction(f"NCCL does not say what it took for {size} bytes")
        choice = logged[0] if logged else prepared
        assert choice is not None
        if prepared is not None and (prepared.algorithm, prepared.protocol) != (choice.algorithm, choice.protocol):
            raise Contradiction(
                f"for {size} bytes NCCL says {choice.algorithm.name}/{choice.protocol.name} "
                f"and prepares {prepared.algorithm.name}/{prepared.protocol.name}"
            )
        return choice

    def _prepared(self, size: int, record: Any) -> TunedChoice | None:
        if not record["operations"]:
            return None
        algorithm = PATTERNS.get(self.pattern(record["operation"]).removeprefix("ncclPattern"))
        if algorithm is None:
            return None
        return TunedChoice(size, algorithm, Protocol(record["operation"]["protocol"]), None, None)

    def requested(
        self, answers: Any, calls: Sequence[Observation], simulated: bool, shape: tuple[int, ...]
    ) -> TunerCosts:
        """The cost tables that NCCL passed to the tuner plugin, one per call, each of the shape ``shape``. With
        ``simulated``, the time of each pick is NCCL's own (ncclGroupSimulateEnd); otherwise it is the pick's cell of
        the table."""
        if not (answers["record"]["questions"] > 0).all():
            raise Contradiction("NCCL was not observed computing the cost of an algorithm")
        questions, cells = answers["record"]["question"], shape[0] * shape[1]
        before = questions["before_us"][:, :cells].reshape(len(calls), *shape)
        after = questions["after_us"][:, :cells].reshape(len(calls), *shape)
        winner_us = answers["simulated_us"].copy()
        if not simulated:
            picks = map(self.choice, calls)
            # As recorded, "after" also has the backups, which count if nothing else does; no plugin changed anything.
            winner_us = np.array(
                [table[pick.algorithm, pick.protocol] for table, pick in zip(after, picks, strict=True)], np.float32
            )
            after = before.copy()
        return TunerCosts(before, after, questions["channels"].copy(), questions["pipe_ops"].copy(), winner_us)


def _time_us(record: Any, choice: TunedChoice) -> float | None:
    if not record["questions"]:
        return None
    question = record["question"]
    return float(question["after_us"][choice.algorithm * int(question["protocols"]) + choice.protocol])
