"""Rendezvous of processes that measure together: how they find each other; each has one connection to rank 0.

The launcher tells the processes where rank 0 is, and a secret of the run: through torch's store under torchrun, through
MPI under mpirun and srun. Connections are multiprocessing's, which refuse anyone without the secret. If a process dies,
its connection closes, and so the others notice.
"""

import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import timedelta
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Self

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, MeasuringFailed

# A RankAddress as JSON, set by a program that starts the processes of all ranks itself
HANDED = "NCCL_TUNER_RANK_ADDRESS"
_KEY = "nccl-tuner"  # key in torchrun's store
_PATIENCE_S = 2.0  # time for a caller that may not be a rank of this run
# Torchrun's stores, kept as long as this process runs, because rank 0 may be the one that serves them
_STORES: list[Any] = []


@dataclass(frozen=True, slots=True)
class RankAddress:
    """One of a launcher's processes; rank 0 listens at ``host`` and ``port`` for processes that know the ``secret``."""

    rank: int
    world: int
    local_rank: int
    launcher: str
    host: str = ""
    port: int = 0
    secret: str = field(default="", repr=False)

    def handed(self) -> dict[str, str]:
        """The environment variable by which a program gives this address to a process that it starts itself."""
        return {HANDED: json.dumps(asdict(self))}


ALONE = RankAddress(0, 1, 0, "none")


@cache
def own_address() -> RankAddress:
    """Address of this process, determined once.

    Raises BadInput and MeasuringFailed in the same cases as :func:`rank_address`.
    """
    return rank_address(os.environ)


def rank_address(env: Mapping[str, str], limit_s: float = 60.0) -> RankAddress:
    """The address of this process, according to its environment and its launcher.

    BadInput if a launcher's information is incomplete, or a needed package is not installed. MeasuringFailed if rank 0
    does not appear within ``limit_s``.
    """
    if HANDED in env:
        return RankAddress(**json.loads(env[HANDED]))
    if "TORCHELASTIC_RUN_ID" in env or {"RANK", "WORLD_SIZE"} <= env.keys():
        return _torchrun(env, limit_s)
    by_slurm = "SLURM_PROCID" in env and _number(env, "SLURM_NTASKS", "srun") > 1
    if by_slurm:
        return _mpi("srun", _number(env, "SLURM_NTASKS", "srun"))
    return _mpi("mpirun") if {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"} & env.keys() else ALONE


def _torchrun(env: Mapping[str, str], limit_s: float) -> RankAddress:
    rank, world, local_rank = (_number(env, name, "torchrun") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    _number(env, "MASTER_PORT", "torchrun")
    if "MASTER_ADDR" not in env:
        raise BadInput("torchrun's MASTER_ADDR is not set: set it to the name or address of rank 0's node")
    here = RankAddress(rank, world, local_rank, "torchrun", env["MASTER_ADDR"])
    if world == 1:
        return here
    try:
        from torch.distributed.rendezvous import rendezvous
    except ImportError:
        raise BadInput(
            "RANK and WORLD_SIZE are set, as torchrun does, but torch is missing: pip install torch, or use mpirun"
        ) from None
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=limit_s)))
        _STORES.append(store)
        if rank == 0:
            store.set(_KEY, json.dumps(_listening(here.host)))
        host, port, secret = json.loads(store.get(_KEY))
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError are RuntimeErrors
        reason = str(error).splitlines()[0]
        raise MeasuringFailed(
            f"rank {rank}: torchrun's store at {here.host} says nothing of rank 0: {reason}"
        ) from None
    return replace(here, host=host, port=port, secret=secret)


def _mpi(launcher: str, tasks: int | None = None) -> RankAddress:
    """Asks MPI where rank 0 is; under srun through PMIx or PMI-2, whichever the installed MPI supports."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise BadInput(
            f"the job was started by {launcher}, but mpi4py is missing: pip install mpi4py, or use torchrun"
        ) from None
    world = MPI.COMM_WORLD
    if tasks is not None and world.Get_size() != tasks:
        raise BadInput(
            f"srun started {tasks} tasks, but MPI sees {world.Get_size()}: this MPI does not know the PMI that srun "
            "speaks: use srun --mpi=pmix or --mpi=pmi2, which 'srun --mpi=list' shows, or torchrun"
        )
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    host, port, secret = world.bcast(_listening(socket.gethostname()) if world.Get_rank() == 0 else None, root=0)
    return RankAddress(world.Get_rank(), world.Get_size(), here.Get_rank(), launcher, host, port, secret)


def _listening(host: str) -> tuple[str, int, str]:
    """Host and port at which rank 0's processes will listen, one after the other, and a secret."""
    with socket.socket() as free:
        free.bind(("", 0))
        return host, int(free.getsockname()[1]), secrets.token_hex(32)


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    value = env.get(name, "")
    if not value.isdecimal():
        raise BadInput(f"{launcher}'s {name} is {value!r}, not a number")
    return int(value)


@dataclass()
class Rendezvous:
    """The connections between processes: rank 0 has one to every other rank, the others have one to rank 0. A single
    process has no connection.
    """

    place: RankAddress
    limit_s: float = 60.0
    _peers: dict[int, "Connection[Any, Any]"] = field(default_factory=dict)
    _pending: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def meet(cls, place: RankAddress, limit_s: float = 60.0) -> Self:
        """Connects to the other ranks. MeasuringFailed names the ranks that did not connect within ``limit_s``."""
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
        came: queue.Queue[tuple[int, Connection[Any, Any]]] = queue.Queue()
        with _server(self.place) as server:
            threading.Thread(target=self._accept, args=(server, came), daemon=True).start()
            while len(self._peers) < self.place.world - 1:
                try:
                    rank, peer = came.get(timeout=max(deadline_s - time.monotonic(), 1e-3))
                except queue.Empty:
                    missing = sorted(set(range(1, self.place.world)) - self._peers.keys())
                    raise MeasuringFailed(
                        f"{len(missing)} of {self.place.world} ranks did not come to {self.place.host} within "
                        f"{self.limit_s:g} s: {', '.join(map(str, missing[:8]))}; "
                        f"valid: all of them running this command"
                    ) from None
                self._peers[rank] = peer
        for peer in self._peers.values():
            with suppress(OSError):  # a caller that is gone again is noticed later, by whoever waits for it
                peer.send_bytes(b"welcome")

    def _accept(self, server: socket.socket, came: "queue.Queue[tuple[int, Connection[Any, Any]]]") -> None:
        """Accepts callers until the server is closed; each has its own thread, because a caller may stay silent."""
        with suppress(OSError):
            while True:
                caller, _ = server.accept()
                threading.Thread(target=self._greet, args=(caller, came), daemon=True).start()

    def _greet(self, caller: socket.socket, came: "queue.Queue[tuple[int, Connection[Any, Any]]]") -> None:
        peer: Connection[Any, Any] = Connection(caller.detach())
        try:
            deliver_challenge(peer, self.place.secret.encode())
            answer_challenge(peer, self.place.secret.encode())
            rank = int(peer.recv_bytes(16))
            if not 0 < rank < self.place.world:
                raise ValueError("not a rank of this run")
        except (OSError, ValueError, EOFError, AuthenticationError):
            peer.close()
            return
        came.put((rank, peer))

    def _call(self, deadline_s: float) -> None:
        while (left_s := deadline_s - time.monotonic()) > 0:
            came: queue.Queue[Connection[Any, Any]] = queue.Queue()
            threading.Thread(target=self._ask, args=(came,), daemon=True).start()
            with suppress(queue.Empty):
                peer = came.get(timeout=min(left_s, _PATIENCE_S))
                # The welcome is sent when all have come; an earlier process of rank 0 may be the one that closes.
                with suppress(OSError, EOFError):
                    if peer.poll(max(deadline_s - time.monotonic(), 1e-3)) and peer.recv_bytes() == b"welcome":
                        self._peers[0] = peer
                        return
                peer.close()
            time.sleep(0.1)
        raise MeasuringFailed(
            f"rank {self.place.rank}: no rank 0 at {self.place.host}, port {self.place.port}, within "
            f"{self.limit_s:g} s; valid: one that {self.place.launcher} started, reachable from here"
        )

    def _ask(self, came: "queue.Queue[Connection[Any, Any]]") -> None:
        with suppress(OSError, ValueError, EOFError, AuthenticationError):
            caller = socket.create_connection((self.place.host, self.place.port), timeout=_PATIENCE_S)
            caller.settimeout(None)
            peer: Connection[Any, Any] = Connection(caller.detach())
            answer_challenge(peer, self.place.secret.encode())
            deliver_challenge(peer, self.place.secret.encode())
            peer.send_bytes(str(self.place.rank).encode())
            came.put(peer)

    def share(self, message: Any = None) -> Any:
        """Broadcasts rank 0's message to every rank; returns it."""
        if self.place.rank != 0:
            return self._receive(0, None)
        for rank in self._peers:
            self._send(rank, message)
        return message

    def gather(self, message: Any, limit_s: float | None = None) -> list[Any]:
        """On rank 0, the messages of all ranks in the order of ranks; on other ranks, an empty list."""
        if self.place.rank != 0:
            self._send(0, message)
            return []
        limit_s = self.limit_s if limit_s is None else limit_s
        return [message, *(self._receive(rank, limit_s) for rank in sorted(self._peers))]

    def check(self) -> None:
        """Raises MeasuringFailed if another process is gone, or reports a failure while this process still waits for
        its GPU.
        """
        for rank, peer in self._peers.items():
            if rank in self._pending:
                continue
            try:
                if not peer.poll():
                    continue
                said = self._pending[rank] = json.loads(peer.recv_bytes())
            except (OSError, EOFError):
                raise self._gone(rank) from None
            if isinstance(said, dict) and "error" in said:
                raise MeasuringFailed(said["error"])

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._peers[rank].send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._gone(rank) from None

    def _receive(self, rank: int, limit_s: float | None) -> Any:
        if rank in self._pending:
            return self._pending.pop(rank)
        try:
            if not self._peers[rank].poll(limit_s):
                raise MeasuringFailed(f"rank {rank} did not answer within {limit_s:g} s")
            return json.loads(self._peers[rank].recv_bytes())
        except (OSError, EOFError):
            raise self._gone(rank) from None

    def _gone(self, rank: int) -> MeasuringFailed:
        return MeasuringFailed(
            f"rank {rank} is gone: it ended or its node did; its own last lines say why, and what was measured is kept"
        )

    def close(self) -> None:
        """Disconnects from the other processes."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


def _server(place: RankAddress) -> socket.socket:
    """A listening server socket. BadInput if another program has taken the port in the meantime."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", place.port), family=family, backlog=place.world, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        raise BadInput(f"port {place.port} of {os.uname().nodename} was taken meanwhile: {error.strerror}") from None
