"""One rank of a training job, a program. It makes the calls that its script names, one a line, and imports little, as a
job has many:

    allreduce ELEMENTS [STREAM]   on the world's communicator, or on the last one that was made
    group N ELEMENTS              N of them in one group
    simulate ELEMENTS             a group that NCCL only estimates
    broadcast ELEMENTS [TIMES]
    roots ELEMENTS                a broadcast of each rank, in one group
    capture ELEMENTS [TIMES] [BROADCASTS]   inside a CUDA graph, with so many broadcasts before
    replay [TIMES] [GRAPH]        the last graph is launched, or the one of that number
    selfsend ELEMENTS             this rank sends to itself
    split COLOUR_OF_RANK_MODULO   a communicator of some ranks, which calls are of from here on
    world                         calls are of all ranks again
    shrink RANK [FLAGS]           a communicator of all but one rank, for calls of the others from here on
    grow                          the last one again with the rank that was left out
    nonblocking                   communicators that are made from here on do not block, nor do calls on them
    revoke                        the communicator's work is stopped, and another one can be made of it
    failing ELEMENTS [RANK]       CUDA refuses that rank to launch this call: it sees the error, all others none
    abort                         this rank aborts its communicator, and makes calls of all ranks again
    again [MODULO]                another communicator, of all ranks or of those alike by it, for calls from here on
    sleep SECONDS
    unset VARIABLE                of the environment
    limit BYTES                   no file may grow beyond, and the signal for one that would is not ignored
    kill RANK                     this rank dies
    leave                         all end without ending their communicators

No rank goes past a call before all ranks of its communicator have launched it: simulated kernels end without them.
"""

import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Sequence
from ctypes import CDLL, Structure, byref, c_char, c_float, c_int, c_size_t, c_uint, c_void_p, memmove
from mmap import mmap
from pathlib import Path
from typing import Any

FLOAT32, SUM = 7, 0
IN_PROGRESS = 7
MOST_WAITED_S = 30.0  # for the other ranks of a call


class _Id(Structure):
    _fields_ = (("bytes", c_char * 128),)


class _Config(Structure):
    """The beginning of ncclSimInfo_t."""

    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("time", c_float))


class _CommConfig(Structure):
    """ncclConfig_t as NCCL 2.14 has it, which all later ones take."""

    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int))


def _check(result: int) -> None:
    if result:
        sys.exit(f"result {result}")


class _Calls:
    """Numbers of calls that the ranks of a communicator have launched, in a file that they share."""

    def __init__(self, file: Path, ranks: int, members: Sequence[int]) -> None:
        with file.open("a+b") as opened:
            opened.truncate(8 * ranks)
            self.numbers = mmap(opened.fileno(), 8 * ranks)
        self.members = members

    def number(self, rank: int) -> int:
        return int(struct.unpack_from("Q", self.numbers, 8 * rank)[0])

    def launched(self, rank: int, count: int) -> None:
        """Returns when all have launched as many."""
        own = self.number(rank) + count
        struct.pack_into("Q", self.numbers, 8 * rank, own)
        until = time.monotonic() + MOST_WAITED_S
        while any(self.number(each) < own for each in self.members):
            time.sleep(0.0002)
            if time.monotonic() > until:
                sys.exit("a rank does not come")


class _Rank:
    def __init__(self, rank: int, ranks: int, per_node: int, meeting: Path) -> None:
        self.here, self.rank, self.ranks, self.meeting = CDLL(None), rank, ranks, meeting
        self.graphs: list[c_void_p] = []
        self.world, self.buffer, self.stream = c_void_p(), c_void_p(), c_void_p()
        self.made: dict[int, int] = {}
        self.blocking, self.left_out = True, -1
        self.made_of: dict[str, int] = {}
        _check(self.here.cudaSetDevice(rank % per_node))
        _check(self.here.cudaMalloc(byref(self.buffer), c_size_t(1 << 30)))
        _check(self.here.cudaStreamCreate(byref(self.stream)))
        self.do_again()

    def do_again(self, modulo: int = 1) -> None:
        """A communicator by an id of its own; the first one of all ranks is made by this, too."""
        colour, number = self.rank % modulo, self.made.get(modulo, 0)
        self.made[modulo] = number + 1
        identity, file = _Id(), self.meeting / f"id{modulo}.{colour}.{number}"
        members = range(colour, self.ranks, modulo)
        if self.rank == colour:
            _check(self.here.ncclGetUniqueId(byref(identity)))
            (self.meeting / f"begun{self.rank}").write_bytes(bytes(identity))
            (self.meeting / f"begun{self.rank}").rename(file)
        while not file.exists():
            time.sleep(0.01)
        memmove(byref(identity), file.read_bytes(), 128)
        self.comm, own = c_void_p(), self.rank // modulo
        if self.blocking:
            _check(self.here.ncclCommInitRank(byref(self.comm), len(members), identity, own))
        else:
            config = _CommConfig(24, 0xCAFEBEEF, 21400, 0)
            result = self.here.ncclCommInitRankConfig(byref(self.comm), len(members), identity, own, byref(config))
            self.done(result, self.comm)
        self.calls = _Calls(self.meeting / f"calls-{file.name}", self.ranks, members)
        if modulo == 1:
            self.world, self.calls_of_world = self.comm, self.calls

    def settled(self, result: int, comm: c_void_p) -> int:
        """Result of what was begun on a communicator, when it is over."""
        error = c_int(result)
        while error.value == IN_PROGRESS:
            time.sleep(0.0002)
            _check(self.here.ncclCommGetAsyncError(comm, byref(error)))
        return error.value

    def done(self, result: int, comm: c_void_p) -> None:
        _check(self.settled(result, comm))

    def made_from(self, parent: c_void_p, result: int, made: c_void_p) -> None:
        """The communicator that was made of another one is that of calls from here on."""
        self.done(result, parent)
        while not made.value:  # it is written last, where nothing blocks
            time.sleep(0.001)
        self.done(IN_PROGRESS, made)
        self.comm = made

    def launch(self, elements: int) -> int:
        return int(
            self.here.ncclAllReduce(self.buffer, self.buffer, c_size_t(elements), FLOAT32, SUM, self.comm, self.stream)
        )

    def call(self, elements: int) -> None:
        self.done(self.launch(elements), self.comm)

    def of_members(self, name: str, members: Sequence[int]) -> None:
        """Calls of these ranks are counted from here on."""
        self.made_of[name] = self.made_of.get(name, 0) + 1
        self.calls = _Calls(self.meeting / f"calls-{name}.{self.made_of[name]}", self.ranks, members)

    def do(self, line: str) -> None:
        word, *numbers = line.split()
        values: list[Any] = [float(each) if "." in each else int(each) for each in numbers if word != "unset"]
        getattr(self, f"do_{word}")(*values or numbers)

    def do_allreduce(self, elements: int, times: int = 1) -> None:
        for _ in range(times):
            self.call(elements)
            self.calls.launched(self.rank, 1)
            time.sleep(0.001)  # a kernel's counters hold 64 calls, and NCCL's thread has to see each

    def do_group(self, count: int, elements: int) -> None:
        _check(self.here.ncclGroupStart())
        for _ in range(count):
            if (result := self.launch(elements)) != IN_PROGRESS:
                _check(result)
        self.done(self.here.ncclGroupEnd(), self.comm)
        self.calls.launched(self.rank, count)

    def do_simulate(self, elements: int) -> None:
        info = _Config(24, 0x74685283, 22200, 0.0)
        _check(self.here.ncclGroupStart())
        self.call(elements)
        _check(self.here.ncclGroupSimulateEnd(byref(info)))

    def broadcast(self, elements: int, root: int = 0) -> None:
        arguments = self.buffer, self.buffer, c_size_t(elements), FLOAT32, root, self.comm, self.stream
        self.done(self.here.ncclBroadcast(*arguments), self.comm)

    def do_roots(self, elements: int) -> None:
        _check(self.here.ncclGroupStart())
        for root in range(self.ranks):
            self.broadcast(elements, root)
        _check(self.here.ncclGroupEnd())
        self.calls.launched(self.rank, 1)

    def do_broadcast(self, elements: int, times: int = 1) -> None:
        for _ in range(times):
            self.broadcast(elements)
            self.calls.launched(self.rank, 1)
            time.sleep(0.001)

    def do_capture(self, elements: int, times: int = 1, broadcasts: int = 0) -> None:
        graph = c_void_p()
        _check(self.here.cudaStreamBeginCapture(self.stream, 0))
        for _ in range(broadcasts):
            self.broadcast(elements)
        for _ in range(times):
            self.call(elements)
        _check(self.here.cudaStreamEndCapture(self.stream, byref(graph)))
        self.graphs.append(graph)

    def do_replay(self, times: int = 1, graph: int = -1) -> None:
        for _ in range(times):
            self.here.sim_graph_launch(self.graphs[graph])
            self.calls.launched(self.rank, 1)
            time.sleep(0.002)

    def do_selfsend(self, elements: int) -> None:
        arguments = c_size_t(elements), FLOAT32, self.rank, self.comm, self.stream
        _check(self.here.ncclGroupStart())
        _check(self.here.ncclSend(self.buffer, *arguments))
        _check(self.here.ncclRecv(c_void_p((self.buffer.value or 0) + (1 << 20)), *arguments))
        _check(self.here.ncclGroupEnd())

    def do_split(self, modulo: int) -> None:
        made, colour = c_void_p(), self.rank % modulo
        result = self.here.ncclCommSplit(self.world, c_int(colour), self.rank, byref(made), None)
        self.made_from(self.world, result, made)
        self.of_members(f"split{modulo}.{colour}", range(colour, self.ranks, modulo))

    def do_shrink(self, without: int, flags: int = 0) -> None:
        self.left_out = without
        if self.rank == without:
            return
        made, left_out = c_void_p(), (c_int * 1)(without)
        result = self.here.ncclCommShrink(self.world, left_out, 1, byref(made), None, c_int(flags))
        self.made_from(self.world, result, made)
        self.of_members("shrunk", [each for each in range(self.ranks) if each != without])

    def do_grow(self) -> None:
        identity, made = _Id(), c_void_p()
        file, is_new, root = self.meeting / "grown", self.rank == self.left_out, int(self.left_out == 0)
        if self.rank == root:
            _check(self.here.ncclCommGetUniqueId(self.comm, byref(identity)))
            (self.meeting / "growing").write_bytes(bytes(identity))
            (self.meeting / "growing").rename(file)
        while is_new and not file.exists():
            time.sleep(0.01)
        if is_new:
            memmove(byref(identity), file.read_bytes(), 128)
        given = byref(identity) if is_new or self.rank == root else None
        old, number = (None, self.ranks - 1) if is_new else (self.comm, -1)
        result = self.here.ncclCommGrow(old, self.ranks, given, number, byref(made), None)
        self.made_from(made if is_new else self.comm, result, made)
        self.of_members("grown", range(self.ranks))

    def do_nonblocking(self) -> None:
        self.blocking = False

    def do_revoke(self) -> None:
        self.done(self.here.ncclCommRevoke(self.comm, 0), self.comm)

    def do_failing(self, elements: int, rank: int = 1) -> None:
        if self.rank == rank:
            self.here.sim_plant_launch_error(2, 0)
        result = self.settled(self.launch(elements), self.comm)
        if self.rank == rank:
            self.here.sim_plant_launch_error(0, 0)
        if (result != 0) != (self.rank == rank):
            sys.exit(f"result {result} of a call that fails on rank {rank}")

    def do_world(self) -> None:
        self.comm, self.calls = self.world, self.calls_of_world

    def do_abort(self) -> None:
        _check(self.here.ncclCommAbort(self.comm))
        self.do_world()

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_unset(self, variable: str) -> None:
        del os.environ[variable]

    def do_limit(self, size: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    def do_leave(self) -> None:
        sys.stdout.flush()
        os._exit(0)

    def do_kill(self, rank: int) -> None:
        if rank == self.rank:
            os.kill(os.getpid(), 9)


def _main(ranks: str, per_node: str, meeting: str, *script: str) -> None:
    rank = _Rank(int(os.environ["RANK"]), int(ranks), int(per_node), Path(meeting))
    for line in script:
        rank.do(line)
    time.sleep(0.3)  # kernels end, and NCCL sees it
    for graph in rank.graphs:
        _check(rank.here.cudaGraphDestroy(graph))
    if rank.world:
        _check(rank.here.ncclCommDestroy(rank.world))
    CDLL(None).fflush(None)  # what NCCL has logged: "done" would stand inside its last line
    print("done")


if __name__ == "__main__":
    _main(*sys.argv[1:])
