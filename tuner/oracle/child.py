"""The process that holds the real libnccl: one communicator, driven by requests from the parent.

Run as a file with the number of a connected socket: ``python child.py <fd>``. It imports nothing of this project, so
that it starts fast. Messages are lines of JSON; the first request describes the machine and the library.
"""

import base64
import itertools
import json
import os
import queue
import struct
import sys
import threading
from typing import Any

import cffi

DECLARATIONS = """
struct sim_gpu { char bus_id[16]; int compute_capability; char nvlinks[18][16]; int peer_group; };
struct sim_net {
  char name[64]; uint64_t guid; int speed_mbps; int port; int max_comms; int gdr; float latency_us;
  char pci_path[4096];
};
struct sim_host {
  int gpus_per_host; int nets_per_host; int multicast; int coll_nets; char sysfs[4096]; struct sim_gpu gpus[64];
  struct sim_net nets[64]; char topology[4096];
};
struct sim_machine {
  int hosts; int kinds; int driver_version; char net_name[64];
  int kind_of_host[4096]; struct sim_host kind[16];
};
struct sim_redirect { const char *name; void *replacement; };
struct sim_kernel { const void *function; uint32_t grid_x; uint32_t block_x; int device; };
struct sim_question {
  uint64_t bytes; int collective; int pipe_ops; int algorithms; int protocols; int registered; int channels;
  float before_us[64]; float after_us[64];
};
struct sim_api {
  void *unique_id; void *comm_init_rank; void *group_start; void *group_end; void *simulate_end;
  void *broadcast; void *reduce; void *all_gather; void *reduce_scatter; void *all_reduce;
  void *comm_register; void *window_register;
};
struct sim_operation { uint64_t number; uint64_t channels; int pattern; int protocol; int type; };
struct sim_operation_layout { int number; int channel; int pattern; int protocol; int type; int profiler; };
struct sim_call { int collective; int type; int op; uint64_t count; };
struct sim_record {
  int kernels; int questions; int operations;
  struct sim_operation operation; struct sim_kernel kernel; struct sim_question question;
};
struct sim_answer { int result; float simulated_us; uint64_t log_bytes; struct sim_record record; };

uint64_t sim_machine_bytes(void);
int sim_configure(const struct sim_machine *machine);
const struct sim_redirect *sim_redirects(int table);
int sim_jump_bytes(void);
int sim_redirect(void *function, void *replacement);
const char *sim_wrap_tuner(const char *path);
int sim_wrapped_version(void);
int sim_is_recorder(const char *const *tuner);
void sim_watch_operations(const struct sim_operation_layout *known);
int sim_watch_file(void *function);
void sim_watch_work(const uint32_t *comm_sent, uint32_t *comm_acknowledged);
int sim_share_search(void *function, uint64_t bytes, uint64_t gpus);
int sim_watch_graphs(void *function, void *copies, uint64_t bytes, int n);
int sim_watch_times(void *function, int algorithms, int protocols, int backups);
uint64_t sim_buffer_bytes(int kind);
int sim_use_buffers(const struct sim_api *api, void **comms, int ranks, int kind);
int sim_init_ranks(const struct sim_api *api, int ranks, void **comms, int *results);
int sim_ask(const struct sim_api *api, void *comm, int device, int collective, int type, int op, int simulated,
            int captured, int log_file, const uint64_t *counts, int n, struct sim_answer *answers);
int sim_ask_group(const struct sim_api *api, void *comm, int device, int log_file, const struct sim_call *calls, int n,
                  struct sim_answer *answer);
const struct sim_kernel *sim_kernels(void);
const struct sim_operation *sim_operations(void);
const struct sim_question *sim_questions(void);

struct nccl_tuner_seen {
  uint64_t calls; uint64_t decided; uint64_t costed; uint64_t unavailable; uint64_t bytes; int32_t collective;
  float costs_us[21];
};
const char *nccl_tuner_use_table(const char *text, size_t bytes);
void nccl_tuner_see(struct nccl_tuner_seen *seen);

int ncclGetVersion(int *version);
const char *ncclGetErrorString(int result);
"""

# Order of struct sim_api; None where a release may lack it.
ENTRY_POINTS = {
    "unique_id": "ncclGetUniqueId",
    "comm_init_rank": "ncclCommInitRank",
    "group_start": "ncclGroupStart",
    "group_end": "ncclGroupEnd",
    "simulate_end": "ncclGroupSimulateEnd",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_reduce": "ncclAllReduce",
    "comm_register": "ncclCommRegister",
    "window_register": "ncclCommWindowRegister",
}

PLAIN = 0  # of csrc/sim/world.c
SCALARS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "pointer": "Q",
}

P2P_WRITE, DIRECT_NIC = 0x01, 0x04  # flags of a connection: src/include/device.h, v2.24.3-1


def encoded(value: Any) -> Any:
    """Text as the bytes a char array is made from."""
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    return value.encode() if isinstance(value, str) else value


class Failure(Exception):
    """What the parent is told instead of an answer."""


class World:
    """The loaded library and the communicators of all ranks."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS + "".join(f"void {name}(void);" for name in ENTRY_POINTS.values()))
        self.request = request
        self.sim = self.ffi.dlopen(request["sim"])
        self.configure(request["machine"])
        self.nccl = self.ffi.dlopen(request["library"])
        self.base = self.locate(*request["anchor"])
        self.redirect(request["functions"])
        self.wrap(request["wrap"])
        self.watch(request["watch"])
        self.log_file = os.open(request["log"], os.O_RDONLY | os.O_CREAT)
        self.api = self.entry_points()
        self.load_tuner(request["functions"].get("ncclLoadTunerPlugin", ()))
        self.comms = self.init(request["ranks"])
        self.watch_work(request["comm"]["members"])

    def configure(self, machine: dict[str, Any]) -> None:
        """Makes the machine that libnccl will see."""
        described = self.ffi.new("struct sim_machine *", encoded(machine))
        if self.sim.sim_machine_bytes() != self.ffi.sizeof("struct sim_machine"):
            raise Failure(f"{self.request['sim']} is of another build than this program; reinstall nccl-tuner")
        if self.sim.sim_configure(described) != 0:
            raise Failure("the machine has more GPUs or network devices per node than can be simulated")

    def address(self, name: str) -> Any:
        """An exported function of libnccl, NULL where the release has none."""
        try:
            return self.ffi.cast("void *", getattr(self.nccl, name))
        except AttributeError:
            return self.ffi.NULL

    def locate(self, name: str, offset: int) -> int:
        """Where libnccl begins in memory, by the address and the offset of one of its functions."""
        return int(self.ffi.cast("uintptr_t", self.address(name))) - offset

    def redirect(self, functions: dict[str, list[list[int]]]) -> None:
        """Lets functions of libnccl jump to the simulated ones."""
        tables = itertools.takewhile(lambda row: row != self.ffi.NULL, map(self.sim.sim_redirects, itertools.count()))
        for row in tables:
            while row.name != self.ffi.NULL:
                name = self.ffi.string(row.name).decode()
                for offset, size in functions.get(name, ()):
                    if size < self.sim.sim_jump_bytes():
                        raise Failure(f"{name} is {size} bytes long, too short to redirect")
                    function = self.ffi.cast("void *", self.base + offset)
                    if error := self.sim.sim_redirect(function, row.replacement):
                        raise Failure(f"cannot redirect {name}: {os.strerror(error)}")
                row += 1

    def wrap(self, plugin: str | None) -> None:
        """Loads a tuner plugin behind the one that writes down what it is asked."""
        if plugin is None:
            return
        error = self.sim.sim_wrap_tuner(plugin.encode())
        if error != self.ffi.NULL:
            raise Failure(f"cannot load tuner plugin {plugin}: {self.ffi.string(error).decode()}")

    def watch(self, watch: dict[str, Any]) -> None:
        """Looks over NCCL's shoulder where a release does not say what is asked for."""
        self.sim.sim_watch_operations(self.ffi.new("struct sim_operation_layout *", watch["operations"]))
        if (offset := watch["file"]) is not None:
            file = self.ffi.cast("void *", self.base + offset)
            if error := self.sim.sim_watch_file(file):
                raise Failure(f"cannot watch the topology file: {os.strerror(error)}")
        search = watch["search"]
        function = self.ffi.cast("void *", self.base + search["function"])
        self.sim.sim_share_search(function, self.request["graph"]["bytes"], search["gpus"])
        self.graphs = None
        if (graphs := watch["graphs"]) is not None:
            size, count = self.request["graph"]["bytes"], graphs["count"]
            self.graphs = self.ffi.new("char[]", size * count)
            function = self.ffi.cast("void *", self.base + graphs["function"])
            if error := self.sim.sim_watch_graphs(function, self.graphs, size, count):
                raise Failure(f"cannot watch the graphs: {os.strerror(error)}")
        if (times := watch["times"]) is not None:
            function = self.ffi.cast("void *", self.base + times["function"])
            if error := self.sim.sim_watch_times(function, *times["shape"], times["backups"]):
                raise Failure(f"cannot watch the times: {os.strerror(error)}")

    def load_tuner(self, functions: list[list[int]]) -> None:
        """2.19 and 2.20: a rank that comes while another is loading the plugin goes without; so it is loaded before.

        The threads of one process race for it there (src/misc/tuner.cc, v2.19.3-1), later releases lock.
        """
        for offset, _ in functions:
            self.ffi.cast("int (*)(void **)", self.base + offset)(self.ffi.new("void **"))

    def entry_points(self) -> Any:
        """The addresses of libnccl's functions that are called."""
        api = self.ffi.new("struct sim_api *")
        for field, name in ENTRY_POINTS.items():
            setattr(api, field, self.address(name))
        return api

    def init(self, ranks: int) -> list[int]:
        """Addresses of the communicators of all ranks, one a thread."""
        comms = self.ffi.new("void *[]", ranks)
        results = self.ffi.new("int[]", ranks)
        if self.sim.sim_init_ranks(self.api, ranks, comms, results) != 0:
            raise Failure(f"no threads for {ranks} ranks")
        for rank, result in enumerate(results):
            if result != 0:
                raise Failure(f"ncclCommInitRank of rank {rank} returned {result} ({self.error(result)})")
        return [int(self.ffi.cast("uintptr_t", comm)) for comm in comms]

    def error(self, result: int) -> str:
        """NCCL's words for a result."""
        return str(self.ffi.string(self.nccl.ncclGetErrorString(result)).decode())

    def watch_work(self, members: dict[str, Any]) -> None:
        """Where rank 0 counts the work it sent to kernels and what they took; later releases do not wait for them."""
        sent, taken = members.get("workFifoSent"), members.get("workFifoAckdMin")
        if sent is not None and taken is not None:
            at = (self.ffi.cast("uint32_t *", self.comms[0] + each["offset"]) for each in (sent, taken))
            self.sim.sim_watch_work(*at)

    # --- requests ---

    def started(self, _: dict[str, Any]) -> dict[str, Any]:
        """What the parent has to know before it asks: versions, sizes and addresses."""
        version = self.ffi.new("int *")
        self.nccl.ncclGetVersion(version)
        comm = self.request["comm"]
        return {
            "version": version[0],
            "base": self.base,
            "answer_bytes": self.ffi.sizeof("struct sim_answer"),
            "buffer_bytes": [self.sim.sim_buffer_bytes(kind) for kind in self.request["buffers"]],
            "comm": self.members(self.comms[0], comm["members"]),
            "last_comm": self.members(self.comms[-1], comm["members"]),
            "graphs": self.found_graphs(),
            "plugin_used": self.plugin_used(),
        }

    def plugin_used(self) -> bool:
        """Whether NCCL asks the given plugin. Instead of one that it does not take it loads the network's: ours."""
        if self.request["wrap"] is not None:
            return bool(self.sim.sim_wrapped_version())
        entry = self.request["comm"]["members"].get("tuner")
        tuner = self.ffi.NULL if entry is None else self.ffi.cast("char **", self.member(self.comms[0], entry))
        return tuner != self.ffi.NULL and not self.sim.sim_is_recorder(tuner)

    def found_graphs(self) -> list[dict[str, Any]]:
        """By algorithm; an algorithm that borrows another's graph may have an empty one of its own."""
        comm, graph = self.request["comm"], self.request["graph"]
        if self.graphs is not None:
            start, count = int(self.ffi.cast("uintptr_t", self.graphs)), len(self.graphs) // graph["bytes"]
        else:
            offset, (count,) = comm["arrays"]["graphs"]
            start = self.comms[0] + offset
        return [self.members(start + i * graph["bytes"], graph["members"]) for i in range(count)]

    def members(self, start: int, members: dict[str, Any]) -> dict[str, Any]:
        """Members of a structure by their path."""
        return {path: self.member(start, entry) for path, entry in members.items()}

    def member(self, start: int, entry: dict[str, Any]) -> Any:
        """A member of a structure: a number, or a list of them."""
        count = 1
        for size in entry["dims"]:
            count *= size
        code = "=" + str(count) + SCALARS[entry["type"]]
        memory = self.ffi.buffer(self.ffi.cast("char *", start + entry["offset"]), struct.calcsize(code))
        values = struct.unpack(code, memory)
        return list(values) if entry["dims"] else values[0]

    def use_buffers(self, kind: int) -> None:
        """Lets the next calls have buffers of one kind."""
        if kind:
            self.connect_ring()
        comms = self.ffi.new("void *[]", [self.ffi.cast("void *", comm) for comm in self.comms])
        if (registered := self.sim.sim_use_buffers(self.api, comms, len(self.comms), kind)) > 0:
            raise Failure(f"registering the buffers returned {registered} ({self.error(registered)})")

    def connect_ring(self) -> None:
        """Marks rank 0's connections on every ring as the transports would: by peers' memory, or by GPUDirect RDMA."""
        machine = self.request["machine"]
        host = machine["kind"][machine["kind_of_host"][0]]
        at, local = self.request["ring"], host["gpus_per_host"]
        direct = []
        n_channels = self.member(self.comms[0], self.request["comm"]["members"]["nChannels"])
        for number in range(n_channels):
            channel = self.comms[0] + at["channels"] + number * at["channel_bytes"]
            for neighbour, end, reads in (("next", "send", True), ("prev", "receive", False)):
                rank = self.ffi.cast("int *", channel + at[neighbour])[0]
                peer = self.ffi.cast("uintptr_t *", channel + at["peers"])[0] + rank * self.ffi.sizeof("void *")
                connector = self.ffi.cast("uintptr_t *", peer)[0] + at[end]
                flags = self.ffi.cast("int *", connector + at["flags"])
                if rank < local:
                    flags[0] |= P2P_WRITE
                elif at["adapters"] is not None:
                    direct.append(self.gpu_direct(at["adapters"], number, rank, reads))
                    flags[0] |= DIRECT_NIC if direct[-1] else 0
        if at["adapters"] is not None:
            self.ffi.cast("bool *", self.comms[0] + at["adapters"]["use_gdr"])[0] = all(direct)

    def gpu_direct(self, at: dict[str, int], channel: int, peer: int, reads: bool) -> bool:
        """What NCCL itself says of the adapter that rank 0 meets ``peer`` by, asked as by src/transport/net.cc."""
        comm, graph = self.comms[0], self.comms[0] + at["graph"]
        adapter, device, proxy, mode = (self.ffi.new(kind) for kind in ("int64_t *", "int *", "int *", "int *"))
        adapter_of = self.ffi.cast(
            "int (*)(uintptr_t, int, uintptr_t, int, int, int64_t *, int *, int *)", self.base + at["adapter_of"]
        )
        check = self.ffi.cast("int (*)(uintptr_t, int, int64_t, int, int *)", self.base + at["check"])
        topology = self.ffi.cast("uintptr_t *", comm + at["topology"])[0]
        result = adapter_of(comm, 0, graph, channel, peer, adapter, device, proxy)
        result = result or check(topology, 0, adapter[0], int(reads), mode)
        if result != 0:
            raise Failure(f"asking for the adapter of channel {channel} returned {result} ({self.error(result)})")
        return bool(mode[0])

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message of the parent."""
        if "forcing" in request:
            return self.force(request)
        return self.ask_group(request) if "calls" in request else self.ask(request)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What libnccl does with single calls, one for each count."""
        counts = self.ffi.new("uint64_t[]", request["counts"])
        answers = self.ffi.new("struct sim_answer[]", len(counts))
        log_start = os.fstat(self.log_file).st_size
        comm, device = self.ffi.cast("void *", self.comms[0]), 0
        kind = (request["collective"], request["type"], request["op"])
        self.use_buffers(request["buffers"])
        how = (int(request["simulated"]), int(request["captured"]))
        n = self.sim.sim_ask(self.api, comm, device, *kind, *how, self.log_file, counts, len(counts), answers)
        if n < 1:
            raise Failure("no address space for the buffers of the collective")
        failed = answers[n - 1].result
        return {
            "log_start": log_start,
            "answers": self.encoded_bytes(answers),
            "done": n - (failed != 0),
            "error": f"NCCL returned {failed} ({self.error(failed)})" if failed else None,
        }

    def ask_group(self, request: dict[str, Any]) -> dict[str, Any]:
        """What libnccl does with the calls of one group."""
        self.use_buffers(PLAIN)  # an earlier call may have had others
        calls = self.ffi.new("struct sim_call[]", request["calls"])
        answer = self.ffi.new("struct sim_answer *")
        log_start = os.fstat(self.log_file).st_size
        comm, device = self.ffi.cast("void *", self.comms[0]), 0
        if self.sim.sim_ask_group(self.api, comm, device, self.log_file, calls, len(calls), answer) != 0:
            raise Failure("no address space for the buffers of the collectives")
        record, failed = answer.record, answer.result
        return {
            "log_start": log_start,
            "log_bytes": answer.log_bytes,
            "kernels": self.encoded_bytes(self.sim.sim_kernels(), record.kernels),
            "operations": self.encoded_bytes(self.sim.sim_operations(), record.operations),
            "questions": self.encoded_bytes(self.sim.sim_questions(), record.questions),
            "error": f"NCCL returned {failed} ({self.error(failed)})" if failed else None,
        }

    def force(self, request: dict[str, Any]) -> dict[str, Any]:
        """Hands the forcing plugin, which NCCL has loaded, another table where there is one; what it has seen."""
        plugin = self.ffi.dlopen(request["forcing"])
        if "table" in request:
            table = None if request["table"] is None else request["table"].encode()
            wrong = plugin.nccl_tuner_use_table(self.ffi.NULL if table is None else table, len(table or b""))
            if wrong != self.ffi.NULL:
                raise Failure(f"table: {self.ffi.string(wrong).decode(errors='replace')}")
        seen = self.ffi.new("struct nccl_tuner_seen *")
        plugin.nccl_tuner_see(seen)
        fields = {name: getattr(seen, name) for name in ("calls", "decided", "unavailable", "bytes", "collective")}
        return {**fields, "costs_us": list(seen.costs_us)}

    def encoded_bytes(self, items: Any, n: int | None = None) -> str:
        """A C array, or the ``n`` items a pointer points to."""
        size = None if n is None else n * self.ffi.sizeof(self.ffi.typeof(items).item)
        memory = b"" if size == 0 else self.ffi.buffer(items) if size is None else self.ffi.buffer(items, size)
        return base64.b64encode(memory).decode()


class Messages:
    """Lines of JSON over a socket. A thread reads, so that the process ends as soon as its parent does."""

    def __init__(self, descriptor: int) -> None:
        self.file = os.fdopen(descriptor, "r+b", buffering=0)
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        pending = b""
        while block := self.file.read(1 << 16):
            *whole, pending = (pending + block).split(b"\n")
            for line in whole:
                self.lines.put(line)
        os._exit(0)

    def receive(self) -> Any:
        """The next message; waits for it."""
        return json.loads(self.lines.get())

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message, whole."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[self.file.write(data) :]


def serve(messages: Messages) -> None:
    """Answers requests until the parent is gone; threads of NCCL may still be running then."""
    world: World | None = None
    while True:
        request = messages.receive()
        try:
            if world is None:
                world = World(request)
                messages.send({"ok": world.started(request)})
            else:
                messages.send({"ok": world.answer(request)})
        except Failure as failure:
            messages.send({"error": str(failure)})


if __name__ == "__main__":
    serve(Messages(int(sys.argv[1])))
