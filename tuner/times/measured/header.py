"""The header of a file of measurements: where, when and how they were made. In Python the header is a record, in the
file it is the first line.
"""

import hashlib
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.files import cache_folder, recall, remember
from tuner.base.records import json_form, to_json
from tuner.base.spelling import option
from tuner.release.variables import ignored, not_emulated
from tuner.scenario import Scenario


def usable(scenario: Scenario, topology_xml: str | None) -> Scenario:
    """The scenario with a topology file of this content, and with only those variables of the run that the release
    reads.
    """
    if scenario.topology is not None and topology_xml is not None:
        scenario = replace(scenario, topology=_topology(scenario.topology, topology_xml))
    return replace(scenario, environment=_known(scenario)) if scenario.environment else scenario


def _topology(path: Path, text: str) -> Path:
    """A file with this text: the run's own file if it still holds this text, else a file of the same name in the
    cache.
    """
    if path.is_file() and path.read_text(errors="replace") == text:
        return path
    kept = cache_folder() / "topologies" / hashlib.sha256(text.encode()).hexdigest()[:16] / path.name
    if recall(kept) != text:
        remember(kept, text)
    return kept if recall(kept) == text else path


def _known(scenario: Scenario) -> dict[str, str]:
    """The run's variables, without those that the oracle itself sets, that are not emulated, or that NCCL does not
    read.
    """
    from tuner.oracle.process import OWN_VARIABLES

    given = {name: value for name, value in (scenario.environment or {}).items() if name not in OWN_VARIABLES}
    if scenario.nccl not in release.names():
        return given
    read = release.load(scenario.nccl)
    unread = {*not_emulated(read, given), *ignored(read, given)} - set(read.environment.search)
    return {name: value for name, value in given.items() if name not in unread}


SIMULATED, GPU, DOUBLE = "simulated", "gpu", "double"  # the backends that write files
PLANTED = (SIMULATED, DOUBLE)  # backends whose times are made up and not measured
CASE = "case"  # the key of the communicator
CUPY_WHEELS = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
_PATHS = ("topology", "graphs")
# Every file has these facts about a communicator; other facts only if they are given. A run can continue in a file that
# is older.
_ALWAYS = frozenset(
    {
        "nccl",
        "nodes",
        "machine",
        "topology",
        "graphs",
        "gpus_per_node",
        "environment",
        "gpu",
        "net_gbps",
        "net_latency_us",
        "others",
        "hardware",
    }
)
# Not parts of a communicator, but of a question about it without GPUs
_NEVER = frozenset({"fitted_constants", "build"})


def scenario_record(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a JSON record with absolute paths. BadInput if only a log describes its nodes."""
    if scenario.logged is not None:
        raise BadInput(
            f"{scenario.logged.file} is a log, which does not describe a machine to measure: give {option('machine')} "
            f"or {option('topology')}"
        )
    record = {
        name: value
        for name, value in asdict(replace(scenario, fitted_constants=None, from_log=None)).items()
        if name in _ALWAYS or (value and name not in _NEVER)
    }
    if scenario.unset:
        record["unset"] = sorted(scenario.unset)
    record.update({name: str(path.resolve()) for name in _PATHS if (path := getattr(scenario, name)) is not None})
    others = [scenario_record(other) for other in scenario.others]
    # "search" once said that the graphs are searched with a variable, as is always the case now; a run can continue in
    # such a file.
    return {**record, "environment": scenario.environment or {}, "others": others, "search": False}


def _case(scenario: Scenario | None) -> dict[str, Any] | None:
    return None if scenario is None else scenario_record(scenario)


@dataclass(frozen=True, slots=True)
class Noted:
    """Facts that help to explain the times but may differ in a second run; None if not known.

    ``library`` is the libnccl.so.2; ``cuda_driver`` and ``cuda_runtime`` are CUDA's version numbers. ``nvidia_smi`` is
    the output of nvidia-smi for each GPU. ``settings`` are those of the run that began the file, by name, with units in
    the names. ``versions`` has the versions of this program, Python and cupy, by package.
    """

    date: str | None = None
    hosts: tuple[str, ...] = ()
    library: Path | None = None
    cuda_driver: int | None = None
    cuda_runtime: int | None = None
    nvidia_smi: tuple[Mapping[str, str], ...] | None = None
    settings: Mapping[str, float | str | None] | None = None
    versions: Mapping[str, str] | None = None


def _or_none(value: Any) -> Any:
    return value or None


_OF_TABLES = json_form(omitted=True)  # facts that the first line of a file of measurements does not contain


def _noted_record(noted: Noted | None) -> dict[str, Any] | None:
    return None if noted is None else _said(to_json(noted))


def noting(header: "Header", settings: Mapping[str, float | str | None]) -> "Header":
    """The header, with the settings of a run and the versions of the measuring software added."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("nccl-tuner", *CUPY_WHEELS):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return replace(header, noted=replace(header.noted or Noted(), settings=settings, versions=versions))


class MeasuredLaunch(StrEnum):
    """How the ranks were started, which affects the time of a small call."""

    process_per_gpu = "a process a GPU"
    thread_per_gpu = "one process a node with a thread a GPU"
    one_thread = "one thread for all GPUs of a node"
    unknown = "unknown"


class MeasuredHealth(StrEnum):
    """Whether GPUs, links and network worked as they should, as far as the source and the numbers show."""

    healthy = "healthy"
    degraded = "degraded"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class MeasuredAdapters:
    """A node's real network adapters: how many there are and the rate of each, ``gbps`` (1e9 bits per second); None if
    unknown.
    """

    count: int | None = None
    gbps: float | None = None
    note: str = ""

    @property
    def node_gbs(self) -> float | None:
        """Rate of all adapters of a node in 1e9 bytes per second; None if not known."""
        return None if self.count is None or self.gbps is None else self.count * self.gbps / 8


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """Where the numbers were published: repository or document, its revision, the path in it, and its licence."""

    repository: str = ""
    commit: str = ""
    path: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a file: its settings, and how it differs from the file's other runs.

    ``environment``: variables in addition to the header's; an empty value means that it was not set in this run.
    ``devices`` are the numbers of the GPUs that take part on each node, if these are not the first ones. If ``launch``
    and ``health`` are None or ``network`` is empty, the header's apply; ``health_note`` says why this run's health
    differs from the header's.
    """

    what: str
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    launch: MeasuredLaunch | None = None
    network: str = ""
    health: MeasuredHealth | None = None
    health_note: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Facts about all blocks of a file; None or an empty text if the file does not say.

    ``scenario`` is the communicator if the file describes it; else ``ranks`` and ``nodes`` say how large it was.
    ``nccl`` is the release. ``file`` is another program's file, if the times are from one. ``gpus`` has the name of
    each kind of GPU once. ``calls_per_time`` has pairs of nBytes and a number of calls: below this nBytes, one time is
    the mean of so many calls. Calls below ``graphs_below_bytes`` (nBytes) were timed inside CUDA graphs. ``variables``
    are the variables of NCCL and its network that were set. ``others`` are the file's other keys.

    The other fields are for tables. ``machine`` is a name of the catalogue; ``machine_note`` says why there is no such
    name, or how certain it is; ``nccl_note`` says the same about the release. ``network`` is the network between nodes:
    ``InfiniBand``, ``sockets`` or the name of a plugin. ``site`` is the cluster if it has a name. ``health`` says
    whether the hardware performed as it should, ``health_note`` how that is known; a run may have another health.
    ``adapters`` are the node's real adapters, which may differ from the catalogue's. ``noise_percent`` says by how much
    two equal runs differ according to the source; each value's key is the smallest number of nodes for which it holds.
    ``left_out`` counts rows of the source that are left out, by reason. ``runs`` are the runs that blocks name.
    """

    backend: str | None = None
    file: str | None = field(default=None, metadata=json_form("from"))
    scenario: Scenario | None = field(default=None, metadata=json_form(CASE, convert=_case))
    ranks: int | None = None
    nodes: int | None = None
    gpus: tuple[str, ...] = ()
    nccl: str = field(default="", metadata=json_form(convert=_or_none))
    date: str | None = None
    warmup_calls: int | None = field(default=None, metadata=json_form("warmup"))
    calls: int | None = None
    out_of_bounds: int | None = None  # number of values, by nccl-tests
    seed: int | None = None  # seed of a simulated machine
    truth: str | None = None  # where the simulated times come from
    library_sha256: str | None = None
    gpu: str = field(default="", metadata=json_form(convert=_or_none))
    ranks_per_gpu: int | None = None
    launcher: str | None = None
    calls_per_time: tuple[tuple[int, int], ...] | None = None
    graphs_below_bytes: int | None = None
    graph_buffers_registered: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict, metadata=json_form(convert=_or_none))
    topology_xml: str | None = None
    noted: Noted | None = field(default=None, metadata=json_form(convert=_noted_record))
    others: Mapping[str, Any] = field(default_factory=dict, metadata=json_form(merged=True))
    title: str = field(default="", metadata=_OF_TABLES)
    machine: str = field(default="", metadata=_OF_TABLES)
    machine_note: str = field(default="", metadata=_OF_TABLES)
    nccl_note: str = field(default="", metadata=_OF_TABLES)
    source: MeasuredSource = field(default=MeasuredSource(), metadata=_OF_TABLES)
    how_measured: str = field(default="", metadata=_OF_TABLES)
    launch: MeasuredLaunch = field(default=MeasuredLaunch.unknown, metadata=_OF_TABLES)
    network: str = field(default="", metadata=_OF_TABLES)
    site: str = field(default="", metadata=_OF_TABLES)
    health: MeasuredHealth = field(default=MeasuredHealth.unknown, metadata=_OF_TABLES)
    health_note: str = field(default="", metadata=_OF_TABLES)
    adapters: MeasuredAdapters = field(default=MeasuredAdapters(), metadata=_OF_TABLES)
    cuda_graph: bool = field(default=False, metadata=_OF_TABLES)
    traps: tuple[str, ...] = field(default=(), metadata=_OF_TABLES)
    noise_percent: Mapping[str, float] = field(default_factory=dict, metadata=_OF_TABLES)
    left_out: Mapping[str, int] = field(default_factory=dict, metadata=_OF_TABLES)
    runs: Mapping[str, MeasuredRun] = field(default_factory=dict, metadata=_OF_TABLES)

    @property
    def release(self) -> str | None:
        """The release of NCCL that was measured."""
        return self.nccl or (self.scenario.nccl if self.scenario else None)

    @property
    def is_simulated(self) -> bool:
        """Whether the times are simulated, so that they say nothing about a real machine."""
        return self.backend in PLANTED

    @property
    def how(self) -> str:
        """Origin of the times: ``simulated`` or ``measured``."""
        return SIMULATED if self.is_simulated else "measured"

    @property
    def communicator(self) -> str:
        """Text that describes the communicator. Its topology is named after the machine if that was simulated, else
        after the file.

        BadMeasurement if the header does not say which communicator was measured.
        """
        scenario = scenario_of(self)
        if scenario.topology is None:
            return scenario.title
        machine = None
        with suppress(KeyError, TypeError):
            machine = self.others[DOUBLE]["scenario"]["machine"]
        return scenario.title.replace(str(scenario.topology), machine or scenario.topology.name)

    @property
    def origin(self) -> str:
        """Text that says where the times come from: simulated or measured, with machine and release if known."""
        kind = f"{self.how} times"
        if self.scenario is not None:
            return f"{kind} of {self.communicator}"
        ranks = [f"{self.ranks} ranks"] if self.ranks else []
        known = [*self.gpus, *ranks, *([f"NCCL {self.release}"] if self.release else [])]
        return f"{kind} of {', '.join(known)}" if known else kind


# The keys that a backend writes, in their order. Each of them is written; null if there is nothing to say.
_ON_GPUS = (
    *("backend", "ranks", "nccl", "library_sha256", CASE, "gpu", "ranks_per_gpu", "launcher", "calls_per_time"),
    *("graphs_below_bytes", "graph_buffers_registered", "variables", "topology_xml", "noted"),
)
_WRITTEN = {SIMULATED: ("backend", CASE, "ranks", "seed", "truth"), GPU: _ON_GPUS, DOUBLE: _ON_GPUS}
_WHOLE_NUMBERS = ("ranks", "nodes", "warmup", "calls", "out_of_bounds", "seed", "ranks_per_gpu", "graphs_below_bytes")
_KEYS = {"file": "from", "scenario": CASE, "warmup_calls": "warmup"}  # keys that are not named like their field


def to_record(header: Header) -> dict[str, Any]:
    """The header as the record in the file's first line; paths are absolute."""
    record: dict[str, Any] = to_json(header)
    return {key: record[key] for key in _WRITTEN.get(header.backend or "", ())} | _said(record)


def from_record(record: Mapping[str, Any]) -> Header:
    """The header from the record in a file's first line. BadMeasurement names a key with an impossible value."""
    left = {key: value for key, value in record.items() if value is not None}
    for key in _WHOLE_NUMBERS:
        if not isinstance(left.get(key, 0), int):
            raise BadMeasurement(f"the header's '{key}' is {left[key]!r}, not a whole number")
    names = [each.name for each in fields(Header) if each.name != "others" and each.metadata != _OF_TABLES]
    keys = {name: _KEYS.get(name, name) for name in names}
    own = {name: left.pop(key) for name, key in keys.items() if key in left}
    for name, read in _READ.items():
        try:
            own |= {name: read(own[name])} if name in own else {}
        except (AttributeError, TypeError, ValueError) as error:
            raise BadMeasurement(f"the header's '{keys[name]}' is {own[name]!r}: {error}") from None
    return Header(**own, others=left)


# The keys of a table's header, in their order: the names of the header's fields, except for the variables.
TABLE_KEYS = (
    *("title", "machine", "machine_note", "gpu", "nccl", "nccl_note", "source", "how_measured", "launch", "network"),
    *("site", "health", "health_note", "cuda_graph", "adapters", "environment", "traps", "noise_percent", "left_out"),
    "runs",
)


def table_record(header: Header) -> dict[str, Any]:
    """The header as the record at the top of a table."""
    facts = {key: header.variables if key == "environment" else getattr(header, key) for key in TABLE_KEYS}
    record: dict[str, Any] = to_json(facts)
    return record


def as_written(scenario: Scenario) -> Scenario:
    """The communicator that a file records for ``scenario``: with absolute paths, and NCCL's own constants."""
    return scenario_from(scenario_record(scenario))


def scenario_of(header: Header) -> Scenario:
    """The scenario of a header, usable on any computer. BadMeasurement if the header has no scenario."""
    if header.scenario is None:
        raise BadMeasurement(f"the header does not say which communicator was measured: '{CASE}' is missing")
    return usable(header.scenario, header.topology_xml)


def check(file: Path, header: Header, scenario: Scenario) -> None:
    """Raises BadMeasurement if the header describes another communicator than ``scenario``, or another number of
    ranks.
    """
    valid = f"valid: measurements of {scenario.title}"
    if header.scenario is not None:
        theirs = scenario_of(header)
        alike = None in (theirs.machine, scenario.machine) or theirs.machine == scenario.machine
        if not alike or (theirs.nodes, theirs.ranks) != (scenario.nodes, scenario.ranks):
            raise BadMeasurement(f"{file}: measured on {header.communicator}; {valid}")
    elif header.ranks not in (None, scenario.ranks):
        raise BadMeasurement(f"{file}: measured on {header.ranks} ranks; {valid}")


def _said(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value not in (None, [])}


def _noted(record: Mapping[str, Any]) -> Noted:
    own = {each.name: record[each.name] for each in fields(Noted) if record.get(each.name) is not None}
    if "library" in own:
        own["library"] = Path(own["library"])
    return Noted(**{**own, "hosts": tuple(own.get("hosts", ()))})


def _calls_per_time(steps: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(nbytes), int(calls)) for nbytes, calls in steps)


def scenario_from(record: Mapping[str, Any]) -> Scenario:
    """The scenario of a record that :func:`scenario_record` made; BadMeasurement for any other."""
    try:
        paths = {name: Path(record[name]) for name in _PATHS if record.get(name) is not None}
        own: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
        }
        own.pop("search", None)
        own["unset"] = frozenset(own.get("unset", ()))
        return Scenario(**{**own, **paths, "others": tuple(map(scenario_from, record["others"]))})
    except (AttributeError, KeyError, TypeError) as error:
        raise BadMeasurement(f"the header's '{CASE}' describes no communicator: {error!r}") from None


_READ: Mapping[str, Callable[[Any], Any]] = {
    "scenario": scenario_from,
    "noted": _noted,
    "calls_per_time": _calls_per_time,
    "gpus": tuple,
}
