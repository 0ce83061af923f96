"""The files that the page to try (docs/try.md) looks answers up in: in build/try MACHINE.picks.gz, index.json, and
MACHINE.measured.json where public runs of the machine are shipped.

A machine's file is one of ``export --format compiled``, compressed, with many communicators in it: its text is JSON
that says which tables answer a question (:class:`MachineFile`), and tables that communicators share are there once.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from statistics import median
from sys import argv
from typing import Any

from tuner import release
from tuner.answers.charts.palette import COLOURS, INKS
from tuner.answers.exports.choices import file_of
from tuner.answers.tuners import with_tuner
from tuner.base.errors import TunerError
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.compiled import PickTable, cell_table, pick_table
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.times import measured
from tuner.times.measured.samples import ALGO, PROTO, Measurements, SampleBlock

FOLDER = Path(__file__).parents[2] / "build" / "try"
NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
FIRST_RELEASE = "2.20.5"
NO_TUNER = "none"
MOST_FILE_BYTES = 300_000
MOST_ROWS = 1_000  # of a table: where channels change more often, it is without them
COLLECTIVES = (
    Collective.AllReduce,
    Collective.AllGather,
    Collective.ReduceScatter,
    Collective.Broadcast,
    Collective.Reduce,
)

CHOSEN = (ALGO, PROTO)  # what a run forces says these
WITHOUT_LAUNCHES = (Collective.Broadcast, Collective.Reduce)  # in some releases channels change at a million sizes


def releases() -> tuple[str, ...]:
    """The last release of each minor version, oldest first."""
    names = release.names()
    last = {name.rsplit(".", 1)[0]: name for name in names[names.index(FIRST_RELEASE) :]}
    return tuple(last.values())


@dataclass
class MachineFile:
    """Answers of one machine: its tables, and which of them answer a question.

    ``questions`` is [tuner][release][nodes][collective], a number of ``answers`` each; an answer is the number of the
    table of picks, then one for each candidate. An empty answer: the question has none here.
    """

    machine: str
    releases: Sequence[str]
    nodes: Sequence[int]
    tables: dict[bytes, tuple[int, PickTable]] = field(default_factory=dict)
    answers: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})

    def content(self) -> bytes:
        alone = Scenario(nccl=self.releases[-1], machine=self.machine, nodes=1)
        own = with_tuner(alone, None).tuner
        tuners = [NO_TUNER, *([] if own is None else [own.title.replace(" ", "=")])]
        questions = [
            [[self._communicator(tuner, nccl, nodes) for nodes in self.nodes] for nccl in self.releases]
            for tuner in tuners
        ]
        about = {
            "machine": self.machine,
            "gpus": alone.ranks,
            "tuners": tuners,
            "releases": self.releases,
            "nodes": self.nodes,
            "collectives": [each.name for each in COLLECTIVES],
            "answers": list(self.answers),
            "questions": questions,
        }
        named = [(str(number), table) for number, table in self.tables.values()]
        return gzip.compress(file_of(json.dumps(about, separators=(",", ":")), named), 9, mtime=0)

    def _communicator(self, tuner: str, nccl: str, nodes: int) -> list[int]:
        try:
            scenario = with_tuner(Scenario(nccl=nccl, machine=self.machine, nodes=nodes), tuner)
            selection = Selection(scenario.communicator())
        except TunerError:
            return [0] * len(COLLECTIVES)
        return [self._answer(selection, Request(each, DataType.float32, Op.sum)) for each in COLLECTIVES]

    def _answer(self, selection: Selection, request: Request) -> int:
        picks = None
        if request.collective not in WITHOUT_LAUNCHES:
            picks = pick_table(selection, request)
        if picks is None or len(picks.rows) > MOST_ROWS:
            picks = pick_table(selection, request, with_launches=False)
        if picks is None:
            return 0
        cells = [cell_table(selection, request, cell) for cell in selection.candidates(request)]
        numbers = tuple(self._number(table) for table in (picks, *cells))
        return self.answers.setdefault(numbers, len(self.answers))

    def _number(self, table: PickTable) -> int:
        key = table.from_bytes.tobytes() + table.rows.tobytes()
        return self.tables.setdefault(key, (len(self.tables), table))[0]


def measured_runs(machine: str, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """The shipped runs on whole nodes of a machine, a record for each table, collective, number of nodes, forced choice
    and settings: ``points`` are [nBytes, median us], out of place where there are both.
    """
    name = catalogue.load(machine).name
    tables = [table for table in map(measured.load, measured.names()) if table.header.machine == name]
    return [record for table in tables for record in _runs(table, machine, nodes)]


def _runs(table: Measurements, machine: str, nodes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Those of one table. Nodes of an NVLink domain are its trays there: the page counts whole domains."""
    whole = {Scenario(nccl=releases()[-1], machine=machine, nodes=each).ranks: each for each in nodes}
    domain = catalogue.load(machine).trays is not None
    curves: dict[tuple[Any, ...], dict[tuple[int, bool], list[float]]] = defaultdict(lambda: defaultdict(list))
    for block in table.blocks:
        at = whole.get(block.ranks)
        if isinstance(block.point.operation, Collective) and at is not None and (domain or block.nodes == at):
            key = block.point.operation.name, at, _forced(block), _settings(table, block), table.health_of(block).value
            curves[key][block.point.bytes, bool(block.point.in_place)] += block.times_us
    for (collective, at, forced, settings, health), times in curves.items():
        yield {
            "table": table.name,
            "title": table.header.title,
            "nccl": table.header.nccl,
            "health": health,
            "forced": forced,
            "settings": settings,
            "nodes": at,
            "collective": collective,
            "points": [
                [size, median(us)]
                for (size, in_place), us in sorted(times.items())
                if not (in_place and (size, False) in times)
            ],
        }


def _settings(table: Measurements, block: SampleBlock) -> tuple[str, ...]:
    """The variables of the run, but for those that only force what is said anyway."""
    forced = CHOSEN if block.requested is not None else ()
    return tuple(f"{name}={value}" for name, value in table.environment_of(block).items() if name not in forced)


def _forced(block: SampleBlock) -> str:
    """What the run forced, in words; empty where NCCL chose."""
    return "" if block.requested is None else getattr(block.requested, "label", str(block.requested))


def index(machines: Sequence[str], with_runs: Sequence[str]) -> dict[str, Any]:
    """What the page has to know before it has a machine's file; ``with_runs`` have a file of measured runs, too."""
    return {
        "machines": [[name, catalogue.load(name).title] for name in machines],
        "measured": with_runs,
        "algorithms": [each.name for each in Algorithm],
        "protocols": [each.name for each in Protocol],
        "colours": [COLOURS[each] for each in Algorithm],
        "inks": [INKS[each] for each in Algorithm],
    }


def write(folder: Path, machines: Sequence[str], of_releases: Sequence[str], nodes: Sequence[int] = NODES) -> None:
    """The index and the files of machines."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(min(len(machines), cpu_count() or 1)) as pool:
        files = [MachineFile(machine, of_releases, nodes) for machine in machines]
        for machine, content in zip(machines, pool.map(MachineFile.content, files), strict=True):
            if len(content) > MOST_FILE_BYTES:
                raise SystemExit(f"{machine}: {len(content)} bytes; the page promises at most {MOST_FILE_BYTES}")
            (folder / f"{machine}.picks.gz").write_bytes(content)
    runs = {machine: measured_runs(machine, nodes) for machine in machines}
    for machine in (with_runs := [each for each in machines if runs[each]]):
        (folder / f"{machine}.measured.json").write_text(json.dumps(runs[machine], separators=(",", ":")), "utf-8")
    (folder / "index.json").write_text(json.dumps(index(machines, with_runs)), "utf-8")


if __name__ == "__main__":
    write(FOLDER, argv[1:] or catalogue.names(), releases())
