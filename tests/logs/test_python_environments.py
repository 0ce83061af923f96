"""`diagnose` of an environment of Python: which libnccl its jobs load, by made folders of packages.

In what order programs look: ld.so(8) for RPATH, LD_LIBRARY_PATH and RUNPATH; cuda-pathfinder 1.9.0 and nccl4py 0.6.0
for the wheel before LD_LIBRARY_PATH; pip for what it leaves of two wheels with one file.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.command_line import run
from tuner.base.findings import Finding, words
from tuner.jobs.diagnosis import packages
from tuner.jobs.diagnosis.records import DiagnosisOptions, KnownFacts
from tuner.oracle import library

NO_VARIABLES: Mapping[str, str] = {}


def stub(target: Path, nccl: str) -> Path:
    """A library of the name, soname and words of a libnccl, and nothing else of one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    text = f'const char *said = "NCCL version {nccl}+cuda12.9";'
    made = programs.compiled(
        programs.compiler(), ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"], text=text, suffix=".so"
    )
    return Path(shutil.copy(made, target))


def site_of(prefix: Path) -> Path:
    site = prefix / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return site


def install(
    site: Path, name: str, version: str, *, files: Mapping[str, Path] | None = None, metadata: str = ""
) -> None:
    """A package as pip leaves it: its metadata, and its files with their sums."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
    rows = []
    for member, source in (files or {}).items():
        (site / member).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, site / member)
        digest = base64.urlsafe_b64encode(hashlib.sha256(source.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append(f"{member},sha256={digest},{source.stat().st_size}\n")
    (folder / "RECORD").write_text("".join(rows))


def wheel(site: Path, cuda: int, nccl: str, tmp_path: Path) -> None:
    made = stub(tmp_path / f"made-{cuda}-{nccl}.so", nccl)
    install(site, f"nvidia_nccl_cu{cuda}", nccl, files={library.MEMBER: made})


def torch(site: Path, tmp_path: Path, *, tags: str, requires: str = "nvidia-nccl-cu12==2.28.9") -> None:
    """torch whose library needs libnccl.so.2 and names its folder by RPATH or RUNPATH."""
    beside = stub(tmp_path / "link" / "libnccl.so.2", "2.28.9")
    options = ["-shared", "-fPIC", "-Wl,--no-as-needed", str(beside), f"-Wl,{tags}"]
    options += ["-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"]
    made = programs.compiled(
        programs.compiler(), options, text="extern const char *said; const char **at = &said;", suffix=".so"
    )
    install(site, "torch", "2.9.1", files={"torch/lib/libtorch_cuda.so": made}, metadata=f"Requires-Dist: {requires}\n")


def found(prefix: Path, variables: Mapping[str, str] = NO_VARIABLES) -> dict[str, list[Finding]]:
    known = KnownFacts(None, None, None, DiagnosisOptions(), [])
    by_code: dict[str, list[Finding]] = {}
    for each in packages.of_packages(prefix, known, variables).findings:
        assert words(each)
        by_code.setdefault(each.code.removeprefix("packages."), []).append(each)
    return by_code


def loads(answer: dict[str, list[Finding]]) -> dict[str, tuple[str, str]]:
    """By what loads it: release and reason."""
    facts = [each.facts for each in answer.get("loads", [])]
    return {each["by"]: (each["nccl"], [*each][-1]) for each in facts}


@pytest.mark.parametrize("order", [(12, 13), (13, 12)])
def test_two_wheels_with_one_file_the_last_one_wins(order: tuple[int, int], tmp_path: Path) -> None:
    site, releases = site_of(tmp_path / "env"), {12: "2.28.9", 13: "2.32.3"}
    for cuda in order:
        wheel(site, cuda, releases[cuda], tmp_path)
    (finding,) = found(tmp_path / "env")["shared_file"]
    assert finding.facts["nccl"] == releases[order[-1]]
    assert finding.facts["owner"] == f"nvidia-nccl-cu{order[-1]} {releases[order[-1]]}"
    assert sorted(finding.facts["packages"]) == ["nvidia-nccl-cu12 2.28.9", "nvidia-nccl-cu13 2.32.3"]


def test_uninstalling_one_of_both_takes_the_file_away(tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    (site / library.MEMBER).unlink()
    answer = found(tmp_path / "env")
    assert answer["file_missing"][0].facts["packages"] == ["nvidia-nccl-cu12 2.28.9"]
    assert "loads" not in answer


def test_a_file_that_no_package_installed(tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    stub(site / library.MEMBER, "2.31.2")
    assert found(tmp_path / "env")["replaced"][0].facts["nccl"] == "2.31.2"


@pytest.mark.parametrize(("tags", "wins"), [("--disable-new-dtags", "2.28.9"), ("--enable-new-dtags", "2.23.4")])
def test_rpath_comes_before_ld_library_path_and_runpath_after(tags: str, wins: str, tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    torch(site, tmp_path, tags=tags)
    other = stub(tmp_path / "modules" / "libnccl.so.2", "2.23.4")
    alone = loads(found(tmp_path / "env"))
    assert alone["torch 2.9.1"] == ("2.28.9", "rpath" if "disable" in tags else "runpath")
    answer = found(tmp_path / "env", {"LD_LIBRARY_PATH": f"/nowhere:{other.parent}"})
    assert loads(answer)["torch 2.9.1"][0] == wins
    assert loads(answer)[packages.FINDERS] == ("2.28.9", "wheel")
    assert loads(answer)[packages.LINKED] == ("2.23.4", "library_path")
    assert "differ" in answer
    assert "differ" not in found(tmp_path / "env")


def test_what_is_preloaded_comes_before_everything(tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    torch(site, tmp_path, tags="--disable-new-dtags")
    install(site, "nccl4py", "0.6.0")
    first = stub(tmp_path / "first" / "libnccl.so.2", "2.32.3")
    answer = found(tmp_path / "env", {"LD_PRELOAD": f"/x/other.so:{first}"})
    by = ("torch 2.9.1", "nccl4py 0.6.0", packages.LINKED)
    assert loads(answer) == dict.fromkeys(by, ("2.32.3", "preloaded"))
    assert "differ" not in answer


def test_conda_comes_after_the_wheel_and_before_ld_library_path(tmp_path: Path) -> None:
    site, prefix = site_of(tmp_path / "env"), tmp_path / "env"
    install(site, "cuda_pathfinder", "1.9.0")
    stub(prefix / "lib" / "libnccl.so.2", "2.27.7")
    variables = {"LD_LIBRARY_PATH": str(stub(tmp_path / "modules" / "libnccl.so.2", "2.23.4").parent)}
    assert loads(found(prefix, variables))["cuda-pathfinder 1.9.0"] == ("2.27.7", "conda")
    wheel(site, 13, "2.32.3", tmp_path)
    assert loads(found(prefix, variables))["cuda-pathfinder 1.9.0"] == ("2.32.3", "wheel")


def test_torch_that_wants_another_release_than_there_is(tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    torch(site, tmp_path, tags="--disable-new-dtags", requires="nvidia-nccl-cu12 (==2.27.5)")
    wheel(site, 12, "2.28.9", tmp_path)
    (finding,) = found(tmp_path / "env")["not_required"]
    assert (finding.facts["requires"], finding.facts["nccl"]) == ("nvidia-nccl-cu12 2.27.5", "2.28.9")


def test_vllm_takes_the_file_of_its_variable(tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    install(site, "vllm", "0.33.0")
    given = stub(tmp_path / "given.so", "2.30.7")
    answer = found(tmp_path / "env", {packages.VLLM_VARIABLE: str(given)})
    assert loads(answer)["vllm 0.33.0"] == ("2.30.7", "vllm_variable")


def test_an_environment_without_nccl_cannot_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SYSTEM", ())
    install(site_of(tmp_path / "env"), "numpy", "2.4.0")
    assert [*found(tmp_path / "env")] == ["none"]


def test_the_command_takes_an_environment_and_its_folder_of_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(packages, "SYSTEM", ())
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    for folder in (tmp_path / "env", site):
        done = run("diagnose", str(folder), "--json", code=0)
        (each,) = json.loads(done.stdout)["files"]
        assert (each["kind"], each["findings"][0]["facts"]["nccl"]) == ("environment of Python", "2.28.9")
    wheel(site, 13, "2.32.3", tmp_path)
    assert "installed over each other" in run("diagnose", str(tmp_path / "env"), code=1).stdout


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF" + bytes(300), b"no library"])
def test_a_damaged_library_is_no_traceback(content: bytes, tmp_path: Path) -> None:
    site = site_of(tmp_path / "env")
    wheel(site, 12, "2.28.9", tmp_path)
    (site / library.MEMBER).write_bytes(content)
    torch(site, tmp_path, tags="--disable-new-dtags")
    (site / "torch" / "lib" / "libtorch_cuda.so").write_bytes(content)
    assert "replaced" in found(tmp_path / "env")


def test_a_folder_of_anything_else_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    assert packages.site_packages(tmp_path) == []
