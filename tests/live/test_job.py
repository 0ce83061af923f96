"""Jobs that the plugin measures from inside, under the real libnccl: what is read is what was planted, call by call."""

from errno import EDQUOT, EFBIG, EINTR, ESTALE
from pathlib import Path

import numpy as np
import pytest

from tests.support import training_job
from tests.support.available_releases import HERE
from tests.support.training_job import Planted
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.jobs.inside import joined, report
from tuner.jobs.inside.files import Untimed

TIMED = [name for name in HERE if tuple(map(int, name.split(".")[:2])) >= (2, 27)]
COUNTS_EACH_LAUNCH = [name for name in TIMED if tuple(map(int, name.split(".")[:2])) >= (2, 31)]
MIB = 1 << 20

pytestmark = pytest.mark.live


def read(folder: Path) -> tuple[joined.JobFolder, list[joined.JoinedCalls]]:
    files = joined.read_folder(folder / "job")
    return files, list(joined.joined(files))


@pytest.mark.parametrize("name", TIMED)
def test_each_call_is_read_as_it_was_planted(name: str, tmp_path: Path) -> None:
    script = ["allreduce 1024 20", f"allreduce {MIB} 20", "group 3 65536", "allreduce 512 3", "sleep 0.2"]
    ran = training_job.run(tmp_path, name, 3, script, Planted(skew_us=50))
    assert ran.codes == [0, 0, 0], ran.outputs
    files, (calls,) = read(tmp_path)
    assert (files.releases, files.lost, files.processes) == ((name,), 0, 3)
    assert (calls.communicator.ranks, calls.communicator.nodes, calls.incomplete, calls.mismatched) == (3, 1, 0, 0)
    assert sorted(calls.sequence) == [*range(40), *range(43, 46)]
    assert files.untimed == {Untimed.group: 3}
    sizes = np.array([calls.kinds[kind].bytes for kind in calls.call])
    assert sorted(sizes) == [2048] * 3 + [4096] * 20 + [4 * MIB] * 20
    assert {call.collective for call in calls.kinds} == {Collective.AllReduce}
    np.testing.assert_allclose(calls.transfer_us, 100 + 10 * sizes / MIB, atol=1.5e-3)
    assert (calls.waiting_us > 2 * 0.1 * 50).all()
    assert (calls.waiting_us < 2 * 50).all()
    assert set(calls.last) == {0, 1, 2}


def graphs(*, planted_us: float = 100) -> Planted:
    return Planted({(-1, -1, -1): (planted_us, 10), (2, -1, -1): (40, 10)})


@pytest.mark.parametrize("name", COUNTS_EACH_LAUNCH)
def test_calls_in_graphs_and_beside_them_have_their_own_times(name: str, tmp_path: Path) -> None:
    """From 2.31 on NCCL counts the works of a graph at each launch, and those that a rank sends to itself."""
    captured = [f"capture {MIB} 3", "replay 3", "allreduce 1024 2", "replay 4", "selfsend 1024", "allreduce 1024 2"]
    again = ["capture 1024 2", "replay 2 0", "replay 2 1", f"allreduce {MIB} 2", "replay 1 0"]
    ran = training_job.run(tmp_path, name, 2, ["allreduce 1024 5", *captured, *again, "sleep 0.3"], graphs())
    assert ran.codes == [0, 0], ran.outputs
    files, (calls,) = read(tmp_path)
    sizes = np.array([calls.kinds[kind].bytes for kind in calls.call])
    assert (sorted(calls.sequence), files.lost, files.untimed) == (list(range(45)), 0, {})
    np.testing.assert_allclose(calls.transfer_us, 100 + 10 * sizes / MIB, atol=1.5e-3)


@pytest.mark.parametrize("name", [name for name in TIMED if name not in COUNTS_EACH_LAUNCH])
def test_times_of_a_communicator_that_was_captured_are_absent_and_not_wrong(name: str, tmp_path: Path) -> None:
    """Launches of a graph that come after a call outside of it are not counted by NCCL up to 2.30, so that it takes
    times of earlier kernels: of all channels, or of one and not the other.
    """
    before, after = ["allreduce 1024 5", f"allreduce {MIB} 5"], ["allreduce 1024 9", f"allreduce {MIB} 9"]
    captured = [f"capture {MIB} 3", "replay 3", "allreduce 1024 2", "replay 4"]
    ran = training_job.run(tmp_path, name, 2, [*before, *captured, *after, "sleep 0.3"], graphs())
    assert ran.codes == [0, 0], ran.outputs
    files, (calls,) = read(tmp_path)
    sizes = np.array([calls.kinds[kind].bytes for kind in calls.call])
    found = report.report(files, [calls])
    if name.startswith("2.27."):  # NCCL does not say there what goes into a graph: what overlaps shows it
        assert files.untimed[Untimed.overlap] > 9
        assert (calls.transfer_us < 141).all()
        return
    assert sorted(calls.sequence) == list(range(10))
    np.testing.assert_allclose(calls.transfer_us, 100 + 10 * sizes / MIB, atol=1.5e-3)
    assert files.untimed == {Untimed.graphs: 3 * 7 + 2 + 18}
    assert found.untimed == 41
    assert any(note.startswith("without a time: 41 calls in CUDA graphs") for note in found.notes)


@pytest.mark.parametrize("name", [name for name in TIMED if name not in COUNTS_EACH_LAUNCH])
def test_calls_after_a_send_to_itself_have_no_time(name: str, tmp_path: Path) -> None:
    script = ["allreduce 1024 3"]
    ran = training_job.run(tmp_path, name, 2, [*script, "selfsend 1024", *script, "sleep 0.2"])
    assert ran.codes == [0, 0], ran.outputs
    files, (calls,) = read(tmp_path)
    assert (sorted(calls.sequence), files.untimed) == ([0, 1, 2], {Untimed.self_sends: 3})


CALL = "allreduce 1024"
ORDERS = {
    "broadcasts beside calls": [CALL, "broadcast 1024", f"{CALL} 3", "roots 1024", CALL],
    "broadcast in the first graph": [CALL, "capture 1024 1 2", "replay 3", CALL],
    "broadcast in a second graph": [CALL, "capture 1024 2", "replay 2", "capture 1024 1 2", "replay 3", CALL],
    "broadcast beside a graph": [CALL, "capture 1024", CALL, "replay 3", "broadcast 1024 2", f"{CALL} 3"],
    "another communicator": [
        "capture 1024",
        "replay 2",
        "again",
        "capture 1024 1 2",
        "replay 3",
        CALL,
        "broadcast 1024",
    ],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [name for name in TIMED if not name.startswith("2.27.")])
def test_a_job_with_graphs_and_broadcasts_ends(name: str, order: str, tmp_path: Path) -> None:
    """Where kernels are profiled and broadcasts are not, ncclCommDestroy() would not return from 2.29.2 to 2.30.7, and
    from 2.31 on free what a thread of NCCL's still reads.
    """
    ran = training_job.run(tmp_path, name, 2, [*ORDERS[order], "sleep 0.2"], timeout_s=60, NCCL_ALLGATHERV_ENABLE="1")
    assert ran.codes == [0, 0], ran.outputs
    unmeasured = not name.startswith("2.28.")
    assert ["nothing of this job is measured" in text for text in ran.outputs] == [unmeasured] * 2
    files, calls = read(tmp_path)
    assert any("NCCL_ALLGATHERV_ENABLE=0" in note for note in report.report(files, calls).notes) == unmeasured


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [name for name in TIMED if not name.startswith(("2.27.", "2.28."))])
def test_a_job_is_measured_and_ends_where_broadcasts_are_profiled(name: str, order: str, tmp_path: Path) -> None:
    ran = training_job.run(tmp_path, name, 2, [*ORDERS[order], "sleep 0.2"], timeout_s=60)
    assert ran.codes == [0, 0], ran.outputs
    assert read(tmp_path)[1]


@pytest.mark.parametrize("name", TIMED[-1:])
def test_what_ran_is_what_nccl_logs(name: str, tmp_path: Path) -> None:
    ran = training_job.run(
        tmp_path,
        name,
        2,
        [f"allreduce {MIB} 3", "sleep 0.2"],
        NCCL_ALGO="Tree",
        NCCL_PROTO="Simple",
        NCCL_DEBUG_SUBSYS="COLL,TUNING",
    )
    assert ran.codes == [0, 0]
    assert "Algo TREE proto SIMPLE" in ran.outputs[0]
    _, (calls,) = read(tmp_path)
    executed = {call.executed.algo_proto for call in calls.kinds if call.executed}
    assert executed == {(Algorithm.Tree, Protocol.Simple)}


@pytest.mark.parametrize("name", TIMED[-1:])
def test_a_straggler_is_named_and_times_are_measurements(name: str, tmp_path: Path) -> None:
    planted = Planted(skew_us=200, straggler=(1, 90))
    ran = training_job.run(tmp_path, name, 4, [f"allreduce {MIB} 200", "sleep 0.2"], planted)
    assert ran.codes == [0] * 4
    files, calls = read(tmp_path)
    found = report.report(files, calls)
    assert [late.name for late in found.stragglers] == ["rank 1 on " + files.files[0].host]
    assert 0.3 < found.waiting < 0.6
    measured = report.measurements(calls, None)
    assert {block.executed for block in measured.blocks} == {call.executed for call in calls[0].kinds}
    assert sum(len(block.times_us) for block in measured.blocks) == 200
    assert {time for block in measured.blocks for time in block.times_us} == {140.0}


@pytest.mark.parametrize("name", [name for name in HERE if name.startswith("2.26.")][-1:])
def test_a_release_without_a_clock_of_kernels_says_so(name: str, tmp_path: Path) -> None:
    ran = training_job.run(tmp_path, name, 2, [f"allreduce {MIB} 5", "sleep 0.2"])
    assert ran.codes == [0, 0]
    files, calls = read(tmp_path)
    assert len(calls[0].call) == 5
    assert any("does not time kernels itself" in note for note in report.report(files, calls).notes)


@pytest.mark.parametrize("name", TIMED[-1:])
def test_without_a_folder_nothing_is_measured_and_with_a_bad_one_the_job_goes_on(name: str, tmp_path: Path) -> None:
    for folder, says in (
        ("", "Profiler event mask: 0x0"),
        ("/proc/nowhere", "what is measured of this job is not written"),
    ):
        ran = training_job.run(tmp_path, name, 2, ["allreduce 1024 3", "sleep 1.5"], NCCL_TUNER_JOB=folder)
        assert ran.codes == [0, 0], ran.outputs
        assert not folder or says in ran.outputs[0]
    assert not (tmp_path / "job").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["job-hang 600", "job-nothing", *(f"job-error {each}" for each in (EINTR, ESTALE, EDQUOT))]
)
def test_a_job_ends_whatever_its_file_system_does_at_the_end(how: str, tmp_path: Path) -> None:
    """A process waits for 10 s at most."""
    script = ["allreduce 1024 3", "sleep 0.2"]
    ran = training_job.run(
        tmp_path,
        TIMED[-1],
        2,
        script,
        each={1: training_job.hostile_files(how)},
        timeout_s=60,
        NCCL_TUNER_JOB_SECONDS="3600",
    )
    assert ran.codes == [0, 0], ran.outputs
    assert ("not written" in ran.outputs[1]) == (how != "job-hang 600")
    assert [int(file.communicators["rank"][0]) for file in joined.read_folder(tmp_path / "job").files] == [0]


@pytest.mark.slow
def test_files_that_may_not_grow_end_no_job(tmp_path: Path) -> None:
    """The thread that would have a file grow beyond RLIMIT_FSIZE gets a signal, which kills the process."""
    (tmp_path / "stats").write_text("\n" * 8192)
    table = tmp_path / "job.table"
    table.write_text("nccl-tuner-table 1\nallreduce -> tree/simple\n")
    # A kind of call has its place in the file by a hash of addresses: of many kinds one is beyond the limit.
    script = [*(f"allreduce {1024 * count} 1" for count in range(1, 21)), "sleep 0.2", "limit 8192"]
    ran = training_job.run(
        tmp_path,
        TIMED[-1],
        2,
        script,
        NCCL_DEBUG="WARN",
        NCCL_TUNER_TABLE=str(table),
        NCCL_TUNER_JOB_SECONDS="3600",
        NCCL_TUNER_STATS=str(tmp_path / "stats"),
    )
    assert ran.codes == [0, 0], ran.outputs
    for text in ran.outputs:
        assert f"errno {EFBIG}; what is measured of this job is not written" in text
    assert [*(tmp_path / "job").iterdir(), (tmp_path / "stats").read_text().strip()] == [""]
