"""What NCCL's log shows about the run whose results are judged."""

from collections.abc import Iterable
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.times.acceptance.diagnosis import Diagnosis
from tuner.times.acceptance.faults import Resource

MOST_BYTES = 64 << 20  # most bytes of a log that are read; connections are made before the first call


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What NCCL's log shows about a run; A field is None or empty if the log does not show it.

    ``networks``: the transports between nodes, as NCCL's connection lines name them: ``IB``, ``Socket``, or a plugin's
    name. ``gpudirect``: whether all connections between nodes use GPUDirect RDMA. ``adapters``: how many of a node's
    adapters the connections use. ``nvls``: whether the communicator has NVLS channels. ``tuner``: the tuner plugin that
    chooses. ``model_us``: pairs of bytes (nBytes) and the first time in us that NCCL prints beside its choice for them.
    """

    networks: tuple[str, ...] = ()
    gpudirect: bool | None = None
    adapters: int | None = None
    nvls: bool | None = None
    tuner: str | None = None
    model_us: tuple[tuple[int, float], ...] = ()

    def joined(self, other: "LogFacts") -> "LogFacts":
        """These facts; a fact that this log does not show is taken from the ``other`` log."""
        return LogFacts(
            networks=self.networks or other.networks,
            gpudirect=other.gpudirect if self.gpudirect is None else self.gpudirect,
            adapters=self.adapters or other.adapters,
            nvls=other.nvls if self.nvls is None else self.nvls,
            tuner=self.tuner or other.tuner,
            model_us=self.model_us or other.model_us,
        )


NOTHING_LOGGED = LogFacts()

# A connection: "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA", src/transport/net.cc and src/init.cc.
_CONNECTION = expression(r"\bvia NET/([^/\n]+)/(\d+)(?:\([^)]*\))?(/GDRDMA)?")
_NETWORK = expression(r"NCCL INFO Using network (.+)")
_NVLS = expression(r"\b(\d+) nvls channels\b")
_TUNER = expression(r"TUNER/Plugin: Using (?:tuner plugin )?(\S+)")
# "AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31} time 86069.968750", src/enqueue.cc.
_TIME = expression(r"\b(\d+) Bytes -> Algo \S+ proto \S+ .*?\btime ([\d.]+)")


def of_lines(lines: Iterable[str]) -> LogFacts:
    """The facts that lines of a log show."""
    networks: dict[str, None] = {}
    used: set[str] = set()
    direct: list[bool] = []
    nvls: bool | None = None
    tuner: str | None = None
    named: dict[str, None] = {}
    times: dict[int, float] = {}
    for line in lines:
        if match := _CONNECTION.search(line):
            networks[match[1]] = None
            used.add(match[2])
            direct.append(match[3] is not None)
        elif match := _NETWORK.search(line):
            named[match[1].strip()] = None
        elif match := _NVLS.search(line):
            nvls = int(match[1]) > 0
        elif match := _TUNER.search(line):
            tuner = match[1]
        elif match := _TIME.search(line):
            times.setdefault(int(match[1]), float(match[2]))
    return LogFacts(
        networks=tuple(networks or named),
        gpudirect=all(direct) if direct else None,
        adapters=len(used) or None,
        nvls=nvls,
        tuner=tuner,
        model_us=tuple(sorted(times.items())),
    )


def refutes(log: LogFacts, found: Diagnosis, adapters: int) -> bool:
    """Whether a log shows that the diagnosed resource is not at fault. ``adapters``: how many adapters a node has."""
    match found.resource:
        case Resource.sockets:
            return bool(log.networks) and not any(each.lower().startswith("socket") for each in log.networks)
        case Resource.gpu_direct:
            return log.gpudirect is True
        case Resource.nvls:
            return log.nvls is True
        case Resource.hca_list | Resource.adapters:
            return log.adapters is not None and log.adapters >= adapters
        case _:
            return False


def of_file(path: Path) -> LogFacts:
    """The facts that the first 64 MiB of a file show. BadInput if it cannot be read."""
    content = read_bytes(path, BadInput)[:MOST_BYTES]
    if b"NCCL INFO" not in content:
        return NOTHING_LOGGED
    return of_lines(content.decode("utf-8", "replace").splitlines())
