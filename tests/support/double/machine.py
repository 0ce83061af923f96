"""The simulated machine of this process: libnccl, redirected, and which of the machine's ranks and GPUs are here."""

import functools
import json
import os
import pickle
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tuner._native._sim import ffi, lib

from tests.support.double.settings import PATTERNS, SETTINGS, START, STARTED, VARIABLE, DoubleSettings
from tuner.base.dataclass import dataclass
from tuner.bench.simulated import Truth, draw
from tuner.oracle.child.world import Loaded
from tuner.oracle.messages import RANK_VARIABLES, Start
from tuner.scenario import Scenario
from tuner.times.measured.header import usable
from tuner.times.measured.samples import Combination, Point

_C: Any = None


@dataclass(frozen=True, slots=True)
class DoubleMachine:
    """What this process has of the double."""

    folder: Path
    settings: DoubleSettings
    start: Start
    loaded: Loaded
    host: int
    process: int  # 0 where there is one

    @property
    def patterns(self) -> Mapping[str, str]:
        """NCCL's names of its communication patterns, by number."""
        return json.loads((self.folder / PATTERNS).read_text())  # type: ignore[no-any-return]

    @property
    def gpus(self) -> int:
        """Of this process' node."""
        return self.start.machine.kind[0].gpus_per_host

    def device(self, gpu: int) -> int:
        """The simulated device of a GPU of this node: those of all nodes are numbered in the order of ranks."""
        return (self.host * self.gpus + gpu) * self.settings.ranks_per_gpu

    def gpu(self, device: int) -> int:
        """The GPU of this node that a simulated device is."""
        return device // self.settings.ranks_per_gpu - self.host * self.gpus


@functools.cache
def machine() -> DoubleMachine:
    """Loads libnccl and redirects it, when it is first asked for. KeyError outside of a double's environment."""
    folder = Path(os.environ[VARIABLE])
    settings = DoubleSettings.from_record(json.loads((folder / SETTINGS).read_text()))
    start: Start = pickle.loads((folder / START).read_bytes())
    process = 0
    if settings.process_per_rank:
        process = int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))
    per_host = start.machine.kind[0].gpus_per_host * settings.ranks_per_gpu
    host = process // per_host
    if start.machine.hosts > 1:
        socket.gethostname = lambda: f"node{host}"
    for name, value in _variables(folder, settings).items():
        _set(name, value)
    loaded = Loaded(start, threads=not settings.process_per_rank)
    loaded.record_operations()
    if not settings.process_per_rank:
        loaded.share_search()
    if error := lib.sim_observe_calls():
        raise OSError(error, os.strerror(error))
    lib.sim_identify_process(process)
    lib.sim_start_on(host * per_host)
    return DoubleMachine(folder, settings, start, loaded, host, process)


def _variables(folder: Path, settings: DoubleSettings) -> dict[str, str]:
    """What stands for the machine: NCCL's view of it, its network, and its nccl.conf."""
    return {
        **settings.scenario.oracle_configuration().env,
        **(settings.scenario.environment or {}),
        "NCCL_TOPO_FILE": str(folder / "topology.xml"),
        "NCCL_NET_PLUGIN": "sim",
        "NCCL_ENV_PLUGIN": "none",
        "NCCL_PROFILER_PLUGIN": "none",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }


def _set(name: str, value: str) -> None:
    """Where NCCL finds it, and not in ``os.environ``: nobody set it who measures."""
    global _C
    if _C is None:
        import ctypes

        _C = ctypes.CDLL(None)
    _C.setenv(name.encode(), value.encode(), 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """Since the last look, as the structs of csrc/sim: joined communicators, calls, kernels, operations."""

    joined: list[Any]
    called: list[Any]
    kernels: list[Any]
    operations: list[Any]


def seen() -> Seen:
    """What libnccl was called for and did, which is forgotten."""
    counts = lib.sim_seen()
    lists = (
        (lib.sim_joined(), counts.joined),
        (lib.sim_called(), counts.called),
        (lib.sim_kernels(), counts.kernels),
        (lib.sim_operations(), counts.operations),
    )
    found = Seen(*([_copied(items[i]) for i in range(n)] for items, n in lists))
    lib.sim_forget_seen()
    return found


def _copied(struct: Any) -> Any:
    return ffi.new(f"{ffi.typeof(struct).cname} *", struct)[0]


_TRUTH_STREAM, _NOISE_STREAM = 0, 1


class Planted:
    """The same in every process of a double: it depends on the settings, and the noise on which start it is."""

    def __init__(self, settings: DoubleSettings) -> None:
        self._settings = settings
        self._started = int(os.environ.get(STARTED, "0"))
        self._truths: dict[int, Truth] = {}  # by the ranks of communicators

    def truth(self, ranks: int, environment: Mapping[str, str] | None = None) -> Truth:
        """Of a communicator of so many ranks, which NCCL initialised with these variables (None: the scenario's)."""
        if ranks not in self._truths:
            scenario, seed = _of_ranks(self._settings.scenario, ranks), self._settings.seed
            if environment is not None:
                scenario = usable(replace(scenario, environment=dict(environment)), None)
            communicator = scenario.communicator()
            drawn = draw(communicator.release, np.random.default_rng([seed, _TRUTH_STREAM]))
            self._truths[ranks] = Truth(communicator, drawn if self._settings.planted else {})
        return self._truths[ranks]

    def time_us(self, point: Point, launched: Combination, ranks: int, number: int) -> float:
        """Of the collective with this ``number`` in the order of a communicator of so many ranks.

        ValueError for what the emulator says that it cannot run.
        """
        own = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        cost = self.truth(ranks, own).costs(point).get(launched.algo_proto)
        if cost is None:
            raise ValueError(f"{launched} was launched for {point}, which the emulator says cannot run")
        true_us = cost.time_us(launched.channels)
        stream = [self._settings.seed, _NOISE_STREAM, number, *([self._started] if self._started else [])]
        return float(true_us * np.exp(np.random.default_rng(stream).normal(0, self._settings.noise)))


def _of_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """As many ranks on each GPU, else as many GPUs of each node."""
    per_node = ranks // scenario.nodes
    if per_node < scenario.gpus():
        return replace(scenario, gpus_per_node=per_node, ranks_per_gpu=None)
    sharing = per_node // scenario.gpus()
    return replace(scenario, ranks_per_gpu=sharing if sharing > 1 else scenario.ranks_per_gpu and 1)
