"""Files of a job that are broken, and the Inspector's, which are read as the plugin's are."""

import json
from pathlib import Path

import pytest

from tuner.base.errors import BadInput
from tuner.jobs.inside import joined, report
from tuner.jobs.inside.files import MAGIC, read_file


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


def test_a_file_that_is_none_or_cut_is_named_and_left_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        joined.read_folder(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no file of a job"):
        joined.read_folder(tmp_path)
    cut = tmp_path / "a.1.2.0.job"
    cut.write_bytes(MAGIC + b"\x01" * 600)
    with pytest.raises(BadInput, match=r"a\.1\.2\.0\.job: cut"):
        read_file(cut)
    with pytest.raises(BadInput, match=r"a\.1\.2\.0\.job: cut"):
        joined.read_folder(tmp_path)
    (tmp_path / "b.job").write_bytes(b"")
    with pytest.raises(BadInput, match=r"b\.job: "):
        read_file(tmp_path / "b.job")
