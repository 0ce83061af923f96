"""Which table a job gets: canaries, the switch, signatures; all by what every rank of the job is told alike."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.plugin import rollout
from tuner.plugin.rollout import Canary, gets_canary

TABLES = {"old": "nccl-tuner-table 1\nallreduce -> ring/ll\n", "new": "nccl-tuner-table 1\nallreduce -> tree/ll\n"}


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in TABLES.items():
        (tmp_path / f"{name}.table").write_text(text)
    return tmp_path / "old.table", tmp_path / "new.table"


def test_a_part_of_the_jobs_gets_it_and_always_the_same(tables: tuple[Path, Path]) -> None:
    old, new = tables
    jobs = list(map(str, range(2000)))
    chosen = [job for job in jobs if gets_canary(Canary(new, percent=10), job)]
    assert 140 < len(chosen) < 260
    assert chosen == [job for job in jobs if gets_canary(Canary(new, percent=10), job)]
    assert set(chosen) <= {job for job in jobs if gets_canary(Canary(new, percent=20), job)}
    assert chosen != [job for job in jobs if gets_canary(Canary(old, percent=10), job)]
    assert not [job for job in jobs if gets_canary(Canary(new, percent=0), job)]
    assert all(gets_canary(Canary(new, percent=100), job) for job in jobs)


def test_jobs_and_hosts_of_a_list(tables: tuple[Path, Path]) -> None:
    canary = Canary(tables[1], jobs=("7",), hosts=("a", "b"))
    assert gets_canary(canary, "7", ("x",))
    assert gets_canary(canary, "8", ("b", "a"))
    assert not gets_canary(canary, "8", ("a", "x")), "a job that has one other host: its ranks would choose differently"
    assert not gets_canary(canary, "8")


def test_env_decides_for_the_job(tables: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tables
    for name in rollout.JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    words = ["plugin", "env", "--nccl", "2.28.9", "--table", str(old), "--canary", str(new)]
    assert "a canary is chosen by the job's name" in run(*words, code=2).stderr
    (tmp_path / "jobs").write_text("# first\n17 18\n19\n")
    words += ["--canary-jobs", str(tmp_path / "jobs")]
    assert str(new) in run(*words, "--job", "18").stdout
    assert str(old) in run(*words, "--job", "20").stdout
    monkeypatch.setenv("SLURM_JOB_ID", "19")
    assert str(new) in run(*words).stdout
    assert "is not a percentage" in run(*words, "--percent", "101", code=2).stderr


def test_the_switch_holds_for_jobs_that_begin_later(tmp_path: Path) -> None:
    file = tmp_path / "switch"
    before = int(time.time())
    assert f"{file}: No such file" in run("plugin", "switch", str(file), "off", code=2).stderr, "no job looks at it"
    file.touch()
    assert "off for jobs that begin from" in run("plugin", "switch", str(file), "off", "--reason", "slow").stdout
    since_s = rollout.switch(file, off=False, margin_s=300)
    first, second = file.read_text().splitlines()
    word, at_s, *rest = first.split()
    assert (word, rest) == ("off", ["#", "slow"])
    assert before + rollout.LEAST_MARGIN_S <= int(at_s) <= since_s - 150
    assert second == f"on {since_s}"
    assert "too few for all nodes" in run("plugin", "switch", str(file), "off", "--margin", "5", code=2).stderr
    printed = run("plugin", "env", "--nccl", "2.28.9", "--switch", str(file)).stdout
    assert f"export NCCL_TUNER_SWITCH={file}\n" in printed
    assert "export NCCL_TUNER_JOB_TIME=" in printed
    assert "does not exist" in run("plugin", "env", "--nccl", "2.28.9", "--switch", str(tmp_path / "no"), code=2).stderr


def test_a_table_is_no_switch_and_stays_as_it_is(tmp_path: Path) -> None:
    table = tmp_path / "pod.table"
    table.write_text("nccl-tuner-table 1\nallreduce -> ring/ll\n", "utf-8")
    assert "pod.table is not a switch" in run("plugin", "switch", str(table), "off", code=2).stderr
    assert table.read_text("utf-8") == "nccl-tuner-table 1\nallreduce -> ring/ll\n"


def test_rows_for_ranks_have_no_effect_where_nccl_does_not_say_them(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.write_text("nccl-tuner-table 1\nallreduce -> ring/ll\nallreduce ranks=16 -> tree/ll\n")
    said = run("plugin", "env", "--nccl", "2.19.3", "--table", str(table)).stderr
    assert "t:3: warning: 1 row asks for ranks or nodes, which NCCL 2.19.3 does not say" in said
    assert "ranks or nodes" not in run("plugin", "env", "--nccl", "2.21.5", "--table", str(table)).stderr


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
def test_a_signature_by_ssh(tables: tuple[Path, Path], tmp_path: Path) -> None:
    table, other = tables
    keys = {name: tmp_path / name for name in ("ops", "stranger")}
    for name, key in keys.items():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
        sign = ["ssh-keygen", "-q", "-Y", "sign", "-n", "nccl-tuner", "-f", str(key), str(table)]
        subprocess.run(sign, check=True, capture_output=True)
        Path(f"{table}.sig").rename(tmp_path / f"{name}.sig")
    signers = tmp_path / "allowed_signers"
    signers.write_text("ops@example.org " + keys["ops"].with_suffix(".pub").read_text())
    words = ["plugin", "env", "--nccl", "2.28.9", "--signers", str(signers), "--identity", "ops@example.org"]
    good = ["--signature", str(tmp_path / "ops.sig")]
    assert str(table) in run(*words, "--table", str(table), *good).stdout
    for signed, signature in ((other, "ops"), (table, "stranger")):
        refused = run(*words, "--table", str(signed), "--signature", str(tmp_path / f"{signature}.sig"), code=1)
        assert not refused.stdout, "no line that a shell could run on with"
    (tmp_path / "x.sig").write_text("what")
    with pytest.raises(BadInput, match="made neither by ssh-keygen"):
        rollout.verify(table, tmp_path / "x.sig", signers, "ops@example.org")


@pytest.mark.skipif(not shutil.which("minisign"), reason="no minisign here")
def test_a_signature_by_minisign(tables: tuple[Path, Path], tmp_path: Path) -> None:
    table, other = tables
    for name in ("ops", "stranger"):
        public, secret, signature = (tmp_path / f"{name}.{kind}" for kind in ("pub", "sec", "minisig"))
        subprocess.run(["minisign", "-G", "-W", "-p", public, "-s", secret], check=True, capture_output=True)
        sign: list[str | Path] = ["minisign", "-S", "-s", secret, "-m", table, "-x", signature]
        subprocess.run(sign, check=True, capture_output=True)
    words = ["plugin", "env", "--nccl", "2.28.9", "--signers", str(tmp_path / "ops.pub")]
    good = ["--signature", str(tmp_path / "ops.minisig")]
    assert str(table) in run(*words, "--table", str(table), *good).stdout
    for signed, signer in ((other, "ops"), (table, "stranger")):
        refused = run(*words, "--table", str(signed), "--signature", str(tmp_path / f"{signer}.minisig"), code=1)
        assert not refused.stdout, "no line that a shell could run on with"
        assert refused.stderr.startswith("nccl-tuner: "), refused.stderr
    (tmp_path / "cut.minisig").write_bytes((tmp_path / "ops.minisig").read_bytes()[:100])
    assert not run(*words, "--table", str(table), "--signature", str(tmp_path / "cut.minisig"), code=1).stdout


NOW = int(time.time())
REFUSED = {
    "a clock that was ahead, then right": f"off {NOW + 10**8}\non {NOW - 5}\n".encode(),
    "no such line": b"off 100\nof 200\non 300\n",
    "bytes that are no text": b"off 100\n\xff\xfe\non 300 # \xe9\n",
    "CR LF": b"off 100\r\non 200\r\n",
    "two lines in one": b"off 100on 200\non 300\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_switch_that_the_plugin_refuses_is_mended_by_the_command(name: str, tmp_path: Path) -> None:
    file = tmp_path / "switch"
    file.write_bytes(REFUSED[name])
    assert "switch FILE mend" in run("plugin", "switch", str(file), "off", code=2).stderr
    assert file.read_bytes() == REFUSED[name]
    assert run("plugin", "switch", str(file), "mend").stdout.startswith(f"{file}: ")
    assert "nothing to repair" in run("plugin", "switch", str(file), "mend").stdout
    run("plugin", "switch", str(file), "off")
    times = [int(line.split()[1]) for line in file.read_text("ascii").splitlines() if line[0] != "#"]
    assert times == sorted(times)
    assert times[-1] >= NOW + rollout.LEAST_MARGIN_S
    assert times[-1] < NOW + 10**6


def test_a_line_is_never_before_the_last(tmp_path: Path) -> None:
    file = tmp_path / "switch"
    file.touch()
    later = rollout.switch(file, off=True, margin_s=5000)
    done = run("plugin", "switch", str(file), "on")
    assert rollout.switch(file, off=False) == later
    assert "time of the file's last line" in done.stderr
    assert len(file.read_text().splitlines()) == 3


def test_a_line_that_did_not_end_is_ended_first(tmp_path: Path) -> None:
    file = tmp_path / "switch"
    file.write_text("off 100")
    rollout.switch(file, off=False)
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["off", "on"]


@pytest.mark.parametrize("outcome", ["short", "full"])
def test_a_full_disk_leaves_the_switch_as_it_was(outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "switch"
    file.write_text("off 100\n")
    write = os.write

    def cut(descriptor: int, content: bytes) -> int:
        if outcome == "full":
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:3])

    with monkeypatch.context() as context:
        context.setattr(os, "write", cut)
        assert "No space left" in run("plugin", "switch", str(file), "on", code=2).stderr
    assert file.read_text() == "off 100\n"


@pytest.mark.parametrize("reason", ["a\rb", "a\nb", "a\udce9b", "a\x1bb"])
def test_a_reason_is_one_line_of_text(reason: str, tmp_path: Path) -> None:
    (tmp_path / "switch").touch()
    assert "one line" in run("plugin", "switch", str(tmp_path / "switch"), "on", "--reason", reason, code=2).stderr
    assert (tmp_path / "switch").read_bytes() == b""


def test_a_fifo_is_no_switch(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "switch")
    assert "not a regular file" in run("plugin", "switch", str(tmp_path / "switch"), "on", code=2).stderr
