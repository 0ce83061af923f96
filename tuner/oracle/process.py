"""The child process. This process has its own environment and a time limit for each request, and its failures are
reported."""

import contextlib
import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner.base import children, extras
from tuner.base.errors import BadInput, OracleFailed, OracleUnavailable
from tuner.base.expressions import expression
from tuner.base.scratch import IN_THE_OPEN, ScratchFolder, clear_shared_memory
from tuner.base.spelling import option
from tuner.oracle.library import MACHINES
from tuner.oracle.messages import Failed

CHILD = children.ORACLE
SIM = Path(__file__).parents[1] / "_native" / "libnccl_tuner_sim.so"
SIM_NAMES = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl-net-sim.so", "libnccl-tuner-sim.so")

# A library that is no plugin, by a short name that every release accepts; some releases turn "none" into the file name
# of the recorder.
NO_TUNER = "absent"
TUNER_NAME = "libnccl-tuner-given.so"  # lib*.so: a name that every release takes
NOT_A_PLUGIN = find_spec("_cffi_backend")

# Variables that the oracle itself sets for NCCL; a configuration that names one of them is refused.
OWN_VARIABLES = frozenset(
    {
        "NCCL_CUDA_PATH",
        "NCCL_CONF_FILE",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_ENV_PLUGIN",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_IGNORE_CPU_AFFINITY",
        "NCCL_NET_PLUGIN",
        "NCCL_PROFILER_PLUGIN",
        "NCCL_RAS_ENABLE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_TOPO_FILE",
        "NCCL_TUNER_PLUGIN",
    }
)
_FOREIGN = ("NCCL_", "CUDA_")  # variables of the caller that would affect the child

_SHARED = expression(r"/dev/shm/nccl-\w{6}\b")
_SHOWN_LOG_LINES = 3
_NOTED_LOG_LINES = 20


def check_platform() -> None:
    """Raises OracleUnavailable on a platform on which no libnccl runs, and MissingExtra without the extra
    ``oracle``."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise OracleUnavailable(
            f"libnccl runs on Linux on {' and '.join(MACHINES)} only; this is {sys.platform} {platform.machine()}"
        )
    if not SIM.is_file():
        raise OracleUnavailable(f"the simulated GPUs are not built: {SIM} is missing; reinstall nccl-tuner")
    extras.require("elftools", "the oracle")
    extras.require("_cffi_backend", "the oracle")


class Child:
    """One child process and its scratch folder. Every failure ends the child and raises OracleFailed.

    ``topologies`` has the topology XML of each kind of node. ``env`` has NCCL_* variables. ``of_hosts`` has, for each
    host in an NVLink domain, its kind of node and the topology XML that it reads. ``by_path``: NCCL loads the tuner
    plugin by its path, not by a name. ``pci_classes`` are the PCI classes of devices by bus id, for the sysfs that the
    child reads. ``dumps_topology``: NCCL writes the topology that it made. ``program`` is the Python module that the
    child runs.
    """

    def __init__(
        self,
        topologies: Sequence[str],
        env: Mapping[str, str],
        *,
        of_hosts: Mapping[int, tuple[int, str]] = MappingProxyType({}),
        tuner_plugin: Path | None = None,
        by_path: bool = False,
        pci_classes: Mapping[str, str] | None = None,
        dumps_topology: bool = False,
        program: str = CHILD,
    ) -> None:
        check_platform()
        if refused := sorted(OWN_VARIABLES & env.keys()):
            raise BadInput(f"{', '.join(refused)} cannot be set for the oracle: it sets that itself")
        if strange := sorted(name for name in env if not name.startswith("NCCL_")):
            raise BadInput(f"{', '.join(strange)}: only NCCL_* variables can be given to the oracle")
        self._folder = ScratchFolder("oracle")
        self.folder = Path(self._folder.name)
        self.log = self.folder / "nccl.log"
        self.graph = self.folder / "graph.xml"
        self.completed = self.folder / "completed.xml"
        self.sysfs = None if pci_classes is None else _sysfs(self.folder / "sysfs" / "pci", pci_classes)
        self.topologies = [self.folder / f"topology{number}.xml" for number in range(len(topologies))]
        for path, topology in zip(self.topologies, topologies, strict=True):
            path.write_text(topology)
        for number, (kind, topology) in of_hosts.items():
            self.topologies[kind].with_suffix(f".xml.{number}").write_text(topology)
        for name in SIM_NAMES:
            (self.folder / name).symlink_to(SIM)
        assert NOT_A_PLUGIN is not None
        assert NOT_A_PLUGIN.origin is not None
        (self.folder / f"libnccl-tuner-{NO_TUNER}.so").symlink_to(NOT_A_PLUGIN.origin)
        tuner_value = NO_TUNER
        if tuner_plugin is not None:
            (self.folder / TUNER_NAME).symlink_to(tuner_plugin.resolve())
            tuner_value = str(tuner_plugin.resolve()) if by_path else TUNER_NAME
        (empty := self.folder / "empty").mkdir()
        self._socket, other = socket.socketpair()
        self._stream = self._socket.makefile("rwb")
        with other, (self.folder / "stderr").open("wb") as stderr:
            self._process = children.start(
                program,
                str(other.fileno()),
                str(self.folder),
                cwd=empty,
                env=self._environment(env, tuner_value, dumps_topology),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )

    def _environment(self, env: Mapping[str, str], plugin: str, dumps_topology: bool) -> dict[str, str]:
        given = children.environment()
        own = {name: value for name, value in given.items() if not name.startswith(_FOREIGN)}
        own["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(self.folder), own.get("LD_LIBRARY_PATH")]))
        return {
            **own,
            # The default, the tuner in the network plugin's library, is the recorder.
            "NCCL_TUNER_NEXT": "none",
            **children.environment(env),
            # Every rank gets its own heap, as in a process of its own: 2.18 reads past the end of its list of adapters,
            # and crashed on data that other ranks had left there (ncclTopoSearchRecNet, src/graph/search.cc,
            # v2.18.3-1).
            "MALLOC_ARENA_MAX": "1024",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV",
            "NCCL_DEBUG_FILE": str(self.log),
            "NCCL_ENV_PLUGIN": "none",
            "NCCL_GRAPH_DUMP_FILE": str(self.graph),
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "NCCL_NET_PLUGIN": "sim",
            "NCCL_PROFILER_PLUGIN": "none",
            "NCCL_RAS_ENABLE": "0",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_TOPO_FILE": str(self.topologies[0]),
            **({"NCCL_TOPO_DUMP_FILE": str(self.completed)} if dumps_topology else {}),
            "NCCL_TUNER_PLUGIN": plugin,
        }

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def request(self, message: object, timeout_s: float, doing: str) -> Any:
        """The program's answer. OracleFailed if the program died or took longer than ``timeout_s`` seconds, or if NCCL
        failed."""
        try:
            self._socket.settimeout(timeout_s)
            pickle.dump(message, self._stream, pickle.HIGHEST_PROTOCOL)
            self._stream.flush()
            answer = pickle.load(self._stream)
        except TimeoutError:
            self.close(keep_log=True)
            raise self.failure(
                f"libnccl did not answer within {timeout_s:g} s ({option('timeout')}) while {doing}", silent=True
            ) from None
        except (EOFError, ConnectionError, pickle.UnpicklingError):
            raise self.failure(f"the libnccl process {self._death()} while {doing}", ended=True) from None
        if isinstance(answer, Failed):
            raise self.failure(f"{doing}: {answer.reason}", returned=answer.returned)
        return answer

    def _death(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit status {code}"
        return f"was killed by {signal.Signals(-code).name}"

    def failure(self, what: str, about: str = "", **how: bool) -> OracleFailed:
        """Makes an error of one line that ends with NCCL's last warnings, or with the last lines of the log that
        contain the word ``about``.

        More of the log is in the error's notes. ``how``: the keyword arguments of :class:`OracleFailed`.
        """
        log = self.log_lines()
        stderr = self.folder / "stderr"
        output = stderr.read_text(errors="replace").splitlines() if stderr.is_file() else []
        warnings = [line for line in log if " NCCL WARN " in line]
        said_about = [line for line in log if about in line.replace(str(self.folder), "").lower()]
        words = said_about if about else warnings or log
        last = " | ".join(line.strip() for line in [*words, *output][-_SHOWN_LOG_LINES:])
        error = OracleFailed(what, last, **how)
        error.add_note("\n".join([*log, *output][-_NOTED_LOG_LINES:]))
        return error

    def log_lines(self) -> list[str]:
        """NCCL's log so far."""
        return self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []

    def log_bytes(self, start: int, end: int) -> bytes:
        """The bytes that libnccl wrote between two positions of its log."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def close(self, keep_log: bool = False) -> None:
        """Ends the child and everything that it started."""
        # The number of a process that was waited for may belong to another process by now
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)
                shared = _shared_memory(self._process.pid)
                os.killpg(self._process.pid, signal.SIGKILL)
                for file in shared:
                    file.unlink(missing_ok=True)  # NCCL removes it once all ranks have opened it
            self._process.wait()
        with contextlib.suppress(FileNotFoundError):
            clear_shared_memory((self.folder / IN_THE_OPEN).stat().st_mtime)
        self._socket.close()
        if not keep_log:
            self._folder.cleanup()


def _shared_memory(pid: int) -> set[Path]:
    """NCCL's files of shared memory that the process has mapped; there are some if its ranks connect."""
    try:
        return set(map(Path, _SHARED.findall(Path(f"/proc/{pid}/maps").read_text())))
    except OSError:  # the process has ended
        return set()


def _sysfs(bus: Path, pci_classes: Mapping[str, str]) -> Path:
    """Makes a folder per PCI device, named by bus id, in the folder ``bus``, with the two files that NCCL reads."""
    for bus_id, pci_class in pci_classes.items():
        device = bus / bus_id
        device.mkdir(parents=True)
        (device / "class").write_text(f"{pci_class}\n")
        (device / "subsystem").symlink_to(bus)
    return bus
