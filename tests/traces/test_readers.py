"""Every form of trace gives the same job, and what is broken is one line."""

import gzip
import json
import pickle
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support import trace_files
from tests.support.command_line import run
from tests.support.trace_files import JOB, NODES, RANKS, Made
from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Collective, DataType, Protocol
from tuner.jobs.traces import kineto
from tuner.jobs.traces.calls import CallList, ExecutedCall
from tuner.jobs.traces.read import read

MIB = 1 << 20
SIZES = {
    ("AllReduce", 64 << 10): 3.0,
    ("AllReduce", MIB): 2.0,
    ("AllReduce", 256 * MIB): 1.0,
    ("AllGather", 64 * MIB): 2.0,
}


def counted(calls: CallList) -> dict[tuple[str, int], float]:
    sizes: dict[tuple[str, int], float] = {}
    for call in calls.calls:
        assert call.collective is not None, call
        assert call.bytes is not None, call
        key = call.collective.name, call.bytes
        sizes[key] = sizes.get(key, 0.0) + call.calls
    return sizes


@pytest.mark.parametrize("name", trace_files.WRITERS)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_form_has_the_same_calls(tmp_path: Path, name: str, zipped: bool) -> None:
    path = trace_files.WRITERS[name](tmp_path / name)
    if zipped:
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    made = read(path, RANKS)
    expected = SIZES if not name.endswith(".prom") else dict.fromkeys(SIZES, 1.0)  # it has no counts
    assert counted(made) == expected, made.notes


@pytest.mark.parametrize("name", trace_files.WRITERS)
def test_the_examples_of_the_docs_are_of_these_writers(tmp_path: Path, name: str) -> None:
    written = trace_files.WRITERS[name](tmp_path / name)
    assert counted(read(trace_files.EXAMPLES / name, RANKS)) == counted(read(written, RANKS))
    if not name.endswith(".sqlite"):
        assert (trace_files.EXAMPLES / name).read_bytes() == written.read_bytes()


def test_what_ran_is_read_where_a_form_says_it(tmp_path: Path) -> None:
    tree = ExecutedCall(Algorithm.Tree, Protocol.LL)
    ran = {
        name: write(tmp_path / name)
        for name, write in trace_files.WRITERS.items()
        if name in ("inspector.prom", "profiler-plugin.json", "nsight.sqlite")
    }
    first = {name: read(path, RANKS).calls[0].ran for name, path in ran.items()}
    assert first["inspector.prom"] == tree
    assert first["profiler-plugin.json"] == replace(tree, channels=16)
    assert first["nsight.sqlite"] == ExecutedCall(channels=16, threads=640, is_tree=True)
    verbose = trace_files.inspector(tmp_path / "verbose.log", verbose=True)
    assert read(verbose, RANKS).calls[0].ran == ExecutedCall(channels=16)


def test_inspector_says_ranks_nodes_and_durations(tmp_path: Path) -> None:
    (first, *_) = read(trace_files.inspector(tmp_path / "x"), 2).calls
    assert (first.ranks, first.nodes, first.communicator) == (RANKS, NODES, "0x5eed")
    assert first.kernels_us == (58.0, 58.0, 58.0)


def test_inspector_counts_one_rank_of_a_communicator(tmp_path: Path) -> None:
    one = trace_files.inspector(tmp_path / "0", rank=0).read_text()
    other = trace_files.inspector(tmp_path / "1", rank=1).read_text()
    both = tmp_path / "both"
    both.write_text(other + one)
    made = read(both, RANKS)
    assert counted(made) == SIZES
    assert any("2 ranks" in note for note in made.notes)


def test_inspector_with_names_of_algorithms_as_later_versions_have_them(tmp_path: Path) -> None:
    record = json.loads(trace_files.inspector(tmp_path / "x").read_text().splitlines()[0])
    record["coll_perf"] |= {"coll_algo": "NVLS_TREE", "coll_proto": "SIMPLE"}
    (tmp_path / "y").write_text(json.dumps(record, indent=2))
    assert read(tmp_path / "y", RANKS).calls[0].ran == ExecutedCall(Algorithm.NVLSTree, Protocol.Simple)


def test_inspector_names_point_to_point_and_says_what_it_dropped(tmp_path: Path) -> None:
    path = trace_files.inspector(tmp_path / "x")
    head = {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 1}
    more = [
        {"header": head, "p2p_perf": {"p2p": "Send", "p2p_msg_size_bytes": 8192, "p2p_exec_time_us": 3}},
        {"header": head, "dump_stats": {"coll": {"dropped_total": 5}, "p2p": {"dropped_total": 9}}},
    ]
    path.write_text(path.read_text() + "".join(f"{json.dumps(each)}\n" for each in more) + '{"header": {"id"')
    made = read(path, RANKS)
    assert [(call.name, call.bytes) for call in made.calls if call.collective is None] == [("Send", 8192)]
    assert "the Inspector dropped 5 collectives, which are in no record" in made.notes
    assert "the last record is cut and not counted" in made.notes


def test_prometheus_sizes_are_ranges_of_one_rank(tmp_path: Path) -> None:
    calls = read(trace_files.prometheus(tmp_path / "x"), RANKS).calls
    of_gather = next(call for call in calls if call.collective is Collective.AllGather)
    assert (of_gather.bytes, of_gather.to_bytes) == (64 * MIB, RANKS * (5 * MIB - 1))


def test_prometheus_counts_one_gpu(tmp_path: Path) -> None:
    one = trace_files.prometheus(tmp_path / "0", gpu="GPU0").read_text()
    other = trace_files.prometheus(tmp_path / "1", gpu="GPU1").read_text()
    (tmp_path / "both").write_text(one + other)
    assert counted(read(tmp_path / "both", RANKS)) == dict.fromkeys(SIZES, 1.0)


def test_prometheus_takes_counts_where_there_are_some(tmp_path: Path) -> None:
    path = trace_files.prometheus(tmp_path / "x", JOB[:1])
    labels = path.read_text().splitlines()[0].partition("{")[2].rpartition("}")[0]
    path.write_text(path.read_text() + f"nccl_collective_count{{{labels}}} 40\n")
    assert counted(read(path, RANKS)) == {("AllReduce", 64 << 10): 40.0}


def test_calls_of_a_group_are_not_alone(tmp_path: Path) -> None:
    calls = read(trace_files.profiler(tmp_path / "x", together=2), RANKS).calls
    together = {call.collective: call.ran.not_alone for call in calls if call.ran and call.ran.not_alone}
    assert list(together) == [Collective.AllGather]


@pytest.mark.parametrize(
    ("datatype", "name"), [('"ncclBfloat16"', DataType.bfloat16), ("7", DataType.float32), ('"ncclFloat8e4m3"', "fp8")]
)
def test_types_of_the_profiler_plugin(tmp_path: Path, datatype: str, name: DataType | str) -> None:
    path = trace_files.profiler(tmp_path / "x", JOB[:1])
    path.write_text(path.read_text().replace('"ncclFloat32"', datatype).replace("nChannels", "nMaxChannels"))
    (call,) = read(path, RANKS).calls
    assert call.dtype is (DataType.float8e4m3 if name == "fp8" else name)
    assert call.ran is not None
    assert call.ran.channels is None  # the most that it may be launched with


def test_a_dump_of_the_flight_recorder_runs_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return Path.touch, (str(tmp_path / "ran"),)

    for protocol in (2, 4, 5):
        (tmp_path / "x").write_bytes(pickle.dumps({"entries": [Hostile()], "pg_config": {}}, protocol=protocol))
        with pytest.raises(BadInput, match=r"it asks to import .*, which no dump does"):
            read(tmp_path / "x", RANKS)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("place", ["profiling_name", "process_group", "pg_id", "input_dtypes", "record_id", "key"])
@pytest.mark.parametrize("pair", [lambda each: (each, each), lambda each: [each, each]])
def test_values_that_share_values_are_neither_hashed_nor_printed(
    place: str, pair: Callable[[object], object], tmp_path: Path
) -> None:
    """Nested 200 deep, they have 2^200 texts in a few hundred bytes."""
    nested: object = "text"
    for _ in range(200):
        nested = pair(nested)
    record = trace_files.flight_record([Made("ReduceScatter", 4 * MIB, "RING", "SIMPLE", 16)])
    value = {"process_group": (nested, nested), "input_dtypes": [nested], "pg_id": nested}.get(place, nested)
    (entry,) = record["entries"]
    if place == "key":
        entry = {**entry, "x": {0: nested}} if isinstance(nested, tuple) else {**entry, "state": nested}
    elif place == "pg_id":
        del entry["process_group"]
    record["entries"] = [{**entry, place: value}]
    (tmp_path / "x").write_bytes(pickle.dumps(record))
    if isinstance(nested, list) and place in ("record_id", "key"):
        assert len(read(tmp_path / "x", RANKS).calls) == 1  # which nothing prints
    else:
        with pytest.raises(BadInput, match="Flight Recorder"):
            read(tmp_path / "x", RANKS)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02K\x01.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x80\x02}q\x00.",
        b"\x80\x02U",
    ],
)
def test_broken_pickles_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadInput, match="a pickle that is no Flight Recorder dump"):
        read(tmp_path / "x", RANKS)


def test_flight_recorder_reduce_scatter_lists_and_sends(tmp_path: Path) -> None:
    record = trace_files.flight_record([Made("ReduceScatter", 4 * MIB, "RING", "SIMPLE", 16)])
    (first,) = record["entries"]
    gather = {
        **first,
        "profiling_name": "nccl:all_gather",
        "input_sizes": [[8, 2]],
        "output_sizes": [[16]] * RANKS,
        "input_dtypes": ["BFloat16"],
        "state": "started",
    }
    send = {**first, "profiling_name": "nccl:send 0->1", "is_p2p": True}
    record["entries"] += [gather, send, {**first, "profiling_name": "nccl:coalesced"}]
    (tmp_path / "x").write_bytes(pickle.dumps(record))
    made = read(tmp_path / "x", 2)
    assert [(call.name, call.bytes) for call in made.calls] == [
        ("_reduce_scatter_base", 64 * MIB),
        ("all_gather", 16 * 2 * RANKS),
        ("send", 64 * MIB),
    ]
    assert made.releases == ("2.28.9",)
    assert "1 calls had not completed when it was dumped" in made.notes


def test_deepspeed_counts_the_last_summary_and_calls_one_by_one(tmp_path: Path) -> None:
    summary = trace_files.deepspeed(tmp_path / "x").read_text()
    early = trace_files.deepspeed(tmp_path / "y", JOB[:1]).read_text()
    (tmp_path / "x").write_text(f"step 1\n{early}step 2\n{summary}_______________________________\nBreakdown\n")
    assert counted(read(tmp_path / "x", RANKS)) == SIZES
    line = "[INFO] [Rank 0] comm op: {} | time (ms): 0.06 | msg size: {} | algbw (Gbps): 1.00 | busbw (Gbps): 1.00\n"
    names = [
        ("all_reduce", "64.0 KB"),
        ("all_reduce | [Caller Func: step]", "64.0 KB"),
        ("reduce_scatter_tensor", "6.31 KB"),
    ]
    (tmp_path / "z").write_text("".join(line.format(*each) for each in names))
    assert counted(read(tmp_path / "z", RANKS)) == {("AllReduce", 64 << 10): 2.0, ("ReduceScatter", 6460): 1.0}


def test_deepspeeds_bandwidths_show_the_ranks(tmp_path: Path) -> None:
    """The bus bandwidth of n ranks is (n - 1) / n of the other; slow operations do not show it to two places."""
    text = trace_files.deepspeed(tmp_path / "x").read_text()
    assert {call.ranks for call in read(tmp_path / "x", 2).calls} == {2}
    (tmp_path / "x").write_text(text.replace("1.00                0.94", "1401.24             1313.66"))
    assert counted(read(tmp_path / "x", 2)) == SIZES


def test_the_profiler_plugin_counts_one_rank_of_a_communicator(tmp_path: Path) -> None:
    text = trace_files.profiler(tmp_path / "x").read_text()
    (tmp_path / "x").write_text(text.replace("{}]", text.replace('"Rank": 0', '"Rank": 1').lstrip("[")))
    made = read(tmp_path / "x", RANKS)
    assert counted(made) == SIZES
    assert any("2 ranks" in note for note in made.notes)


def test_deepspeed_summary_as_json_has_ranks_and_whole_sizes(tmp_path: Path) -> None:
    summary = {"all_gather_into_tensor": {"1026": {"count": 3}}, "barrier": {"0": {"count": 1}}}
    (tmp_path / "x").write_text(json.dumps({"summary": summary, "metadata": {"world_size": 8, "rank": 0}}))
    made = read(tmp_path / "x", 2)
    assert [(call.name, call.bytes, call.ranks) for call in made.calls] == [
        ("all_gather_into_tensor", 8 * 1026, 8),
        ("barrier", None, 8),
    ]


def test_nsight_counts_one_rank_and_knows_communicators(tmp_path: Path) -> None:
    made = read(trace_files.nsight(tmp_path / "x", threads=3), 2)
    assert counted(made) == SIZES
    assert {(call.ranks, call.communicator) for call in made.calls} == {(RANKS, "0x5eed")}
    assert any("3 ranks" in note for note in made.notes)
    assert sum(len(call.kernels_us) for call in made.calls) == 8


def test_nsight_without_communicators_has_ranks_where_there_is_one_number_of_them(tmp_path: Path) -> None:
    path = trace_files.nsight(tmp_path / "x", communicators=False)
    made = read(path, 2)
    assert counted(made) == SIZES
    assert any("before 2.26" in note for note in made.notes)
    database = sqlite3.connect(path)
    database.execute("UPDATE NVTX_EVENTS SET binaryData = x'00' WHERE textId = 1")  # ncclCommInitRankConfig
    database.commit()
    database.close()
    made = read(path, 2)
    assert {call.unusable for call in made.calls} == {None, "the number of ranks is not recorded"}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE NVTX_EVENTS", "has no NVTX_EVENTS"),
        ("DROP TABLE NVTX_PAYLOAD_SCHEMAS", "has no NVTX payloads"),
        ("UPDATE NVTX_EVENTS SET binaryData = x'00'", "no NVTX payload of a collective"),
        ("ALTER TABLE NVTX_EVENTS RENAME COLUMN binaryData TO other", "not an export of Nsight Systems"),
    ],
)
def test_nsight_exports_without_payloads(tmp_path: Path, statement: str, message: str) -> None:
    path = trace_files.nsight(tmp_path / "x")
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises(BadInput, match=message):
        read(path, RANKS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SQLite format 3\x00broken", "x: not an export of Nsight Systems"),
        (b'{"coll_perf": {}}\n{"coll_perf": {"coll": "AllReduce"}}', "not what the Inspector writes: KeyError"),
        (
            b'{"coll_perf": {"coll": "AllReduce", "coll_msg_size_bytes": 8}}\nnonsense\n{}\n',
            "x:2: its JSON is cut off or damaged",
        ),
        (b'{"dump_stats": {}}\n{"dump_stats": {}}', "no record of a collective"),
        (b"nccl_collective_exec_time_microseconds{collective=\n", "x:1 is not a line of Prometheus text"),
        (b'nccl_bus_bandwidth_gbs{a="b"} 1\n', "no line of nccl_collective_exec_time_microseconds"),
        (b'{"entries": [], "pg_config": {}}', "has no entries"),
        (b'{"entries": [{}], "pg_config": {}}', r"entries\[0\] is not what the Flight Recorder writes"),
        (b'{"entries": [7], "pg_config": {}}', r"entries\[0\] is not what the Flight Recorder writes"),
        (b'{"summary": {"all_reduce": 3}, "metadata": {}}', r"summary\['all_reduce'\] is not what DeepSpeed writes"),
        (b"Comm. Op            Message Size        Count     Total Latency(ms)\n", "DeepSpeed's log has no call"),
        (
            b'[\n{"name": "AllReduce", "cat": "COLL", "ph": "b", "args": {"CommHash": 1}},\n',
            "x:2 is not an event of the example profiler plugin: KeyError",
        ),
    ],
)
def test_broken_files_are_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadInput, match=message) as raised:
        read(tmp_path / "x", RANKS)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", trace_files.WRITERS)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    content = trace_files.WRITERS[name](tmp_path / name).read_bytes()
    random = Random(name)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(damaged))
            damaged[at : at + random.choice((0, 1, 20))] = random.choice((b"", b"null", b"-1", b'"x"', b"[]", b"\x87"))
        (tmp_path / "x").write_bytes(damaged)
        with suppress(BadInput):
            read(tmp_path / "x", RANKS)


def test_a_pickle_takes_no_memory_that_it_only_names(tmp_path: Path) -> None:
    """LONG_BINPUT at 3 billion, for which the unpickler in C reserves 50 GB."""
    (tmp_path / "x").write_bytes(b"\x80\x02}r\xff\xff\xff\xb2.")
    tracemalloc.start()
    with pytest.raises(BadInput, match="no 'entries'"):
        read(tmp_path / "x", RANKS)
    assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    tracemalloc.stop()


def test_a_kineto_trace_is_read_piece_by_piece_as_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several pieces, with blanks, packed, and with other members before and after the events."""
    events: list[object] = [None, 7, "ncclKernel"]
    for number in range(40):
        name = ("allreduce", "_allgather_base", "wait", "allreduce_coalesced")[number % 4]
        said = {"External id": number // 2 if number > 30 else number, "Collective name": name, "Group size": 16}
        said |= {"In msg nelems": 1 << number % 5, "Out msg nelems": 64, "dtype": "Float"}
        launch = {**said, "grid": [16, 1, 1], "block": [640, 1, 1]} if number % 3 else {"External id": number}
        kernel = f"ncclDevKernel_AllReduce_Sum_f32_{('TREE', 'RING')[number % 2]}_LL(\u00e4)"
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": said},
            {"ph": "X", "cat": "kernel", "name": kernel, "dur": number / 8, "args": launch},
        ]
    trace = {"a": {"b": [1, 2]}, "distributedInfo": {"nccl_version": "2.28.9"}, "traceEvents": events, "z": 12}
    whole = kineto.from_trace("x", json.loads(json.dumps(trace)))
    assert len(whole.calls) < sum(call.calls for call in whole.calls) == 30 + 10
    assert {call.ran is None for call in whole.calls} == {True, False}
    path = tmp_path / "x"
    for piece in (1, 3, 50, 1 << 20):
        monkeypatch.setattr(kineto, "_PIECE", piece)
        for text in (json.dumps(trace), json.dumps(trace, indent=2, ensure_ascii=False)):
            for content in (text.encode(), gzip.compress(text.encode()), b"\xef\xbb\xbf" + text.encode()):
                path.write_bytes(content)
                assert replace(read(path, RANKS), file="x") == whole
    for broken in (text[:-1], text[:900], text + "]", text.replace('"z": 12', '"z" 12'), '{"traceEvents": [1,]}'):
        path.write_text(broken)
        assert kineto.from_file(path) is None
        with pytest.raises(BadInput):
            read(path, RANKS)


@pytest.mark.parametrize("name", ["allreduce", "allreduce_coalesced"])
def test_a_kernel_is_of_a_call_alone_unless_it_is_of_a_coalesced_one(tmp_path: Path, name: str) -> None:
    """A group of calls is one call of all their bytes: what one kernel of it ran is not what NCCL chose for these."""
    said = {"External id": 1, "Collective name": name, "Group size": 16, "In msg nelems": 64, "dtype": "Float"}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": said},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            "dur": 5.0,
            "args": {"External id": 1, "grid": [16, 1, 1], "block": [640, 1, 1]},
        },
    ]
    (tmp_path / "x").write_text(json.dumps({"traceEvents": events}))
    (call,) = read(tmp_path / "x", RANKS).calls
    assert call.kernels_us == (5.0,)
    assert (call.ran is None) == (name != "allreduce")


def test_records_that_are_alike_are_one_call(tmp_path: Path) -> None:
    rows = ["allreduce,1024,2", "allgather,64,1", "allreduce,1024,2", "allreduce,1024,0.5"]
    path = tmp_path / "x.csv"
    path.write_text("collective,bytes,calls\n" + "".join(f"{row}\n" for row in rows * 3))
    made = read(path, RANKS)
    assert [(call.name, call.calls) for call in made.calls] == [("allreduce", 12), ("allgather", 3), ("allreduce", 1.5)]
    records = [dict(zip(("collective", "bytes", "calls"), row.split(","), strict=True)) for row in rows * 3]
    path.write_text(json.dumps(records))
    assert read(path, RANKS).calls == made.calls


KIB = 1024


def sizes(path: Path) -> dict[str, int | None]:
    return {call.name: call.bytes for call in read(path, RANKS).calls if call.collective is None}


def test_kineto_has_what_a_rank_has_in_all(tmp_path: Path) -> None:
    counts = {"send": (8, 8), "recv": (8, 8), "gather": (8, 32), "scatter": (32, 8), "all_to_all": (32, 32)}
    events = [
        {
            "ph": "X",
            "name": "record_param_comms",
            "args": {
                "Collective name": name,
                "dtype": "Float",
                "In msg nelems": sent,
                "Out msg nelems": received,
                "Group size": 4,
                "External id": number,
            },
        }
        for number, (name, (sent, received)) in enumerate(counts.items())
    ]
    (tmp_path / "x").write_text(json.dumps({"traceEvents": events}))
    assert sizes(tmp_path / "x") == {"send": 32, "recv": 32, "gather": 128, "scatter": 128, "all_to_all": 128}


def test_the_flight_recorder_has_one_ranks_tensors(tmp_path: Path) -> None:
    record = trace_files.flight_record([Made("AllReduce", 4 * KIB, "RING", "SIMPLE", 16)])
    (first,) = record["entries"]
    own, of_all = [[KIB]], [[KIB]] * RANKS
    made = {"send 0->1": (own, own), "recv 0<-1": (own, own), "gather": (own, of_all), "scatter": ([], own)}
    record["entries"] = [
        {**first, "profiling_name": f"nccl:{name}", "input_sizes": sent, "output_sizes": received}
        for name, (sent, received) in made.items()
    ]
    (tmp_path / "x").write_bytes(pickle.dumps(record))
    each = 4 * KIB
    assert sizes(tmp_path / "x") == {"send": each, "recv": each, "gather": each * RANKS, "scatter": each * RANKS}


@pytest.mark.parametrize(("name", "times"), [("Send", 1), ("Recv", 1), ("Gather", RANKS), ("AllToAll", RANKS)])
def test_nsight_has_a_count_in_bytes(tmp_path: Path, name: str, times: int) -> None:
    path = trace_files.nsight(tmp_path / "x", [Made("AllReduce", 4 * KIB, "RING", "SIMPLE", 16)])
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = ? WHERE value = 'ncclAllReduce'", (f"nccl{name}",))
    database.close()
    assert sizes(path) == {name: 4 * KIB * times}


def test_the_profiler_plugin_has_messages(tmp_path: Path) -> None:
    text = trace_files.profiler(tmp_path / "x", [Made("AllReduce", 4 * KIB, "RING", "SIMPLE", 16)]).read_text()
    coll = next(line for line in text.splitlines() if '"COLL", "ph": "b"' in line)
    (tmp_path / "x").write_text(text.replace(coll, coll.replace("AllReduce", "Send").replace('"COLL"', '"P2P"')))
    assert sizes(tmp_path / "x") == {"Send": 4 * KIB}


def test_deepspeed_has_messages(tmp_path: Path) -> None:
    summary = {"send": {"1024": {"count": 3}}, "irecv": {"2048": {"count": 1}}, "gather": {"512": {"count": 1}}}
    (tmp_path / "x").write_text(json.dumps({"summary": summary, "metadata": {"world_size": 8, "rank": 0}}))
    assert sizes(tmp_path / "x") == {"send": 1024, "recv": 2048, "gather": None}


def test_budget_counts_gathers_and_scatters_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "collective,bytes,bytes_per_rank,count,dtype,calls\nallreduce,1M,,,,1\ngather,,64K,,,3\n"
        "scatter,1M,,,,2\nrecv,4K,,,,5\n"
    )
    words = "budget", str(tmp_path / "x.csv"), "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--json"
    (variant,) = json.loads(run(*words).stdout)["variants"]
    made = {each["call"]: (each["bytes"], each["calls"], each["total_bytes"]) for each in variant["exchanges"]}
    assert made == {"Gather": (1 << 20, 3, 3 << 20), "Scatter": (1 << 20, 2, 2 << 20), "Recv": (4096, 5, 5 * 4096)}
    assert all(each["kernels"] for each in variant["exchanges"])
