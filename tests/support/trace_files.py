"""Small files in the forms of NCCL Inspector, NCCL's example profiler plugin, PyTorch's Flight Recorder, Nsight Systems
and DeepSpeed, of one job of 16 ranks on two nodes; ``python -m tests.support.trace_files`` writes them into the docs.
"""

import json
import pickle
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RANKS, NODES = 16, 2
COMMUNICATOR = 0x5EED


@dataclass(frozen=True, slots=True)
class Made:
    """A call: bytes of one rank, and what ran, in NCCL's spelling; how often, and how long it took, us."""

    collective: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int
    times: int = 1
    time_us: int = 100
    threads: int = 640


# What NCCL 2.28.9 picks on two DGX H100.
JOB = (
    Made("AllReduce", 64 << 10, "TREE", "LL", 16, times=3, time_us=58),
    Made("AllReduce", 1 << 20, "TREE", "LL128", 16, times=2, time_us=96),
    Made("AllReduce", 256 << 20, "NVLS_TREE", "SIMPLE", 16, time_us=1290),
    Made("AllGather", 4 << 20, "RING", "SIMPLE", 16, times=2, time_us=247, threads=544),
)


def inspector(path: Path, made: Sequence[Made] = JOB, rank: int = 0, verbose: bool = False) -> Path:
    """Records as NCCL Inspector writes them; ``verbose`` with the channels' events."""
    records, number = [], 0
    for each in made:
        for _ in range(each.times):
            number += 1
            body: dict[str, Any] = {
                "coll": each.collective,
                "coll_sn": number,
                "coll_msg_size_bytes": each.bytes,
                "coll_exec_time_us": each.time_us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.0,
                "coll_busbw_gbs": 1.0,
            }
            if verbose:
                body["event_trace_sn"] = {"kernel_events": [{"channel_id": at} for at in range(each.channels)]}
            records.append(
                {
                    "header": {"id": hex(COMMUNICATOR), "rank": rank, "n_ranks": RANKS, "nnodes": NODES},
                    "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node01", "pid": 7},
                    "coll_perf": body,
                }
            )
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def prometheus(path: Path, made: Sequence[Made] = JOB, gpu: str = "GPU0") -> Path:
    """Metrics as NCCL Inspector writes them for a node exporter."""
    lines = []
    for each in made:
        unit = next(name for name, size in (("MB", 1 << 20), ("KB", 1 << 10), ("B", 1)) if each.bytes >= size)
        low = each.bytes // {"MB": 1 << 20, "KB": 1 << 10, "B": 1}[unit]
        labels = (
            f'version="v5.1",slurm_job_id="unknown",node="node01",gpu="{gpu}",comm_name="DP",n_nodes="{NODES}",'
            f'nranks="{RANKS}",collective="{each.collective}",message_size="{low}-{low + 1}{unit}",'
            f'algo_proto="{each.algorithm}_{each.protocol}"'
        )
        lines += [
            f"nccl_bus_bandwidth_gbs{{{labels}}} 1.5",
            f"nccl_collective_exec_time_microseconds{{{labels}}} {each.time_us}",
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def profiler(path: Path, made: Sequence[Made] = JOB, together: int = 0) -> Path:
    """Events as NCCL's example profiler plugin writes them; the last ``together`` collectives in one group."""
    lines, number = ["["], 0
    calls = [each for each in made for _ in range(each.times)]
    alone = len(calls) - together

    def event(name: str, category: str, phase: str, arguments: str = "") -> str:
        return (
            f'{{"name": "{name}", "cat": "{category}", "ph": "{phase}", "id": {number}, "pid": 7, "tid": 1, '
            f'"ts": {1000.5 + number}{arguments}}},'
        )

    for at, each in enumerate(calls):
        if at <= alone:
            lines.append(event("Group API", "GROUP_API", "b", ', "args": {"groupApiId": 0, "groupDepth":1}'))
        lines.append(
            event(
                each.collective,
                "COLL_API",
                "b",
                f', "args": {{"count": {each.bytes // 4}, "datatype": ncclFloat32, "root": 0, "Stream": 0x262ca50}}',
            )
        )
        lines.append(
            event(
                each.collective,
                "COLL",
                "b",
                f', "args": {{"SeqNum": {at}, "CommHash": {COMMUNICATOR}, "Rank": 0, "Count": {each.bytes // 4}, '
                f'"Datatype": "ncclFloat32", "Algorithm": "{each.algorithm}", "Protocol": "{each.protocol}", '
                f'"nChannels": {each.channels}}}',
            )
        )
        lines.append(event(each.collective, "COLL", "e"))
        if at < alone or at == len(calls) - 1:
            lines.append(event("Group API", "GROUP_API", "e"))
        number += 1
    path.write_text("\n".join([*lines, "{}]"]) + "\n")
    return path


_TORCH_NAMES = {"AllReduce": "all_reduce", "AllGather": "_all_gather_base", "ReduceScatter": "_reduce_scatter_base"}


def flight_record(made: Sequence[Made] = JOB) -> dict[str, Any]:
    """What the Flight Recorder dumps."""
    calls = [each for each in made for _ in range(each.times)]
    entries = []
    for number, each in enumerate(calls):
        elements = each.bytes // 4
        sent = elements * (RANKS if each.collective == "ReduceScatter" else 1)
        received = elements * (RANKS if each.collective == "AllGather" else 1)
        entries.append(
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number + 1,
                "p2p_seq_id": 0,
                "op_id": number + 1,
                "profiling_name": f"nccl:{_TORCH_NAMES[each.collective]}",
                "time_created_ns": 1_724_779_239_936_775_119 + number,
                "duration_ms": each.time_us / 1000,
                "input_sizes": [[sent]],
                "input_dtypes": ["Float"],
                "output_sizes": [[received]],
                "output_dtypes": ["Float"],
                "state": "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": 1_724_779_239_975_811_724,
                "retired": True,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    ranks = str(list(range(RANKS)))
    return {
        "version": "2.9",
        "comm_lib_version": "2.28.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "entries": entries,
    }


def flight_recorder(path: Path, made: Sequence[Made] = JOB) -> Path:
    """A dump as TORCH_NCCL_DEBUG_INFO_TEMP_FILE names it: a pickle of protocol 2; JSON where the name says so."""
    record = flight_record(made)
    if path.suffix == ".json":
        path.write_text(json.dumps(record, indent=1) + "\n")
    else:
        path.write_bytes(pickle.dumps(record, protocol=2))
    return path


def deepspeed(path: Path, made: Sequence[Made] = JOB) -> Path:
    """DeepSpeed's summary."""
    columns = [
        "Comm. Op",
        "Message Size",
        "Count",
        "Total Latency(ms)",
        "Avg Latency(ms)",
        "tput_avg (Gbps)",
        "busbw_avg (Gbps)",
    ]
    names = {"AllReduce": "all_reduce", "AllGather": "all_gather_into_tensor", "ReduceScatter": "reduce_scatter_tensor"}
    lines, last = ["".join(f"{column: <20}" for column in columns)], ""
    for each in made:
        if names[each.collective] != last:
            lines.append(last := names[each.collective])
        size = each.bytes * (RANKS if each.collective == "ReduceScatter" else 1)
        unit, factor = next(
            (n, f) for n, f in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10), ("B", 1)) if size >= f
        )
        shown = f"{round(size / factor, 2)} {unit}"
        total = each.times * each.time_us / 1000
        cells = (shown, each.times, f"{total:.2f}", f"{each.time_us / 1000:.2f}", "1.00", "0.94")
        lines.append(" " * 20 + "".join(f"{cell: <20}" for cell in cells))
    path.write_text("\n".join(lines) + "\n")
    return path


_SCHEMAS = {
    1: (("NCCL communicator ID", 18), ("No. of ranks", 5), ("Rank", 5), ("CUDA device", 5)),
    2: (("NCCL communicator ID", 18), ("Message size [bytes]", 22), ("Reduction operation", 99)),
    3: (("NCCL communicator ID", 18), ("Message size [bytes]", 22)),
}
_DOMAIN, _PROCESS = 1, 7 << 24


def nsight(path: Path, made: Sequence[Made] = JOB, threads: int = 1, communicators: bool = True) -> Path:
    """An export of Nsight Systems with NCCL's payloads; a rank a thread. ``communicators``: as NCCL 2.26 and later."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
            globalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT, binaryData BLOB);
        CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT, payloadSize INTEGER);
        CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL,
            idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER,
            offset INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
            correlationId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, globalPid INTEGER,
            correlationId INTEGER, shortName INTEGER, gridX INTEGER, blockX INTEGER);
        """
    )
    schemas = {
        number: entries if communicators else tuple(each for each in entries if each[0] != "NCCL communicator ID")
        for number, entries in _SCHEMAS.items()
    }
    offsets = {number: _offsets(entries) for number, entries in schemas.items()}
    for number, entries in schemas.items():
        database.execute("INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (?, ?, NULL, 24)", (_DOMAIN, number))
        database.executemany(
            "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?, ?, ?, NULL, ?, ?, NULL, NULL, ?)",
            [
                (_DOMAIN, number, at, kind, name, offset or None)
                for at, ((name, kind), offset) in enumerate(zip(entries, offsets[number], strict=True))
            ],
        )
    names: dict[str, int] = {}
    time_ns, correlation = 1000, 0

    def name_of(text: str) -> int:
        if text not in names:
            names[text] = len(names) + 1
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (names[text], text))
        return names[text]

    def push(thread: int, text: str, schema: int, values: Sequence[int]) -> None:
        given = values if communicators else values[1:]
        payload = _payload(schemas[schema], offsets[schema], given)
        header = struct.pack("<IIIIQQ", _DOMAIN, 0, schema, 0, len(payload), 32)
        database.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?, ?, NULL, ?)",
            (time_ns, time_ns + 500, _PROCESS + thread, name_of(text), _DOMAIN, header + payload),
        )

    for thread in range(threads):
        push(thread, "ncclCommInitRankConfig", 1, (COMMUNICATOR, RANKS, thread, thread))
    for each in [one for one in made for _ in range(one.times)]:
        time_ns += 1000
        for thread in range(threads):
            reduces = each.collective != "AllGather"
            values = (COMMUNICATOR, each.bytes, 0) if reduces else (COMMUNICATOR, each.bytes)
            push(thread, f"nccl{each.collective}", 2 if reduces else 3, values)
            correlation += 1
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)",
                (time_ns + 100, time_ns + 200, _PROCESS + thread, correlation),
            )
            family = "TREE" if each.algorithm == "TREE" else "RING"
            kernel = (
                f"ncclDevKernel_{each.collective}_Sum_f32_{family}_LL" if reduces else "ncclDevKernel_AllGather_RING_LL"
            )
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    time_ns + 300,
                    time_ns + 300 + 1000 * each.time_us,
                    _PROCESS,
                    correlation,
                    name_of(kernel),
                    each.channels,
                    each.threads,
                ),
            )
    database.commit()
    database.close()
    return path


def _offsets(entries: Sequence[tuple[str, int]]) -> list[int]:
    """As C lays a structure out."""
    offsets, end = [], 0
    for _, kind in entries:
        size = 8 if kind in (18, 22) else 4
        start = -(-end // size) * size
        offsets.append(start)
        end = start + size
    return offsets


def _payload(entries: Sequence[tuple[str, int]], offsets: Sequence[int], values: Sequence[int]) -> bytes:
    payload = bytearray(24)
    for (_, kind), offset, value in zip(entries, offsets, values, strict=True):
        struct.pack_into("<Q" if kind in (18, 22) else "<i", payload, offset, value)
    return bytes(payload)


WRITERS = {
    "inspector.log": partial(inspector, verbose=True),
    "inspector.prom": prometheus,
    "profiler-plugin.json": profiler,
    "flight-recorder.json": flight_recorder,
    "flight-recorder.pickle": flight_recorder,
    "deepspeed.log": deepspeed,
    "nsight.sqlite": nsight,
}

if __name__ == "__main__":
    for name, write in WRITERS.items():
        write(EXAMPLES / name)
