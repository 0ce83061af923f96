"""What is installed: extras and what is said where one is missing, the package's other name, nccl-tuner doctor."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import nccl_tuner
import nccl_tuner.base.names
import tuner.base.names
from tests.support.command_line import run, run_process
from tuner import release
from tuner.base import extras
from tuner.base.extras import EXTRAS, MissingExtra
from tuner.base.files import cache_folder
from tuner.cli import installation

ROOT = Path(__file__).parents[2]
WHOLE_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = WHOLE_PROJECT["project"]
# Modules, pages of rooms, what Python makes of modules, and what is compiled at the installation.
NOT_DATA = frozenset({".py", ".md", "__pycache__", "_native"})


def distributions(extra: str) -> set[str]:
    """What pyproject.toml says that an extra installs, with the extras that it names."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if own := re.match(r"nccl-tuner\[(.*)\]", requirement):
            found |= set().union(*map(distributions, own[1].split(",")))
        else:
            found.add(re.split(r"[\[>=;]", requirement)[0])
    return found


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_an_extra_gives_what_it_says(extra: extras.Extra) -> None:
    assert set(extra.modules.values()) == distributions(extra.name) - {"nvidia-nccl-cu12"}


def test_all_has_every_extra_and_the_base_none() -> None:
    assert distributions("all") == set().union(*(distributions(extra.name) for extra in EXTRAS))
    base = {re.split(r"[>=;]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert base == {"numpy", "click", "rich", "platformdirs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("scipy", ("fit", "alpha-beta", "--sweep", "docs/examples/all_reduce.log"), "fit"),
        ("elftools", ("fetch-nccl", "2.28.9"), "oracle"),
        ("bokeh", ("plot", "page", "--machine", "dgx-h100", "--out", "{table}"), "report"),
        ("_cffi_backend", ("plugin", "dry-run", "{table}", "allreduce", "--machine", "dgx-h100"), "plugin"),
    ],
)
def test_a_command_says_the_extra_that_it_lacks(
    module: str, words: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{module!r}] = None\n")
    (tmp_path / "a.table").write_text("allreduce * * * ring simple\n")
    words = tuple(word.format(table=tmp_path / "a.table") for word in words)
    code = "import sys; from tuner.cli import main; sys.argv[1:] = " + repr(list(words)) + "; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "NCCL_TUNER_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f": pip install 'nccl-tuner[{extra}]'")
    assert "Traceback" not in done.stderr
    assert "computing" not in done.stderr  # it is said before the work


@pytest.mark.slow
def test_without_extras_and_without_posix_files_are_read_and_judged() -> None:
    """As on Windows and in a browser, which have neither fcntl nor termios."""
    absent = [*dict.fromkeys(module for extra in EXTRAS for module in extra.modules), "fcntl", "termios"]
    asked = [
        ["diagnose", *(f"docs/examples/{file}" for file in ("all_reduce.log", "nccl.log", "guest.xml", "topo.txt"))],
        ["diagnose", "docs/examples/trace.json", "--machine", "dgx-h100", "--nodes", "2"],
        ["accept", "docs/examples/all_reduce.log", "--machine", "dgx-h100"],
        ["pick", "allreduce", "--topology", "docs/examples/guest.xml", "--nodes", "2", "--bytes", "1M"],
        ["diff", "--machine", "dgx-h100", "--nodes", "2", "2.22.3", "2.28.9"],
        ["measured", "docs/examples/all_reduce.log"],
    ]
    code = (
        f"import json, sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        f"from tuner.cli.tools import answered\nprint(json.dumps([answered(each) for each in {asked!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [answer[0] for answer in found] == [1, 3, 1, 0, 0, 0], found
    assert all(not answer[2] for answer in found), [answer[2] for answer in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "codes", "asked"),
    [
        (
            "",
            [0, 0, 0, 0, 0, 0, 0, 0],
            [
                "budget docs/examples/step.csv --machine dgx-b200 --nodes 2",
                "explain allreduce --machine dgx-h100 --nodes 2 --bytes 1M",
                "edges allreduce --machine dgx-h100 --nodes 2",
                "plugin lint {table}",
                "plugin path",
                "table --machine dgx-h100 --nodes 2",
                "export allreduce --machine dgx-h100 --nodes 2 --format compiled -o {table}.picks",
                "doctor",
            ],
        ),
        ("plugin", [0], ["plugin dry-run {table} allreduce --machine dgx-h100 --nodes 2"]),
        (
            "fit",
            [0, 1, 1],
            [
                "verify {run}",
                "decide {run} --no-gate -o {table}.decided",
                "accept docs/examples/all_reduce.log --machine dgx-h100",
            ],
        ),
    ],
)
def test_an_extra_alone_is_enough_for_its_commands(
    extra: str, codes: list[int], asked: list[str], tmp_path: Path
) -> None:
    """Nothing that another extra installs is there: no pyelftools for a dry run, nor anything for a budget."""
    own = {module for each in EXTRAS if each.name == extra for module in each.modules}
    absent = [*dict.fromkeys(module for each in EXTRAS for module in each.modules if module not in own)]
    (tmp_path / "a.table").write_text("nccl-tuner-table 1\nallreduce bytes=1048576..8388608 nodes=2 -> ring/ll128\n")
    run = tmp_path / "run.jsonl"
    if extra == "fit":
        simulated = (
            "measure allreduce --backend simulated --seed 5 --machine dgx-h100 --nodes 2 --rounds 4 --bytes 1M,8M"
        )
        subprocess.run([sys.executable, "-m", "tuner", *simulated.split(), "--out", run], cwd=ROOT, check=True)
    for words, code in zip(asked, codes, strict=True):
        given = words.format(table=tmp_path / "a.table", run=run).split()
        program = (
            f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
            f"from tuner.cli import main; sys.argv[1:] = {given!r}; main()"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, "pip install" in done.stderr) == (code, False), (words, done.stderr)


def test_every_file_that_a_package_reads_is_in_the_wheel() -> None:
    """An installation from a clone's folder has only what the project's file names, unlike an editable one."""
    packed = WHOLE_PROJECT["tool"]["setuptools"]["package-data"]
    folders = {"tuner.tables": ROOT / "tables", "tuner": ROOT / "tuner", "nccl_tuner": ROOT / "nccl_tuner"}
    in_wheel = {
        found
        for package, patterns in packed.items()
        for pattern in patterns
        for found in folders.get(package, ROOT / package.replace(".", "/")).glob(pattern)
    }
    there = {found for folder in folders.values() for found in folder.rglob("*") if found.is_file()}
    left_out = {found for found in there - in_wheel if not NOT_DATA.intersection((*found.parts, found.suffix))}
    assert not left_out


def test_a_module_of_no_extra_is_no_missing_extra() -> None:
    assert extras.missing("nothing", "this") is None
    assert extras.missing(None, "this") is None
    assert isinstance(extras.missing("scipy.optimize", "this"), MissingExtra)


def test_the_other_name_is_the_same_package() -> None:
    assert nccl_tuner.base.names is tuner.base.names
    assert nccl_tuner.communicator is tuner.communicator
    assert nccl_tuner.__all__ == tuner.__all__
    assert tuner.base.names.__spec__ is not None
    assert tuner.base.names.__spec__.name == "tuner.base.names"
    with pytest.raises(ModuleNotFoundError):
        __import__("nccl_tuner.nothing")


@pytest.mark.parametrize("other", ["tuner.py", "tuner/__init__.py"])
def test_another_tuner_is_named_and_does_not_run(other: str, tmp_path: Path) -> None:
    file = tmp_path / other
    file.parent.mkdir(exist_ok=True)
    file.write_text("print('it ran')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import nccl_tuner"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"ImportError: the module 'tuner' that Python finds is {file}" in done.stderr


def test_the_command_names_another_tuner_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuner.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_process("--version", code=2)
    assert done.stderr.startswith(f"nccl-tuner: the module 'tuner' that Python finds is {tmp_path / 'tuner.py'}")
    assert done.stderr.count("\n") == 1


def test_doctor_says_what_is_missing_and_how_to_mend_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("polars", "cffi", "_cffi_backend"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    said = json.loads(run("doctor", "--json").stdout)
    missing = {each["name"]: each["missing"] for each in said["extras"]}
    assert (missing["parquet"], missing["plugin"]) == (["polars"], ["cffi"])
    assert said["cached"] == []
    assert said["cache"] == str(tmp_path)
    text = run("doctor").stdout
    assert text.startswith("everything that is installed works; these extras are not installed: ")
    assert "pip install 'nccl-tuner[parquet]'" in text
    assert said["releases"] == release.names()
    assert ", ".join(said["releases"]) in text
    library = tmp_path / "2.28.9" / "libnccl.so.2"
    library.parent.mkdir()
    library.write_bytes(b"1234")
    assert json.loads(run("doctor", "--json").stdout)["cached"] == [
        {"release": "2.28.9", "build": "cu12", "path": str(library), "bytes": 4}
    ]


def test_doctor_fails_where_an_object_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "FOLDER", tmp_path)
    text = run("doctor", code=1).stdout
    assert text.startswith("does not work: libnccl_tuner_plugin.so")
    assert "libnccl_tuner_plugin.so: reinstall" in text


def test_doctor_fails_where_an_object_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in installation.OBJECTS:
        (tmp_path / name).write_bytes(b"no object")
    monkeypatch.setattr(installation, "FOLDER", tmp_path)
    said = json.loads(run("doctor", "--json", code=1).stdout)["parts"]
    states = {part["name"]: (part["works"], part["state"]) for part in said}
    for name in installation.OBJECTS:
        assert states[name][0] is False
        assert states[name][1].startswith(f"cannot be loaded: {tmp_path / name}")


def test_doctor_fails_where_an_object_is_of_an_older_build(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("tuner._native._sim")
    older = SimpleNamespace(
        ffi=module.ffi,
        lib=SimpleNamespace(
            sim_sources=lambda: module.ffi.new("char[]", b"older"), sim_expected_sources=module.lib.sim_expected_sources
        ),
    )
    of = {"_sim": older, "_plugin": SimpleNamespace(lib=None), "_force": SimpleNamespace(lib=None)}
    monkeypatch.setattr(installation, "bindings", of.get)
    assert "_sim: pip install --force-reinstall nccl-tuner" in run("doctor", code=1).stdout


def test_a_user_without_a_home_has_a_cache_that_is_no_folder_of_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_TUNER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 0x7FFFFFF0)  # which no file of users has
    assert cache_folder() == Path("/.cache/nccl-tuner")


def test_completion_knows_names_of_machines_and_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NCCL_TUNER_COMPLETE", "bash_complete")
    for words, complete in {
        "nccl-tuner pi": {"pick"},
        "nccl-tuner pick allreduce --machine dgx-h": {"dgx-h100", "dgx-h200"},
        "nccl-tuner pick allreduce --nccl 2.18": {"2.18.1", "2.18.3"},
        "nccl-tuner pick all": {"allreduce", "allgather", "alltoall"},
        "nccl-tuner edges red": {"reduce", "reducescatter"},
        "nccl-tuner diff allreduce nic-": {"nic-gbps=", "nic-latency-us="},
        "nccl-tuner diff allreduce NCCL_ALG": {"NCCL_ALGO="},
        "nccl-tuner pick allreduce --env NCCL_PROT": {"NCCL_PROTO="},
        "nccl-tuner pick allreduce --tuner aws-ofi-nccl=1.9": {f"aws-ofi-nccl=1.9.{last}" for last in (0, 1, 2)},
        "nccl-tuner pick allreduce --dtype bf": {"bfloat16"},
        "nccl-tuner budget --model llama-3-": {"llama-3-8b", "llama-3-70b", "llama-3-405b"},
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert set(run_process().stdout.split()) == {f"plain,{word}" for word in complete}
    monkeypatch.delenv("_NCCL_TUNER_COMPLETE")
    assert "_NCCL_TUNER_COMPLETE=zsh_complete" in run_process("completion", "zsh").stdout
