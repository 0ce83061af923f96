"""Stages with time limits, what is written and copied out after each, and how a run goes on."""

import errno
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu_stages as stages_module
from benchmarks.gpu_stages import ARCHIVE, Ended, Stage, Stages
from tuner.base.errors import BadInput

BENCHMARKS = Path(stages_module.__file__ or "").parent
PLANNED = "h:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "out", tmp_path / "copies"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(stages_module, "_LET_END_S", 1.0)
        yield


def python(name: str, code: str, limit_s: float = 30.0, needs: tuple[str, ...] = (), goes_on: bool = False) -> Stage:
    return Stage(name, (sys.executable, "-c", code), limit_s, needs, goes_on)


def test_a_stage_writes_and_its_results_are_copied_out(folders: tuple[Path, Path], said: list[str]) -> None:
    out, copies = folders
    stages = Stages(out, 60, copies, said.append)
    (out / "quick.nccl.log").write_text(f"NCCL version 2.30.7\n{PLANNED}{PLANNED}the end\n")
    assert stages.run(python("first", "print('begun'); print('its last line')"))
    assert said[-1].startswith("first: ok, ")
    assert said[-1].endswith(": its last line")
    assert (out / "first.out").read_text() == "begun\nits last line\n"
    with tarfile.open(copies / ARCHIVE) as packed:
        assert set(packed.getnames()) == {"first.out", "first.err", "quick.nccl.log", "stages.json"}
        log = packed.extractfile("quick.nccl.log")
        assert log is not None
        assert log.read() == f"NCCL version 2.30.7\n{PLANNED}the end\n".encode(), "each line once"


def test_exit_code_1_is_an_answer_of_stages_that_can_say_no(folders: tuple[Path, Path], said: list[str]) -> None:
    stages = Stages(folders[0], 60, None, said.append)
    decides = replace(python("decide", "print('no row survives'); exit(1)"), answers_no=True)
    assert stages.run(decides)
    assert not stages.run(replace(decides, name="again", answers_no=False))
    assert not stages.run(replace(decides, name="broken", command=(sys.executable, "-c", "exit(2)")))


def test_what_fails_is_named_and_what_needs_it_left_out(folders: tuple[Path, Path], said: list[str]) -> None:
    stages = Stages(folders[0], 60, say=said.append)
    assert not stages.run(python("first", "import sys; print('half'); sys.exit('nccl-tuner: no GPU')"))
    assert stages.done["first"].ended is Ended.failed
    assert stages.done["first"].said == "nccl-tuner: no GPU"
    assert not stages.run(python("second", "", needs=("first",)))
    assert (stages.done["second"].ended, stages.done["second"].said) == (Ended.left_out, "needs first")
    assert not stages.run(python("third", "import os; os.abort()"))
    assert stages.done["third"].said.startswith("killed by SIGABRT")
    assert not stages.run(Stage("fourth", ("/no/such/program",), 5.0))
    assert stages.done["fourth"].ended is Ended.failed


def test_what_hangs_is_ended_at_its_limit(folders: tuple[Path, Path], said: list[str]) -> None:
    hangs = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('init', flush=True)
time.sleep(60)
"""
    stages = Stages(folders[0], 60, say=said.append)
    for name, goes_on in (("first", False), ("second", True)):
        assert not stages.run(python(name, hangs, limit_s=1.0, goes_on=goes_on))
        assert stages.done[name].ended is Ended.limit
        assert stages.done[name].said == "init"
        assert stages.done[name].seconds < 30


def test_what_goes_on_may_be_interrupted(folders: tuple[Path, Path], said: list[str]) -> None:
    # What a shell starts in the background ignores interrupts, and so does what it starts.
    ends = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print('measured', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
    stages = Stages(folders[0], 60, say=said.append)
    # Long enough for Python to start on a busy machine.
    assert stages.run(python("sweep", ends, limit_s=4.0, goes_on=True))
    assert not stages.run(python("other", ends, limit_s=1.0))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file/out: Not a directory$"):
        Stages(tmp_path / "file" / "out", 60)
    with pytest.raises(BadInput, match=r"file/copies: Not a directory$"):
        Stages(tmp_path / "out", 60, tmp_path / "file" / "copies")


def test_no_time_left(folders: tuple[Path, Path], said: list[str]) -> None:
    stages = Stages(folders[0], 0.5, say=said.append)
    assert not stages.run(python("first", ""))
    assert (stages.done["first"].ended, stages.done["first"].said) == (Ended.left_out, "no time left")


def test_a_run_goes_on_after_what_succeeded(folders: tuple[Path, Path], said: list[str]) -> None:
    count = "from pathlib import Path; p = Path({0!r}); p.open('a').write('x')"
    out = folders[0]

    def times() -> list[int]:
        return [len((out / name).read_text()) for name in ("a", "b", "c")]

    for again in range(2):
        stages = Stages(out, 60, say=said.append)
        stages.run(python("a", count.format(str(out / "a"))))
        stages.run(python("b", count.format(str(out / "b")) + "; raise SystemExit(2)"))
        stages.run(python("c", count.format(str(out / "c")), goes_on=True))
        assert times() == [1, 1 + again, 1 + again]
    assert "== a: done before" in said
    assert [each["ended"] for each in json.loads((out / "stages.json").read_text())] == ["ok", "failed", "ok"]
    (out / "stages.json").write_text("[{}]")
    with pytest.raises(BadInput, match=r"stages\.json: not the stages of an earlier run"):
        Stages(out, 60, say=said.append)


def test_a_full_disk_ends_no_run(folders: tuple[Path, Path], said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, copies = folders
    stages = Stages(out, 60, copies, said.append)
    assert stages.run(python("first", "print('measured')"))
    before = (out / "stages.json").read_bytes(), (copies / ARCHIVE).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        patch.setattr(tarfile.TarFile, "addfile", full)
        assert stages.run(python("second", "print('measured as well')"))
    assert f"{out / 'stages.json'}: No space left on device; a run that is started again does this stage again" in said
    assert f"{copies / ARCHIVE}: No space left on device; it is as it was after the last stage" in said[-1]
    assert before == ((out / "stages.json").read_bytes(), (copies / ARCHIVE).read_bytes()), "nothing is lost"
    assert [path.name for path in copies.iterdir()] == [ARCHIVE]


def test_an_end_in_the_middle_of_a_stage_keeps_what_was_there(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run = f"""
import sys
from pathlib import Path
sys.path.append({str(BENCHMARKS)!r})
from tuner.base.interrupts import sigterm_interrupts
from gpu_stages import Stage, Stages
begun = "import time; print('begun', flush=True); open({str(tmp_path / "begun")!r}, 'w'); time.sleep(60)"
with sigterm_interrupts():
    stages = Stages(Path({str(folders[0])!r}), 60, Path({str(folders[1])!r}))
    stages.run(Stage("slow", (sys.executable, "-c", begun), 50))
"""
    process = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    (done,) = json.loads((folders[0] / "stages.json").read_text())
    assert (done["name"], done["ended"]) == ("slow", "interrupted")
    with tarfile.open(folders[1] / ARCHIVE) as packed:
        output = packed.extractfile("slow.out")
        assert output is not None
        assert output.read() == b"begun\n"


def test_a_stage_has_its_variables_and_what_ends_itself_at_its_limit_took_too_long(
    folders: tuple[Path, Path], said: list[str]
) -> None:
    stages = Stages(folders[0], 60, say=said.append)
    show = (sys.executable, "-c", "import os; print(os.environ['NCCL_MAX_CTAS'])")
    assert stages.run(Stage("shown", show, 30, variables={"NCCL_MAX_CTAS": "16"}))
    assert stages.done["shown"].said == "16"
    hangs = "import sys; print('ranks: HANGS'); print('File \"x\", line 1', file=sys.stderr); sys.exit(124)"
    assert not stages.run(python("hangs", hangs))
    assert (stages.done["hangs"].ended, stages.done["hangs"].said) == (Ended.limit, "ranks: HANGS")


def test_it_says_how_long_it_will_take(folders: tuple[Path, Path], said: list[str]) -> None:
    stages = Stages(folders[0], 500, say=said.append)
    planned = [Stage(name, (sys.executable, "-c", ""), 30, about_s=7) for name in ("a", "b", "c")]
    stages.run(planned[0])
    stages.plan(planned)
    assert said[-1].startswith("== 2 stages, about 14 s, at most 60 s; there are ")
