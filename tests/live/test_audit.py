"""`plugin audit` of made tuners with one fault each, which is found and nothing else, and of our own plugin."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import planted_tuners
from tests.support.available_releases import WITH_PLUGINS
from tests.support.command_line import assert_refused, run, run_process
from tests.support.plugin_tables import interface, table_of
from tuner import plugin
from tuner.base.findings import entry_of

OLD, NEW = "2.28.9", "2.32.3"  # on both sides of the change of what a negative time means
pytestmark = pytest.mark.skipif(not {OLD, NEW} <= {*WITH_PLUGINS}, reason=f"libnccl {OLD} and {NEW} are not here")
SHAPE = ("--machine", "dgx-h100", "--gpus-per-node", "2", "--nodes", "2")
FIRST_FREE = "for (int i = 0; i < algorithms * protocols; i++) if (us[i] >= 0) { us[i] = 0; break; }"
LAST_FREE = "for (int i = algorithms * protocols - 1; i >= 0; i--) if (us[i] >= 0) { us[i] = 0; break; }"
PART = f"if (%s) {{ {FIRST_FREE} }} else {{ {LAST_FREE} }}"
ALL = "for (int i = 0; i < algorithms * protocols; i++) us[i] = "

# What a tuner does, and the code of what is found of it.
FAULTS: Mapping[str, str] = {
    PART % "RANK % 2": "rank",
    PART % "CALL & 1": "repeat",
    f"static size_t most; {PART % 'bytes >= most'} if (bytes > most) most = bytes;": "order",
    PART % f"time(0) > {time.time():.0f} + 1000000": "clock",
    PART % 'getenv("RANK") && atoi(getenv("RANK"))': "place",
    "if (us[2] >= 0) us[2] = -3": "negative",
    "if (us[2] >= 0) us[2] = NAN": "nan",
    "if (us[2] >= 0 && us[5] >= 0) us[2] = us[5] = 0": "tie",
    "us[3 * protocols + 2] = 1e-3": "impossible",
    "us[algorithms * protocols] = 1": "outside",
    "*channels = 99": "channels",
    "if (collective == 4 && bytes > 1 << 20) return 2": "refuses",
    ALL + "NAN": "nothing_left",
    "nanosleep(&(struct timespec){0, 300000}, 0)": "slow",
    "if (collective == 4) abort()": "crashes",
}
BESIDE = {"nothing_left": {"nan"}}  # what a fault also is


def audit(lib: Path, *more: str, code: int, nccl: str = f"{OLD},{NEW}") -> dict[str, object]:
    done = run("plugin", "audit", str(lib), "--nccl", nccl, *SHAPE, "--json", *more, code=code)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def codes(answer: dict[str, object], but: str = "note") -> list[str]:
    return [each["code"] for each in answer["findings"] if each["severity"] != but]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "code"), FAULTS.items(), ids=FAULTS.values())
def test_each_made_fault_is_found_and_no_other(ask: str, code: str, tmp_path: Path) -> None:
    lib = planted_tuners.build(tmp_path / "made.so", ask)
    answer = audit(lib, code=1)
    assert set(codes(answer)) - {f"audit.{each}" for each in BESIDE.get(code, ())} == {f"audit.{code}"}


def test_six_tuners_with_a_fault_each_on_one_release(tmp_path: Path) -> None:
    """Of those above, the ones that a default run takes the time for."""
    wanted = ("rank", "repeat", "negative", "impossible", "refuses", "slow")
    for ask, code in FAULTS.items():
        if code in wanted:
            answer = audit(planted_tuners.build(tmp_path / f"{code}.so", ask), "allreduce", code=1, nccl=NEW)
            assert codes(answer) == [f"audit.{code}"]


def test_nothing_is_found_of_our_own_plugin_with_a_table_and_without(tmp_path: Path) -> None:
    table = table_of(tmp_path, "allreduce bytes=..64K -> ring/simple channels=4", "allreduce -> tree/ll128 | tree/ll")
    own = audit(plugin.path(), code=0)
    tabled = audit(plugin.path(), "--env", f"NCCL_TUNER_TABLE={table}", code=0)
    assert own["findings"] == [] == codes(tabled)
    for bare, with_table in zip(own["runs"], tabled["runs"], strict=True):  # type: ignore[call-overload]
        assert bare["changes"] == []
        changed = {each["bytes"]: each for each in with_table["changes"]}
        assert {each["collective"] for each in with_table["changes"]} == {"AllReduce"}
        assert changed[1 << 10]["with_tuner"]["algorithm"] == "Ring"
        assert changed[1 << 10]["percent_by_nccl"] > 0
        assert bare["query_us"] < 100


def test_an_init_that_fails_and_one_that_hangs(tmp_path: Path) -> None:
    assert codes(audit(planted_tuners.build(tmp_path / "fails.so", init="2"), code=1, nccl=NEW)) == ["audit.init"]
    hanging = planted_tuners.build(tmp_path / "hangs.so", "if (bytes > 1 << 20) for (;;) { }")
    answer = audit(hanging, "allreduce", "--timeout", "3", code=1, nccl=NEW)
    assert codes(answer) == ["audit.hangs"]
    assert answer["findings"][0]["facts"]["bytes"] == 4 << 20  # type: ignore[index]


@pytest.mark.parametrize("version", range(3, 7))
def test_which_interface_each_release_takes(version: int, tmp_path: Path) -> None:
    """All that are not newer than the release's own."""
    lib = planted_tuners.build(tmp_path / "one.so", versions=[version])
    names = [nccl for nccl in WITH_PLUGINS if interface(nccl) >= 3]
    taken = {nccl: version <= interface(nccl) for nccl in names}
    code = 0 if all(taken.values()) else 1
    answer = audit(lib, "allreduce", "--bytes", "1M", code=code, nccl=",".join(names))
    said = {each["nccl"]: each["interface"] for each in answer["runs"]}  # type: ignore[attr-defined]
    assert said == {nccl: version if is_taken else None for nccl, is_taken in taken.items()}
    assert codes(answer) == ([] if code == 0 else ["audit.not_taken"])


def test_a_library_that_none_of_the_releases_takes_cannot_be_judged(tmp_path: Path) -> None:
    lib = planted_tuners.build(tmp_path / "new.so", versions=[6])
    done = run("plugin", "audit", str(lib), "--nccl", OLD, *SHAPE, code=3)
    assert "cannot be judged" in done.stdout


def test_what_changes_with_a_newer_release(tmp_path: Path) -> None:
    """The last of equal times runs from 2.31 on, and Ring/LL alone is what NCCL takes of these without."""
    lib = planted_tuners.build(tmp_path / "made.so", "if (us[2] >= 0 && us[5] >= 0) us[2] = us[5] = 0")
    answer = audit(lib, "allreduce", code=1)
    assert "audit.by_release" in codes(answer, but="fault")
    assert answer["runs"][1]["new_here"] > 0  # type: ignore[index]


def test_words_for_people_in_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lib = planted_tuners.build(tmp_path / "made.so", "if (us[2] >= 0) us[2] = -3")
    done = run("plugin", "audit", str(lib), "allreduce", "--nccl", NEW, *SHAPE, code=1)
    assert "made.so: 1 finding over 1 release, 1 shape" in " ".join(done.stdout.splitlines()[:2])
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "/" not in line)
    assert "below 0" in done.stdout
    assert "Tree/Simple" in done.stdout


def test_files_that_are_no_tuner(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    shutil.copy(plugin.path().with_name("libnccl_tuner_force.so"), tmp_path / "other.so")
    assert_refused(("plugin", "audit", str(tmp_path / "text.so")), "is not an ELF shared object")
    assert_refused(("plugin", "audit", str(tmp_path / "missing.so")), "missing.so")
    assert_refused(("plugin", "audit", str(plugin.path()), "--nccl", "2.21.5"), "2.22.3 or later")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lib = planted_tuners.build(tmp_path / "made.so", "if (collective == 4) abort()")
    run_process("plugin", "audit", str(lib), "--nccl", NEW, *SHAPE, code=1)
    assert {each.name for each in tmp_path.iterdir()} <= {"made.so"}


def test_every_code_has_words() -> None:
    for code in ("not_taken", "init", "fails", "call", "hangs", "by_release", *FAULTS.values()):
        assert entry_of(f"audit.{code}")["says"]
