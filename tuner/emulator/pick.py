"""What one call gets, as a record: an element of :class:`tuner.emulator.selection.Picks`."""

from tuner.base.dataclass import dataclass
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.selection import Picks


@dataclass(frozen=True, slots=True)
class Pick:
    """NCCL's names of algorithm and protocol, channels, threads of a block, and the time that NCCL predicts."""

    algorithm: str
    protocol: str
    channels: int
    threads: int
    time_us: float

    @property
    def name(self) -> str:
        """Algorithm and protocol: ``Ring/LL``."""
        return f"{self.algorithm}/{self.protocol}"


def of_picks(picks: Picks) -> list[Pick]:
    """One a size."""
    columns = picks.algorithm, picks.protocol, picks.channels, picks.threads, picks.time_us
    return [
        Pick(Algorithm(algorithm).name, Protocol(protocol).name, int(channels), int(threads), shortest(time_us))
        for algorithm, protocol, channels, threads, time_us in zip(*columns, strict=True)
    ]
