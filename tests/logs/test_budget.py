"""The budget of a job's collectives: what files have, what it costs by the model, and what measured times say to it."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.available_releases import HERE
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Algorithm, Buffers, Collective, DataType, Op, Protocol
from tuner.base.records import to_json
from tuner.cli import everything
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.jobs.traces.calls import CallList, TracedCall, WantedCalls
from tuner.jobs.traces.read import read
from tuner.jobs.workload.budget import MeasuredRuns, budget, read_runs
from tuner.jobs.workload.count import Counted, Entry, count
from tuner.jobs.workload.price import BudgetVariant, Price, Unpriced, prices
from tuner.jobs.workload.priced import buckets
from tuner.oracle.api import Oracle
from tuner.oracle.process import Child
from tuner.scenario import Scenario
from tuner.times.measured.header import Header
from tuner.times.measured.samples import Combination, Point, SampleBlock, Writer

DOCS = Path(__file__).parents[2] / "docs"
CASES = Path(__file__).parents[3] / "shared" / "cases"
TWO = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2)
WANTED = WantedCalls(ranks=16, priced_ranks=16, nodes=2)
AG, RS, AR = Collective.AllGather, Collective.ReduceScatter, Collective.AllReduce
Counts = list[tuple[str, str, int, float]]


def found(path: Path, content: str | bytes) -> CallList:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read(path, 16)


def sizes(counted: Counted) -> Counts:
    return [(e.request.collective.name, e.request.dtype.name, e.bytes, e.calls) for e in counted.entries]


def left_out(counted: Counted) -> dict[str, tuple[str, float]]:
    return {left.name: (left.reason, left.calls) for left in counted.left_out}


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(everything, ["budget", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def refused(*arguments: str | Path) -> str:
    done = CliRunner().invoke(everything, ["budget", *map(str, arguments)])
    assert isinstance(done.exception, BadInput | BadMeasurement), (done.output, done.exception)
    assert "\n" not in str(done.exception)
    return str(done.exception)


# Lists

LISTS = {
    "with a header": "collective,bytes,calls\nallreduce,64K,3\nAllGather,1M,2\n",
    "without": "allreduce,65536,3\nall_gather,1048576,2\n",
    "a count of calls": "Collective, Bytes, Count\nallreduce, 64KiB, 3\nallgather, 1MiB, 2\n",
    "a weight": "# step 1\nweight,collective,bytes\n\n3,allreduce,64K\n2,allgather,1M\n",
    "elements": "collective,count,dtype,calls\nallreduce,16384,float32,3\nallgather,16384,float32,2\n",
    "bytes per rank": "collective,bytes_per_rank,calls\nallreduce,64K,3\nallgather,64K,2\n",
    "a line each": "allreduce,64K\nallgather,1M\nallreduce,64K\nallreduce,64K\nallgather,1M\n",
    "JSON": '[{"collective": "allreduce", "bytes": 65536, "calls": 3},'
    ' {"collective": "AllGather", "bytes": "1M", "calls": 2}]',
    "JSON elements": '[{"collective": "allreduce", "count": 16384, "dtype": "float32", "calls": 3},'
    ' {"collective": "AllGather", "count": 16384, "dtype": "float32", "weight": 2, "op": null}]',
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_lists_say_the_same_in_every_form(tmp_path: Path, text: str) -> None:
    expected = [("AllGather", "float32", 1 << 20, 2), ("AllReduce", "float32", 1 << 16, 3)]
    assert sizes(count([found(tmp_path / "x", text)], WANTED)) == expected
    assert sizes(count([found(tmp_path / "x", gzip.compress(text.encode()))], WANTED)) == expected
    assert sizes(count([found(tmp_path / "x", "\ufeff" + text)], WANTED)) == expected


def test_counts_become_nbytes_by_the_collective_and_its_ranks(tmp_path: Path) -> None:
    rows = "".join(f"{each.name},1000,bfloat16,{ranks}\n" for each in Collective for ranks in (16, 4))
    calls = found(tmp_path / "x", f"collective,count,dtype,ranks\n{rows}").calls
    assert {(call.name, call.ranks): call.bytes for call in calls} == {
        ("Broadcast", 16): 2000,
        ("Reduce", 16): 2000,
        ("AllReduce", 16): 2000,
        ("AllGather", 16): 32_000,
        ("ReduceScatter", 16): 32_000,
        ("Broadcast", 4): 2000,
        ("Reduce", 4): 2000,
        ("AllReduce", 4): 2000,
        ("AllGather", 4): 8000,
        ("ReduceScatter", 4): 8000,
    }
    assert "times the ranks" in found(tmp_path / "x", f"collective,count,dtype,ranks\n{rows}").sizes
    assert "NCCL's nBytes" in found(tmp_path / "x", LISTS["without"]).sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "collective,bytes,calls\nallreduse,8,1\n",
            "x:2: unknown collective 'allreduse'; did you mean AllReduce?; valid: Broadcast",
        ),
        ("collective,bytes\n\nallreduce,8Q\n", "x:3: size '8Q'"),
        ("collective,bytes\nallreduce,0\n", "x:2: size '0' is 0 bytes: valid are 1"),
        ("collective,bytes,calls\nallreduce,8,-1\n", "x:2: '-1' calls: give a number from 0"),
        ("collective,bytes,calls\nallreduce,8,inf\n", "x:2: 'inf' calls"),
        ("collective,bytes,calls\nallreduce,8\n", "x:2: 2 cells in 3 columns (collective, bytes, calls)"),
        ("collective,bytes,weigth\nallreduce,8,1\n", "x:1: unknown column 'weigth'; valid: collective, bytes,"),
        ("collective,bytes,bytes\nallreduce,8,1\n", "x:1: column 'bytes' occurs twice"),
        ("collective,calls\nallreduce,8\n", "x:1: the size is missing; valid: bytes, bytes_per_rank, count"),
        ("collective,count\nallreduce,8\n", "x:2: a count of elements needs a dtype"),
        ("collective,count,dtype\nallreduce,8,bf17\n", "x:2: unknown type 'bf17'; valid: int8"),
        ("collective,count,dtype\nallreduce,1.5,int8\n", "x:2: count '1.5': give a whole number"),
        ("collective,count,dtype\nallgather,9223372036854775807,int8\n", "x:2: allgather of 14757395258967641"),
        ("collective,bytes,op\nallreduce,8,plus\n", "x:2: unknown operation 'plus'; valid: sum"),
        ("collective,bytes,ranks\nallreduce,8,0\n", "x:2: ranks '0': give a whole number from 1"),
        ("collective,bytes,calls,weight\nallreduce,8,1,1\n", "x:2: calls and weight both say how often a call is made"),
        ("collective,bytes,bytes_per_rank\nallreduce,8,1\n", "x:2: give exactly one column with the size"),
        ("collective,bytes\n,8\n", "x:2: the collective is missing"),
        ("allreduce\n", "x:1: a line with the names of the columns is missing"),
        ("allreduce;8;1\n", "x:1: a line with the names of the columns is missing"),
        ("collective,bytes\n", "x has no records"),
        (" \n", "x: empty"),
        ("[]", "x has no records"),
        ('[{"collective": "allreduce", "bytes": 8}, 1]', "x: record 2: an object with collective, bytes is expected"),
        ('[{"collective": "allreduce", "bytes": 8}, {"collective": "x", "bytes": 8}]', "x: record 2: unknown coll"),
        ('[{"collective": "allreduce", "size": 8}]', "x: record 1: unknown column 'size'"),
        ('{"collective": "allreduce", "bytes": 8}', "x: JSON that is neither a list of records nor a trace"),
        ('[{"collective": ', "x: its JSON is cut off or damaged: Expecting value"),
        ("[" * 100_000, "x: its JSON is cut off or damaged: maximum recursion"),
        (b"\x1f\x8bnonsense", "x: "),
        (b"\xff\xfe\x00", "x: not text; valid: CSV or JSON"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_with_its_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(BadInput) as error:
        found(tmp_path / "x", text)
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(message)


def test_an_operation_of_what_only_moves_is_none(tmp_path: Path) -> None:
    rows = "".join(f"{each},8,{op}\n" for each in ("allgather", "broadcast", "reduce") for op in ("sum", "max"))
    counted = count([found(tmp_path / "x", f"collective,bytes,op\n{rows}")], WANTED)
    assert [(entry.request.collective.name, entry.request.op.name, entry.calls) for entry in counted.entries] == [
        ("Broadcast", "sum", 2),
        ("Reduce", "sum", 1),
        ("Reduce", "max", 1),
        ("AllGather", "sum", 2),
    ]


def test_what_has_no_price_is_counted_and_named(tmp_path: Path) -> None:
    text = (
        "collective,bytes,calls,ranks,nodes,communicator\nallreduce,8,1,16,2,a\nsend,8,5,,,\nAll-to-all,1M,7,16,,\n"
        "allreduce,8,2,8,,tp\nallreduce,8,3,16,4,dp\nreduce,8,4,16,2,b\n"
    )
    counted = count([found(tmp_path / "x", text)], WANTED)
    assert sizes(counted) == [("Reduce", "float32", 8, 4), ("AllReduce", "float32", 8, 1)]
    assert left_out(counted)["send"] == ("NCCL has no algorithms to choose from", 5)
    assert left_out(counted)["All-to-all"] == ("NCCL has no algorithms to choose from", 7)
    reasons = {left.reason: left.calls for left in counted.left_out}
    assert (reasons["of communicators of 8 ranks"], reasons["of communicators on 4 nodes"]) == (2, 3)
    assert "2 communicators are counted together (a: 1, b: 4)" in counted.notes[0]
    assert sum(left.calls for left in counted.left_out) + sum(entry.calls for entry in counted.entries) == 22
    named = count([found(tmp_path / "x", text)], replace(WANTED, communicators=("b",)))
    assert sizes(named) == [("Reduce", "float32", 8, 4)]
    eight = count([found(tmp_path / "x", text)], replace(WANTED, ranks=8, nodes=None))
    assert sizes(eight) == [("AllReduce", "float32", 8, 2)]
    assert eight.notes[0] == "calls of communicators of 8 ranks are priced on 16 ranks, with the same number of bytes"
    with pytest.raises(BadInput, match="there are no calls to price: the files have none"):
        count([found(tmp_path / "x", '{"traceEvents": []}')], WANTED)
    with pytest.raises(BadInput, match=r"there are no calls to price: .* 8 ranks; .* 4 ranks; ranks=: valid: 8$"):
        count([found(tmp_path / "x", "collective,bytes,ranks,nodes\nreduce,8,8,2\nreduce,8,4,4\n")], WANTED)
    with pytest.raises(BadInput, match="communicator= 'c': valid: a, tp, dp, b"):
        count([found(tmp_path / "x", text)], replace(WANTED, communicators=("c",)))
    with pytest.raises(BadInput, match="there are no calls to price: 1 x send: NCCL has no"):
        count([found(tmp_path / "x", "send,8\n")], WANTED)


# Traces


def record(number: int, name: str, elements_in: int, elements_out: int, dtype: str = "BFloat16", **more: Any) -> Any:
    arguments = {
        "External id": number,
        "Collective name": name,
        "In msg nelems": elements_in,
        "Out msg nelems": elements_out,
        "Group size": 16,
        "dtype": dtype,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
    }
    return {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1, "dur": 9, "args": {**arguments, **more}}


def kernel(number: int, name: str, duration_us: float, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)",
        "dur": duration_us,
        "args": {"External id": number, "stream": 7, **more},
    }


def traced(path: Path, *events: Any) -> Counted:
    text = json.dumps({"schemaVersion": 1, "distributedInfo": {"nccl_version": "2.21.5"}, "traceEvents": events})
    return count([found(path, text)], WANTED)


@pytest.mark.parametrize(
    ("name", "elements", "collective"),
    [
        ("allreduce", (512, 512), "AllReduce"),
        ("allreduce_coalesced", (512, 512), "AllReduce"),
        ("broadcast", (512, 512), "Broadcast"),
        ("_broadcast_oop", (512, 512), "Broadcast"),
        ("reduce", (512, 512), "Reduce"),
        ("_reduce_oop", (512, 512), "Reduce"),
        ("all_gather", (32, 512), "AllGather"),
        ("_allgather_base", (32, 512), "AllGather"),
        ("allgather_into_tensor_coalesced", (32, 512), "AllGather"),
        ("reduce_scatter", (512, 32), "ReduceScatter"),
        ("_reduce_scatter_base", (512, 32), "ReduceScatter"),
        ("reduce_scatter_tensor_coalesced", (512, 32), "ReduceScatter"),
    ],
)
def test_calls_of_process_groups_are_known_by_pytorchs_names(
    tmp_path: Path, name: str, elements: tuple[int, int], collective: str
) -> None:
    counted = traced(tmp_path / "x", record(1, name, *elements))
    assert sizes(counted) == [(collective, "bfloat16", 1024, 1)]
    assert any("1 coalesced calls" in note for note in counted.notes) == ("coalesced" in name)


@pytest.mark.parametrize(
    ("dtype", "found"), [("Char", "int8"), ("Half", "float16"), ("float16", "float16"), ("int8", "int8")]
)
def test_types_are_pytorchs_or_nccls(tmp_path: Path, dtype: str, found: str) -> None:
    assert sizes(traced(tmp_path / "x", record(1, "allreduce", 512, 512, dtype)))[0][1] == found


GROUP_OF_8: dict[str, Any] = {"Group size": 8, "Process Group Name": "7"}


def test_a_trace_has_calls_and_durations_and_the_rest_is_named(tmp_path: Path) -> None:
    events = [
        record(1, "allreduce", 256, 256),
        kernel(1, "AllReduce_Sum_bf16_RING_LL", 40.0),
        record(2, "allreduce", 256, 256),
        kernel(2, "AllReduce_Sum_bf16_RING_LL", 60.0),
        record(3, "allreduce", 256, 256),
        record(4, "wait", 0, 0, "Byte"),
        record(5, "allreduce", 256, 256, **GROUP_OF_8),
        kernel(5, "AllReduce_x", 5.0),
        record(6, "all_to_all", 256, 256),
        kernel(6, "SendRecv", 7.0),
        record(7, "allreduce", 256, 256, "Short"),
        {"name": "record_param_comms", "args": {"External id": 10}},
        kernel(10, "AllReduce_x", 13.0),
        record(8, "barrier", 0, 0, "Byte"),
        record(11, "allreduce", 10**30, 10**30),
        record(9, "allreduce", 0, 0),
        kernel(99, "AllGather_RING_LL", 11.0),
        {"ph": "X", "cat": "gpu_user_annotation", "name": "nccl:all_reduce", "dur": 3.0, "args": {"External id": 1}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "dur": 3.0, "args": {"External id": 1}},
        {"ph": "M"},
        3,
    ]
    counted = traced(tmp_path / "x", *events)
    (entry,) = counted.entries
    assert (entry.bytes, entry.calls, sorted(entry.kernels_us)) == (512, 3, [40.0, 60.0])
    others = {(left.name, left.reason): (left.calls, left.kernels_us) for left in counted.left_out}
    assert others == {
        ("allreduce", "of communicators of 8 ranks"): (1, 5.0),
        ("all_to_all", "NCCL has no algorithms to choose from"): (1, 7.0),
        ("allreduce", "type Short is none of NCCL's"): (1, 0.0),
        ("barrier", "NCCL has no algorithms to choose from"): (1, 0.0),
        ("allreduce", "of more than 2**62 bytes"): (1, 0.0),
        ("allreduce", "of 0 bytes, which NCCL does not run"): (1, 0.0),
        ("AllGather", "kernels without their call"): (1, 11.0),
        ("record_param_comms", "the trace does not say which collective"): (1, 13.0),
    }
    assert "the trace is of NCCL 2.21.5" in counted.notes
    bare = count([found(tmp_path / "y", gzip.compress(json.dumps(events).encode()))], WANTED)
    assert (bare.entries, bare.left_out) == (counted.entries, counted.left_out)


def test_kernels_alone_are_calls_where_they_say_their_size(tmp_path: Path) -> None:
    said = record(1, "_allgather_base", 32, 512)["args"]
    (entry,) = traced(tmp_path / "x", kernel(1, "AllGather_RING_LL", 33.0, **said)).entries
    assert (entry.request.collective, entry.bytes, entry.kernels_us) == (AG, 1024, (33.0,))


def test_measured_kernels_stand_beside_what_is_predicted(tmp_path: Path) -> None:
    calls = [record(number, "allreduce", 256, 256) for number in (1, 2)]
    path = tmp_path / "x"
    path.write_text(json.dumps([*calls, kernel(1, "AllReduce", 100.0)]))
    answered = json.loads(run(path, "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--json"))
    (entry,) = answered["entries"]
    assert entry["kernels"] == {"calls": 1, "total_us": 100.0, "least_us": 100.0, "median_us": 100.0}
    predicted_us = float(Selection(TWO.communicator()).pick(Request(AR, DataType.bfloat16, Op.sum), 512).time_us[0])
    kernels = answered["variants"][0]["kernels"]
    assert (kernels["calls"], kernels["measured_us"]) == (1, 100.0)
    assert kernels["predicted_us"] == pytest.approx(predicted_us, rel=1e-6)
    assert answered["variants"][0]["total_us"] == pytest.approx(2 * predicted_us, rel=1e-6)
    assert "1 kernel took 0.100 ms" in run(path, "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


# Logs

INIT = (
    "h:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev 0 commId {id} "
    "- Init START"
)
COLL = (
    "h:{pid}:{pid} [0] NCCL INFO {name}: opCount 0 sendbuff (nil) recvbuff 0x2 count {count} datatype {dtype} "
    "op {op} root 0 comm {comm} [nranks={ranks}] stream 0x3"
)


def line(form: str, **values: Any) -> str:
    given = {"pid": 1, "comm": "0xa", "ranks": 16, "rank": 0, "id": "0xc", "dtype": 9, "op": 0, "count": 1000}
    return form.format(**{**given, **values}) + "\n"


def test_a_log_of_all_ranks_counts_one_of_each_communicator(tmp_path: Path) -> None:
    ranks = [line(INIT, pid=pid, rank=pid - 1) + line(COLL, pid=pid, name="AllGather") for pid in (2, 1, 3)]
    other = line(INIT, pid=1, comm="0xb", id="0xd", ranks=4) + line(COLL, name="AllReduce", comm="0xb", ranks=4)
    rest = line(COLL, name="Send")
    rest += line(COLL, name="AllReduce", dtype=7, op=2) + line(COLL, name="AllReduce", dtype=99)
    counted = count([found(tmp_path / "x", "".join(ranks) + other + rest)], WANTED)
    assert sizes(counted) == [("AllGather", "bfloat16", 32_000, 1), ("AllReduce", "float32", 4000, 1)]
    assert counted.entries[1].request.op is Op.max
    reasons = {(left.name, left.reason) for left in counted.left_out}
    assert reasons == {
        ("Send", "NCCL has no algorithms to choose from"),
        ("AllReduce", "type 99 is none of NCCL's"),
        ("AllReduce", "of communicators of 4 ranks"),
    }
    four = count([found(tmp_path / "x", "".join(ranks) + other)], replace(WANTED, communicators=("0xd",), ranks=4))
    assert sizes(four) == [("AllReduce", "bfloat16", 2000, 1)]


def test_a_log_that_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    one = line(COLL, name="AllReduce")
    assert sizes(count([found(tmp_path / "x", one * 3)], WANTED)) == [("AllReduce", "bfloat16", 2000, 3)]
    with pytest.raises(BadInput, match="2 communicators of 16 ranks, or ranks of one, and no INIT lines say which"):
        found(tmp_path / "x", one + line(COLL, name="AllReduce", pid=2))
    with pytest.raises(BadInput, match="this log has no calls: set NCCL_DEBUG_SUBSYS=INIT,COLL"):
        found(tmp_path / "x", line(INIT))
    cut = count([found(tmp_path / "x", one + one[:-20])], WANTED)
    assert sizes(cut) == [("AllReduce", "bfloat16", 2000, 1)]
    assert "the last line is cut and not counted" in cut.notes


def test_a_log_without_calls_is_counted_by_its_choices(tmp_path: Path) -> None:
    chosen = "h:1:1 [0] NCCL INFO {} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..1}}\n"
    text = line(INIT) + chosen.format("AllGather: 2000") + 2 * chosen.format("AllReduce: 2000")
    text += "h:1:1 [0] NCCL INFO 4096 Bytes -> Algo 1 proto 2 time 12.000000\n"
    text += "h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 64 Bytes -> Kernel AllReduce_AGxLL_R nchannels 1\n"
    counted = count([found(tmp_path / "x", text)], WANTED)
    assert sizes(counted) == [("AllGather", "float32", 32_000, 1), ("AllReduce", "float32", 2000, 2)]
    assert left_out(counted)["a collective"] == ("the log does not name the collective (COLL lines would)", 1)
    assert left_out(counted)["AllReduce"] == ("symmetric kernels, which have no predicted time", 1)
    assert any("no COLL lines" in note for note in counted.notes)


def test_real_logs_are_counted() -> None:
    logs = sorted(CASES.glob("2xA100*/raw/*.log"))
    if not logs:
        pytest.skip("the logs of real machines are not here")
    for path in logs:
        counted = count([read(path, 2)], WantedCalls(ranks=2, priced_ranks=2, nodes=1))
        # nccl-tests: 5 warm-ups, then 20 runs out of place and 20 in place, of 8 MiB to 8 GiB
        assert sizes(counted) == [("AllReduce", "float32", 1 << power, 45) for power in range(23, 34)]
        assert counted.left_out == []


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_libnccls_own_lines_give_the_sizes_that_were_called(
    nccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Child._environment
    monkeypatch.setattr(Child, "_environment", lambda *given: {**own(*given), "NCCL_DEBUG_SUBSYS": "INIT,COLL,TUNING"})
    scenario = Scenario(nccl=nccl, machine="dgx-h100", nodes=2, gpus_per_node=2)
    with Oracle(scenario.resolve().oracle_configuration_to_launch()) as oracle:
        for collective in Collective:
            oracle.launch(Request(collective, DataType.bfloat16, Op.max), [1 << 12, 1 << 12, 1 << 20])
        lines = list(oracle.log_lines())
    wanted = WantedCalls(ranks=4, priced_ranks=4)
    counted = count([found(tmp_path / "x", "\n".join(lines) + "\n")], wanted)
    assert [(e.request.collective, e.bytes, e.calls) for e in counted.entries] == [
        (each, size, calls) for each in Collective for size, calls in ((1 << 12, 2), (1 << 20, 1))
    ]
    kinds = {(entry.request.dtype, entry.request.op) for entry in counted.entries if not entry.request.moves_only}
    assert kinds == {(DataType.bfloat16, Op.max)}  # what only moves, 2.18 prints as bytes
    assert counted.left_out == []


# Prices


def entries(*kinds: tuple[Collective, int, float], dtype: DataType = DataType.float32) -> list[Entry]:
    return [Entry(Request(collective, dtype, Op.sum), size, calls) for collective, size, calls in kinds]


def costed(
    what: list[Entry], *variants: BudgetVariant, measured: MeasuredRuns | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = to_json(budget([], WANTED, Counted(what, []), variants or [BudgetVariant("own", TWO)], measured))
    return found, found["variants"]


SOME = entries((AG, 1 << 20, 5), (RS, 3 << 20, 2), (AR, 4, 7), (AR, 1 << 17, 11), (AR, 1 << 30, 0.5))


@pytest.mark.parametrize("nccl", ["2.18.1", "2.22.3", "2.28.9", "2.32.3"])
def test_the_time_is_the_sum_of_nccls_own_predictions(nccl: str) -> None:
    scenario = replace(TWO, nccl=nccl)
    selection = Selection(scenario.communicator())
    picks = [selection.pick(entry.request, entry.bytes) for entry in SOME]
    found, (variant,) = costed(SOME, BudgetVariant("own", scenario))
    for entry, row, pick in zip(SOME, found["entries"], picks, strict=True):
        (price,) = row["prices"]
        assert np.float32(price["time_us"]) == pick.time_us[0]
        assert (Algorithm[price["algorithm"]], Protocol[price["protocol"]]) == (pick.algorithm[0], pick.protocol[0])
        assert price["channels"] == pick.channels[0]
        assert price["total_us"] == entry.calls * price["time_us"]
    total_us = sum(entry.calls * float(pick.time_us[0]) for entry, pick in zip(SOME, picks, strict=True))
    assert variant["total_us"] == pytest.approx(total_us, rel=1e-6)
    assert variant["priced_calls"] == 25.5
    for parts in (variant["by_collective"], variant["by_combination"]):
        assert sum(part["total_us"] for part in parts) == pytest.approx(variant["total_us"])
        assert sum(part["share"] for part in parts) == pytest.approx(1)
        assert sum(part["calls"] for part in parts) == 25.5
        assert parts == sorted(parts, key=lambda part: -part["total_us"])
    assert [part["collective"] for part in variant["by_collective"]] == ["AllReduce", "AllGather", "ReduceScatter"]


def test_two_releases_differ_by_the_sizes_whose_time_does() -> None:
    two = [BudgetVariant(name, replace(TWO, nccl=name, machine="dgx-b200")) for name in ("2.22.3", "2.28.9")]
    found, (old, new) = costed(SOME, *two)
    assert old["changes"] == []
    assert old["difference_us"] == 0
    assert new["difference_us"] == pytest.approx(new["total_us"] - old["total_us"])
    assert new["difference"] == pytest.approx(new["total_us"] / old["total_us"] - 1)
    assert new["difference_us"] != 0
    changed = {(each["collective"], each["bytes"]) for each in new["changes"]}
    prices_of = [[price["time_us"] for price in row["prices"]] for row in found["entries"]]
    assert changed >= {
        (entry.request.collective.name, entry.bytes)
        for entry, (one, other) in zip(SOME, prices_of, strict=True)
        if one != other
    }
    differences = [abs(each["difference_us"]) for each in new["changes"]]
    assert differences == sorted(differences, reverse=True)


def test_what_a_release_does_not_take_has_a_reason_and_no_time() -> None:
    fp8 = entries((AR, 1 << 20, 3), dtype=DataType.float8e4m3) + entries((AR, 1 << 20, 2))
    hour = [Entry(fp8[1].request, 1 << 61, 1)]
    old, new = (BudgetVariant(name, replace(TWO, nccl=name)) for name in ("2.23.4", "2.28.9"))
    refused_, plain, slow = prices(old, fp8 + hour)
    assert isinstance(refused_, Unpriced)
    assert "no type float8e4m3" in refused_.reason
    assert isinstance(plain, Price)
    assert isinstance(slow, Unpriced)
    assert "every candidate is that slow" in slow.reason
    found, (before, after) = costed(fp8, old, new)
    assert (before["unpriced_calls"], after["unpriced_calls"]) == (3, 0)
    one, other = (price["total_us"] for price in found["entries"][1]["prices"])
    assert after["difference_us"] == pytest.approx(other - one)  # of what has a time in both
    assert after["difference"] == pytest.approx((other - one) / one)
    with pytest.raises(BadInput, match=r"2.26.2 has no symmetric windows; valid: 2.27.3 and later"):
        prices(
            BudgetVariant("", replace(TWO, nccl="2.26.2")),
            [Entry(Request(AR, DataType.float32, Op.sum, buffers=Buffers.window), 8, 1)],
        )


def test_a_table_has_the_models_time_of_what_it_chooses(tmp_path: Path) -> None:
    table = tmp_path / "my.table"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=64K..256K -> ring/simple channels=2\nallgather -> nccl\n")
    own, changed = (prices(BudgetVariant("", TWO, path), SOME) for path in (None, table))
    costs_us = Selection(TWO.communicator()).cost_table(SOME[3].request, SOME[3].bytes)
    assert changed[3] == Price(
        Algorithm.Ring, Protocol.Simple, 2, float(str(costs_us[0, Algorithm.Ring, Protocol.Simple])), own_channels=False
    )
    assert changed[:3] + changed[4:] == own[:3] + own[4:]
    # Costs of a table choose, and are not what is summed up.
    cost = "cost allreduce bytes=64K..256K -> ring/simple latency-us=5 bandwidth-gbs=9000"
    table.write_text(f"nccl-tuner-table 1\n{cost}\n")
    priced = prices(BudgetVariant("", TWO, table), SOME)[3]
    assert isinstance(priced, Price)
    assert (priced.name, priced.time_us, priced.own_channels) == ("Ring/Simple", changed[3].time_us, True)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(list(Collective)), st.integers(1, 1 << 32), st.integers(1, 99)), min_size=1))
def test_rows_by_powers_of_two_sum_up_the_same(kinds: list[tuple[Collective, int, float]]) -> None:
    calls = tuple(TracedCall(one.name, one, size, calls=times) for one, size, times in kinds)
    counted = count([CallList("x", "", "", calls)], WANTED)
    made = budget([], WANTED, counted, [BudgetVariant("own", TWO)])
    found, rows = to_json(made), to_json(buckets(made.entries))
    assert sum(row["calls"] for row in rows) == sum(times for _, _, times in kinds)
    assert sum(row["total_us"] for row in rows) == pytest.approx(found["variants"][0]["total_us"])
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for collective, size, _ in kinds:
        held = [row for row in rows if row["from_bytes"] <= size <= row["to_bytes"]]
        assert collective.name in {row["collective"] for row in held}
    assert len(rows) == len({(collective, size.bit_length()) for collective, size, _ in kinds})


# Regret

RING, RING_8 = Combination(Algorithm.Ring, Protocol.LL), Combination(Algorithm.Ring, Protocol.LL, 8)
TREE = Combination(Algorithm.Tree, Protocol.LL)


def timed(
    path: Path,
    times_us: dict[int, dict[Combination | None, float]],
    scenario: Scenario = TWO,
    collective: Collective = AR,
) -> Path:
    with Writer(path, Header(scenario=scenario)) as file:
        for size, columns in times_us.items():
            for asked, time_us in columns.items():
                ran = asked or replace(TREE, channels=16)
                file.add(SampleBlock(Point(collective, size), asked, ran, (time_us,)))
    return path


def test_regret_is_the_picks_measured_time_over_the_best(tmp_path: Path) -> None:
    """NCCL 2.28.9 takes Tree/LL at all three sizes; times at 128 KiB are straight in logarithms: sqrt(50 x 200)."""
    path = timed(tmp_path / "run.jsonl", {1 << 16: {TREE: 50.0, RING: 40.0}, 1 << 18: {TREE: 200.0, RING: 90.0}})
    what = entries((AR, 1 << 16, 10), (AR, 1 << 17, 3), (AR, 1 << 19, 4), (AG, 1 << 16, 5))
    found, (variant,) = costed(what, measured=read_runs(path, TWO))
    at_64k, at_128k, above, gathered = (row["prices"][0]["measured"] for row in found["entries"])
    assert at_64k == {
        "pick_us": pytest.approx(50),
        "best": "Ring/LL",
        "best_us": pytest.approx(40),
        "interpolated": False,
        "regret_us": pytest.approx(100),
    }
    assert at_128k["pick_us"] == pytest.approx(100)
    assert at_128k["best_us"] == pytest.approx(60)
    assert at_128k["interpolated"]
    assert above == {"reason": "the file only has sizes from 65536 to 262144 bytes"}
    assert gathered == {"reason": "the file has no AllGather"}
    total = variant["regret"]
    assert total["regret_us"] == pytest.approx(10 * 10 + 3 * 40)
    assert (total["pick_us"], total["best_us"]) == (pytest.approx(500 + 300), pytest.approx(400 + 180))
    assert total["regret"] == pytest.approx(220 / 580)
    assert (total["calls"], total["interpolated_calls"], total["unmeasured_calls"]) == (13, 3, 9)


def test_the_best_may_be_the_pick_with_other_channels(tmp_path: Path) -> None:
    tree_8, tree_16 = replace(TREE, channels=8), replace(TREE, channels=16)
    what = entries((AR, 1 << 16, 1))
    path = timed(tmp_path / "a", {1 << 16: {TREE: 50.0, tree_8: 45.0}})
    (judged,) = [costed(what, measured=read_runs(path, TWO))[0]["entries"][0]["prices"][0]["measured"]]
    assert (judged["best"], judged["regret_us"]) == ("Tree/LL channels=8", pytest.approx(5))
    # 16 is what NCCL takes by itself, as is what it ran unasked.
    for number, own in enumerate((tree_16, None)):
        path = timed(tmp_path / f"b{number}", {1 << 16: {own: 50.0, RING: 60.0}})
        (judged,) = [costed(what, measured=read_runs(path, TWO))[0]["entries"][0]["prices"][0]["measured"]]
        assert (judged["best"], judged["pick_us"], judged["regret_us"]) == ("Tree/LL", pytest.approx(50), 0)
    path = timed(tmp_path / "c", {1 << 16: {tree_8: 50.0, RING: 60.0}})
    (judged,) = [costed(what, measured=read_runs(path, TWO))[0]["entries"][0]["prices"][0]["measured"]]
    assert judged == {"reason": "Tree/LL was not measured"}


def test_a_tables_channels_are_judged_as_such(tmp_path: Path) -> None:
    table = tmp_path / "my.table"
    table.write_text("nccl-tuner-table 1\nallreduce -> ring/ll channels=8\n")
    path = timed(tmp_path / "run.jsonl", {1 << 22: {TREE: 50.0, RING: 40.0, RING_8: 30.0}})
    found, _ = costed(entries((AR, 1 << 22, 1)), BudgetVariant("", TWO, table), measured=read_runs(path, TWO))
    (judged,) = [found["entries"][0]["prices"][0]["measured"]]
    assert (judged["pick_us"], judged["best"]) == (pytest.approx(30), "Ring/LL channels=8")


def test_measurements_of_another_communicator_are_refused(tmp_path: Path) -> None:
    times_us: dict[int, dict[Combination | None, float]] = {8: {TREE: 1.0}}
    for number, other in enumerate((replace(TWO, nodes=4), replace(TWO, machine="dgx-a100"))):
        path = timed(tmp_path / str(number), times_us, other)
        with pytest.raises(BadMeasurement, match=rf"measured on {other.title}; valid: measurements of {TWO.title}"):
            read_runs(path, TWO)
    own = read_runs(timed(tmp_path / "own", times_us, replace(TWO, nccl="2.22.3")), TWO)
    assert own.notes == (f"{tmp_path / 'own'}: measured with NCCL 2.22.3",)
    with pytest.raises(BadMeasurement, match="has no times that count"):
        read_runs(timed(tmp_path / "none", {}), TWO)


# The command

HERE_TWO = ("--machine", "dgx-h100", "--nodes", "2")


def test_the_command_prints_columns_by_release_and_setting(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("allreduce,96K,10\nallgather,64M,2\nalltoall,1M,3\n")
    settings_ = ("--setting", "NCCL_ALGO=Ring,Tree,NCCL_PROTO=Simple", "--env", "NCCL_NVLS_ENABLE=0")
    asked = (path, *HERE_TWO, "--nccl", "2.22.3, 2.28.9", *settings_)
    answered = json.loads(run(*asked, "--json"))
    names = [
        "NCCL 2.22.3",
        "NCCL 2.22.3 with NCCL_ALGO=Ring,Tree,NCCL_PROTO=Simple",
        "NCCL 2.28.9",
        "NCCL 2.28.9 with NCCL_ALGO=Ring,Tree,NCCL_PROTO=Simple",
    ]
    assert [variant["name"] for variant in answered["variants"]] == names
    assert answered["variants"][0]["environment"] == {"NCCL_NVLS_ENABLE": "0"}
    assert answered["variants"][3]["environment"] == {
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_ALGO": "Ring,Tree",
        "NCCL_PROTO": "Simple",
    }
    assert {price["protocol"] for row in answered["entries"] for price in row["prices"][1::2]} == {"Simple"}
    assert answered["left_out"] == [
        {"name": "alltoall", "reason": "NCCL has no algorithms to choose from", "calls": 3, "kernels_us": 0}
    ]
    shown = run(*asked)
    assert all(name in shown for name in names)
    assert "left out: 3 x alltoall" in shown


def test_calls_are_shown_to_the_last_one_and_with_their_operation(tmp_path: Path) -> None:
    rows = "allreduce,64M,1234567,max,a\nallreduce,64M,0.5,,b\nallreduce,64M,0.25,sum,b\n"
    path = tmp_path / "x.csv"
    path.write_text(f"collective,bytes,calls,op,communicator\n{rows}")
    shown = run(path, *HERE_TWO, "--nccl", "2.28.9")
    assert f"\n{path}: CSV, 1234567.75 calls;" in shown
    assert " AllReduce    float32       64 MiB      0.75   NVLSTree/Simple " in shown
    assert " AllReduce    float32 max   64 MiB   1234567   Ring/LL128 " in shown
    assert "2 communicators are counted together (a: 1234567, b: 0.75)" in shown


def test_many_sizes_are_shown_together_and_several_files_added_up(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("".join(f"allreduce,{1024 + 4 * number},1\n" for number in range(40)))
    asked = (path, path, *HERE_TWO, "--nccl", "2.28.9")
    (row,) = [line.split() for line in run(*asked).splitlines() if "from 1 KiB" in line]
    assert row[:6] == ["AllReduce", "float32", "from", "1", "KiB", "80"]
    assert "1028 B" in run(*asked, "--exact")
    assert json.loads(run(*asked, "--json"))["calls"] == 80


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("allreduce,8,1\n")
    assert "x.csv.gz: No such file" in refused(f"{path}.gz", *HERE_TWO)
    assert refused(path, *HERE_TWO, "--setting", "ALGO=Ring").startswith(
        "--setting 'ALGO=Ring' is not of the form NCCL_NAME="
    )
    assert refused(path, *HERE_TWO, "--setting", "NCCL_ALGO").startswith(
        "--setting 'NCCL_ALGO' is not of the form NCCL_NAME="
    )
    assert "NCCL_NET_PLUGIN_REF_COUNT: not" in refused(path, *HERE_TWO, "--setting", "NCCL_NET_PLUGIN_REF_COUNT=1")
    assert refused(path, *HERE_TWO, "--communicator", "tp") == "--communicator 'tp': the calls name no communicator"
    assert "has no symmetric windows; valid: 2.27.3" in refused(
        path, *HERE_TWO, "--nccl", "2.20.5", "--buffers", "window"
    )
    path.write_text("collective,bytes,ranks\nallreduce,8,4\nallreduce,8,2\nalltoall,8,3\n")
    assert refused(path, *HERE_TWO).endswith("--ranks: valid: 2, 4")


def test_sends_and_receives_are_counted_with_what_they_take(tmp_path: Path) -> None:
    """They have no time of NCCL, are in no total, and stay named among what is left out."""
    file = tmp_path / "x.csv"
    file.write_text("collective,bytes,calls\nallreduce,8M,1\nsend,32M,4\nrecv,1K,2\nalltoall,16M,3\n")
    words = str(file), "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9"
    (variant,) = json.loads(run(*words, "--json"))["variants"]
    made = {(each["call"], each["bytes"]): each for each in variant["exchanges"]}
    assert made["Send", 32 << 20]["total_bytes"] == 128 << 20
    assert {way["network"]: way["protocol"] for way in made["Recv", 1024]["ways"]} == {False: "LL", True: "Simple"}
    assert made["AllToAll", 16 << 20]["calls"] == 3
    assert variant["priced_calls"] == 1
    out = run(*words)
    assert "NCCL has no time model for them, so no total includes them" in out
    assert "left out: 4 x send" in out


def test_results_of_nccl_tests_are_times_beside_a_list_and_no_list() -> None:
    examples = Path(__file__).parents[2] / "docs" / "examples"
    results, at = str(examples / "all_reduce.log"), ("--machine", "dgx-h100")
    with pytest.raises(
        BadInput, match="results of nccl-tests are times, not a list of calls: give them with --measured"
    ):
        CliRunner().invoke(everything, ["budget", results, *at], catch_exceptions=False)
    taken = CliRunner().invoke(everything, ["budget", str(examples / "step.csv"), "--measured", results, *at])
    assert taken.exit_code == 0, taken.output
