"""What a NCCL log says was executed: the choices of one communicator, which have no times."""

from pathlib import Path

from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.scenario.logs import importer, reader
from tuner.scenario.logs.imported import Given, Imported
from tuner.times.executed import combination
from tuner.times.records.header import Header
from tuner.times.records.samples import Combination, Measurements, Point, SampleBlock


def from_log(path: Path) -> Measurements:
    """The choices of a NCCL log alone, which has no times: what was executed where NCCL chose by itself.

    BadMeasurement for a log that cannot be read.
    """
    try:
        imported = importer.read(path, Given())
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
        return importer.of(reader.parse(reader.read_lines(path)), Given(collective=collective, release=name))
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
