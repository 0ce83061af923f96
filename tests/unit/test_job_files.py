"""Files of a job that are broken, and the Inspector's, which are read as the plugin's are."""

import json
import os
import resource
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tuner.base.errors import BadInput, CannotBeJudged
from tuner.base.names import Collective
from tuner.cli import everything as main
from tuner.jobs.inside import joined, report
from tuner.jobs.inside.files import _COMMUNICATOR, _HEAD, _KIND, _RECORD, MAGIC, Untimed, read_file


def inspected(folder: Path, rank: int, times_us: list[float], **more: object) -> None:
    """What the Inspector of one rank writes: docs of NCCL's plugins/profiler/inspector, v2.30.7-1."""
    lines = [
        {
            "header": {"id": "0x7a", "comm_name": "world", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"dump_timestamp_us": 1_700_000_000_000_000 + number, "hostname": f"host{rank}", "pid": 7},
            "coll_perf": {
                "coll": "AllGather",
                "coll_sn": number,
                "coll_msg_size_bytes": 4096,
                "coll_exec_time_us": time_us,
                **more,
            },
        }
        for number, time_us in enumerate(times_us)
    ]
    (folder / f"host{rank}-pid7.log").write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.mark.parametrize("more", [{}, {"coll_algo": "RING", "coll_proto": "LL"}])
def test_the_inspectors_json_is_joined_as_our_own(tmp_path: Path, more: dict[str, object]) -> None:
    inspected(tmp_path, 0, [10, 20, 30], **more)
    inspected(tmp_path, 1, [15, 18, 30], **more)
    folder = joined.read_folder(tmp_path)
    (calls,) = joined.joined(folder)
    assert calls.transfer_us.tolist() == [10, 18, 30]
    assert calls.waiting_us.tolist() == [5, 2, 0]
    assert calls.last.tolist() == [0, 1, 0]
    (kind,) = calls.kinds
    assert (kind.bytes, kind.executed is None) == (8192, not more)
    found = report.report(folder, [calls])
    assert any("Inspector" in note for note in found.notes)
    assert [block.times_us for block in report.measurements([calls], None).blocks] == [(10, 18, 30)]


@pytest.mark.parametrize("command", [["decide"], ["job", "plan", "--machine", "dgx-h100"]])
def test_without_what_ran_that_is_the_reason(command: list[str], tmp_path: Path) -> None:
    for rank in range(2):
        inspected(tmp_path, rank, [10, 20, 30])
    done = CliRunner().invoke(main, [*command, str(tmp_path), "--out", str(tmp_path / "t.table")])
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).startswith("no file says which algorithm calls ran")
    assert not (tmp_path / "t.table").exists()


def test_a_file_that_is_none_or_cut_is_named_and_left_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        joined.read_folder(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no file of a job"):
        joined.read_folder(tmp_path)
    cut = tmp_path / "a.1.2.0.job"
    cut.write_bytes(MAGIC + b"\x01" * 600)
    with pytest.raises(BadInput, match=r"a\.1\.2\.0\.job is cut off"):
        read_file(cut)
    with pytest.raises(BadInput, match=r"a\.1\.2\.0\.job is cut off"):
        joined.read_folder(tmp_path)
    (tmp_path / "b.job").write_bytes(b"")
    with pytest.raises(BadInput, match=r"b\.job is empty"):
        read_file(tmp_path / "b.job")


def written(folder: Path, rank: int, times_us: list[float], **given: int | bytes) -> None:
    """A file of one rank of two; ``given`` are values of its heads, communicators and kinds by their names."""
    head, communicator, kind = np.zeros(1, _HEAD), np.zeros(1, _COMMUNICATOR), np.zeros(1, _KIND)
    records = np.zeros(len(times_us), _RECORD)
    head["magic"], head["communicators"], head["kinds"], head["records"] = MAGIC, 1, 1, len(times_us)
    head["pid"], head["rank"], communicator["ranks"], communicator["nodes"] = rank + 1, rank, 2, 1
    communicator["id"], communicator["rank"] = 7, rank
    kind["channels"], kind["count"], kind["function"], kind["type"] = 8, 1024, b"AllReduce", b"ncclFloat32"
    kind["algorithm"], kind["protocol"] = b"RING", b"SIMPLE"
    records["sequence"], records["time_us"] = np.arange(len(times_us)), times_us
    for name, value in given.items():
        part, column = name.split("_", 1)
        {"head": head, "communicator": communicator, "kind": kind}[part][column] = value
    (folder / f"h.{rank}.job").write_bytes(b"".join(each.tobytes() for each in (head, communicator, kind, records)))


def test_times_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    written(tmp_path, 0, [10, np.nan, np.inf, -9, 3e38, 20])
    written(tmp_path, 1, [11, 12, 13, 14, 15, 16])
    folder = joined.read_folder(tmp_path)
    (calls,) = joined.joined(folder)
    assert calls.transfer_us.tolist() == [10, 16]
    assert calls.incomplete == 4
    assert any("left out: 4 records whose time" in note for note in report.report(folder, [calls]).notes)


@pytest.mark.parametrize("kind", ["FIFO", "link to a device", "folder"])
def test_what_is_no_file_of_a_job_is_left_out(kind: str, tmp_path: Path) -> None:
    """Under the name of one, in a folder that ranks of others may write to."""
    for rank in (0, 1):
        written(tmp_path, rank, [10, 20])
    other = tmp_path / "h.2.job"
    os.mkfifo(other) if kind == "FIFO" else other.mkdir() if kind == "folder" else other.symlink_to("/dev/zero")
    (calls,) = joined.joined(joined.read_folder(tmp_path))
    assert calls.transfer_us.tolist() == [10, 20]


def test_a_call_without_a_time_on_one_rank_has_none_and_is_counted_with_its_reason(tmp_path: Path) -> None:
    written(tmp_path, 0, [10, -1, -3, 20, -4])
    written(tmp_path, 1, [11, -1, 13, -2, -4])
    folder = joined.read_folder(tmp_path)
    (calls,) = joined.joined(folder)
    assert (calls.sequence.tolist(), calls.transfer_us.tolist(), calls.incomplete) == ([0], [10], 0)
    assert folder.untimed == {Untimed.graphs: 1, Untimed.group: 1, Untimed.self_sends: 1, Untimed.overlap: 1}
    found = report.report(folder, [calls])
    assert (found.calls, found.untimed) == (1, 4)
    assert len([note for note in found.notes if note.startswith("without a time: 1 call ")]) == 4
    ran = CliRunner().invoke(main, ["job", "read", str(tmp_path)])
    assert ran.exit_code == 0
    assert " ".join(ran.output.split()).count("without a time: 1 call") == 4


@pytest.mark.parametrize("command", [["decide"], ["job", "plan", "--machine", "dgx-h100"]])
def test_a_rank_without_a_file_is_the_reason(command: list[str], tmp_path: Path) -> None:
    written(tmp_path, 1, [10, 20])
    ran = CliRunner().invoke(main, [*command, str(tmp_path), "--out", str(tmp_path / "t.table")])
    assert isinstance(ran.exception, CannotBeJudged)
    assert str(ran.exception).endswith("no call has a time on every rank; only 1 of 2 ranks have a file")


def test_without_any_time_reading_says_so(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [-1, -1])
    ran = CliRunner().invoke(main, ["job", "read", str(tmp_path)])
    assert ran.exit_code == 3
    assert ran.output.startswith("no call has a time")
    for words in (["job", "plan", "--machine", "dgx-h100"], ["decide"], ["job", "read"]):
        ran = CliRunner().invoke(main, [*words, str(tmp_path), "--out", str(tmp_path / "out")])
        assert isinstance(ran.exception, CannotBeJudged)
        assert "no call has a time on every rank" in str(ran.exception)
        assert not (tmp_path / "out").exists()


def test_kernels_that_took_longer_together_than_passed_have_no_time(tmp_path: Path) -> None:
    """In files of any profiler: a second of 100 us each, then one of 10 ms each 1 ms apart, then right ones again."""
    at_ms = np.arange(6000.0)
    times_us = np.where((at_ms >= 2000) & (at_ms < 4000), 10_000.0, 100.0)
    found = joined.overlapping(times_us, at_ms)
    assert not found[:2000].any()
    assert found[2000:4000].all()
    assert not found[4000 + 256 :].any()
    assert not joined.overlapping(np.full(6000, 999.0), at_ms).any()
    assert not joined.overlapping(np.array([9e8]), np.array([0.0])).any()
    dumped_ms = at_ms // 2000 * 2000  # by a thread that looks every two seconds
    assert not joined.overlapping(np.full(6000, 900.0), dumped_ms).any()
    times = [float(each) for each in times_us]
    for rank in range(2):
        inspected(tmp_path, rank, times)  # noted 1 us apart
    folder = joined.read_folder(tmp_path)
    (calls,) = joined.joined(folder)
    assert folder.untimed[Untimed.overlap] > 2000
    assert calls.transfer_us.sum() < 1e6


def test_a_job_may_have_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    for rank in range(200):
        written(tmp_path, rank, [10 + rank, 20], communicator_ranks=200)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        (calls,) = joined.joined(joined.read_folder(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (calls.transfer_us.tolist(), calls.last.tolist()) == ([10, 20], [0, 0])


def test_a_job_that_goes_on_may_replace_its_files_while_they_are_read(tmp_path: Path) -> None:
    for rank in range(3):
        written(tmp_path, rank, [10, 20], communicator_ranks=3)
    folder = joined.read_folder(tmp_path)
    for rank in range(2):
        written(tmp_path, rank, [10, 20, 30], communicator_ranks=3)
    (calls,) = joined.joined(folder)
    assert (calls.transfer_us.tolist(), calls.incomplete) == ([10, 20], 1)
    (tmp_path / "h.2.job").unlink()
    (calls,) = joined.joined(folder)
    assert (len(calls.call), calls.incomplete) == (0, 3)
    assert any("h.2.job: No such file" in note for note in folder.left_out)


def test_calls_that_ranks_do_not_share_are_joined_in_the_right_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that no rank had before get their places later than others, between them or behind them."""
    monkeypatch.setattr(joined, "AT_ONCE", 20)
    random = np.random.default_rng(0)
    functions = {Collective.AllGather: b"AllGather", Collective.AllReduce: b"AllReduce"}
    times_us = random.integers(10, 99, (2, 9, 300)).astype(float)
    there = random.random((2, 9, 300)) < 0.99
    for rank, (which, function) in product(range(9), enumerate(functions.values())):
        times = np.where(there[which, rank], times_us[which, rank], -9)
        written(tmp_path, rank, list(times), communicator_ranks=9, kind_function=function)
        (tmp_path / f"h.{rank}.job").rename(tmp_path / f"{rank}.{which}.job")
    (calls,) = joined.joined(joined.read_folder(tmp_path))
    assert calls.incomplete == 600 - there.all(axis=1).sum()
    for which, collective in enumerate(functions):
        whole, times = there[which].all(axis=0), times_us[which]
        assert 200 < whole.sum() < 300
        own = np.array([kind.collective is collective for kind in calls.kinds])[calls.call]
        np.testing.assert_array_equal(calls.sequence[own], np.flatnonzero(whole))
        np.testing.assert_array_equal(calls.transfer_us[own], times.min(axis=0)[whole])
        np.testing.assert_array_equal(calls.waiting_us[own], (times - times.min(axis=0)).sum(axis=0)[whole])
        np.testing.assert_array_equal(calls.last[own], times.argmin(axis=0)[whole])


@pytest.mark.slow
def test_a_cluster_of_processes_joins_as_one_process_does(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    random = np.random.default_rng(0)
    for number in (7, 8):  # communicators
        (tmp_path / "job").mkdir(exist_ok=True)
        for rank in range(2):
            times = random.uniform(10, 20, 2000)
            written(tmp_path / "job", rank, list(times), communicator_id=number, head_pid=10 * number + rank + 1)
            (tmp_path / "job" / f"h.{rank}.job").rename(tmp_path / "job" / f"{number}.{rank}.job")
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        assert len(set(client.run(os.getpid).values()) - {os.getpid()}) == 2
        found = list(joined.joined(joined.read_folder(tmp_path / "job"), joined.by_dask(tmp_path / "kept", 2)))
    expected = list(joined.joined(joined.read_folder(tmp_path / "job")))
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        for name in ("call", "sequence", "transfer_us", "waiting_us", "last", "at_s"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert (one.incomplete, one.mismatched, len(one.call)) == (0, 0, 2000)
    assert len(list((tmp_path / "kept").glob("communicator=*/part=*/*.parquet"))) == 4


@pytest.mark.parametrize("rank", [0, 5])
def test_a_rank_that_is_there_twice_or_is_none_makes_no_call_complete(rank: int, tmp_path: Path) -> None:
    written(tmp_path, 0, [10, 20])
    written(tmp_path, 1, [11, 21], communicator_rank=rank)
    (calls,) = joined.joined(joined.read_folder(tmp_path))
    assert (len(calls.call), calls.incomplete) == (0, 2)


@pytest.mark.parametrize("given", [{"kind_channels": 255}, {"kind_count": 2**64 - 1}])
def test_calls_that_no_table_can_name_are_left_out_and_counted(given: dict[str, int], tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [10, 20], **given)
    folder = joined.read_folder(tmp_path)
    (calls,) = joined.joined(folder)
    assert not calls.kinds
    assert any("left out: 1 kind of calls with an impossible number" in note for note in folder.left_out)


@pytest.mark.parametrize("given", [{"communicator_ranks": 2**32 - 1}, {"head_thinned": 2**32 - 1}])
def test_counts_beyond_bounds_are_refused_and_each_file_is_named(given: dict[str, int], tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [10], **given)
    with pytest.raises(BadInput, match=r"h\.0\.job: files are read with up to .*; .*h\.1\.job: files are read"):
        joined.read_folder(tmp_path)


@pytest.mark.parametrize("command", [["decide"], ["plan", "--machine", "dgx-h100"]])
def test_decide_and_plan_say_what_is_left_out(command: list[str], tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [np.nan, 10], kind_count=0)
    verb = ["decide"] if command[0] == "decide" else ["job", command[0]]
    words = [*verb, str(tmp_path), *command[1:], "--out", str(tmp_path / "t.table")]
    done = CliRunner().invoke(main, words)
    assert isinstance(done.exception, BadInput)
    assert "left out: 1 record whose time" in done.output
    assert not (tmp_path / "t.table").exists()


def test_the_example_names_its_straggler_right_after_the_verdict() -> None:
    result = CliRunner().invoke(main, ["job", "read", "docs/examples/job"])
    assert result.exit_code == 0
    first, second = result.output.splitlines()[:2]
    assert first.endswith("is waiting for the last rank")
    assert second.startswith("straggler: rank 5 on node01 came last in 50 % of 120 calls")


def test_one_file_names_its_folder_and_trays_are_those_of_the_job(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["job", "read", "docs/examples/job/node01.4711.0.job"])
    assert str(refused.exception).endswith("a file: give the folder that it is in")
    measured = CliRunner().invoke(
        main, ["job", "read", "docs/examples/job", "--machine", "gb200-nvl72", "--out", str(tmp_path / "job.jsonl")]
    )
    assert measured.exit_code == 0
    assert '"trays":2,' in (tmp_path / "job.jsonl").read_text("utf-8").splitlines()[0]
