"""Records of ranks as ``preflight collect`` writes them, of hosts that are machines of the catalogue."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.jobs.preflight import collect, place
from tuner.machine import catalogue

INTEL = {"architecture": "x86_64", "vendor": "GenuineIntel", "family": 6, "model": 143, "name": "Xeon"}
AMD = {"architecture": "x86_64", "vendor": "AuthenticAMD", "family": 23, "model": 49, "name": "EPYC"}


@dataclass(frozen=True)
class Host:
    """A host with as many ranks as GPUs; ``more`` is put over each of its records."""

    name: str
    machine: str = "dgx-h100"
    nccl: str = "2.21.5"
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    env_of_rank: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # by local rank, over ``env``

    def with_env(self, **env: str) -> "Host":
        return replace(self, env={**self.env, **env})

    def record(self, local_rank: int) -> dict[str, Any]:
        """Of one of its ranks, but for the numbers of the whole job."""
        machine = catalogue.load(self.machine)
        topology, (device,) = machine.topology, place._devices(self.machine)
        nets = topology.nets
        return {
            "format": collect.FORMAT,
            "version": collect.VERSION,
            "host": self.name,
            "collected": "2026-01-02T03:04:05Z",
            "job": "1",
            "launcher": "torchrun",
            "local_rank": local_rank,
            "local_ranks": self.count,
            "libraries": [
                {
                    "found_by": "Python package",
                    "path": "/x/libnccl.so.2",
                    "release": self.nccl,
                    "cuda": "12.4",
                    "bytes": 9,
                }
            ],
            "variables": {**self.env, **self.env_of_rank.get(local_rank, {})},
            "configuration_files": [],
            "cpu": AMD if topology.cpu_vendor == "AuthenticAMD" else INTEL,
            "gpus": [{"bus_id": gpu.busid, "device": device} for gpu in topology.gpus],
            "visible_gpus": None,
            "driver": "550.54",
            "adapters": [
                {
                    "name": net.name,
                    "port": "1",
                    "gbps": net.speed_mbps / 1000,
                    "active": True,
                    "link": "InfiniBand",
                    "opens": True,
                }
                for net in nets
            ],
            "interfaces": [],
            "topology": None,
            "plugins": {"tuner": None, "network": None},
            "table": None,
            "container": None,
            **self.more,
        }

    @property
    def count(self) -> int:
        return self.ranks or catalogue.load(self.machine).gpus_per_node


def written(folder: Path, record: Mapping[str, Any], rank: int | None, ranks: int | None = None) -> str:
    """Writes a host's record as that of a rank of a job; its path."""
    whole: Any = {**record, "rank": rank, "ranks": ranks, **({} if rank is not None else {"local_ranks": None})}
    return collect.written(str(folder), whole)


def write(folder: Path, *hosts: Host) -> Path:
    """The records of all ranks of a job on these hosts, in the order of ranks; the folder."""
    ranks, rank = sum(host.count for host in hosts), 0
    for host in hosts:
        for local_rank in range(host.count):
            written(folder, host.record(local_rank), rank, ranks)
            rank += 1
    return folder


def with_processor(host: Host, processor: Mapping[str, Any]) -> Host:
    return replace(host, more={**host.more, "cpu": dict(processor)})


def as_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
