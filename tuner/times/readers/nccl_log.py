"""What a NCCL log says was executed: the choices of one communicator, which have no times."""

from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.scenario.logs import choice, imported, importer, reader
from tuner.scenario.logs.imported import Imported, LogAdditions
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Measurements, Point, SampleBlock


def from_log(path: Path) -> Measurements:
    """The choices of a NCCL log alone, which has no times: what was executed where NCCL chose by itself.

    BadMeasurement for a log that cannot be read.
    """
    try:
        imported = importer.read(path, LogAdditions())
    except BadInput as error:
        raise BadMeasurement(str(error)) from None
    executed = executed_by_size(imported)
    header = Header(
        "nccl-log", source=str(path), ranks=imported.ranks, nodes=imported.node_count, nccl=imported.release
    )
    blocks = (SampleBlock(Point(collective, size), None, took, ()) for (collective, size), took in executed.items())
    return Measurements(header, tuple(blocks))


def imported_log(path: Path, collective: Collective, name: str | None) -> Imported | None:
    """NCCL's log in the same file; None where there is none that can be read."""
    try:
        return importer.of(reader.parse(reader.read_lines(path)), LogAdditions(collective=collective, release=name))
    except BadInput:
        return None


def executed_by_size(imported: Imported | None) -> dict[tuple[Collective, int], Combination]:
    """Where NCCL printed one choice for a collective and size, and not several."""
    printed: dict[tuple[Collective, int], set[Combination]] = {}
    for each in imported.choices if imported else ():
        executed = combination(each)
        if each.collective is not None and each.bytes is not None and executed is not None:
            printed.setdefault((each.collective, each.bytes), set()).add(executed)
    return {key: one for key, (one, *others) in printed.items() if not others}


def combination(said: choice.PrintedChoice | imported.LoggedChoice) -> Combination | None:
    """What a line of NCCL's log names; None where it is nothing known."""
    algorithm, protocol = choice.algorithm(said.algorithm), choice.protocol(said.protocol)
    if algorithm is None or protocol is None:
        return None
    low, high = said.channel_lo, said.channel_hi
    return Combination(algorithm, protocol, 0 if low is None or high is None else high - low + 1)


@dataclass()
class Log:
    """NCCL_DEBUG_FILE of a process with NCCL_DEBUG=INFO and the subsystem TUNING, from where it ends now.

    It is the process's, not the communicator's: what earlier ones wrote is left out.
    """

    path: Path
    _read_bytes: int = 0
    _first_bytes: int = 0  # what was there before this communicator

    def __post_init__(self) -> None:
        self.skip()
        self._first_bytes = self._read_bytes

    def skip(self) -> None:
        """Leaves out what the log holds so far."""
        self._read_bytes = self.path.stat().st_size if self.path.is_file() else 0

    def since(self, collective: Collective, requested: Combination | None) -> Combination | None:
        """What of a collective was executed since; None where NCCL does not say. Of several, one not requested."""
        executed = list(dict.fromkeys(self._combinations(collective)))
        others = [each for each in executed if requested is not None and each.algo_proto != requested.algo_proto]
        return next(iter(others or executed), None)

    def _combinations(self, collective: Collective) -> list[Combination]:
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        self._read_bytes += len(text)
        printed = [line for each in text.decode(errors="replace").splitlines() if (line := choice.printed(each))]
        planned = [line for line in printed if line.planned]
        combinations = []
        for line in planned or printed:
            own = line.collective is None or choice.collective(line.collective) is collective
            if own and (executed := combination(line)) is not None:
                combinations.append(executed)
        return combinations

    def last_warning(self) -> str | None:
        """NCCL's own words, for the message of a failure."""
        if not self.path.is_file():
            return None
        with self.path.open("rb") as file:
            file.seek(self._first_bytes)
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.partition(" NCCL WARN ")[2] for line in reversed(lines) if " NCCL WARN " in line), None)
