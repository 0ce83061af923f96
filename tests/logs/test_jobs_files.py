"""The files of one job are one account, and a report can be shown to others."""

import json
import random
from pathlib import Path

from click.testing import CliRunner, Result

from tests.support.planted_endings import healthy
from tuner.cli import everything
from tuner.jobs.diagnosis.redact import Redactor


def diagnosed(*words: object) -> Result:
    return CliRunner().invoke(everything, ["diagnose", *map(str, words)])


def job(folder: Path) -> Path:
    """A log of each host, the kernel's of one, and what the scheduler and the program printed."""
    log = healthy("2.28.9", "dgx-h100", 2, random.Random(1))
    for host in ("host0", "host1"):
        lines = [line for at, line in log.lines[: log.complete] if at.host == host]
        (folder / f"nccl.{host}.log").write_text("\n".join(lines) + "\n", "utf-8")
    bus_id = next(at.bus_id for at, _ in log.lines if at.rank == 12 and at.bus_id)
    (folder / "dmesg.host1").write_text(
        f"[ 10.1] usb 1-1: new device\n[ 99.5] NVRM: Xid (PCI:{bus_id}): 48, pid=22, name=python, DBE\n", "utf-8"
    )
    (folder / "slurm.out").write_text(
        '[rank12]:   File "/home/jane/train.py", line 3\n'
        "[rank12]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a "
        "network error, NCCL version 2.28.9\nsrun: error: host1: task 12: Exited with exit code 1\n",
        "utf-8",
    )
    return folder


def test_a_folder_of_one_job_is_one_account_with_the_first_cause(tmp_path: Path) -> None:
    done = diagnosed(job(tmp_path), "--json")
    assert done.exit_code == 1
    (one,) = json.loads(done.output)["files"]
    first = one["findings"][0]
    assert (first["code"], first["facts"]["rank"], first["facts"]["number"]) == ("ending.xid", 12, 48)
    assert first["facts"]["place"] == "dmesg.host1:2"
    assert first["facts"]["followers"] == [0]
    assert len(one["other_files"]) == 3
    codes = [each["code"] for each in one["findings"]]
    assert "diagnose.ends_in_init" not in codes
    assert "diagnose.ends_without_ranks" not in codes


def test_logs_of_several_jobs_are_judged_one_by_one(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        log = healthy("2.28.9", "dgx-h100", 1, random.Random(seed))
        text = "".join(f"{line}\n" for _, line in log.lines).replace("commId 0x77", f"commId 0x{seed}")
        (tmp_path / f"{name}.log").write_text(text, "utf-8")
    files = json.loads(diagnosed(tmp_path, "--json").output)["files"]
    assert {Path(each["file"]).name for each in files} == {"a.log", "b.log"}


def test_a_report_without_private_names_replaces_each_alike(tmp_path: Path) -> None:
    whole, redacted = diagnosed(job(tmp_path)), diagnosed(job(tmp_path), "--redact")
    assert redacted.exit_code == whole.exit_code
    assert "host1" in whole.output
    for private in ("host0", "host1", "jane", str(tmp_path)):
        assert private not in redacted.output
    assert json.loads(diagnosed(job(tmp_path), "--redact", "--json").output)["severity"] == "fault"


def test_what_is_private_is_replaced_and_what_tells_a_fault_stays() -> None:
    names = Redactor(["node7"], ["/data/x/run.log"])
    text = names(
        "node7: /home/jane/a.py of jane@node7, 10.1.2.3<500>, fe80::1, GPU 0000:5d:00.0, /data/x/run.log, /dev/shm"
    )
    assert names("node7") == "host-1"
    for private in ("node7", "jane", "10.1.2.3", "fe80::1", "run.log"):
        assert private not in text
    assert "GPU 0000:5d:00.0" in text
    assert "/dev/shm" in text
