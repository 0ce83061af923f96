"""What a rank wrote down of itself, without who it is: ranks with equal facts are of one kind."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tuner.base.errors import BadInput, TunerError
from tuner.emulator.aws_ofi_nccl import release as aws_release
from tuner.emulator.aws_ofi_nccl.tuner import AwsTuner
from tuner.machine import gpus
from tuner.machine.adapters import Named, used
from tuner.release.schema import Release
from tuner.release.variables import NOT_NCCLS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Library:
    """A libnccl that a process may load, by what leads to it."""

    found_by: str
    path: str
    release: str | None
    cuda: str | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The first processor as Linux shows it; family and model are of x86."""

    architecture: str
    vendor: str | None
    family: int | None
    model: int | None
    name: str | None

    @property
    def in_words(self) -> str:
        """Architecture, vendor, family and model."""
        numbers = [] if self.family is None else [f"family {self.family} model {self.model}"]
        return " ".join([self.architecture, *filter(None, [self.vendor]), *numbers])


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a RDMA adapter; ``gbps`` are 1e9 bits per second, None where the system does not know them."""

    name: str
    port: int
    gbps: float | None
    link: str | None

    @property
    def in_words(self) -> str:
        """Speed and link: ``400 Gb/s InfiniBand``."""
        speed = "speed not known" if self.gbps is None else f"{self.gbps:g} Gb/s"
        return " ".join(filter(None, [speed, self.link]))


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a variable names; without a ``sha256`` where it is not there.

    ``library``: whether a tuner plugin is one; ``build``: of this project's tuner plugin, as its file says it;
    ``release``: of a network plugin that says it, ``aws-ofi-nccl 1.21.1``.
    """

    path: str
    sha256: str | None
    library: bool = True
    build: str | None = None
    release: str | None = None

    @property
    def in_words(self) -> str:
        """What tells it from another: its content, not where it is."""
        if self.sha256 is None:
            return "not there"
        if self.release is not None:
            return f"{self.release} (sha256 {self.sha256[:12]})"
        return f"sha256 {self.sha256[:12]}" if self.library else f"no tuner plugin (sha256 {self.sha256[:12]})"


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one rank or of several that are alike. ``variables`` are the process's own, files of variables come after."""

    libraries: tuple[Library, ...]
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

    @property
    def release(self) -> str | None:
        """Of the libnccl that a process most likely loads."""
        return next((library.release for library in self.libraries if library.release), None)

    @property
    def build(self) -> str | None:
        """The CUDA that it is for."""
        return next((library.cuda for library in self.libraries if library.release), None)

    def settled(self, nccl: Release | None) -> dict[str, str]:
        """The variables that count in a release, from the process and its files: what is set first stays."""
        places = [place for place, _ in self.configuration_files]
        named = "named" in places and (nccl is None or nccl.ranks.named_configuration_file)
        left_out = "home" if named else "named"
        values = dict(self.variables)
        for place, more in self.configuration_files:
            if place != left_out:
                values = {**more, **values}
        return {name: value for name, value in sorted(values.items()) if _is_nccls(name)}

    def used_ports(self, variables: Mapping[str, str]) -> tuple[Port, ...]:
        """Those that NCCL_IB_HCA leaves; all where it cannot be followed."""
        named = [Named(port.name, port.port, f"{port.name}") for port in self.ports]
        try:
            return tuple(self.ports[number] for number in used(named, variables))
        except TunerError:
            return self.ports

    @property
    def gpu_words(self) -> str:
        """The GPUs by model: ``8 x h100-sxm``."""
        return counted(gpu_model(device) or device for device in self.gpus)

    def port_words(self, variables: Mapping[str, str]) -> str:
        """The adapters by speed: ``8 x 400 Gb/s InfiniBand``."""
        return counted(port.in_words for port in self.used_ports(variables))

    @property
    def plugin_is_own(self) -> bool:
        """Whether the tuner plugin is this project's, by what its file says: it can be asked without NCCL."""
        return self.tuner_plugin is not None and self.tuner_plugin.build is not None

    @property
    def plugin_is_missing(self) -> bool:
        """Whether a tuner plugin is named that NCCL cannot load: it says so at INFO and takes its own choices."""
        return self.tuner_plugin is not None and (self.tuner_plugin.sha256 is None or not self.tuner_plugin.library)

    @property
    def plugin_is_of_others(self) -> bool:
        """Whether a tuner plugin is loaded that is not emulated."""
        return self.tuner_plugin is not None and not self.plugin_is_own and not self.plugin_is_missing

    @property
    def cloud_tuner(self) -> AwsTuner | None:
        """The tuner that the network plugin brings, which NCCL 2.21 and later ask where no other is named.

        None where none is known, or none is loaded: NCCL_TUNER_PLUGIN=none, or another plugin that asks none.
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
        """Whether a communicator fails without a table that can be used."""
        word = self.settled(None).get("NCCL_TUNER_STRICT", "").strip().lower()
        return word not in ("", "0", "false", "no", "off")


def counted(words: Any) -> str:
    """Equal words once, with how many there are; ``none`` of none."""
    return ", ".join(f"{count} x {word}" for word, count in sorted(Counter(words).items())) or "none"


def gpu_model(device: str) -> str | None:
    """The first model of ``tables/gpus.toml`` with a PCI device id."""
    return next(iter(gpus.of_device(device)), None)


def _is_nccls(name: str) -> bool:
    return name.startswith("NCCL_") and name not in NOT_NCCLS and not name.startswith("NCCL_TESTS_")


def of_json(given: Mapping[str, Any]) -> Facts:
    """BadInput for what ``collect`` does not write."""
    try:
        return Facts(
            libraries=tuple(map(_library, given["libraries"])),
            variables={str(name): str(value) for name, value in given["variables"].items()},
            configuration_files=tuple(
                (str(file["place"]), {str(name): str(value) for name, value in file["variables"].items()})
                for file in given["configuration_files"]
            ),
            processor=_processor(given["cpu"]),
            gpus=tuple(str(gpu["device"]) for gpu in given["gpus"]),
            ports=tuple(
                Port(str(port["name"]), int(port["port"]), _given(float, port["gbps"]), _given(str, port["link"]))
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
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput(f"not as collect writes it: {type(error).__name__} {error}") from error


def _named(file: Mapping[str, Any] | None) -> NamedFile | None:
    if file is None:
        return None
    sha256, build = _given(str, file["sha256"]), _given(str, file.get("build"))
    library, release = bool(file.get("library", True)), _given(str, file.get("release"))
    return NamedFile(str(file["path"]), sha256, library, build, release)


def _container(given: Mapping[str, Any] | None) -> str | None:
    return None if given is None else " ".join(str(word) for word in (given["kind"], given["image"]) if word)


def _library(given: Mapping[str, Any]) -> Library:
    release, cuda = (_given(str, given[name]) for name in ("release", "cuda"))
    return Library(str(given["found_by"]), str(given["path"]), release, cuda, int(given["bytes"]))


def _processor(given: Mapping[str, Any]) -> Processor:
    family, model = (_given(int, given[name]) for name in ("family", "model"))
    return Processor(
        str(given["architecture"]), _given(str, given["vendor"]), family, model, _given(str, given["name"])
    )


def _given(kind: Callable[[Any], T], value: Any) -> T | None:
    """As this kind; None where the record has nothing."""
    return None if value is None else kind(value)
