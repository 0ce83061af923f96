"""What forced and default runs of one machine say of NCCL's picks, as one record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput
from tuner.base.records import json_form
from tuner.machine import catalogue
from tuner.machine.topology import Topology
from tuner.scenario.describe import describe
from tuner.times import measured
from tuner.times.calibration import plausible
from tuner.times.calibration.measured_calls import Site
from tuner.times.measured import MeasuredTable
from tuner.times.readers import measured_table
from tuner.times.readers.measured_table import Given
from tuner.times.regret import arms, forced, noise
from tuner.times.regret.arms import Source
from tuner.times.regret.halves import SplitGain, split_gains
from tuner.times.regret.judged import JudgedPick, Verdict, judge
from tuner.times.regret.records import MeasuredArms
from tuner.times.regret.rows import RecommendedRow, recommended


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of NCCL's own choices that could be told, by a log or by their time: how many are the emulated picks.

    ``clear`` are those that a log says, or whose time is nearer to one forced arm than to the others beyond the noise;
    ``nearest`` the others, by the nearest time alone.
    """

    clear: int
    clear_agreeing: int
    nearest: int
    nearest_agreeing: int


@dataclass(frozen=True, slots=True)
class MeasuredRegret:
    """``sizes`` are NCCL's picks against what was measured; ``splits`` where two smaller calls would beat one; ``rows``
    what the measurements support. ``skipped`` counts rows that could not be placed, by reason; ``simulated`` are the
    files whose times no machine took.
    """

    machine: str | None
    nccl: str
    sizes: tuple[JudgedPick, ...]
    agreement: Agreement
    splits: tuple[SplitGain, ...]
    rows: tuple[RecommendedRow, ...]
    skipped: Mapping[str, int]
    simulated: tuple[str, ...]
    measured: MeasuredArms = field(metadata=json_form(omitted=True))

    def count(self, verdict: Verdict) -> int:
        """Sizes with this verdict."""
        return sum(one.verdict is verdict for one in self.sizes)


def of_arms(placed: MeasuredArms) -> MeasuredRegret:
    """Everything that the arms say without a calibration."""
    noises = noise.of_arms(placed)
    judged = tuple(judge(one, noises.get(noise.group_of(one.call))) for one in placed.calls)
    return MeasuredRegret(
        placed.site.machine,
        placed.site.nccl,
        judged,
        _agreement(judged),
        tuple(split_gains(placed.calls, noises)),
        tuple(recommended(judged)),
        placed.skipped,
        placed.simulated,
        placed,
    )


def _agreement(judged: Sequence[JudgedPick]) -> Agreement:
    known = [one.executed for one in judged if one.executed is not None]
    clear, nearest = ([one for one in known if one.is_clear is wanted] for wanted in (True, False))
    return Agreement(len(clear), sum(one.agrees for one in clear), len(nearest), sum(one.agrees for one in nearest))


@dataclass(frozen=True, slots=True)
class Asked:
    """What to read: ``labelled`` files by what they forced (``Ring``, ``default``), ``files`` that say so themselves,
    ``tables`` by their shipped name or path; ``nodes`` chooses rows of tables, and is said of files without ranks.

    ``machine`` and ``nccl`` are what tables say where they are not given, ``words`` what else describes where it was
    measured: a log, the GPUs of a skeleton, as ``tuner.scenario.describe`` takes them. ``noise_percent`` is by how much
    two runs of the same differ, where that is known otherwise.
    """

    labelled: tuple[tuple[str, Path], ...] = ()
    files: tuple[Path, ...] = ()
    tables: tuple[str, ...] = ()
    machine: str | None = None
    topology: Path | None = None
    nccl: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    noise_percent: float | None = None
    words: tuple[tuple[str, Any], ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return (*(path for _, path in self.labelled), *self.files)

    @property
    def log(self) -> Path | None:
        """The log that shows the communicator."""
        return dict(self.words).get("log")


def read(asked: Asked) -> MeasuredArms:
    """The arms of one machine.

    Errors: BadInput where machine or release are missing, where a label is none, or a file forced something else than
    its label; BadMeasurement for a file that has no times or some that cannot be true.
    """
    given = Given(asked.nccl, asked.nodes, asked.gpus_per_node, by_round=True)
    sources = [
        *(Source(measured_table.read(path, given), path, forced.by_label(label)) for label, path in asked.labelled),
        *(Source(measured_table.read(path, given), path) for path in asked.files),
        *(Source(_of_nodes(_table(name), asked.nodes)) for name in asked.tables),
    ]
    if not sources:
        raise BadInput("nothing to judge; valid: `arm` NAME=FILE, `table` NAME, or FILE")
    site = _site(asked, [source.table for source in sources])
    topology = _topology(site)
    for source in sources if topology is not None else ():
        trays = catalogue.load(site.machine).trays if site.machine else None
        plausible.refuse(source.table, topology, str(source.path or source.table.name), trays)
    placed = arms.of_sources(sources, site)
    return placed if asked.noise_percent is None else replace(placed, noise_percent={"1": asked.noise_percent})


def _table(name: str) -> MeasuredTable:
    path = Path(name)
    return measured.read(path) if path.is_file() and name not in measured.names() else measured.load(name)


def _of_nodes(table: MeasuredTable, nodes: int | None) -> MeasuredTable:
    if nodes is None:
        return table
    rows = tuple(row for row in table.rows if row.nodes == nodes)
    if not rows:
        there = ", ".join(map(str, sorted({row.nodes for row in table.rows})))
        raise BadInput(f"{table.name}: no row of {nodes} nodes; valid: {there}")
    return replace(table, rows=rows)


def _topology(site: Site) -> Topology | None:
    """Whose links bound what can be true; None of a log, which shows none."""
    if site.machine is not None:
        return catalogue.load(site.machine).topology
    if site.topology is None:
        return None
    return describe(None, topology=site.topology, nccl=site.nccl, **dict(site.words)).resolve().own.topology


def _site(asked: Asked, tables: Sequence[MeasuredTable]) -> Site:
    described_otherwise = asked.topology or asked.log
    machine = asked.machine or (None if described_otherwise else _one("machine", tables))
    names = {table.header.nccl for table in tables if table.header.nccl}
    if asked.log is not None and not asked.nccl and not names:
        nccl = describe(machine, topology=asked.topology, **dict(asked.words)).nccl
    else:
        nccl = asked.nccl or _one("nccl", tables)
    if machine is not None:
        machine = catalogue.load(machine).name
    return Site(machine, nccl, asked.topology, asked.words)


def _one(what: str, tables: Sequence[MeasuredTable]) -> str:
    """What all tables say that say anything. BadInput where none does, or several things are said."""
    names = list(dict.fromkeys(getattr(table.header, what) for table in tables if getattr(table.header, what)))
    if len(names) == 1:
        return str(names[0])
    says = f"files of several ({', '.join(names)})" if names else "no file says it"
    raise BadInput(f"`{what}`: {says}; valid: `{what}` NAME, and files of one")
