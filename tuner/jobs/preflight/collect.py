"""Records as JSON what NCCL would choose by on one rank: ``python3 preflight_collect.py DIR`` on each rank.

This file needs nothing but Python 3.7 or later and its standard library. No GPU is asked and no library is loaded;
everything is read from the environment, from /sys, /proc and /etc, and from files that variables name. ``nccl-tuner
preflight check DIR`` judges the files of all ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import platform
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

FORMAT = "nccl-tuner preflight"
VERSION = 1
MOST_RECORD_BYTES = 4 << 20  # of one rank; most have some thousand
LARGEST_ATTACHMENT_BYTES = 8 << 20
SAYS_RELEASE = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda(\d+\.\d+)")
LIBRARY = "libnccl.so.2"
IN_CACHE = re.compile(rb"/[^\0]{1,4000}/libnccl\.so\.2(?=\0)")  # of ldconfig
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
BUILD = re.compile(rb"nccl-tuner-plugin ([ -~]{1,200})\0")  # in this project's tuner plugin
NETWORK_RELEASE = re.compile(rb"Initializing (aws-ofi-nccl [0-9][ -~]{0,40})\0")  # what it says in NCCL's log
NVIDIA = "0x10de"
# Who started the ranks, by the variables of rank, ranks, rank on the host and ranks of the host.
WORLD = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{name}" for name in WORLD),
    "MVAPICH": tuple(f"MV2_COMM_WORLD_{name}" for name in WORLD),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}
JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
TABLES = ("NCCL_TUNER_TABLE", "NCCL_TUNER_CONFIG_FILE")
SWITCH = "NCCL_TUNER_SWITCH"
PLUGINS = {"tuner": "NCCL_TUNER_PLUGIN", "network": "NCCL_NET_PLUGIN", "next": "NCCL_TUNER_NEXT"}
DEFAULT_TUNER = "libnccl-tuner.so"  # what NCCL opens where no tuner plugin is named
BOOT = "/proc/sys/kernel/random/boot_id"  # another for each host, and for each of its starts
TOPOLOGIES = ("NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_FILE")
CONTAINERS = {
    "docker": ("file", "/.dockerenv"),
    "podman": ("file", "/run/.containerenv"),
    "apptainer": ("variable", "APPTAINER_CONTAINER"),
    "singularity": ("variable", "SINGULARITY_CONTAINER"),
    "kubernetes": ("variable", "KUBERNETES_SERVICE_HOST"),
}
IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "NVIDIA_PYTORCH_VERSION", "NVIDIA_BUILD_ID")


if TYPE_CHECKING:  # Python 3.7 has no TypedDict, and these say of JSON's objects only what is in them
    from typing import TypedDict

    class ConfigurationFile(TypedDict):
        place: str  # named, home (passwd's), HOME (the variable's), system
        path: str
        variables: dict[str, str]

    class RankNumbers(TypedDict):
        launcher: str | None
        rank: int | None
        ranks: int | None
        local_rank: int | None
        local_ranks: int | None

    class SaidRelease(TypedDict):
        release: str | None
        cuda: str | None

    class FoundLibrary(SaidRelease):
        found_by: str
        path: str
        bytes: int

    class FirstProcessor(TypedDict):
        architecture: str
        vendor: str | None
        family: int | None
        model: int | None
        name: str | None

    class PciGpu(TypedDict):
        bus_id: str
        device: str

    class AdapterPort(TypedDict):
        name: str
        port: str
        gbps: float | None
        link: str | None
        active: bool
        opens: bool | None

    class HostInterface(TypedDict):
        name: str
        gbps: float | None

    class FileBySha256(TypedDict):
        path: str
        sha256: str | None  # None: there is no such file

    class VariablesFile(FileBySha256, total=False):
        variable: str
        content: bytes  # taken out and written beside the record

    class TunerPluginFile(FileBySha256):
        library: bool
        build: str | None

    class NetworkPluginFile(FileBySha256):
        release: str | None

    class Plugins(TypedDict):
        tuner: TunerPluginFile | None
        network: NetworkPluginFile | None
        next: TunerPluginFile | None

    class Container(TypedDict):
        kind: str
        image: str | None

    class RankRecord(RankNumbers):
        format: str
        version: int
        host: str
        collected: str  # UTC
        job: str | None
        libraries: list[FoundLibrary]
        variables: dict[str, str]
        configuration_files: list[ConfigurationFile]
        cpu: FirstProcessor
        gpus: list[PciGpu]
        visible_gpus: str | None
        driver: str | None
        adapters: list[AdapterPort]
        interfaces: list[HostInterface]
        topology: VariablesFile | None
        plugins: Plugins
        product: str | None
        table: VariablesFile | None
        switch: FileBySha256 | None
        boot: str | None
        knows_home: bool
        container: Container | None


class CollectedHost:
    """The environment and file system that a record describes: the process's variables, and files below ``root``."""

    def __init__(self, environment: Mapping[str, str], root: str = "") -> None:
        self.environment = environment
        self.root = root

    def path(self, name: str) -> str:
        """The path below ``root`` at which a path of the host is opened."""
        return self.root + name if name.startswith("/") else name

    def text(self, name: str) -> str | None:
        """A file's text, with its line ends as they are; None if it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace", newline="") as file:
                return file.read()
        except OSError:
            return None

    def content(self, name: str) -> bytes | None:
        """A file's bytes; None if it cannot be read."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def word(self, name: str) -> str:
        """The content of a file with one line, such as those of /sys; empty if it cannot be read."""
        return (self.text(name) or "").strip()

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def variable(self, name: str) -> str | None:
        """A variable's value; None if it is not set, or empty."""
        return self.environment.get(name) or None


def record(host: CollectedHost, library: str | None = None) -> RankRecord:
    """The whole record of this rank, in the form of the JSON. ``library`` is the path of the libnccl that the job
    loads, None if it is not known."""
    configuration = configuration_files(host)
    variables = nccl_variables(host)
    settled = settled_variables(variables, configuration)
    return {
        "format": FORMAT,
        "version": VERSION,
        "host": socket.gethostname(),
        "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "job": next(filter(None, map(host.variable, JOBS)), None),
        **ranks(host),
        "libraries": list(libraries(host, library)),
        "variables": variables,
        "configuration_files": configuration,
        "cpu": processor(host),
        "gpus": gpus(host),
        "visible_gpus": host.variable("CUDA_VISIBLE_DEVICES"),
        "driver": host.word("/sys/module/nvidia/version") or None,
        "adapters": adapters(host),
        "interfaces": interfaces(host),
        "topology": topology(host, settled),
        "plugins": {
            "tuner": tuner_plugin(host, settled.get(PLUGINS["tuner"])),
            "network": network_plugin(host, settled.get(PLUGINS["network"])),
            "next": tuner_plugin(host, settled.get(PLUGINS["next"])),
        },
        "product": host.word("/sys/class/dmi/id/product_name") or None,
        "table": decision_table(host, settled),
        "switch": named_file(host, settled.get(SWITCH)),
        "boot": host.word(BOOT) or None,
        "knows_home": True,
        "container": container(host),
    }


def nccl_variables(host: CollectedHost) -> dict[str, str]:
    """The variables of the process that NCCL may read."""
    return {name: value for name, value in sorted(host.environment.items()) if name.startswith("NCCL_")}


def configuration_files(host: CollectedHost) -> list[ConfigurationFile]:
    """NCCL's files of variables that exist, in order of precedence.

    The process's own environment wins, then the first file that sets a variable. Releases that know NCCL_CONF_FILE read
    that file instead of the one in the home folder, even if it does not exist. The home folder is that of passwd, or
    HOME in newer releases. Source: initEnvFunc, src/misc/param.cc, v2.28.9-1.
    """
    of_variable = host.variable("HOME")
    places = {
        "named": host.variable("NCCL_CONF_FILE"),
        "home": os.path.join(home(), ".nccl.conf"),
        "HOME": of_variable and os.path.join(of_variable, ".nccl.conf"),
        "system": "/etc/nccl.conf",
    }
    texts = [(place, path, host.text(path)) for place, path in places.items() if path is not None]
    return [
        {"place": place, "path": path, "variables": assignments(text or "")}
        for place, path, text in texts
        if text is not None or place == "named"
    ]


def home() -> str:
    """The user's home folder in passwd; NCCL looks there for its file, whatever HOME is."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def assignments(text: str) -> dict[str, str]:
    """Reads lines NCCL_NAME=VALUE: nothing is stripped, and the first value of a name counts."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and name.startswith("NCCL_"):
            values.setdefault(name[:1023], value[:1023])
    return values


def settled_variables(variables: Mapping[str, str], files: list[ConfigurationFile]) -> dict[str, str]:
    """Merges variables by their precedence, to find the files that they name. The check of the records merges them
    again, in the way of the release."""
    merged: dict[str, str] = {}
    named = any(file["place"] == "named" for file in files)
    for file in files:
        if not (named and file["place"] in ("home", "HOME")):
            merged = {**file["variables"], **merged}
    return {**merged, **variables}


def ranks(host: CollectedHost) -> RankNumbers:
    """This rank and the number of ranks, from the first launcher whose rank variable is set."""
    launcher = next((name for name, variables in LAUNCHERS.items() if number(host, variables[0]) is not None), None)
    variables = () if launcher is None else LAUNCHERS[launcher]
    rank, ranks, local_rank, local_ranks = [number(host, variable) for variable in variables] or [None] * 4
    return {"launcher": launcher, "rank": rank, "ranks": ranks, "local_rank": local_rank, "local_ranks": local_ranks}


def number(host: CollectedHost, variable: str) -> int | None:
    """The whole number in a variable; None for anything else."""
    text = host.variable(variable)
    return int(text) if text is not None and text.isdigit() else None


def libraries(host: CollectedHost, given: str | None = None) -> Iterator[FoundLibrary]:
    """Yields every libnccl.so.2 that a process here may load, the most likely one first, each file once."""
    seen = set()
    for found_by, path in library_paths(host, given):
        real = os.path.realpath(host.path(path))
        if real not in seen and os.path.isfile(real):
            seen.add(real)
            yield {"found_by": found_by, "path": path, "bytes": os.path.getsize(real), **release_of(real)}


def library_paths(host: CollectedHost, given: str | None) -> Iterator[tuple[str, str]]:
    """Yields paths where a libnccl may be, each after a word that says how the path was found."""
    if given is not None:
        yield "given", given
    for path in re.split("[ :]", host.variable("LD_PRELOAD") or ""):
        if "libnccl.so" in os.path.basename(path):
            yield "LD_PRELOAD", path
    for folder in re.split("[:;]", host.variable("LD_LIBRARY_PATH") or ""):
        if folder:
            yield "LD_LIBRARY_PATH", os.path.join(folder, LIBRARY)
    for folder in sys.path:
        for inside in ("nvidia/nccl/lib", "torch/lib"):
            yield "Python package", os.path.join(folder or ".", inside, LIBRARY)
    try:
        with open(host.path("/etc/ld.so.cache"), "rb") as file:
            cache = file.read()
    except OSError:
        cache = b""
    for match in IN_CACHE.finditer(cache):
        yield "ldconfig", os.fsdecode(match[0])
    for folder in LIBRARY_FOLDERS:
        yield "system folder", os.path.join(folder, LIBRARY)


def release_of(path: str) -> SaidRelease:
    """The release that a libnccl says it is, and the CUDA version that it is for, read from the file."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            said = SAYS_RELEASE.search(content)
            return {"release": said and said[1].decode(), "cuda": said and said[2].decode()}
    except (OSError, ValueError):
        return {"release": None, "cuda": None}


def processor(host: CollectedHost) -> FirstProcessor:
    """The first processor: its architecture, and on x86 vendor, family and model as Linux counts them."""
    facts: dict[str, str] = {}
    for line in (host.text("/proc/cpuinfo") or "").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    numbers = {key: int(facts[name]) for key, name in (("family", "cpu family"), ("model", "model")) if name in facts}
    return {
        "architecture": platform.machine(),
        "vendor": facts.get("vendor_id"),
        "family": numbers.get("family"),
        "model": numbers.get("model"),
        "name": facts.get("model name"),
    }


def gpus(host: CollectedHost) -> list[PciGpu]:
    """All NVIDIA GPUs on the host's PCI bus, in the order of their addresses."""
    folder, found = "/sys/bus/pci/devices", []  # type: str, list[PciGpu]
    for address in host.names(folder):
        vendor, device, kind = (host.word(f"{folder}/{address}/{name}") for name in ("vendor", "device", "class"))
        if vendor == NVIDIA and kind.startswith("0x03"):
            found.append({"bus_id": address, "device": device})
    return found


def adapters(host: CollectedHost) -> list[AdapterPort]:
    """Ports of RDMA adapters: speed in 1e9 bits per second, state, link, and whether a process here may open the
    adapter."""
    folder, found = "/sys/class/infiniband", []  # type: str, list[AdapterPort]
    for name in host.names(folder):
        verbs = host.names(f"{folder}/{name}/device/infiniband_verbs")
        opens = opened(host.path(f"/dev/infiniband/{verbs[0]}")) if verbs else None
        for port in host.names(f"{folder}/{name}/ports"):
            rate, state, link = (
                host.word(f"{folder}/{name}/ports/{port}/{of}") for of in ("rate", "state", "link_layer")
            )
            gbps = re.match(r"\d+(\.\d+)?", rate)
            found.append(
                {
                    "name": name,
                    "port": port,
                    "gbps": float(gbps[0]) if gbps else None,
                    "link": link or None,
                    "active": "ACTIVE" in state,
                    "opens": opens,
                }
            )
    return found


def opened(path: str) -> bool:
    """Whether a device can be opened: /sys may show a container devices that it must not use."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def interfaces(host: CollectedHost) -> list[HostInterface]:
    """Network interfaces of devices that are up: name, and speed in 1e9 bits per second (None if the system does not
    know it)."""
    folder, found = "/sys/class/net", []  # type: str, list[HostInterface]
    for name in host.names(folder):
        up = host.word(f"{folder}/{name}/operstate") == "up"
        if up and os.path.exists(host.path(f"{folder}/{name}/device")):
            speed = host.word(f"{folder}/{name}/speed")
            found.append({"name": name, "gbps": int(speed) / 1000 if speed.isdigit() else None})
    return found


def topology(host: CollectedHost, variables: Mapping[str, str]) -> VariablesFile | None:
    """The topology file that a variable names, if it exists: NCCL's dump, or else a file that NCCL reads."""
    for name in TOPOLOGIES:
        found = named_file(host, variables.get(name), attached=True)
        if found is not None and found["sha256"] is not None:
            return {"variable": name, **found}
    return None


def decision_table(host: CollectedHost, variables: Mapping[str, str]) -> VariablesFile | None:
    """The decision table that a variable names for a tuner plugin; None if none is named."""
    for name in TABLES:
        path = variables.get(name)
        if name == "NCCL_TUNER_TABLE" and path and not re.search(r"%[^%]", path.replace("%%", "")):
            path = path.replace("%%", "%")  # as the plugin reads it
        found = named_file(host, path, attached=True)
        if found is not None:
            return {"variable": name, **found}
    return None


def tuner_plugin(host: CollectedHost, name: str | None) -> TunerPluginFile | None:
    """The file that NCCL would open as tuner plugin.

    The result says whether the file is a shared object, and its build if it is this project's plugin. It has no sha256
    if the file is not found. None if a variable forbids plugins, or if no plugin is named and none found.
    """
    if name and name.lower() in ("none", "static_plugin"):
        return None
    known, content = plugin_file(host, name or DEFAULT_TUNER, "libnccl-tuner-")
    if known["sha256"] is None and not name:
        return None
    if known["sha256"] is None:
        return {**known, "library": False, "build": None}
    build = BUILD.search(content)
    library = content[:4] == b"\x7fELF" and b"ncclTunerPlugin_v" in content
    return {**known, "library": library, "build": build and build[1].decode("latin-1")}


def network_plugin(host: CollectedHost, name: str | None) -> NetworkPluginFile | None:
    """The file that NCCL would open as network plugin, whether or not a variable names it.

    The result has the plugin's release if it is AWS's plugin, whose tuner decides. It has no sha256 if the file is not
    found. None if a variable forbids plugins, or if no plugin is named and none found.
    """
    if name and name.lower() in ("none", "static_plugin"):
        return None
    known, content = plugin_file(host, name or "libnccl-net.so", "libnccl-net-")
    if known["sha256"] is None and not name:
        return None
    said = NETWORK_RELEASE.search(content)
    return {**known, "release": said and said[1].decode("latin-1")}


def plugin_file(host: CollectedHost, name: str, prefix: str) -> tuple[FileBySha256, bytes]:
    """The library that a variable names, in the form of :func:`named_file`, and its bytes (empty if it is not
    found)."""
    found = next((path for path in plugin_paths(host, name, prefix) if os.path.isfile(host.path(path))), name)
    content = host.content(found)
    return {"path": name if content is None else found, "sha256": _sha256(content)}, content or b""


def plugin_paths(host: CollectedHost, name: str, prefix: str) -> Iterator[str]:
    """Yields paths at which the linker looks for a library that is given by path, by name, or by the part of the name
    that NCCL completes."""
    if "/" in name:
        yield name
        return
    for file in (name, prefix + name + ".so"):
        for folder in re.split("[:;]", host.variable("LD_LIBRARY_PATH") or ""):
            if folder:
                yield os.path.join(folder, file)
        for folder in (*configured_folders(host), *LIBRARY_FOLDERS):
            yield os.path.join(folder, file)


def configured_folders(host: CollectedHost) -> Iterator[str]:
    """Yields the folders in the linker's configuration, in its order; see ldconfig(8)."""
    folder = "/etc/ld.so.conf.d"
    for file in sorted(name for name in host.names(folder) if name.endswith(".conf")):
        lines = (host.text(os.path.join(folder, file)) or "").splitlines()
        yield from (line.strip() for line in lines if line.startswith("/"))


def named_file(host: CollectedHost, path: str | None, attached: bool = False) -> VariablesFile | None:
    """A file that a variable names, with its sha256; no sha256 if it does not exist.

    If ``attached`` is true, the result also has the file's content, which is written beside the records.
    """
    if not path:
        return None
    content = host.content(path)
    known: VariablesFile = {"path": path, "sha256": _sha256(content)}
    if attached and content is not None and len(content) <= LARGEST_ATTACHMENT_BYTES:
        known["content"] = content
    return known


def _sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def container(host: CollectedHost) -> Container | None:
    """The kind of container in which this process runs, and its image; None if nothing shows a container."""
    for kind, (what, name) in CONTAINERS.items():
        if os.path.exists(host.path(name)) if what == "file" else host.variable(name):
            return {"kind": kind, "image": next(filter(None, map(host.variable, IMAGES)), None)}
    return None


def written(folder: str, made: RankRecord) -> str:
    """Writes a record and its attached files (named by their sha256), each completely or not at all; returns the
    record's path."""
    os.makedirs(folder, exist_ok=True)
    for name, file in (("topology", made["topology"]), ("table", made["table"])):
        content = file.pop("content", None) if file else None
        if file and file["sha256"] is not None and content is not None:
            replace(os.path.join(folder, attachment(name, file["sha256"])), content)
    rank, host = made["rank"], re.sub(r"[^\w.-]", "_", made["host"])
    path = os.path.join(folder, f"host-{host}.json" if rank is None else f"rank-{rank:06}.{host}.json")
    if made.get("boot") and boot_of(path) not in (None, made["boot"]):  # another host of this name, or its last start
        path = f"{path[:-5]}.{re.sub('[^0-9a-f]', '', str(made['boot']))[:8]}.json"
    replace(path, (json.dumps(made, indent=1, sort_keys=True) + "\n").encode())
    return path


def boot_of(path: str) -> str | None:
    """The boot id in a record of a host; None if there is no record, or it has none."""
    if not os.path.isfile(path):  # a FIFO under this name would block for ever
        return None
    try:
        with open(path, encoding="utf-8") as file:
            said = json.loads(file.read(MOST_RECORD_BYTES)).get("boot")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return said if isinstance(said, str) else None


def attachment(name: str, sha256: str) -> str:
    """The name of an attached file."""
    return f"{name}-{sha256[:32]}{'.xml' if name == 'topology' else '.txt'}"


def replace(path: str, content: bytes) -> None:
    """Replaces a file so that other processes see it complete or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".preflight-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None) -> int:
    """Writes the record of this process; returns 0, or 2 after a message of one line if that is impossible."""
    parser = argparse.ArgumentParser(
        prog="preflight_collect.py",
        description="Writes what this rank would give NCCL to choose by, as one JSON file in DIR. No GPU is asked.",
        epilog="example: torchrun --nproc-per-node 8 preflight_collect.py /shared/preflight",
    )
    parser.add_argument("folder", metavar="DIR", help="a folder that all ranks share")
    parser.add_argument("--library", metavar="FILE", help="the libnccl.so.2 that the job loads, if it is known")
    given = parser.parse_args(arguments)
    try:
        print(written(given.folder, record(CollectedHost(os.environ), given.library)))
    except OSError as error:
        print(f"preflight_collect.py: {error.filename or given.folder}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
