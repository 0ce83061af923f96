"""Sends, receives and the calls made of them, in every form of trace that says how many bytes they have."""

import json
import pickle
import sqlite3
from pathlib import Path

import pytest

from tests.support import trace_files
from tests.support.command_line import run
from tests.support.trace_files import RANKS, Made
from tuner.jobs.traces.read import read

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
