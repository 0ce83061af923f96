"""Reads the records in a folder: which ranks wrote one, which are missing, and the kinds of ranks."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tuner.base.bounds import ReaderBounds, check_json
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.expressions import expression
from tuner.base.files import read_regular
from tuner.base.numerics import parse_long
from tuner.emulator.aws_ofi_nccl import release as aws_release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.jobs.preflight.collect import FORMAT, MOST_RECORD_BYTES, VERSION
from tuner.machine import gpus
from tuner.machine.adapters import OWN_NETWORK, SELECT, SOCKETS, NamedAdapter, is_listed, name_list, used
from tuner.release import variables as of_releases
from tuner.release.schema import Release
from tuner.release.variables import NOT_NCCLS

T = TypeVar("T")
RECORD = ReaderBounds("a record of preflight", values=200_000, file_bytes=MOST_RECORD_BYTES)
NAMED = expression(r"(?:host-|rank-[0-9]{6}\.)")  # files as collect names them


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A libnccl that a process may load, and how it is found."""

    found_by: str
    path: str
    release: str | None
    cuda: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The first processor as Linux shows it; only x86 has a family and model."""

    architecture: str
    vendor: str | None
    family: int | None
    model: int | None
    name: str | None

    @property
    def in_words(self) -> str:
        """Architecture, vendor, family and model as text."""
        numbers = [] if self.family is None else [f"family {self.family} model {self.model}"]
        return " ".join([self.architecture, *filter(None, [self.vendor]), *numbers])


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA adapter, or a network interface that is up. An interface has no port number and no ``link``.

    ``gbps`` is its speed in 1e9 bits per second, None if the system does not know it.
    """

    name: str
    gbps: float | None
    port: int = 0
    link: str | None = None

    @property
    def in_words(self) -> str:
        """Speed and link as text: ``400 Gb/s InfiniBand``."""
        speed = "speed not known" if self.gbps is None else f"{self.gbps:g} Gb/s"
        return " ".join(filter(None, [speed, self.link]))


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a variable names; ``sha256`` is None if the file does not exist.

    For a tuner plugin, ``library`` says whether the file is a shared object; ``build`` is the build that the file
    states if it is this project's plugin, else None. ``release`` is the release that the file of a network plugin
    states, such as ``aws-ofi-nccl 1.21.1``.
    """

    path: str
    sha256: str | None
    library: bool = True
    build: str | None = None
    release: str | None = None

    @property
    def in_words(self) -> str:
        """A text that identifies the file by its content, whatever its path is."""
        if self.sha256 is None:
            return "not there"
        if self.release is not None:
            return f"{self.release} (sha256 {self.sha256[:12]})"
        return f"sha256 {self.sha256[:12]}" if self.library else f"no tuner plugin (sha256 {self.sha256[:12]})"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts of one rank, or of several equal ranks. ``variables`` are those of the process, without those in files."""

    libraries: tuple[LoadedLibrary, ...]
    variables: Mapping[str, str]
    configuration_files: tuple[tuple[str, Mapping[str, str]], ...]  # by place: named, home, system
    processor: Processor
    gpus: tuple[str, ...]  # PCI device ids of all of the host's
    ports: tuple[Port, ...]  # that are active, of adapters that can be opened
    driver: str | None
    topology: NamedFile | None
    tuner_plugin: NamedFile | None
    network_plugin: NamedFile | None
    table: NamedFile | None
    container: str | None
    product: str | None = None  # of the host, as its firmware says it: an instance type in a cloud
    ranks_of_host: int | None = None  # where the records are of ranks: how many the host has
    switch: NamedFile | None = None
    next_tuner: NamedFile | None = None
    interfaces: tuple[Port, ...] = ()

    @property
    def release(self) -> str | None:
        """Release of the libnccl that the process most likely loads; None if it is unknown."""
        return next((library.release for library in self.libraries if library.release), None)

    @property
    def build(self) -> str | None:
        """The CUDA version that this libnccl is built for."""
        return next((library.cuda for library in self.libraries if library.release), None)

    def settled(self, nccl: Release | None) -> dict[str, str]:
        """The variables that apply in a release, from the process and its files: the first value of each wins."""
        places = {place for place, _ in self.configuration_files}
        # A file of this name that is not there keeps the home folder's from being read, too.
        named = bool(self.variables.get("NCCL_CONF_FILE")) and (nccl is None or nccl.ranks.named_configuration_file)
        home = "HOME" if nccl is not None and nccl.ranks.home_variable and "HOME" in places else "home"
        taken = {"named" if named else home, "system"}
        values = dict(self.variables)
        for place, more in self.configuration_files:
            if place in taken:
                values = {**(more if nccl is None else _as_read(more, nccl)), **values}
        return {name: value for name, value in sorted(values.items()) if _is_nccls(name)}

    def used_ports(self, variables: Mapping[str, str]) -> tuple[Port, ...]:
        """Ports that NCCL_IB_HCA selects (maybe none); all ports if the variable's value cannot be followed."""
        named = [NamedAdapter(port.name, port.port, f"{port.name}") for port in self.ports]
        try:
            return tuple(self.ports[number] for number in used(named, variables))
        except TunerError:
            followed = all(entry.count(":") < 2 for entry in variables.get(SELECT, "").split(","))
            return () if followed else self.ports

    def network(self, variables: Mapping[str, str]) -> str | None:
        """Name of the network over which ranks find each other; None if the record does not say it."""
        named = variables.get("NCCL_NET", "")
        if (
            self.network_plugin is not None
            and self.network_plugin.sha256 is not None
            and named.upper() not in _BUILT_IN
        ):
            return named or "a network plugin's"
        ports = self.used_ports(variables)
        over_ip = variables.get("NCCL_IB_DISABLE", "0").strip() not in ("", "0") or not ports
        if named.upper() == SOCKETS.upper() or (over_ip and named.upper() != OWN_NETWORK):
            return IP_SOCKETS
        if named and named.upper() != OWN_NETWORK:
            return named
        links = {port.link for port in ports}
        return None if None in links else " and ".join(sorted(_LINKS.get(str(link), str(link)) for link in links))

    def sockets(self, variables: Mapping[str, str]) -> tuple[Port, ...]:
        """Interfaces that NCCL uses if its network is sockets: all that NCCL_SOCKET_IFNAME does not exclude."""
        if self.network(variables) != IP_SOCKETS:
            return ()
        text = variables.get("NCCL_SOCKET_IFNAME", "")
        excludes = text.startswith("^")
        exact = text[excludes:].startswith("=")
        wanted = name_list(text[excludes + exact :], _MOST_INTERFACES)
        own = [each for each in self.interfaces if not each.name.startswith("docker")] if not text else self.interfaces
        return tuple(each for each in own if not text or is_listed(wanted, each.name, None, exact) != excludes)

    def is_default(self, name: str, value: str, nccl: Release) -> bool:
        """Whether a value is the default, which the release or a network plugin's tuner uses without the variable."""
        if self.cloud_tuner is not None and name in self.cloud_tuner.settings:
            return False
        default = of_releases.defaults(nccl.name).get(name)
        if isinstance(default, str) or default is None:
            return _OF_TEXTS.get(name) == value
        if value == "":
            return True
        given = parse_long(value)
        of_x86 = _BUFFERS.get(name) if self.processor.architecture == "x86_64" else None
        return given == default or (given == of_x86 and default == _NCCL_DECIDES)

    @property
    def gpu_words(self) -> str:
        """Text with the number of GPUs of each model: ``8 x h100-sxm``."""
        return counted(gpu_model(device) or device for device in self.gpus)

    def port_words(self, variables: Mapping[str, str]) -> str:
        """Text with the number of adapters of each speed: ``8 x 400 Gb/s InfiniBand``."""
        return counted(port.in_words for port in self.used_ports(variables))

    @property
    def plugin_is_own(self) -> bool:
        """Whether the tuner plugin's file is a build of this project's, whose picks can be computed without NCCL."""
        return self.tuner_plugin is not None and self.tuner_plugin.build is not None

    @property
    def plugin_is_missing(self) -> bool:
        """Whether a variable names a tuner plugin that NCCL cannot load: NCCL logs that at INFO and chooses itself."""
        return self.tuner_plugin is not None and (self.tuner_plugin.sha256 is None or not self.tuner_plugin.library)

    @property
    def plugin_is_of_others(self) -> bool:
        """Whether a tuner plugin is loaded that is not this project's, so that its choices are not emulated."""
        return self.tuner_plugin is not None and not self.plugin_is_own and not self.plugin_is_missing

    @property
    def cloud_tuner(self) -> AwsTuner | None:
        """The tuner in the network plugin, which NCCL 2.21 and later ask if no other tuner is named.

        None if the network plugin has no known tuner. Also None if NCCL does not ask that tuner, because
        NCCL_TUNER_PLUGIN is ``none``, or because another tuner is loaded or named.
        """
        named = self.settled(None)
        name, _, version = ((self.network_plugin and self.network_plugin.release) or "").partition(" ")
        if name != aws_release.NAME or version not in aws_release.names():
            return None
        if named.get("NCCL_TUNER_PLUGIN", "").lower() == "none" or self.plugin_is_of_others:
            return None
        if self.plugin_is_own and named.get("NCCL_TUNER_NEXT", ""):
            return None
        return AwsTuner(aws_release.load(version), self.product, {})

    @property
    def is_strict(self) -> bool:
        """Whether a communicator fails if its table cannot be used (NCCL_TUNER_STRICT)."""
        word = self.settled(None).get("NCCL_TUNER_STRICT", "").strip().lower()
        return word not in ("", "0", "false", "no", "off")


IP_SOCKETS = "IP sockets"
_BUILT_IN = (OWN_NETWORK, SOCKETS.upper())
_LINKS = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}
_MOST_INTERFACES = 32  # MAX_IFS
_NCCL_DECIDES = -2
_OF_TEXTS = {"NCCL_COLLNET_ENABLE": "0"}  # ncclParamCollNetEnable is asked of a text, src/init.cc
# What NCCL takes for -2 on x86. Source: computeBuffSizes, src/init.cc; DEFAULT_BUFFSIZE and DEFAULT_LL*_BUFFSIZE,
# v2.28.9-1.
_BUFFERS = {"NCCL_BUFFSIZE": 1 << 22, "NCCL_LL_BUFFSIZE": 1 << 19, "NCCL_LL128_BUFFSIZE": 120 * 640 * 8 * 8}


def counted(words: Any) -> str:
    """Each distinct word with its count, ``8 x h100-sxm``; ``none`` if there are no words."""
    return ", ".join(f"{count} x {word}" for word, count in sorted(Counter(words).items())) or "none"


def gpu_model(device: str) -> str | None:
    """The first model in ``tables/gpus.toml`` with this PCI device id; None if there is none."""
    return next(iter(gpus.of_device(device)), None)


def _is_nccls(name: str) -> bool:
    return name.startswith("NCCL_") and name not in NOT_NCCLS and not name.startswith("NCCL_TESTS_")


def of_json(given: Mapping[str, Any]) -> RankFacts:
    """Reads the facts from JSON. BadInput for what ``collect`` does not write."""
    try:
        return RankFacts(
            libraries=tuple(map(_library, given["libraries"])),
            variables={str(name): str(value) for name, value in given["variables"].items()},
            configuration_files=_configuration_files(given),
            processor=_processor(given["cpu"]),
            gpus=tuple(str(gpu["device"]) for gpu in given["gpus"]),
            ports=tuple(
                Port(str(port["name"]), _given(float, port["gbps"]), int(port["port"]), _given(str, port["link"]))
                for port in given["adapters"]
                if port["active"] and port["opens"] is not False
            ),
            driver=_given(str, given["driver"]),
            topology=_named(given["topology"]),
            tuner_plugin=_named(given["plugins"]["tuner"]),
            network_plugin=_named(given["plugins"]["network"]),
            table=_named(given["table"]),
            container=_container(given["container"]),
            product=_given(str, given.get("product")),
            switch=_named(given.get("switch")),
            next_tuner=_named(given["plugins"].get("next")),
            interfaces=tuple(
                Port(str(each["name"]), _given(float, each["gbps"])) for each in given.get("interfaces") or ()
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput(f"not in the form that collect writes: {type(error).__name__} {error}") from error


def _as_read(of_file: Mapping[str, str], nccl: Release) -> Mapping[str, str]:
    """The values in a file with CR LF line ends, as the release reads them."""
    if not nccl.ranks.drops_carriage_return:
        return of_file
    return {name: value.removesuffix("\r") for name, value in of_file.items()}


def _configuration_files(given: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, str]], ...]:
    found = [
        (str(file["place"]), {str(name): str(value) for name, value in file["variables"].items()})
        for file in given["configuration_files"]
    ]
    if given.get("knows_home") and all(place != "HOME" for place, _ in found):
        found.append(("HOME", {}))  # there is none, as it says; a record of earlier releases did not look
    return tuple(found)


def _named(file: Mapping[str, Any] | None) -> NamedFile | None:
    if file is None:
        return None
    sha256, build = _given(str, file["sha256"]), _given(str, file.get("build"))
    library, release = bool(file.get("library", True)), _given(str, file.get("release"))
    return NamedFile(str(file["path"]), sha256, library, build, release)


def _container(given: Mapping[str, Any] | None) -> str | None:
    return None if given is None else " ".join(str(word) for word in (given["kind"], given["image"]) if word)


def _library(given: Mapping[str, Any]) -> LoadedLibrary:
    release, cuda = (_given(str, given[name]) for name in ("release", "cuda"))
    return LoadedLibrary(str(given["found_by"]), str(given["path"]), release, cuda, int(given["bytes"]))


def _processor(given: Mapping[str, Any]) -> Processor:
    family, model = (_given(int, given[name]) for name in ("family", "model"))
    return Processor(
        str(given["architecture"]), _given(str, given["vendor"]), family, model, _given(str, given["name"])
    )


def _given(kind: Callable[[Any], T], value: Any) -> T | None:
    """Converts a value with ``kind``; None if the record has no value."""
    return None if value is None else kind(value)


OF_THE_RANK = ("rank", "ranks", "local_rank", "local_ranks", "launcher", "host", "boot", "job", "collected")
# Beside these in a rank's record, and no difference of kind: which addresses, names and files stand for the same thing.
NOT_OF_THE_KIND = (*OF_THE_RANK, "visible_gpus", "interfaces")


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """One record: of a rank, or of a host if nothing said which rank it was. ``kind`` is an index
    into the kinds, which hold equal facts of several ranks once.
    """

    file: str
    rank: int | None
    ranks: int | None
    local_ranks: int | None
    host: str
    job: str | None
    kind: int
    local_rank: int | None = None
    boot: str | None = None  # of the host, by which two of one name are told apart
    collected: datetime | None = None
    in_pod: bool = False

    @property
    def own_host(self) -> tuple[str, str | None]:
        """The host's name and the id of its boot, by which NCCL distinguishes hosts."""
        return self.host, self.boot


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is not a record, and why."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class Collected:
    """The content of a folder of records. ``kinds`` are in the order of their first rank."""

    folder: Path
    ranks: tuple[RecordedRank, ...]
    kinds: tuple[RankFacts, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def expected(self) -> int | None:
        """The number of ranks of the job according to most records; None if none says it."""
        said = Counter(rank.ranks for rank in self.ranks if rank.ranks is not None)
        return said.most_common(1)[0][0] if said else None

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks without a record."""
        there = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.expected or 0) if rank not in there)

    @property
    def duplicates(self) -> dict[int, tuple[str, ...]]:
        """The files of ranks that have several files, keyed by rank."""
        files = defaultdict(list)
        for rank in self.ranks:
            if rank.rank is not None:
                files[rank.rank].append(rank.file)
        return {rank: tuple(names) for rank, names in sorted(files.items()) if len(names) > 1}

    def attachment(self, name: str) -> Path | None:
        """The path of a file that was attached to the records; None if it does not exist."""
        path = self.folder / name
        return path if path.is_file() else None


def is_record(path: Path) -> bool:
    """Whether a file is a record, or has the name of one."""
    if path.suffix != ".json":
        return False
    try:
        return NAMED.match(path.name) is not None or f'"{FORMAT}"'.encode() in read_regular(path, BadInput, RECORD)
    except BadInput:
        return False


def read(folder: Path) -> Collected:
    """Reads the records of a folder. BadInput if there is no folder, or no record in it that can be read."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from error
    found, facts, unreadable = list[tuple[RecordedRank, str]](), dict[str, RankFacts](), list[Unreadable]()
    for path in files:
        try:
            given = _json(path)
            key = _key(given)
            if key not in facts:
                facts[key] = of_json(given)
            found.append((_rank(path.name, given), key))
        except BadInput as error:
            unreadable.append(Unreadable(path.name, str(error)))
    if not found:
        why = (
            f": {unreadable[0].file}: {unreadable[0].why}"
            if unreadable
            else "; `nccl-tuner preflight collect` writes them"
        )
        raise BadInput(f"{folder} has no record of a rank{why}")
    found.sort(key=lambda each: (each[0].rank is None, each[0].rank or 0, each[0].host))
    sizes = _ranks_of_hosts(rank for rank, _ in found)
    kinds = [(key, sizes[rank.own_host]) for rank, key in found]
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return Collected(
        folder,
        tuple(replace(rank, kind=order[kind]) for (rank, _), kind in zip(found, kinds, strict=True)),
        tuple(replace(facts[key], ranks_of_host=size) for key, size in order),
        tuple(unreadable),
    )


def _ranks_of_hosts(ranks: Iterable[RecordedRank]) -> dict[tuple[str, str | None], int | None]:
    """The number of ranks on each host; None if records describe hosts, with one rank per GPU."""
    by_host = defaultdict[tuple[str, str | None], list[RecordedRank]](list)
    for rank in ranks:
        by_host[rank.own_host].append(rank)
    return {
        host: max(len({each.rank for each in own} - {None}), *(each.local_ranks or 0 for each in own)) or None
        for host, own in by_host.items()
    }


def _json(path: Path) -> Mapping[str, Any]:
    content = read_regular(path, BadInput, RECORD)
    check_json(content, "the record", BadInput, RECORD)
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(str(error)) from error
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise BadInput(f"not a record of preflight, which has the format {FORMAT!r}")
    if given.get("version") != VERSION:
        raise BadInput(f"the record has version {given.get('version')}, and this release reads version {VERSION}")
    return given


def _key(given: Mapping[str, Any]) -> str:
    """A text of everything that is equal for ranks of one kind."""
    alike = {name: value for name, value in given.items() if name not in NOT_OF_THE_KIND}
    if not _has_adapters(given):  # else none of them carries what ranks send
        alike["interfaces"] = given.get("interfaces")
    for name in ("libraries", "gpus", "adapters"):
        alike[name] = list(_without_places(alike.get(name)))
    return json.dumps(alike, sort_keys=True)


def _has_adapters(given: Mapping[str, Any]) -> bool:
    adapters, variables = given.get("adapters"), given.get("variables")
    chosen = isinstance(variables, dict) and variables.keys() & {SELECT, "NCCL_NET", "NCCL_IB_DISABLE"}
    return bool(adapters) and not chosen and not given.get("configuration_files")


def _without_places(devices: Any) -> Iterator[Any]:
    """Libraries and devices without paths and addresses, which belong to the host and not to the kind."""
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict):
            yield {name: value for name, value in device.items() if name not in ("path", "bus_id")}


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _rank(file: str, given: Mapping[str, Any]) -> RecordedRank:
    numbers = [given.get(name) for name in ("rank", "ranks", "local_ranks")]
    if any(number is not None and (not isinstance(number, int) or number < 0) for number in numbers):
        raise BadInput(f"rank, ranks and local_ranks are {numbers}, not whole numbers or null")
    if numbers[0] is not None and numbers[1] is not None and numbers[0] >= numbers[1]:
        raise BadInput(f"rank {numbers[0]} does not exist in a job of {numbers[1]} ranks")
    return RecordedRank(
        file,
        numbers[0],
        numbers[1],
        numbers[2],
        str(given.get("host")),
        _word(given.get("job")),
        kind=-1,
        local_rank=given["local_rank"] if isinstance(given.get("local_rank"), int) else None,
        boot=_word(given.get("boot")),
        collected=_time(given.get("collected")),
        in_pod=isinstance(where := given.get("container"), dict) and where.get("kind") == "kubernetes",
    )


def _time(given: Any) -> datetime | None:
    try:
        return datetime.strptime(given, "%Y-%m-%dT%H:%M:%SZ")
    except (TypeError, ValueError):
        return None
