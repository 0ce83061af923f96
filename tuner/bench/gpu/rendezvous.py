"""How processes that measure together find each other: what their launcher says, and one connection of each to rank 0.

Lines of JSON over TCP. Whoever dies closes its connection, which is how the others learn of it.
"""

import contextlib
import json
import os
import re
import select
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tuner.base.errors import BadInput, MeasuringFailed

CANDIDATES = 16  # ports from the first one on; torchrun itself may hold MASTER_PORT
_HELLO = "nccl-tuner"
_FAILED = b'{"error": '
_PATIENCE_S = 2.0  # with whoever is at the other end and may be no rank of this run
_SLURM_PORTS = (20000, 20000)  # first, how many: one for each step of a job


@dataclass(frozen=True, slots=True)
class Place:
    """One process among those that a launcher started; ``ports`` are those that rank 0 may be found at."""

    rank: int
    world: int
    local_rank: int
    launcher: str
    host: str = ""
    ports: tuple[int, ...] = ()
    token: str = ""


ALONE = Place(0, 1, 0, "none")


def place(env: Mapping[str, str]) -> Place:
    """What the environment says of this process. BadInput where a launcher's variables are there only in part."""
    if "TORCHELASTIC_RUN_ID" in env or {"RANK", "WORLD_SIZE"} <= env.keys():
        return _torchrun(env)
    by_slurm = "SLURM_PROCID" in env  # which sets PMI's variables, too
    if "OMPI_COMM_WORLD_RANK" in env or ({"PMI_RANK", "PMIX_RANK"} & env.keys() and not by_slurm):
        return _mpi()
    if by_slurm and _number(env, "SLURM_NTASKS", "srun") > 1:
        return _srun(env)
    return ALONE


def _torchrun(env: Mapping[str, str]) -> Place:
    rank, world = _number(env, "RANK", "torchrun"), _number(env, "WORLD_SIZE", "torchrun")
    first = _number(env, "MASTER_PORT", "torchrun") + 1
    if "MASTER_ADDR" not in env:
        raise BadInput("torchrun's MASTER_ADDR is not set; valid: the name or address of rank 0's node")
    return Place(
        rank,
        world,
        _number(env, "LOCAL_RANK", "torchrun"),
        "torchrun",
        env["MASTER_ADDR"],
        tuple(range(first, first + CANDIDATES)),
        f"torchrun {env.get('TORCHELASTIC_RUN_ID', '')} {first}",
    )


def _srun(env: Mapping[str, str]) -> Place:
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
    if not nodes:
        raise BadInput("srun's SLURM_STEP_NODELIST is not set; valid: the nodes of the step, rank 0's first")
    job, step = env.get("SLURM_JOB_ID", "0"), env.get("SLURM_STEP_ID", "0")
    low, count = _SLURM_PORTS
    start = low + (sum(int(part) for part in (job, step) if part.isdecimal()) * CANDIDATES) % count
    return Place(
        _number(env, "SLURM_PROCID", "srun"),
        _number(env, "SLURM_NTASKS", "srun"),
        _number(env, "SLURM_LOCALID", "srun"),
        "srun",
        first_node(nodes),
        tuple(range(start, start + CANDIDATES)),
        f"srun {job}.{step}",
    )


def _mpi() -> Place:
    """MPI itself says where rank 0 is."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise BadInput(
            "started by MPI, and there is no mpi4py; valid: pip install mpi4py, or torchrun or srun"
        ) from None
    world = MPI.COMM_WORLD
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    with socket.socket() as free:
        free.bind(("", 0))
        host, port = world.bcast((socket.gethostname(), free.getsockname()[1]), root=0)
    return Place(
        world.Get_rank(),
        world.Get_size(),
        here.Get_rank(),
        "mpirun",
        host,
        tuple(range(port, port + CANDIDATES)),
        f"mpirun {host} {port}",
    )


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    value = env.get(name, "")
    if not value.isdecimal():
        raise BadInput(f"{launcher}'s {name} is {value!r}; valid: a number")
    return int(value)


def first_node(nodes: str) -> str:
    """Of Slurm's list: ``gpu[03-07,12],login`` begins with ``gpu03``. BadInput for what is no such list."""
    match = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise BadInput(f"srun's list of nodes is {nodes!r}; valid: such as gpu[03-07]")
    return "".join(part or "" for part in match.groups())


@dataclass
class Rendezvous:
    """The connections: rank 0's to every other, the others' to rank 0. One process alone has none."""

    place: Place
    limit_s: float = 60.0
    _peers: dict[int, socket.socket] = field(default_factory=dict)
    _pending: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def meet(cls, place: Place, limit_s: float = 60.0) -> Self:
        """MeasuringFailed names the ranks that did not come within ``limit_s``."""
        met = cls(place, limit_s)
        deadline_s = time.monotonic() + limit_s
        try:
            if place.world > 1:
                met._listen(deadline_s) if place.rank == 0 else met._call(deadline_s)
        except BaseException:
            met.close()
            raise
        return met

    def _listen(self, deadline_s: float) -> None:
        with _server(self.place) as server:
            while len(self._peers) < self.place.world - 1:
                server.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self.place.world)) - self._peers.keys())
                    raise MeasuringFailed(
                        f"{len(missing)} of {self.place.world} ranks did not come to {self.place.host} within "
                        f"{self.limit_s:g} s: {', '.join(map(str, missing[:8]))}; "
                        f"valid: all of them running this command"
                    ) from None
                self._greet(peer)

    def _greet(self, peer: socket.socket) -> None:
        """Whoever does not say the right word is no rank of this run; one that gave up waiting calls again."""
        peer.settimeout(_PATIENCE_S)
        try:
            hello = json.loads(_line(peer))
            if hello[_HELLO] != self.place.token or not 0 < hello["rank"] < self.place.world:
                raise ValueError("of another run")
            peer.sendall(b'{"welcome": true}\n')
            peer.settimeout(self.limit_s)
            _line(peer)
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            peer.close()
            return
        self._peers[hello["rank"]] = peer

    def _call(self, deadline_s: float) -> None:
        hello = json.dumps({_HELLO: self.place.token, "rank": self.place.rank}).encode() + b"\n"
        while time.monotonic() < deadline_s:
            for port in self.place.ports:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError, EOFError):
                    peer = socket.create_connection((self.place.host, port), timeout=_PATIENCE_S)
                    try:
                        peer.sendall(hello)
                        if json.loads(_line(peer))["welcome"] is True:
                            peer.sendall(b'{"here": true}\n')
                            self._peers[0] = peer
                            return
                    finally:
                        if 0 not in self._peers:
                            peer.close()
            time.sleep(0.1)
        ports = f"{self.place.ports[0]} to {self.place.ports[-1]}"
        raise MeasuringFailed(
            f"rank {self.place.rank}: no rank 0 at {self.place.host}, ports {ports}, within {self.limit_s:g} s; "
            f"valid: one that {self.place.launcher} started, reachable from here"
        )

    def share(self, message: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        if self.place.rank != 0:
            return self._receive(0, None)
        for rank in self._peers:
            self._send(rank, message)
        return message

    def gather(self, message: Any, limit_s: float | None = None) -> list[Any]:
        """On rank 0 what every rank says, in their order; on the others nothing."""
        if self.place.rank != 0:
            self._send(0, message)
            return []
        limit_s = self.limit_s if limit_s is None else limit_s
        return [message, *(self._receive(rank, limit_s) for rank in sorted(self._peers))]

    def check(self) -> None:
        """MeasuringFailed where another has gone, or says that it failed while this one still waits for its GPU."""
        for rank, peer in self._peers.items():
            readable, _, _ = select.select([peer], [], [], 0)
            if not readable or self._pending.get(rank):
                continue
            try:
                said = peer.recv(1 << 16, socket.MSG_PEEK)
            except OSError:
                said = b""
            if not said:
                raise self._gone(rank)
            if said.startswith(_FAILED) and said.endswith(b"\n"):
                raise MeasuringFailed(json.loads(said)["error"])

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._peers[rank].settimeout(self.limit_s)
            self._peers[rank].sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._gone(rank) from None

    def _receive(self, rank: int, limit_s: float | None) -> Any:
        peer = self._peers[rank]
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        pending = self._pending.get(rank, b"")
        try:
            while b"\n" not in pending:
                peer.settimeout(None if deadline_s is None else max(deadline_s - time.monotonic(), 1e-3))
                block = peer.recv(1 << 16)
                if not block:
                    raise EOFError
                pending += block
        except TimeoutError:
            raise MeasuringFailed(f"rank {rank} did not answer within {limit_s:g} s") from None
        except (OSError, EOFError):
            raise self._gone(rank) from None
        line, _, self._pending[rank] = pending.partition(b"\n")
        return json.loads(line)

    def _gone(self, rank: int) -> MeasuringFailed:
        return MeasuringFailed(
            f"rank {rank} is gone: it ended or its node did; its own last lines say why, and what was measured is kept"
        )

    def close(self) -> None:
        """Leaves the other processes."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


@contextlib.contextmanager
def _server(place: Place) -> Iterator[socket.socket]:
    """Listens on the first of the ports that is free."""
    for port in place.ports:
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            server = socket.create_server(
                ("", port), family=family, backlog=place.world, dualstack_ipv6=family == socket.AF_INET6
            )
            with server:
                yield server
            return
    raise BadInput(f"none of ports {place.ports[0]} to {place.ports[-1]} is free on {os.uname().nodename}")


def _line(peer: socket.socket) -> bytes:
    """The next line, byte by byte: what follows it is read elsewhere."""
    line = b""
    while not line.endswith(b"\n"):
        block = peer.recv(1)
        if not block or len(line) > 4096:
            raise EOFError
        line += block
    return line
